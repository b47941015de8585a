"""Sockets: a connection with a bounded buffer, a place to wait, a clock that moves.

The only module that knows asyncio transports. `asyncio.start_server` accepts and
`asyncio.open_connection` connects (`dial`); both then hand their transport to a `Conn`, whose
callbacks cost less per read than a stream and two tasks. Does not know HTTP, providers, or what a
byte means.

Waiting: one task waits on one `Wake`. Whatever may end the wait (bytes, the end of a connection, a
clock, a departing client, the drain) calls `Wake.wake` or `Wake.interrupt`, so no second task and
no timeout object is needed per wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import Callable
from enum import Enum
from typing import Any

READ_SIZE = 65536
"""Bytes asked of the kernel in one read: asyncio's own 256 KiB is allocated anew for each read."""

WRITE_HIGH = 65536
"""Bytes that may wait for a slow reader before its source is paused (asyncio's own default)."""


class Why(Enum):
    """What interrupts an exchange from outside; none of them is the provider's fault."""

    CLIENT_LEFT = "client_left"
    CLIENT_STALLED = "client_stalled"
    DEADLINE = "deadline"
    DRAINING = "draining"


class Interrupt(Exception):
    """Raised by `Wake.wait`: the exchange must end now, `why` says for what."""

    def __init__(self, why: Why) -> None:
        super().__init__(why.value)
        self.why = why


class Wake:
    """Where one task waits. `wake` may be spurious: the waiter looks again at what it waits for.

    `interrupt` is sticky until `reset`: every later wait raises it too.
    """

    __slots__ = ("_future", "_loop", "why")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] | None = None
        self.why: Why | None = None

    async def wait(self) -> None:
        """Return after the next `wake`; raise `Interrupt` if there was one."""
        if self.why is None:
            self._future = self._loop.create_future()
            try:
                await self._future
            finally:
                self._future = None
        if self.why is not None:
            raise Interrupt(self.why)

    def wake(self) -> None:
        """End the wait, if there is one."""
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    def interrupt(self, why: Why) -> None:
        """End this wait and each later one with `Interrupt(why)`; the first reason stays."""
        if self.why is None:
            self.why = why
        self.wake()

    def reset(self) -> None:
        """Forget the interrupt: the next exchange starts clean."""
        self.why = None


class Alarm:
    """A clock that is moved, not recreated: a later `set` leaves the loop's timer where it is.

    The timer then fires early once, sees that it is not yet due, and moves itself.
    """

    __slots__ = ("_due", "_loop", "_timer", "action")

    def __init__(self, loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
        self._loop = loop
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.action = action

    def set(self, when: float) -> None:
        """Ring at `when` (loop time, seconds) instead of any earlier or later time set before."""
        self._due = when
        timer = self._timer
        if timer is None:
            self._timer = self._loop.call_at(when, self._ring)
        elif timer.when() > when:
            timer.cancel()
            self._timer = self._loop.call_at(when, self._ring)

    def clear(self) -> None:
        """Do not ring; cheap, since the loop's timer stays for the next `set`."""
        self._due = None

    def stop(self) -> None:
        """Do not ring any more and leave nothing in the loop."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        due = self._due
        if due is None:
            return
        # A timer may fire up to the clock's resolution early; "now" is then as good as due.
        if self._loop.time() + 1e-4 < due:
            self._timer = self._loop.call_at(due, self._ring)
            return
        self._due = None
        self.action()


def _nothing() -> None:
    """Nobody listens."""


class Conn(asyncio.Protocol):
    """One TCP, TLS or unix connection.

    Bytes go to `sink` when there is one, else into `buffer`, which pauses reading above `limit`
    bytes unless `overrun` may happen (`hold` is False: the bytes are then dropped and `overran`
    says so, because a paused connection cannot tell that its peer leaves). `ended` is True after
    FIN or loss, `error` the loss's cause. `wake` is woken by both; `on_end` and `on_writable` are
    called besides.
    """

    __slots__ = (
        "_keep",
        "_paused",
        "_probe",
        "born",
        "buffer",
        "ended",
        "error",
        "hold",
        "limit",
        "lost",
        "on_end",
        "on_writable",
        "overran",
        "sink",
        "transport",
        "wake",
        "writable",
    )

    def __init__(self, writer: asyncio.StreamWriter, wake: Wake | None, born: float) -> None:
        # The writer stays referenced: its finaliser closes the transport.
        self._keep = writer
        self.transport: Any = writer.transport  # Any: read and write side in one object
        self.buffer = bytearray()
        self.limit = 4 * READ_SIZE
        self.hold = True
        self.overran = False
        self.ended = False
        self.lost = False
        self.error: Exception | None = None
        self.writable = True
        self.born = born
        self.sink: Callable[[bytes], None] | None = None
        self.on_end: Callable[[], None] = _nothing
        self.on_writable: Callable[[], None] = _nothing
        self.wake = wake
        self._paused = False
        self._probe: select.poll | None = None
        self.transport.set_protocol(self)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH)
        if hasattr(self.transport, "max_size"):
            self.transport.max_size = READ_SIZE

    # What the transport calls.

    def data_received(self, data: bytes) -> None:
        """Hand bytes to the sink, or keep them and wake who waits."""
        sink = self.sink
        if sink is not None:
            sink(data)
            return
        if not self.hold and len(self.buffer) + len(data) > self.limit:
            self.overran = True
            return
        self.buffer += data
        if len(self.buffer) > self.limit:
            self.pause()
        if self.wake is not None:
            self.wake.wake()

    def eof_received(self) -> bool:
        """Note the FIN; keep our own sending side open, which TLS cannot (asyncio warns)."""
        self._end()
        return self.transport.get_extra_info("ssl_object") is None

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the loss, after taking what the kernel still holds for us."""
        self.lost = True
        self.error = exc
        if exc is not None and not self.ended:
            self._salvage()
        self.writable = True
        self._end()
        self.on_writable()

    def pause_writing(self) -> None:
        """The peer reads slower than we write."""
        self.writable = False

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self.writable = True
        self.on_writable()

    # What its user calls.

    def take(self) -> bytes:
        """Everything in the buffer; reading goes on if it was paused."""
        data = bytes(self.buffer)
        self.buffer.clear()
        self.resume()
        return data

    def pause(self) -> None:
        """Stop reading: the kernel's window closes and the peer's send blocks."""
        if not self._paused and not self.ended:
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            if not self.lost:
                self.transport.resume_reading()

    def pending(self) -> int:
        """Bytes written and not yet taken by the kernel."""
        return 0 if self.lost else int(self.transport.get_write_buffer_size())

    def is_quiet(self) -> bool:
        """True if the peer has sent nothing, not even a FIN, that was not read yet."""
        if self.ended or self.buffer or self.transport.is_closing():
            return False
        if self._probe is None:
            self._probe = select.poll()
            self._probe.register(self.transport.get_extra_info("socket"), select.POLLIN)
        return not self._probe.poll(0)

    def silence(self) -> None:
        """Nobody listens any more."""
        self.sink = None
        self.wake = None
        self.on_end = self.on_writable = _nothing

    def close(self) -> None:
        """Send what is written, then close."""
        self.silence()
        self.transport.close()

    def abort(self) -> None:
        """Close now; what is not yet sent is lost."""
        self.silence()
        self.transport.abort()

    def reset(self) -> None:
        """Close with RST: to a peer that takes a plain close for a complete answer."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.abort()

    def _end(self) -> None:
        self.ended = True
        if self.wake is not None:
            self.wake.wake()
        self.on_end()

    def _salvage(self) -> None:
        # A write that fails (EPIPE, RST) makes asyncio drop the connection with an answer unread
        # in the kernel: an early 413 would be lost. Plain TCP only: TLS bytes mean nothing here.
        if self.transport.get_extra_info("ssl_object") is not None:
            return
        fd = self.transport.get_extra_info("socket").fileno()
        with contextlib.suppress(OSError, ValueError):
            for _ in range(4):
                data = os.read(fd, READ_SIZE)
                if not data:
                    return
                self.data_received(data)


class Clock:
    """The one clock of whoever waits: a named due time below a deadline.

    When the deadline rings, the wake is interrupted; when the named time rings, `expired` holds
    its name and the waiter is woken to look at it.
    """

    __slots__ = ("alarm", "deadline", "expired", "loop", "name", "wake")

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Wake) -> None:
        self.loop = loop
        self.wake = wake
        self.alarm = Alarm(loop, self.rang)
        self.deadline = float("inf")
        self.name = ""
        self.expired: str | None = None

    def now(self) -> float:
        """Loop time in seconds."""
        return self.loop.time()

    def arm(self, name: str, when: float) -> None:
        """Name what is awaited now and until when."""
        self.name = name
        self.expired = None
        self.alarm.set(min(when, self.deadline))

    def disarm(self) -> None:
        """Nothing is awaited."""
        self.expired = None
        self.alarm.clear()

    def rang(self) -> None:
        """The alarm's action: the deadline, or what is named."""
        if self.loop.time() + 1e-4 >= self.deadline:
            self.wake.interrupt(Why.DEADLINE)
            return
        self.expired = self.name
        self.wake.wake()
