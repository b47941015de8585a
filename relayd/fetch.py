"""One plain request of relayd's own, and its answer: what a command asks (a health, a model list).

Reads with the same strict parser as the relay. The caller bounds the time. Does not know what is
asked, pools, or providers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from .config import Listen, Tcp, Unix
from .dial import tls_context
from .framing import BadChunk
from .masking import mask
from .response import BadResponse, ResponseHead, response_body, take_response

READ = 65536
"""Bytes of one read."""


WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses to listen on that nobody can connect to, and where their listener is reached."""


def place_of(url: str) -> tuple[Listen, bool]:
    """Where the relayd of `--url` listens, and whether TLS is spoken there. Raises ValueError."""
    if url.startswith("unix:/"):
        return Unix(url.removeprefix("unix:")), False
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    tls = parts.scheme == "https"
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        expected = "http://host:port, https://host or unix:/path"
        raise ValueError(f"--url: expected {expected}, got {mask(url)!r}")
    return Tcp(parts.hostname, port or (443 if tls else 80)), tls


async def knock(place: Listen, tls: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to where a relayd listens. Raises OSError."""
    if isinstance(place, Unix):
        return await asyncio.open_unix_connection(place.path)
    host = WILDCARDS.get(place.host, place.host)
    return await asyncio.open_connection(host, place.port, ssl=tls_context("") if tls else None)


class NoAnswer(Exception):
    """What came is no whole HTTP answer; the text says what was wrong, in lower case."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A whole answer."""

    head: ResponseHead
    body: bytes

    @property
    def status(self) -> int:
        """The three digits."""
        return self.head.status


async def fetch(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, limit: int
) -> Fetched:
    """Send `request` and read its answer, of `limit` body bytes at most; closes the connection.

    Raises `NoAnswer` or `OSError`.
    """
    async with closing(writer):
        writer.write(request)
        buffer = bytearray()
        head = await read_head(reader, buffer)
        body = bytearray()
        async for payload in payloads(reader, head, buffer):
            body += payload
            if len(body) > limit:
                raise NoAnswer(f"an answer of more than {limit} bytes")
        return Fetched(head, bytes(body))


async def read_head(reader: asyncio.StreamReader, buffer: bytearray) -> ResponseHead:
    """The head of an answer; what came behind it stays in `buffer`. Raises `NoAnswer`."""
    while True:
        try:
            head = take_response(buffer)
        except BadResponse as exc:
            raise NoAnswer(str(exc)) from exc
        if head is not None and head.status >= 200:
            return head
        if head is None:
            data = await reader.read(READ)
            if not data:
                raise NoAnswer("closed without an answer")
            buffer += data


async def payloads(
    reader: asyncio.StreamReader, head: ResponseHead, buffer: bytearray
) -> AsyncIterator[bytes]:
    """The body's payload as it comes. Raises `NoAnswer` for one that is cut or framed badly."""
    body = response_body(head)
    data = bytes(buffer)
    try:
        while True:
            if payload := body.feed(data):
                yield payload
            if body.done:
                return
            data = await reader.read(READ)
            if not data and not body.close():
                raise NoAnswer("closed in the middle of an answer")
    except BadChunk as exc:
        raise NoAnswer(str(exc)) from exc


@contextlib.asynccontextmanager
async def closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Close the connection at the end of the block, whichever it is."""
    try:
        yield
    finally:
        if writer.get_extra_info("ssl_object") is None:
            writer.close()
        else:
            writer.transport.abort()  # a farewell would be waited for, half a minute long
        with contextlib.suppress(OSError):
            await writer.wait_closed()
