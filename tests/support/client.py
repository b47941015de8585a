"""`RawClient`: one client connection, byte by byte, and a strict reader of what comes back.

    async with RawClient(g.address) as client:
        answer = await client.post_json("/v1/chat/completions", chat())
        stream = await client.open_stream("/v1/chat/completions", chat(stream=True))
        first = await stream.event()

Times are the event loop's. Does not know relayd; the reading is `wire`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import json as jsonlib
import re
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from .chaos import let_the_other_side_read
from .provider import LINGER_NONE
from .wire import (
    WHOLE,
    Cut,
    Ended,
    Fields,
    find,
    framing,
    parse_response,
    pieces,
    read_head,
)

EVENT_END = re.compile(rb"(?:\r\n|\r(?!\n)|\n)(?:\r\n|\r(?!\n)|\n)")
"""A blank line, whatever its line ends (a CR at the very end of what is there counts)."""

LONGEST_END = 4
"""Bytes of the longest blank line: what has been searched need not be searched again before it."""

Address = tuple[str, int] | str


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream as it came, with its blank line, and when it was whole."""

    raw: bytes
    at: float

    @property
    def data(self) -> str:
        """The `data` lines, joined."""
        lines = re.split(rb"\r\n|\r|\n", self.raw)
        found = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
        return b"\n".join(found).decode()

    def json(self) -> Any:
        return jsonlib.loads(self.data)


@dataclass(slots=True)
class Response:
    """An answer: the head at once, the body as far as it was read."""

    status: int
    reason: str
    fields: list[tuple[str, str]]
    at: float
    incoming: AsyncIterator[bytes]
    informational: list[int] = field(default_factory=list)
    ended: Ended | None = None
    _after: Ended = Ended.NONE
    _pieces: list[bytes] = field(default_factory=list)
    _rest: bytearray = field(default_factory=bytearray)

    def field(self, name: str) -> str | None:
        """The value of a header field; fails if it is there twice."""
        return find(self.fields, name)

    @property
    def body(self) -> bytes:
        """What was read of the body so far."""
        return b"".join(self._pieces)

    @property
    def whole(self) -> bool:
        """Read to its end, and the end is the one that its framing asks for."""
        return self.ended in WHOLE

    async def piece(self) -> bytes:
        """What of the body has arrived; b"" at its end, and `ended` says how it ended."""
        try:
            data = await anext(self.incoming, b"")
        except Cut as cut:
            self.ended = cut.how
            return b""
        if not data:
            self.ended = self.ended or self._after
        self._pieces.append(data)
        return data

    async def read(self) -> Self:
        """Read to the end of the body, whichever it is."""
        while await self.piece():
            pass
        return self

    async def event(self) -> Event | None:
        """The next whole event; None at the end of the body (`unfinished` is what was left)."""
        begin = 0
        while not (end := EVENT_END.search(self._rest, begin)):
            begin = max(0, len(self._rest) - LONGEST_END)
            data = await self.piece()
            if not data:
                return None
            self._rest += data
        raw = bytes(self._rest[: end.end()])
        del self._rest[: end.end()]
        return Event(raw, asyncio.get_running_loop().time())

    async def events(self) -> list[Event]:
        """All events that are left."""
        found = []
        while event := await self.event():
            found.append(event)
        return found

    @property
    def unfinished(self) -> bytes:
        """Bytes after the last whole event that was taken."""
        return bytes(self._rest)

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return jsonlib.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object of an error answer."""
        return dict(self.json()["error"])


class RawClient:
    """One connection to `address`: host and port, or the path of a unix socket."""

    def __init__(self, address: Address, *, tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._tls = tls
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def connect(self) -> None:
        if isinstance(self.address, str):
            self._streams = await asyncio.open_unix_connection(self.address, ssl=self._tls)
        else:
            self._streams = await asyncio.open_connection(*self.address, ssl=self._tls)

    @property
    def reader(self) -> asyncio.StreamReader:
        assert self._streams, "the client is not connected"
        return self._streams[0]

    @property
    def writer(self) -> asyncio.StreamWriter:
        assert self._streams, "the client is not connected"
        return self._streams[1]

    async def send(self, data: bytes, *, size: int = 0, delay: float = 0.0) -> None:
        """All at once, or in pieces of `size` that the other side reads one by one."""
        for at in range(0, len(data), size or max(1, len(data))):
            self.writer.write(data[at : at + size] if size else data)
            await self.writer.drain()
            if size:
                await let_the_other_side_read()
                await asyncio.sleep(delay)

    def half_close(self) -> None:
        """FIN; the client goes on reading."""
        self.writer.write_eof()

    def close(self) -> None:
        self.writer.close()

    def rst(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        self.writer.transport.abort()

    async def head(self, method: str = "GET") -> Response:
        """The next answer's head (1xx are kept in `informational`); the body is still to be read.

        A connection that ends before it is EOFError or ConnectionError.
        """
        seen: list[int] = []
        while True:
            raw = await read_head(self.reader)
            if not raw:
                raise EOFError("expected an answer, got the end of the connection")
            status, reason, fields = parse_response(raw)
            if status >= 200:
                break
            seen.append(status)
        how = framing(method, status, fields)
        body = pieces(self.reader, how, find(fields, "Content-Length"))
        now = asyncio.get_running_loop().time()
        return Response(status, reason, fields, now, body, seen, _after=how)

    async def response(self, method: str = "GET") -> Response:
        """The next answer, whole."""
        return await (await self.head(method)).read()

    async def request(
        self, method: str, path: str, body: bytes = b"", fields: Mapping[str, str] | None = None
    ) -> None:
        """Send one well-formed request; `fields` add to or replace Host and Content-Length."""
        await self.send(request(method, path, body, fields))

    async def get(self, path: str, fields: Mapping[str, str] | None = None) -> Response:
        await self.request("GET", path, fields=fields)
        return await self.response()

    async def post_json(
        self, path: str, value: object, fields: Mapping[str, str] | None = None
    ) -> Response:
        """POST and read the whole answer. `value` as bytes goes as it is."""
        return await (await self.open_stream(path, value, fields)).read()

    async def open_stream(
        self, path: str, value: object, fields: Mapping[str, str] | None = None
    ) -> Response:
        """POST and read the head of the answer."""
        await self.send(post(path, value, fields))
        return await self.head("POST")

    async def ended(self) -> Ended:
        """Wait for the end of the connection: CLOSE or RESET. Bytes before it are a failure."""
        try:
            rest = await self.reader.read()
        except ConnectionError:
            return Ended.RESET
        assert not rest, f"expected the end of the connection, got {rest[:200]!r}"
        return Ended.CLOSE


def request(
    method: str, path: str, body: bytes = b"", fields: Mapping[str, str] | None = None
) -> bytes:
    """The bytes of one request. A field whose value is "" is left out."""
    default = {"Host": "relayd.test"}
    if body or method == "POST":
        default |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    rows = "".join(f"{n}: {v}\r\n" for n, v in {**default, **(fields or {})}.items() if v)
    return f"{method} {path} HTTP/1.1\r\n{rows}\r\n".encode("latin-1") + body


def post(path: str, value: object, fields: Mapping[str, str] | None = None) -> bytes:
    """The bytes of one POST with a JSON body; `value` as bytes goes as it is."""
    body = value if isinstance(value, bytes) else jsonlib.dumps(value).encode()
    return request("POST", path, body, fields)


def names(fields: Fields) -> list[str]:
    """The header field names in order, lower case."""
    return [name.lower() for name, _ in fields]
