"""HTTP/1.1 as the tests read it: strict, slow, and written apart from relayd's own parser.

What relayd gets wrong in both of its directions would cancel out if the tests read with relayd's
code. Whatever RFC 9112 does not allow in a message is a `WireFault`. Does not know sockets beyond
`asyncio.StreamReader`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from enum import Enum

Fields = Sequence[tuple[str, str]]

LINE = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ([\t\x20-\x7e\x80-\xff]*)\Z")
FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\t\x80-\xff]*?)[ \t]*\Z")
SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}\Z")

READ = 65_536
"""Bytes of one read."""


class WireFault(AssertionError):
    """The peer sent what HTTP/1.1 does not allow."""


class Ended(Enum):
    """How a body ended."""

    NONE = "no body"
    LENGTH = "Content-Length reached"
    CHUNKS = "last chunk"
    CLOSE = "close, with neither length nor chunks"
    CUT = "FIN before the end"
    RESET = "RST before the end"


WHOLE = frozenset({Ended.NONE, Ended.LENGTH, Ended.CHUNKS, Ended.CLOSE})


class Cut(Exception):
    """The connection ended inside a body."""

    def __init__(self, how: Ended) -> None:
        super().__init__(how.value)
        self.how = how


def find(fields: Fields, name: str) -> str | None:
    """The value of `name`, None if absent; a field that is there twice is a fault."""
    found = [value for key, value in fields if key.lower() == name.lower()]
    if len(found) > 1:
        raise WireFault(f"expected one {name}, got {found}")
    return found[0] if found else None


async def read_head(reader: asyncio.StreamReader) -> bytes:
    """Up to and with the empty line; b"" at a FIN before the first byte.

    A FIN in the middle is IncompleteReadError, a reset is ConnectionError.
    """
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as end:
        if end.partial:
            raise
        return b""


def parse_response(head: bytes) -> tuple[int, str, list[tuple[str, str]]]:
    """Status, reason and fields in order; names as they were written."""
    line, *rows = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    first = LINE.match(line)
    if not first:
        raise WireFault(f"expected a status line, got {line!r}")
    matches = [(row, FIELD.match(row)) for row in rows]
    broken = [row for row, match in matches if not match]
    if broken:
        raise WireFault(f"expected header fields, got {broken}")
    fields = [(m[1].decode("ascii"), m[2].decode("latin-1")) for _, m in matches if m]
    return int(first[1]), first[2].decode("latin-1"), fields


def framing(method: str, status: int, fields: Fields) -> Ended:
    """How the body of this response has to end (RFC 9112, section 6.3)."""
    coding = find(fields, "Transfer-Encoding")
    length = find(fields, "Content-Length")
    if coding is not None and length is not None:
        raise WireFault("expected Transfer-Encoding or Content-Length, got both")
    if coding is not None and coding.lower() != "chunked":
        raise WireFault(f"expected the transfer coding chunked, got {coding!r}")
    if method == "HEAD" or status < 200 or status in (204, 304):
        return Ended.NONE
    if coding is not None:
        return Ended.CHUNKS
    return Ended.CLOSE if length is None else Ended.LENGTH


async def pieces(
    reader: asyncio.StreamReader, how: Ended, length: str | None
) -> AsyncIterator[bytes]:
    """The body as it arrives, without chunk framing; `Cut` if it does not end as it must."""
    if how is Ended.LENGTH:
        if not re.fullmatch("[0-9]+", length or ""):
            raise WireFault(f"expected Content-Length in digits, got {length!r}")
        async for piece in _exactly(reader, int(length or "")):
            yield piece
    elif how is Ended.CHUNKS:
        async for piece in _chunks(reader):
            yield piece
    elif how is Ended.CLOSE:
        while piece := await _read(reader, READ):
            yield piece


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := await _chunk_size(reader):
        async for piece in _exactly(reader, size):
            yield piece
        await _crlf(reader)
    await _crlf(reader)


async def _chunk_size(reader: asyncio.StreamReader) -> int:
    line = b""
    while not line.endswith(b"\r\n"):
        line += await _some(reader, 1)
        if len(line) > 16:
            raise WireFault(f"expected a chunk size, got {line!r}")
    if not SIZE.match(line[:-2]):
        raise WireFault(f"expected a chunk size, got {line!r}")
    return int(line, 16)


async def _crlf(reader: asyncio.StreamReader) -> None:
    end = await _some(reader, 1) + await _some(reader, 1)
    if end != b"\r\n":
        raise WireFault(f"expected CRLF after a chunk, got {end!r}")


async def _exactly(reader: asyncio.StreamReader, length: int) -> AsyncIterator[bytes]:
    while length:
        piece = await _some(reader, min(length, READ))
        length -= len(piece)
        yield piece


async def _some(reader: asyncio.StreamReader, most: int) -> bytes:
    piece = await _read(reader, most)
    if not piece:
        raise Cut(Ended.CUT)
    return piece


async def _read(reader: asyncio.StreamReader, most: int) -> bytes:
    try:
        return await reader.read(most)
    except ConnectionError as reset:
        raise Cut(Ended.RESET) from reset


async def read_body(reader: asyncio.StreamReader, fields: Fields) -> bytes:
    """The body of a request: by chunks, by length, or none."""
    if find(fields, "Transfer-Encoding") is not None:
        return b"".join([piece async for piece in _chunks(reader)])
    return await reader.readexactly(int(find(fields, "Content-Length") or "0"))
