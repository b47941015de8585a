"""TLS to a provider over a plain socket's transport: what comes is decrypted in the same call.

The transport below is ours or uvloop's. asyncio's own TLS takes a read through five calls and a
buffer of its own per connection, and tells the records of one read one by one. Client side only.
Does not know what a byte means.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

from .gather import told
from .transport import NOBODY, READ_SIZE, SocketTransport, discard, fits, report

RECORD = 16384
"""Bytes of text that a record may hold (RFC 8446, 5.1)."""

SEALED_AT_ONCE = 4 * READ_SIZE
"""Bytes encrypted in one go: OpenSSL's buffer stays as big as it ever was."""


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """The transport of what is said inside TLS, and the protocol of the transport below.

    `secured` makes one; `agreed` is told how the handshake ended. It reads once it has a protocol;
    `write` takes bytes alone and does nothing once the transport closes. There is no half-close. A
    peer that ends its connection without a close_notify has ended it: whether that is a cut is for
    the framing inside to say.
    """

    data_received: Callable[[bytes], None]  # type: ignore[assignment]  # a place, not a method
    """What the socket's transport calls: the handshake first, then the reading."""

    __slots__ = (
        "_agreed",
        "_backlog",
        "_closing",
        "_fault",
        "_incoming",
        "_link",
        "_loop",
        "_outgoing",
        "_protocol",
        "_read",
        "_reading",
        "_ssl",
        "_write",
        "data_received",
        "part",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext,
        name: str,
        agreed: asyncio.Future[None],
    ) -> None:
        super().__init__()
        self._loop = loop
        self._link: asyncio.Transport  # the one below
        self._fault: Any = None  # why it was given up
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._read = self._ssl.read
        self._write = self._ssl.write
        self._protocol: Any = NOBODY  # Any: a protocol's methods may be places
        self._backlog = bytearray()  # written while the peer negotiates anew, not yet encrypted
        self.part = False  # the last read ended within a record
        self._reading = False
        self._closing = False
        self._agreed: asyncio.Future[None] | None = agreed  # the handshake, until it is decided
        self.data_received = self._shake

    def connection_made(self, link: asyncio.BaseTransport) -> None:
        """There is a transport below."""
        self._link = cast(asyncio.Transport, link)

    def begin(self) -> None:
        """Say the first words of the handshake."""
        self._shake(b"")

    def _shake(self, data: bytes) -> None:
        self._incoming.write(data)
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as exc:
            self._decided(exc)
        else:
            self._decided(None)

    def _decided(self, fault: ssl.SSLError | None) -> None:
        self.data_received = told(self._loop, self._decrypt)
        self._link.set_protocol(self)  # uvloop looks a method up once
        self.pause_reading()  # until there is somebody to tell
        self._flush()
        if fault is None and self._link.is_closing():
            return  # the peer has reset behind its last words: `connection_lost` will say so
        self._shaken(fault)

    def _shaken(self, fault: Exception | None) -> None:
        agreed, self._agreed = self._agreed, None  # what it raises would hold this object
        if agreed is not None and not agreed.done():
            if fault is None:
                agreed.set_result(None)
            else:
                agreed.set_exception(fault)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Who is told from now on."""
        self._protocol = protocol
        self.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`ssl_object`, and what the socket's transport knows."""
        return self._ssl if name == "ssl_object" else self._link.get_extra_info(name, default)

    # Reading.

    def is_reading(self) -> bool:
        """Whether the protocol is given what comes; not yet while older bytes wait here."""
        return self._link.is_reading()

    def pause_reading(self) -> None:
        """Leave what comes to the kernel; what was read already waits here."""
        self._reading = False
        if not self._link.is_closing():
            self._link.pause_reading()

    def resume_reading(self) -> None:
        """Give the protocol what comes, up to the peer's end."""
        if self._reading or self._closing:
            return
        self._reading = True
        if self._incoming.pending:
            self._loop.call_soon(self._resume)
        else:
            self._read_on()

    def _read_on(self) -> None:
        if self._reading and not self._link.is_closing():
            self._link.resume_reading()

    def _resume(self) -> None:
        """Tell of what came behind the handshake, before there was somebody to tell."""
        if not self._reading:
            return
        try:
            self._decrypt(b"")
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:  # noqa: BLE001  (as the socket's transport does)
            report(self._loop, self._protocol, exc)
            self._lose(exc)
        self._read_on()

    def _decrypt(self, data: bytes) -> None:
        """Tell of one read at once, whatever records it holds: who acts on some must see them all.

        An answer may end with the first of them, and the second say that nobody may use the
        connection again.
        """
        texts: list[bytes] = []
        try:
            ended = self._open(data, texts)
        except ssl.SSLError as exc:
            self._tell(texts)  # what came before it was right
            self._lose(exc)
            return
        if self._backlog:
            self._encrypt_backlog()
        if self._outgoing.pending:
            self._flush()
        self._tell(texts)
        if ended and not self._closing:
            self._end()

    def late(self, data: bytes) -> bytes:
        """The text in what the kernel still held of a connection that is lost."""
        texts: list[bytes] = []
        with contextlib.suppress(ssl.SSLError):
            self._open(data, texts)
        return b"".join(texts)

    def _open(self, data: bytes, texts: list[bytes]) -> bool:
        """Append the texts of its records; True if the last one is the peer's close_notify."""
        incoming, read = self._incoming, self._read
        incoming.write(data)
        ended = self.part = False
        try:
            while incoming.pending and not ended:  # to ask for one too many costs an exception
                text = read(RECORD)
                texts.append(text)
                ended = not text
        except ssl.SSLWantReadError:
            self.part = True  # the rest is on its way
        return ended

    def _tell(self, texts: list[bytes]) -> None:
        if text := texts[0] if len(texts) == 1 else b"".join(texts):
            received = self._protocol.data_received
            received(text)

    def _end(self) -> None:
        """The peer's close_notify."""
        self.pause_reading()
        self._protocol.eof_received()
        self.close()

    # Writing.

    def write(self, data: bytes) -> None:  # type: ignore[override]
        """Send; nothing happens once the transport is closing."""
        if self._closing:
            return
        if self._backlog:
            self._backlog += data
            return
        write, sent, size = self._write, 0, len(data)
        sealed: list[bytes] = []
        try:
            while sent < size:
                if sent:
                    sealed.append(self._outgoing.read())
                end = sent + SEALED_AT_ONCE
                sent += write(data[sent:] if end >= size else memoryview(data)[sent:end])
        except ssl.SSLWantReadError:
            self._backlog += memoryview(data)[sent:]
        except ssl.SSLError as exc:
            self._lose(exc)
            return
        if sealed:  # in one, since the protocol may be asked to pause, and may close then
            sealed.append(self._outgoing.read())
            self._link.write(b"".join(sealed))
        else:
            self._flush()

    def _encrypt_backlog(self) -> None:
        data = bytes(self._backlog)
        self._backlog.clear()
        self.write(data)

    def _flush(self) -> None:
        if self._outgoing.pending and not self._link.is_closing():
            self._link.write(self._outgoing.read())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Above how many encrypted bytes the protocol has to pause, at how many it may go on."""
        self._link.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Bytes not yet taken by the kernel."""
        return self._link.get_write_buffer_size() + len(self._backlog)

    # What else the socket's transport calls.

    def eof_received(self) -> bool:
        """The connection has ended, with or without a close_notify before."""
        self._shaken(ConnectionResetError("the peer ended the TLS handshake"))
        self._protocol.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more comes or goes."""
        self._closing = True
        self._reading = False
        exc, self._fault = exc or self._fault, None
        self._shaken(exc or ConnectionAbortedError("the TLS handshake was given up"))
        protocol, self._protocol = self._protocol, NOBODY
        self.data_received = discard  # no circle is left
        protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """The peer reads slower than is written."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._protocol.resume_writing()

    # The end.

    def is_closing(self) -> bool:
        """Whether it is closed, or will be when everything was sent."""
        return self._closing or self._link.is_closing()

    def close(self) -> None:
        """Send what was written and a close_notify, then close; the peer's is not waited for.

        What waits for the peer to negotiate anew is lost.
        """
        if self._closing:
            return
        self._closing = True
        self._reading = False
        with contextlib.suppress(ssl.SSLError):  # it wants the peer's, or never agreed with it
            self._ssl.unwrap()
        self._flush()
        self._link.close()

    def abort(self) -> None:
        """Close; what is not sent is lost."""
        self._lose(None)

    def _lose(self, exc: BaseException | None) -> None:
        self._closing = True
        self._reading = False
        self._fault = exc
        self._flush()  # the alert that says why, if there is one
        self._link.abort()


async def secured(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, context: ssl.SSLContext, name: str
) -> TlsTransport:
    """TLS with a server of this name, over a connected socket that is closed if it fails.

    Raises `ssl.SSLError` (`ssl.SSLCertVerificationError` for the certificate), `OSError`, or
    `ValueError` for a name that none can have.
    """
    link: asyncio.Transport | None = None
    agreed = loop.create_future()
    try:
        transport = TlsTransport(loop, context, name, agreed)
        if fits(loop):
            link = SocketTransport(loop, sock)
            link.set_protocol(transport)
            transport.connection_made(link)
        else:
            link, _ = await loop.create_connection(lambda: transport, sock=sock)
        transport.begin()  # not sooner: uvloop has to own the socket when a write fails
        await agreed
    except BaseException:
        agreed.cancel()
        if link is None:
            sock.close()
        else:
            link.abort()
        raise
    finally:
        del agreed  # what it raised holds this frame
    return transport
