"""Sockets: a connection with a bounded buffer.

`asyncio.start_server` accepts and `dial` connects; what they open is handed to a `Conn`, whose
callbacks cost less per read than a stream and two tasks. On asyncio's own loop it is read and
written by our own `transport`, on uvloop by the loop's. Does not know HTTP, providers, or what a
byte means.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import socket
import ssl
import sys
import termios
from collections.abc import Callable
from typing import Any

from .gather import told
from .stall import Stall
from .tlstransport import TlsTransport
from .transport import READ_SIZE, WRITE_HIGH, SocketTransport, discard, fits
from .wake import EARLY, Wake

BUFFER = 4 * READ_SIZE
"""Bytes kept for a reader that is behind before reading pauses, where nobody set another limit."""

SALVAGED_READS = 4
"""Reads of what a dropped connection still held: an early answer is smaller than one."""

LAST_WORDS = 60.0
"""Seconds in which a peer takes nothing of what was written before a close, until it is dropped."""


def reason(exc: OSError) -> str:
    """Why there is no connection, file or listener: words of the system, without asyncio's."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {exc.verify_message.rstrip('.')}"
    if isinstance(exc, ssl.SSLError):  # its errno is none of the system's
        return f"TLS fails: {exc.reason or exc}"
    number = exc.errno or 0
    words = os.strerror(number) if number > 0 else exc.strerror or str(exc) or type(exc).__name__
    return words[:1].lower() + words[1:]


def plain(writer: asyncio.StreamWriter) -> SocketTransport | asyncio.StreamWriter:
    """What a `Conn` takes of a connection without TLS: its socket, if the loop is asyncio's own.

    The descriptor itself moves, out of a transport that has ended: a second one of the same socket
    would cost each client of a burst two files.
    """
    loop = asyncio.get_running_loop()
    if not fits(loop):
        return writer
    old: socket.socket = writer.get_extra_info("socket")._sock  # asyncio wraps it
    writer.transport.abort()
    sock = socket.socket(old.family, old.type, old.proto, fileno=old.detach())
    sock.setblocking(False)
    return SocketTransport(loop, sock)


def _nothing() -> None:
    """Nobody listens."""


class Conn(asyncio.Protocol):
    """One TCP, TLS or unix connection.

    Bytes go to `sink` when there is one, else into `buffer`, which pauses reading above `limit`
    bytes. Unless `hold` is False: bytes beyond are then dropped and `overran` says so, because a
    paused connection cannot tell that its peer leaves. `ended` is True after FIN or loss, `error`
    the loss's cause. `wake` is woken by both; `on_end` is called besides. `on_behind` is called
    when `writable` becomes False, `on_writable` when it is True again.
    """

    data_received: Callable[[bytes], None]  # type: ignore[assignment]  # a place, not a method
    write: Callable[[bytes], None]
    """Send; nothing happens once the connection is closing."""

    __slots__ = (
        "_keep",
        "_paused",
        "_probe",
        "_sink",
        "born",
        "buffer",
        "data_received",
        "ended",
        "error",
        "hold",
        "limit",
        "lost",
        "on_behind",
        "on_end",
        "on_writable",
        "overran",
        "since",
        "transport",
        "unasked",
        "wake",
        "writable",
        "write",
    )

    def __init__(
        self,
        link: SocketTransport | TlsTransport | asyncio.StreamWriter,
        wake: Wake | None,
        born: float,
    ) -> None:
        self.transport: Any  # Any: read and write side in one object
        if not isinstance(link, asyncio.StreamWriter):
            self.transport = link
            self.write = link.write
        else:
            # The writer has to live, since its finaliser closes the transport. Its reader and
            # protocol are of no use any more, and would cost 3 KB a stream.
            link.__dict__.update(_reader=None, _protocol=None)
            self._keep = link
            self.transport = link.transport
            self.write = self._write
        self.buffer = bytearray()
        self.limit = BUFFER
        self.hold = True
        self.overran = False
        self.ended = False
        self.lost = False
        self.error: Exception | None = None
        self.writable = True
        self.born = self.since = born  # loop time; `since` and `unasked` are its pool's
        self.unasked: Callable[..., None] | None = None
        self.sink = None
        self.on_end: Callable[[], None] = _nothing
        self.on_writable: Callable[[], None] = _nothing
        self.on_behind: Callable[[], None] = _nothing
        self.wake = wake
        self._paused = False
        self._probe: select.poll | None = None
        if link is not self.transport:
            self.data_received = told(asyncio.get_running_loop(), self._in_turn)
        self.transport.set_protocol(self)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH)

    @property
    def sink(self) -> Callable[[bytes], None] | None:
        """Who is given each read; None: it goes into the buffer."""
        return self._sink

    @sink.setter
    def sink(self, call: Callable[[bytes], None] | None) -> None:
        # `transport` looks `data_received` up for each read, which may so be the sink itself;
        # uvloop does once.
        self._sink = call
        self.data_received = call or (discard if self.lost else self._received)

    # What the transport calls: this as `data_received`, and the others.

    def _received(self, data: bytes) -> None:
        """Keep bytes, which have no sink, and wake who waits."""
        if not self.hold and len(self.buffer) + len(data) > self.limit:
            self.overran = True
            return
        self.buffer += data
        if len(self.buffer) > self.limit:
            self.pause()
        if self.wake is not None:
            self.wake.turn()

    def _in_turn(self, data: bytes) -> None:
        """A read on uvloop, which reads on, up to 32 times, while 256,000 bytes come at once."""
        if len(data) > READ_SIZE and not self._paused and not self.transport.is_closing():
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._next_turn)
        (self._sink or self._received)(data)

    def _next_turn(self) -> None:
        if not self._paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def eof_received(self) -> bool:
        """Note the FIN; keep our own sending side open, which TLS cannot (asyncio warns)."""
        self._end()
        return self.transport.get_extra_info("ssl_object") is None

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the loss, after taking what the kernel still holds for us."""
        self.lost = True
        self.error = exc
        if exc is not None and not self.ended:
            wake, self.wake = self.wake, None  # who waits is told when all of it is there
            self._salvage()
            self.wake = wake
        self.data_received = self.write = discard  # nothing more comes, and no circle is left
        self.unasked = None
        self.writable = True
        self._end()
        self.on_writable()

    def pause_writing(self) -> None:
        """The peer reads slower than we write."""
        self.writable = False
        self.on_behind()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self.writable = True
        self.on_writable()

    # What its user calls.

    def finish(self) -> None:
        """Half-close: everything was said, the peer may still speak."""
        if not self.transport.is_closing():
            with contextlib.suppress(OSError):  # the peer has reset, and the loop will say so next
                self.transport.write_eof()

    def mark(self, high: int) -> None:
        """From how many unsent bytes on `writable` is False; at 0, `on_writable` means all sent."""
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits(high=high)

    def take(self) -> bytes:
        """Everything in the buffer; reading goes on if it was paused."""
        data = bytes(self.buffer)
        self.buffer.clear()
        self.resume()
        return data

    def pause(self) -> None:
        """Stop reading: the kernel's window closes and the peer's send blocks."""
        if not self._paused and not self.ended and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def pending(self) -> int:
        """Bytes written and not yet taken by the kernel."""
        closing = self.lost or self.transport.is_closing()
        return 0 if closing else int(self.transport.get_write_buffer_size())

    def untaken(self) -> int:
        """Bytes that the peer has not taken: what is pending, and what the kernel has of it.

        The kernel asks for more only when a third of its buffer is free, which may be megabytes:
        of a slow reader nothing else is seen for minutes.
        """
        if self.lost:
            return 0
        sock, size = self.transport.get_extra_info("socket"), bytearray(4)
        with contextlib.suppress(OSError):
            fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, size)
        return int(self.transport.get_write_buffer_size()) + int.from_bytes(size, sys.byteorder)

    def is_quiet(self) -> bool:
        """True if the peer has sent nothing, not even a FIN, that was not read yet."""
        if self.ended or self.buffer or self.transport.is_closing():
            return False
        if self._probe is None:
            self._probe = select.poll()
            self._probe.register(self.transport.get_extra_info("socket"), select.POLLIN)
        return not self._probe.poll(0)

    def holds_part(self) -> bool:
        """Whether a read ended within a record of TLS, of which nobody was told."""
        return isinstance(self.transport, TlsTransport) and self.transport.part

    def silence(self) -> None:
        """Nobody listens any more."""
        self.sink = None
        self.wake = None
        self.on_end = self.on_writable = self.on_behind = _nothing

    def close(self) -> None:
        """Send what is written, then close; a peer that does not take it is not waited for."""
        self.silence()
        if self.pending():
            self._see_out(Stall(self.untaken, LAST_WORDS, asyncio.get_running_loop().time()))
        self.write = discard  # uvloop would send it behind what is pending
        self.transport.close()

    def abort(self) -> None:
        """Close now; what is not yet sent is lost."""
        self.silence()
        self.write = discard
        if not self.lost:
            self.transport.abort()

    @property
    def can_reset(self) -> bool:
        """Whether `reset` is more than a close."""
        sock = None if self.lost else self.transport.get_extra_info("socket")
        return sock is not None and sock.family != socket.AF_UNIX

    def reset(self) -> None:
        """Close with RST: to a peer that takes a plain close for a complete answer."""
        if self.can_reset:
            sock = self.transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.abort()

    def _write(self, data: bytes) -> None:
        try:
            self.transport.write(data)
        except RuntimeError:  # so uvloop tells that it is closed
            if not self.transport.is_closing():
                raise

    def _end(self) -> None:
        self.ended = True
        if self.wake is not None:
            self.wake.wake()
        self.on_end()

    def _see_out(self, stall: Stall) -> None:
        """Close at once when the peer takes nothing of the last words any more."""
        if self.lost:
            return
        loop = asyncio.get_running_loop()
        now = loop.time() + EARLY
        due = stall.due(now)
        if due <= now:
            self.transport.abort()
        else:
            loop.call_at(due, self._see_out, stall)

    def _salvage(self) -> None:
        # A write that fails (EPIPE, RST) drops the connection with an answer unread in the kernel:
        # an early 413 would be lost.
        fd = self.transport.get_extra_info("socket").fileno()
        tls = isinstance(self.transport, TlsTransport)
        with contextlib.suppress(OSError, ValueError):
            for _ in range(SALVAGED_READS):
                data = os.read(fd, READ_SIZE)
                if not data:
                    return
                self.data_received(self.transport.late(data) if tls else data)
