"""A provider's response head, without a socket: a strict parser (h11 costs four times as much).

    status line   HTTP/1.0 or 1.1, three digits, 100 to 999 (600 and up count as 5xx)
    fields        token ":" value; a fold becomes a space; control bytes are refused
    framing (6.3) no body with 1xx, 204, 304; chunked wins over a length, and ends the connection;
                  other codings, differing or odd lengths, coding in HTTP/1.0 are refused

Numbers of sections are RFC 9112's. Bodies are `framing`'s. Knows no configuration and no clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeVar

from .framing import Body, Chunked, Length, UntilClose
from .headers import MAX_FIELDS, TOKEN, VISIBLE, Field, Fields, Head, closes, listed, members

T = TypeVar("T")

MAX_RESPONSE_HEAD = 65536
"""Bytes of one head; nginx stops at 8 KiB, Go at 1 MiB, providers send about 2 KiB."""

MAX_REMEMBERED = 512
MAX_REMEMBERED_LINE = 128
"""Lines of response heads that are remembered, and bytes of one: a dozen providers' worth of lines
that come back, some 100 KiB at most."""

_MAX_DIGITS = 18  # of a length: fits 64 bits
_FOLD = re.compile(rb"\r\n[ \t]+")
_LINE_END = "a line of the response head does not end with CR LF"


class BadResponse(Exception):
    """What a provider sent is no HTTP that may be passed on; the text names the rule."""


@dataclass(slots=True)
class ResponseHead(Head):
    """A response head. `reusable` is what its head allows: the body's end has its own say."""

    status: int
    version: bytes
    length: int | None
    chunked: bool
    reusable: bool


class ResponseLines:
    """What lines of response heads say, of those that were read before: a provider repeats itself.

    Bounded, as dates and ids are new in each head; a line is valid or not whatever stands around.
    """

    __slots__ = ("_fields", "_starts")

    def __init__(self) -> None:
        self._starts: dict[bytes, tuple[bytes, int]] = {}
        self._fields: dict[bytes, Field] = {}

    def start(self, line: bytes) -> tuple[bytes, int]:
        """Version and status of a status line; raises `BadResponse`."""
        meant = self._starts.get(line)
        return meant or _remember(self._starts, line, _status_line(line))

    def fields(self, lines: list[bytes]) -> Fields:
        """Name and value of each field line; raises `BadResponse`."""
        found: list[Any] = list(map(self._fields.get, lines))
        if all(found):
            return found
        pairs = zip(found, lines, strict=True)
        return [field or _remember(self._fields, line, _read(line)) for field, line in pairs]


def _remember(known: dict[bytes, T], line: bytes, meant: T) -> T:
    if len(line) <= MAX_REMEMBERED_LINE:
        if len(known) >= MAX_REMEMBERED:
            known.clear()  # those in use come back with the next answer
        known[line] = meant
    return meant


def take_response(buffer: bytearray, known: ResponseLines | None = None) -> ResponseHead | None:
    """Remove one response head from the buffer; None if more bytes are needed.

    Raises `BadResponse`. A 1xx is returned like any other head: its reader skips and counts it.
    """
    end = buffer.find(b"\r\n\r\n")
    if end < 0 or end > MAX_RESPONSE_HEAD:
        if len(buffer) > MAX_RESPONSE_HEAD:
            raise BadResponse(f"response head over {MAX_RESPONSE_HEAD} bytes")
        if b"HTTP/1."[: len(buffer)] != buffer[:7]:
            raise BadResponse("not an HTTP/1.x status line")
        if buffer.count(b"\n") != buffer.count(b"\r\n"):
            raise BadResponse(_LINE_END)  # its end would be waited for in vain
        return None
    head = bytes(buffer[:end])
    del buffer[: end + 4]
    return _response(head, known or ResponseLines())


def _response(head: bytes, known: ResponseLines) -> ResponseHead:
    # Not `in`: it first takes the bytes for a number, and fails, which takes ten times as long.
    if head.find(b"\r\n ") >= 0 or head.find(b"\r\n\t") >= 0:
        start, end, fields = head.partition(b"\r\n")  # a fold under it would belong to no field
        head = start + end + _FOLD.sub(b" ", fields)
    start, *lines = head.split(b"\r\n")
    if len(lines) > MAX_FIELDS:
        raise BadResponse(f"more than {MAX_FIELDS} response fields")
    version, status = known.start(start)
    return _framed(version, status, known.fields(lines))


def _judge_line(line: bytes) -> None:
    if line.translate(None, VISIBLE):
        raise BadResponse("control byte in the response head")
    if line.find(b"\n") >= 0 or line.find(b"\r") >= 0:
        raise BadResponse(_LINE_END)


def _status_line(line: bytes) -> tuple[bytes, int]:
    _judge_line(line)
    version, code, gap = line[5:8], line[9:12], line[12:13]
    shape = line[:5] == b"HTTP/" and line[8:9] == b" " and gap in (b" ", b"")
    if not shape or version not in (b"1.1", b"1.0") or not code.isdigit():
        raise BadResponse("not an HTTP/1.x status line")
    if len(code) != 3 or code < b"100":
        raise BadResponse("status code is not three digits from 100 up")
    return version, int(code)


def _read(line: bytes) -> Field:
    _judge_line(line)
    name, colon, value = line.partition(b":")
    if not colon:
        raise BadResponse("response field without a colon")
    # White space before the colon must be removed from a response (RFC 9112, 5.1).
    name = name.rstrip(b" \t").lower()
    if not name or name.translate(None, TOKEN):
        raise BadResponse("response field name is no token")
    return name, value.strip(b" \t")


def _framed(version: bytes, status: int, fields: Fields) -> ResponseHead:
    first = dict(reversed(fields))
    codings: list[bytes] = []
    if b"transfer-encoding" in first:
        codings = members(listed(first, fields, b"transfer-encoding")) or [b""]
    announced = b"content-length" in first
    length = None
    if announced and not codings:
        length = _length(listed(first, fields, b"content-length"))
    reusable = version == b"1.1"
    if reusable and b"connection" in first:
        reusable = not closes(first, fields)
    chunked = False
    if status < 200 or status in (204, 304):
        # No body, whatever the fields say (6.3); one that they announce may follow all the same.
        reusable, length = reusable and not (codings or length), 0
    elif codings:
        if codings != [b"chunked"] or version == b"1.0":
            raise BadResponse("transfer coding other than chunked")
        reusable, chunked = reusable and not announced, True
    else:
        reusable = reusable and length is not None
    return ResponseHead(fields, first, status, version, length, chunked, reusable)


def _length(text: bytes) -> int:
    if text.isdigit() and len(text) <= _MAX_DIGITS:
        return int(text)
    values = [part.strip(b" \t") for part in text.split(b",")]
    first = values[0]
    if not first.isdigit() or len(first) > _MAX_DIGITS:
        raise BadResponse("content-length is no number")
    if values.count(first) != len(values):
        raise BadResponse("differing content-length values")
    return int(first)


def response_body(head: ResponseHead) -> Body:
    """The body that a response head announces."""
    if head.chunked:
        return Chunked()
    return UntilClose() if head.length is None else Length(head.length)
