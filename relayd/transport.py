"""A plain socket's transport, as asyncio's but in one Python call a read and one a write.

For loops over a selector, above all `poller`'s; `tlstransport` sits on it. uvloop keeps its own:
they are as cheap, and its `add_reader` never tells of a reset (libuv stops at EPOLLERR). Does not
know what a byte means.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

READ_SIZE = 65536
"""Bytes asked of the kernel in one read: asyncio's own 256 KiB is allocated anew for each read."""

WRITE_HIGH = 65536
"""Bytes that may wait for a slow reader before its source is paused (asyncio's own default)."""

NOBODY = asyncio.Protocol()
"""Whom a transport tells while there is no protocol."""


def discard(data: bytes) -> None:
    """Nobody reads any more."""


def report(loop: asyncio.AbstractEventLoop, protocol: object, exc: BaseException) -> None:
    """A protocol has raised what it should have kept to itself."""
    context = {"message": "a protocol failed", "exception": exc, "protocol": protocol}
    loop.call_exception_handler(context)


def fits(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether connections have transports of ours on this loop, or the loop's own."""
    return isinstance(loop, asyncio.SelectorEventLoop)


class SocketTransport(asyncio.Transport):
    """One connected, non-blocking stream socket, which it owns.

    As far as relayd asks it does what asyncio's does. It reads once it has a protocol, and `write`
    takes bytes alone and does nothing once the transport closes or has said its end.
    """

    __slots__ = (
        "_at_end",
        "_backlog",
        "_closing",
        "_fd",
        "_free",
        "_full",
        "_gone",
        "_high",
        "_loop",
        "_low",
        "_protocol",
        "_reading",
        "_recv",
        "_said_all",
        "_send",
        "_sock",
        "_waiting",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        super().__init__()
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._recv = sock.recv
        self._send = sock.send
        self._protocol: Any = NOBODY  # Any: a protocol's methods may be places
        self._backlog = bytearray()  # written, and not yet taken by the kernel
        self._high = WRITE_HIGH
        self._low = WRITE_HIGH // 4
        self._free = True  # what is written may go straight to the kernel
        self._full = False  # the protocol was asked to pause
        self._waiting = False  # for the kernel to take more
        self._reading = False
        self._at_end = False  # the peer has said all
        self._said_all = False  # we have
        self._closing = False
        self._gone = False  # the protocol is being told of the loss

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Who is told from now on."""
        self._protocol = protocol
        self.resume_reading()

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who is told."""
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`socket`, `sockname` or `peername`."""
        with contextlib.suppress(OSError):
            if name == "socket":
                return self._sock
            if name == "sockname":
                return self._sock.getsockname()
            if name == "peername":
                return self._sock.getpeername()
        return default

    # Reading.

    def is_reading(self) -> bool:
        """Whether the protocol is given what comes."""
        return self._reading

    def pause_reading(self) -> None:
        """Leave what comes to the kernel."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        """Give the protocol what comes, up to the peer's end."""
        if not (self._reading or self._at_end or self._closing):
            self._reading = True
            self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        # A callable kept in a slot is called quicker from a local (Python 3.11).
        recv = self._recv
        try:
            data = recv(READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self._lose(exc)
            return
        try:
            if data:
                received = self._protocol.data_received
                received(data)
            else:
                self._end()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:  # noqa: BLE001  (bytes are lost: the protocol must not go on)
            self._fault(exc)

    def _end(self) -> None:
        self._at_end = True
        self.pause_reading()
        if not self._protocol.eof_received():
            self.close()

    # Writing.

    def write(self, data: bytes) -> None:  # type: ignore[override]
        """Send; nothing happens once the transport is closing."""
        if not self._free:
            self._queue(data)
            return
        send = self._send
        try:
            sent = send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as exc:
            self._lose(exc)
            return
        if sent != len(data):
            self._free = False
            self._waiting = True
            self._loop.add_writer(self._fd, self._writable)
            self._queue(memoryview(data)[sent:])

    def can_write_eof(self) -> bool:
        """A socket can be half closed."""
        return True

    def write_eof(self) -> None:
        """Say that nothing more comes, behind what was written; raises OSError."""
        if self._said_all or self._closing:
            return
        self._said_all = True
        self._free = False
        if not self._backlog:
            self._sock.shutdown(socket.SHUT_WR)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Above how many bytes the protocol has to pause, at how many it may go on."""
        self._high = WRITE_HIGH if high is None else high
        self._low = self._high // 4 if low is None else low
        self._measure()

    def get_write_buffer_size(self) -> int:
        """Bytes not yet taken by the kernel."""
        return len(self._backlog)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Low and high."""
        return self._low, self._high

    def _queue(self, data: bytes | memoryview) -> None:
        if not (self._closing or self._said_all):
            self._backlog += data
            self._measure()

    def _measure(self) -> None:
        size = len(self._backlog)
        if size > self._high and not self._full:
            self._full = True
            self._protocol.pause_writing()
        elif self._full and size <= self._low:
            self._full = False
            self._protocol.resume_writing()

    def _writable(self) -> None:
        try:
            sent = self._send(self._backlog)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self._lose(exc)
            return
        del self._backlog[:sent]
        self._measure()  # the protocol may write more, or close
        if self._backlog or self._gone:
            return
        if self._closing:
            self._leave(None)
            return
        self._wait_no_more()
        if self._said_all:
            with contextlib.suppress(OSError):  # the peer has reset, and a read will say so
                self._sock.shutdown(socket.SHUT_WR)
        else:
            self._free = True

    def _wait_no_more(self) -> None:
        if self._waiting:
            self._waiting = False
            self._loop.remove_writer(self._fd)

    # The end.

    def is_closing(self) -> bool:
        """Whether it is closed, or will be when everything was sent."""
        return self._closing

    def close(self) -> None:
        """Send what was written, then close."""
        if not self._closing:
            self._closing = True
            self._free = False
            self.pause_reading()
            if not self._backlog:
                self._leave(None)

    def abort(self) -> None:
        """Close; what is not sent is lost."""
        self._lose(None)

    def _fault(self, exc: BaseException) -> None:
        """The protocol failed."""
        report(self._loop, self._protocol, exc)
        self._lose(exc)

    def _lose(self, exc: BaseException | None) -> None:
        """Close at once, for this reason: what `connection_lost` is told."""
        if self._gone:
            return
        self._closing = True
        self._free = False
        self.pause_reading()
        self._backlog.clear()
        self._leave(exc)

    def _leave(self, exc: BaseException | None) -> None:
        """Tell the protocol, not from within its own call."""
        self._gone = True
        self._wait_no_more()
        self._loop.call_soon(self._lost, exc)

    def _lost(self, exc: BaseException | None) -> None:
        protocol, self._protocol = self._protocol, NOBODY
        try:
            protocol.connection_lost(exc)
        finally:
            self._sock.close()
