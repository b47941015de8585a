"""`ScriptedProvider`: a loopback server that does exactly what a script says, byte by byte.

A script is `async def script(peer, request)`, run once for each request; the n-th request gets the
n-th script, and the last one repeats. `connection=` takes a script `(peer)` instead that gets the
bare connection, nothing read. Ready-made ones are in `scripts`.

Times are the event loop's (virtual on the jumping loop). Knows HTTP as far as a request must be
read to be answered; judges nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json as jsonlib
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from .wire import Fields, find, read_body, read_head

LINGER_NONE = struct.pack("ii", 1, 0)
"""SO_LINGER on, 0 s: closing sends a reset and drops what is unsent."""

LEAVE_CAP = 30.0
"""How long (s) a peer may take to leave after a FIN before its connection is dropped."""

JSON: Fields = [("Content-Type", "application/json")]
EVENTS: Fields = [("Content-Type", "text/event-stream")]


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came: `head` and `body` are the bytes, the rest is read from them."""

    head: bytes
    body: bytes
    method: str
    target: str
    version: str
    fields: Fields
    connection: int
    at: float

    def field(self, name: str) -> str | None:
        """The value of a header field; fails if it is there twice."""
        return find(self.fields, name)

    def names(self) -> list[str]:
        """The header field names in order, lower case."""
        return [name.lower() for name, _ in self.fields]

    def json(self) -> Any:
        return jsonlib.loads(self.body)


class Peer:
    """One accepted connection, seen from the provider."""

    def __init__(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.number = number
        self.reader = reader
        self.writer = writer
        self.left = asyncio.Event()
        self.left_at: float | None = None

    def note_left(self) -> None:
        """The other side sent FIN or RST, whether or not a script is reading."""
        if self.left_at is None:
            self.left_at = asyncio.get_running_loop().time()
            self.left.set()

    async def read_head(self) -> bytes:
        """The bytes up to and with the empty line; b"" if the peer left before the first one."""
        return await read_head(self.reader)

    async def read_request(self) -> Request | None:
        """The next request, whole; None if the peer left instead."""
        head = await self.read_head()
        if not head:
            return None
        at = asyncio.get_running_loop().time()
        line, *rest = head.decode("latin-1").split("\r\n")
        method, target, version = line.split(" ")
        fields = [(n, v.strip()) for n, _, v in (row.partition(":") for row in rest if row)]
        body = await read_body(self.reader, fields)
        return Request(head, body, method, target, version, fields, self.number, at)

    async def send(self, data: bytes) -> None:
        """Write and wait until the kernel has it; waits while the peer does not read."""
        self.writer.write(data)
        await self.writer.drain()

    async def drip(self, data: bytes, delay: float = 0.0, size: int = 1) -> None:
        """`size` bytes at a time, `delay` seconds after each piece."""
        for at in range(0, len(data), size):
            await self.send(data[at : at + size])
            await asyncio.sleep(delay)

    async def head(self, status: int, fields: Fields = (), reason: str = "Scripted") -> None:
        rows = "".join(f"{name}: {value}\r\n" for name, value in fields)
        await self.send(f"HTTP/1.1 {status} {reason}\r\n{rows}\r\n".encode("latin-1"))

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def last_chunk(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def whole(self, status: int, body: bytes, fields: Fields = ()) -> None:
        """An answer with Content-Length."""
        await self.head(status, [*fields, ("Content-Length", str(len(body)))])
        await self.send(body)

    async def json(self, status: int, value: object, fields: Fields = ()) -> None:
        await self.whole(status, jsonlib.dumps(value).encode(), [*JSON, *fields])

    async def stream_head(self, fields: Fields = (), *, chunked: bool = True) -> None:
        coding = [("Transfer-Encoding", "chunked")] if chunked else [("Connection", "close")]
        await self.head(200, [*EVENTS, *coding, *fields])

    async def sse(
        self, *events: bytes, delay: float = 0.0, chunked: bool = True, end: bool = True
    ) -> None:
        """A 200 stream, each event its own write, `delay` seconds apart. Without chunks its end is
        the end of the connection."""
        await self.stream_head(chunked=chunked)
        for number, event in enumerate(events):
            await asyncio.sleep(delay if number else 0)
            await (self.chunk(event) if chunked else self.send(event))
        if end:
            await (self.last_chunk() if chunked else self.fin())

    async def stall(self) -> float:
        """Say nothing until the peer leaves: FIN or RST. Returns when it did."""
        await self.left.wait()
        assert self.left_at is not None
        return self.left_at

    async def until_closed(self) -> bytes:
        """Read what still comes until the peer has closed or reset."""
        with contextlib.suppress(ConnectionError):
            return await self.reader.read()
        return b""

    async def fin(self) -> None:
        """End our direction in order (TLS: close_notify)."""
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()
        if self.writer.can_write_eof():
            with contextlib.suppress(OSError):  # not connected: the peer has reset meanwhile
                self.writer.write_eof()
        else:
            self.writer.close()

    async def cut(self) -> None:
        """Close at once, without TLS's close_notify: a FIN if all was read, else a reset."""
        await self.writer.drain()
        self.writer.transport.abort()

    async def rst(self) -> None:
        """Reset: what was not sent yet is dropped; Linux lets the peer read what it has."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        self.writer.transport.abort()
        await asyncio.sleep(0)  # asyncio closes the socket in the loop's next turn


Script = Callable[[Peer, Request], Awaitable[None]]
ConnectionScript = Callable[[Peer], Awaitable[None]]


class _Watched(asyncio.StreamReaderProtocol):
    """Tells of the peer's departure at once; a StreamReader tells only who reads it."""

    peer: Peer | None = None

    def eof_received(self) -> bool | None:
        if self.peer:
            self.peer.note_left()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.peer:
            self.peer.note_left()
        super().connection_lost(exc)


@dataclass(slots=True)
class Seen:
    """What a provider has seen so far."""

    requests: list[Request] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)


class ScriptedProvider:
    """`async with ScriptedProvider(ok_json(), name="a") as a:` listens on `a.address`."""

    def __init__(
        self,
        *scripts: Script,
        name: str = "a",
        connection: ConnectionScript | None = None,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        **settings: Any,
    ) -> None:
        """`settings` are keys of this provider's `[[provider]]` table, e.g. `model="m"`."""
        self.name = name
        self.scripts: Sequence[Script] = scripts
        self.settings = settings
        self.seen = Seen()
        self._connection = connection
        self._tls = tls
        self._where = (host, port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, *self._where, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in self.seen.peers:
            peer.writer.transport.abort()
        await asyncio.sleep(0)
        if self.seen.faults:
            raise AssertionError(f"script of provider {self.name} failed") from self.seen.faults[0]

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for a TCP listener."""
        assert self._server is not None, "the provider is not listening yet"
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def base_url(self) -> str:
        host, port = self.address
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self._tls else 'http'}://{shown}:{port}/v1"

    @property
    def table(self) -> dict[str, Any]:
        """This provider's `[[provider]]` table."""
        return {"name": self.name, "base_url": self.base_url, **self.settings}

    @property
    def requests(self) -> list[Request]:
        return self.seen.requests

    @property
    def connections(self) -> int:
        """How many connections were accepted so far."""
        return len(self.seen.peers)

    @property
    def open(self) -> int:
        """How many of them the other side has not left."""
        return sum(peer.left_at is None for peer in self.seen.peers)

    @property
    def departures(self) -> list[float]:
        """When the other side left, connection by connection."""
        return [peer.left_at for peer in self.seen.peers if peer.left_at is not None]

    def stop_listening(self) -> None:
        """Refuse new connections; open ones go on."""
        assert self._server is not None
        self._server.close()

    def _accept(self) -> asyncio.Protocol:
        reader = asyncio.StreamReader()
        protocol = _Watched(reader, lambda r, w: self._begin(protocol, r, w))
        return protocol

    def _begin(
        self, protocol: _Watched, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        peer = Peer(len(self.seen.peers), reader, writer)
        protocol.peer = peer
        self.seen.peers.append(peer)
        name = f"provider {self.name}"
        task = asyncio.get_running_loop().create_task(self._serve(peer), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, peer: Peer) -> None:
        try:
            if self._connection:
                await self._connection(peer)
            else:
                await self._answer_all(peer)
            await self._let_go(peer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the peer left in the middle: `departures` has it
        except Exception as fault:  # noqa: BLE001  # raised again when the provider is closed
            self.seen.faults.append(fault)
        finally:
            peer.writer.close()

    async def _answer_all(self, peer: Peer) -> None:
        while not peer.writer.is_closing() and (request := await peer.read_request()):
            number = len(self.seen.requests)
            self.seen.requests.append(request)
            await self.scripts[min(number, len(self.scripts) - 1)](peer, request)

    async def _let_go(self, peer: Peer) -> None:
        """Closing with unread bytes would reset: wait for the peer's own end first."""
        if not peer.writer.is_closing():
            await peer.fin()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_CAP):
                    await peer.until_closed()
