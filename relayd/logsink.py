"""Where log lines go: batches of them to stdout or stderr, without ever stopping the event loop.

O_NONBLOCK belongs to the open file description, which stdout shares with the shell, with stderr
or with the next generation, so no flag is changed here: sockets are sent to with MSG_DONTWAIT,
pipes and terminals are written when poll says so, files directly. Does not know what a line says.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import stat
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

BUFFER_LIMIT = 1024 * 1024
"""Bytes that wait for a slow reader; a line beyond them is lost and counted."""
FLUSH_BYTES = 16 * 1024
"""Bytes that do not wait for the timer."""
FLUSH_SECONDS = 0.02
"""How long a line waits for company: one write for many, and nobody who reads along notices."""
CHUNK_BYTES = 64 * 1024
"""Bytes of one write to a file or socket; a pipe gets `PIPE_BUF`, see `_pipe`."""
CLOSE_SECONDS = 1.0
"""What the lines left at the end may take, and what a line outside of a loop may."""


class _State(Enum):
    IDLE = "nothing is planned"
    TIMED = "lines wait for the timer"
    DUE = "lines wait for the next turn of the loop"
    BLOCKED = "lines wait for the reader"
    CLOSED = "nobody reads any more, or the sink was closed"


# Looked up once (see `surfaces`).
_IDLE, _TIMED, _DUE = _State.IDLE, _State.TIMED, _State.DUE
_BLOCKED, _CLOSED = _State.BLOCKED, _State.CLOSED


class StreamSink:
    """Writes lines to `fd` in batches, in the order they came. For one thread.

    In a running loop lines wait for a batch; outside of one they are written at once. Whoever made
    it closes it, in the loop or after it. `report(lines)` is called when something could be
    written again after lines were lost; a reader that has gone (EPIPE) is not worth a report.
    `lost` counts the lines that were lost, reported or not; not those of a reader that has gone.
    """

    def __init__(self, fd: int, limit: int = BUFFER_LIMIT) -> None:
        self.report: Callable[[int], None] = lambda lines: None
        self.lost = 0
        self._limit = limit
        self._lines: deque[bytes] = deque()
        self._held = 0
        self._untold = 0
        self._delivered = False
        self._state = _IDLE
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Handle | None = None
        self._out = _open(fd)

    def write(self, line: bytes) -> None:
        """Takes one line; drops and counts it if `limit` bytes wait already."""
        held = self._held + len(line)
        if held > self._limit or self._state is _CLOSED:
            self._drop(1)
            return
        self._held = held
        self._lines.append(line)
        if self._state is _IDLE:
            self._plan()
        elif held > FLUSH_BYTES and self._state is _TIMED:
            self._hurry()

    def close(self) -> None:
        """Writes what waits, within `CLOSE_SECONDS`; what comes later is dropped. Idempotent."""
        if self._state is _CLOSED:
            return
        self._rest()
        self._state = _DUE  # a report made now joins the lines below
        deadline = time.monotonic() + CLOSE_SECONDS
        self._finish(deadline)
        self._confess()
        self._finish(deadline)
        self._end()

    def _plan(self) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._finish(time.monotonic() + CLOSE_SECONDS)
            self._confess()
            return
        self._state = _TIMED
        self._timer = self._loop.call_later(FLUSH_SECONDS, self._flush)

    def _hurry(self) -> None:
        assert self._loop is not None
        self._rest()
        self._state = _DUE
        self._timer = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        assert self._loop is not None
        if self._push():
            self._rest()
            self._confess()
        elif self._state is not _BLOCKED:
            self._rest()
            self._state = _BLOCKED
            self._loop.add_writer(self._out.fd, self._flush)

    def _finish(self, deadline: float) -> None:
        ready = select.poll()
        ready.register(self._out.fd, select.POLLOUT)
        while not self._push():
            left = deadline - time.monotonic()
            if left <= 0 or not ready.poll(left * 1000):
                return

    def _push(self) -> bool:
        """Writes until nothing waits (True) or the reader is too slow (False)."""
        while self._lines:
            batch = self._batch()
            try:
                sent = self._out.send(batch[: self._out.chunk])
            except BlockingIOError:
                self._lines.appendleft(batch)
                return False
            except ConnectionError:  # EPIPE too: nobody will ever read
                self._end()
                return True
            except OSError:  # a full disk: these lines are gone, the next may find room
                self._drop(batch.count(b"\n"))
                self._held -= len(batch)
                continue
            self._delivered = True
            self._held -= sent
            if sent < len(batch):
                self._lines.appendleft(batch[sent:])
        return True

    def _drop(self, lines: int) -> None:
        self._untold += lines
        self.lost += lines

    def _batch(self) -> bytes:
        lines = [self._lines.popleft()]
        room = self._out.chunk - len(lines[0])
        while self._lines and len(self._lines[0]) <= room:
            room -= len(self._lines[0])
            lines.append(self._lines.popleft())
        return b"".join(lines)

    def _confess(self) -> None:
        # Only after a success: a report that is lost itself must not cause the next one.
        delivered, self._delivered = self._delivered, False
        if self._untold and delivered and self._state is not _CLOSED:
            lost, self._untold = self._untold, 0
            self.report(lost)

    def _rest(self) -> None:
        """No timer and no watch on the descriptor any more."""
        if self._loop is not None and not self._loop.is_closed():
            if self._state is _BLOCKED:
                self._loop.remove_writer(self._out.fd)
            if self._timer is not None:
                self._timer.cancel()
        self._timer = None
        if self._state is not _CLOSED:
            self._state = _IDLE

    def _end(self) -> None:
        if self._state is not _CLOSED:
            self._rest()
            self._state = _CLOSED
            self._lines.clear()
            self._held = 0
            self._out.close()


@dataclass(frozen=True, slots=True)
class _Out:
    """A descriptor of our own: `send` returns how much it took, or raises BlockingIOError."""

    fd: int
    chunk: int
    send: Callable[[bytes], int]
    close: Callable[[], None]


def _open(fd: int) -> _Out:
    mode = os.fstat(fd).st_mode
    if stat.S_ISSOCK(mode):
        return _socket(socket.socket(fileno=os.dup(fd)))
    if stat.S_ISFIFO(mode) or os.isatty(fd):
        return _pipe(fd)
    own = os.dup(fd)
    return _Out(own, CHUNK_BYTES, lambda data: os.write(own, data), lambda: os.close(own))


def _socket(own: socket.socket) -> _Out:
    flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
    return _Out(own.fileno(), CHUNK_BYTES, lambda data: own.send(data, flags), own.close)


def _pipe(fd: int) -> _Out:
    """A pipe that poll calls writable takes `PIPE_BUF` bytes without blocking, O_NONBLOCK or not.

    Another writer of the same pipe could come between, so a description of our own, with
    O_NONBLOCK, is better. Where the pipe belongs to another user that is refused. A terminal is
    written like one: who stops it (Ctrl-S) would stop relayd.
    """
    try:
        own = os.open(
            f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        )
    except OSError:
        own = os.dup(fd)
    ready = select.poll()
    ready.register(own, select.POLLOUT)

    def send(data: bytes) -> int:
        if not ready.poll(0):
            raise BlockingIOError
        return os.write(own, data)

    return _Out(own, select.PIPE_BUF, send, lambda: os.close(own))
