"""HTTP/1.1 on both sides of relayd, without a socket.

The client's side: h11 parses request heads; this module refuses what h11 lets pass and two readers
could cut differently. With 400 and close, since the connection's state is unknown: a line feed
without carriage return or the reverse, a folded line (RFC 9112, 5.2), a control byte, a length
beside a coding (6.1), a coding in HTTP/1.0, an unknown form of target (3.2). By name: other
versions (505), expectations (417), codings (501).

The provider's side: a strict parser of our own (h11 costs four times as much a message).

    status line   HTTP/1.0 or 1.1, three digits, 100 to 999 (600 and up count as 5xx)
    fields        token ":" value; a fold becomes a space; control bytes are refused
    framing       no body with 1xx, 204, 304; chunked wins over a length, and ends the connection;
                  other codings, differing or odd lengths, coding in HTTP/1.0 are refused (6.3)

Bodies are `framing`'s. Knows no configuration and no clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import compress
from typing import Any, TypeVar

import h11

from . import errors
from .framing import Body, Chunked, Length, UntilClose
from .headers import Field, Fields, tokens
from .knownlines import FRAMING, KnownLines, Start

MAX_RESPONSE_HEAD = 65536
MAX_RESPONSE_FIELDS = 256
"""Bytes and fields of one head; nginx stops at 8 KiB, Go at 1 MiB, providers send about 2 KiB."""

MAX_REMEMBERED = 512
MAX_REMEMBERED_LINE = 128
"""Lines of response heads that are remembered, and bytes of one."""

_VISIBLE = bytes(b for b in range(256) if b >= 0x20 and b != 0x7F) + b"\t\r\n"
_TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HOST = _TOKEN.translate(None, b"#^`|") + b"(),;=:[]"  # of a name, an address and a port
_MAX_DIGITS = 18  # of a length: fits 64 bits
_FOLD = re.compile(rb"\r\n[ \t]+")
_LINE_END = "a line of the response head does not end with CR LF"
_CODED_TWICE = "Transfer-Encoding is not accepted beside Content-Length or HTTP/1.0"


@dataclass(slots=True)
class Head:
    """What both heads have: `fields` in order, and `first` with the first value of each name."""

    fields: Fields
    first: dict[bytes, bytes]

    def field(self, name: bytes) -> bytes | None:
        """The first value of a field, `name` in lower case."""
        return self.first.get(name)

    def forget(self) -> None:
        """Let go of the fields: nobody asks for them any more."""
        self.fields, self.first = [], {}


@dataclass(slots=True)
class Request(Head):
    """A request head. `path` is without query; `length` is None without Content-Length.

    `keep_alive` is what the client allows. `expects` is True when it waits for `100 Continue`.
    """

    method: str
    path: str
    version: bytes
    length: int | None
    chunked: bool
    keep_alive: bool
    expects: bool

    @property
    def has_body(self) -> bool:
        """True if bytes of this request follow its head."""
        return self.chunked or bool(self.length)


def take_request(buffer: bytearray, limit: int, known: KnownLines | None = None) -> Request | None:
    """Remove one request head from the buffer; None if more bytes are needed.

    Raises an `errors.RelayError` (400, 417, 431, 501, 505) for a head that is not served; the
    buffer is then of no use any more.
    """
    while buffer.startswith(b"\r\n"):
        del buffer[:2]  # RFC 9112, 2.2: skip an empty line before the request line
    end = buffer.find(b"\r\n\r\n")
    if end < 0 or end + 4 > limit:
        _refuse_early(buffer, limit)
        return None
    head = bytes(buffer[: end + 4])
    del buffer[: end + 4]
    if known is None:
        _refuse_odd_bytes(head)
        start, fields = _parse(head, limit)
        return _judge(start, fields, dict(reversed(fields)))
    first, *lines = head[:-4].split(b"\r\n")
    found = known.fields(lines)
    if (seen := known.start(first)) and None not in found:
        named: dict[bytes, bytes] = dict(found)
        if len(named) == len(found) and b"host" in named:  # nothing new, nothing twice
            return _judge(seen, found, named)
    start, fields = _remembered(head, limit, known, found)
    return _judge(start, fields, dict(reversed(fields)))


def _remembered(head: bytes, limit: int, known: KnownLines, found: list[Any]) -> Parsed:
    """What h11 makes of a head, with its earlier word for the lines that it has seen."""
    _refuse_odd_bytes(head)  # a known line has none, and no line of its own ends in CR or LF
    first, *lines = head[:-4].split(b"\r\n")
    asked = [pair is None or pair[0] in FRAMING for pair in found]
    new = list(compress(lines, asked))
    start, fields = _parse(b"\r\n".join((first, *new, b"\r\n")), limit)
    if len(fields) != len(new):
        return _parse(head, limit)  # h11 made one of equal lengths: which line is whose field?
    known.learn(first, start, new, fields)
    parsed = iter(fields)
    return start, [
        next(parsed) if ask or not pair else pair for ask, pair in zip(asked, found, strict=True)
    ]


def _refuse_early(buffer: bytearray, limit: int) -> None:
    """Do not wait for the end of what can never become a request (a TLS hello, a bare LF)."""
    if buffer[:1].translate(None, _TOKEN) and buffer != b"\r":
        raise errors.BadFraming()
    if len(buffer) >= limit:
        raise errors.HeadTooLarge()
    if buffer.count(b"\n") != buffer.count(b"\r\n"):
        raise errors.BadFraming("a line of the request head does not end with CR LF")


def _refuse_odd_bytes(head: bytes) -> None:
    lines = head.count(b"\r\n")
    if head.count(b"\n") != lines or head.count(b"\r") != lines:
        raise errors.BadFraming("a line of the request head does not end with CR LF")
    if b"\r\n " in head or b"\r\n\t" in head:
        raise errors.BadFraming("a folded header line is not accepted (RFC 9112, section 5.2)")
    if head.translate(None, _VISIBLE):
        raise errors.BadFraming("the request head holds a control byte")


Parsed = tuple[Start, Fields]


def _parse(head: bytes, limit: int) -> Parsed:
    # One h11 connection a message: it parses, the bytes back to the client are our own, so its
    # state machine would stay behind (61-73 us a response to bring it along).
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=limit)
    try:
        parser.receive_data(head)
        event = parser.next_event()
    except h11.RemoteProtocolError as exc:
        raise _refusal(exc, head) from exc
    assert isinstance(event, h11.Request), "a head that ends is a request or an error"
    path = _path(event.method, event.target)
    if event.http_version not in (b"1.1", b"1.0"):
        raise errors.UnsupportedVersion()
    start = event.method.decode("ascii"), path, event.http_version
    return start, list(event.headers)


def _refusal(exc: h11.RemoteProtocolError, head: bytes) -> errors.RelayError:
    if exc.error_status_hint != 501:
        return errors.BadFraming()
    # h11 stops at a coding that it does not know: framing that is wrong besides comes first.
    start, *lines = head.lower().split(b"\r\n")
    named = [(name, value) for name, _, value in (line.partition(b":") for line in lines)]
    codings = tokens(b",".join(value for name, value in named if name == b"transfer-encoding"))
    if start.endswith(b"/1.0") or b"content-length" in dict(named):
        return errors.BadFraming(_CODED_TWICE)
    if not codings or b"chunked" in codings[:-1]:
        return errors.BadFraming("chunked has to be the last transfer coding, and only once")
    return errors.UnknownCoding() if start.endswith(b"/1.1") else errors.UnsupportedVersion()


def _judge(start: Start, fields: Fields, first: dict[bytes, bytes]) -> Request:
    """The request, if its fields agree; `first` has the first value of each name."""
    method, path, version = start
    length = first.get(b"content-length")
    coded = b"transfer-encoding" in first
    keep_alive = version == b"1.1" and not (b"connection" in first and _closes(fields, first))
    expects = b"expect" in first and version == b"1.1"
    if coded and (length is not None or version == b"1.0"):
        raise errors.BadFraming(_CODED_TWICE)
    if first.get(b"host", b"").translate(None, _HOST):
        raise errors.BadFraming("the Host field names no host")
    if expects and first[b"expect"].lower() != b"100-continue":
        raise errors.UnknownExpectation()
    size = None if length is None else int(length)
    return Request(fields, first, method, path, version, size, coded, keep_alive, expects)


def _path(method: bytes, target: bytes) -> str:
    """The path of an origin-form or absolute-form target (RFC 9112, 3.2); `*` stays itself."""
    if b"#" in target:
        raise errors.BadFraming("the request target holds a fragment")
    text = target.decode("ascii").partition("?")[0]
    if text[:7].lower() == "http://" or text[:8].lower() == "https://":
        authority, slash, rest = text.partition("://")[2].partition("/")
        if not authority:
            raise errors.BadFraming("the request target names no host")
        return slash + rest if slash else "/"
    if not text.startswith("/") and text != "*" and method != b"CONNECT":
        raise errors.BadFraming("the request target is no path")
    return text


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


def take_response(buffer: bytearray) -> ResponseHead | None:
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
    return _response(head)


def _response(head: bytes) -> ResponseHead:
    if head.find(b"\r\n ") >= 0 or head.find(b"\r\n\t") >= 0:  # `in` takes ten times as long
        start, end, fields = head.partition(b"\r\n")  # a fold under it would belong to no field
        head = start + end + _FOLD.sub(b" ", fields)
    start, *lines = head.split(b"\r\n")
    if len(lines) > MAX_RESPONSE_FIELDS:
        raise BadResponse(f"more than {MAX_RESPONSE_FIELDS} response fields")
    version, status = _STARTS.get(start) or _remember(_STARTS, start, _status_line(start))
    known: list[Any] = list(map(_FIELDS.get, lines))
    if None in known:
        known = [
            field or _remember(_FIELDS, line, _read(line))
            for field, line in zip(known, lines, strict=True)
        ]
    return _framed(version, status, known)


T = TypeVar("T")

# A provider repeats most of its lines.
_STARTS: dict[bytes, tuple[bytes, int]] = {}
_FIELDS: dict[bytes, Field] = {}


def _remember(known: dict[bytes, T], line: bytes, meant: T) -> T:
    if len(line) <= MAX_REMEMBERED_LINE:
        if len(known) >= MAX_REMEMBERED:
            known.clear()  # those in use come back with the next answer
        known[line] = meant
    return meant


def _judge_line(line: bytes) -> None:
    if line.translate(None, _VISIBLE):
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
    if not name or name.translate(None, _TOKEN):
        raise BadResponse("response field name is no token")
    return name, value.strip(b" \t")


def _framed(version: bytes, status: int, fields: Fields) -> ResponseHead:
    first = dict(reversed(fields))
    codings: list[bytes] = []
    if b"transfer-encoding" in first:
        codings = tokens(_all(fields, first, b"transfer-encoding")) or [b""]
    announced = b"content-length" in first
    length = _length(_all(fields, first, b"content-length")) if announced and not codings else None
    reusable = version == b"1.1"
    if reusable and b"connection" in first:
        reusable = not _closes(fields, first)
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


def _all(fields: Fields, first: dict[bytes, bytes], name: bytes) -> bytes:
    """The whole list of a field, however many lines it has."""
    if len(first) == len(fields):
        return first[name]
    return b",".join([value for key, value in fields if key == name])


def _closes(fields: Fields, first: dict[bytes, bytes]) -> bool:
    """Whether `Connection` says so, in any of its fields."""
    options = _all(fields, first, b"connection")
    return options.lower().find(b"close") >= 0 and b"close" in tokens(options)


def _length(listed: bytes) -> int:
    if listed.isdigit() and len(listed) <= _MAX_DIGITS:
        return int(listed)
    values = [part.strip(b" \t") for part in listed.split(b",")]
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


def request_body(request: Request) -> Body:
    """The body that a request head announces; none is a length of 0 (RFC 9112, 6.3)."""
    return Chunked() if request.chunked else Length(request.length or 0)
