"""HTTP/1.1 on the client's side, without a socket.

h11 parses request heads; this module refuses what h11 lets pass and two readers could cut
differently. With 400 and close, since the connection's state is unknown: a line feed without
carriage return or the reverse, a folded line (RFC 9112, 5.2), a control byte, a length beside a
coding (6.1), a coding in HTTP/1.0, an unknown form of target (3.2). By name: other versions (505),
expectations (417), codings (501).

Bodies are `framing`'s. Knows no configuration and no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import Any

import h11

from . import errors
from .framing import Body, Chunked, Length
from .headers import MAX_FIELDS, TOKEN, VISIBLE, Fields, Head, closes, listed, members
from .knownlines import FRAMING, KnownLines, Start

_HOST = TOKEN.translate(None, b"#^`|") + b"(),;=:[]"  # of a name, an address and a port
_CODED_TWICE = "Transfer-Encoding is not accepted beside Content-Length or HTTP/1.0"


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


def take_request(buffer: bytearray, limit: int, known: KnownLines) -> Request | None:
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
    if head.count(b"\r\n") > MAX_FIELDS + 2:  # with the request line, and the empty one
        raise errors.HeadTooLarge(f"the request head has more than {MAX_FIELDS} fields")
    lines = head.split(b"\r\n")
    found = known.fields(lines[1:-2])  # behind the last field: an empty line, and nothing
    if (seen := known.start(lines[0])) and all(found):
        named: dict[bytes, bytes] = dict(found)
        if len(named) == len(found) and b"host" in named:  # nothing new, nothing twice
            return _judge(seen, found, named)
    start, fields = _remembered(head, lines, limit, known, found)
    return _judge(start, fields, dict(reversed(fields)))


def _remembered(
    head: bytes, lines: list[bytes], limit: int, known: KnownLines, found: list[Any]
) -> Parsed:
    """What h11 makes of a head, with its earlier word for the lines that it has seen."""
    _refuse_odd_bytes(head)  # a known line has none, and no line of its own ends in CR or LF
    first = lines[0]
    asked = [pair is None or pair[0] in FRAMING for pair in found]
    new = list(compress(lines[1:-2], asked))
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
    if buffer[:1].translate(None, TOKEN) and buffer != b"\r":
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
    if head.translate(None, VISIBLE):
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
    codings = members(b",".join(value for name, value in named if name == b"transfer-encoding"))
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
    keep_alive = version == b"1.1" and not (b"connection" in first and closes(first, fields))
    expects = b"expect" in first and version == b"1.1"
    if coded and (length is not None or version == b"1.0"):
        raise errors.BadFraming(_CODED_TWICE)
    if first.get(b"host", b"").translate(None, _HOST):
        raise errors.BadFraming("the Host field names no host")
    if expects and listed(first, fields, b"expect").lower() != b"100-continue":
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


def request_body(request: Request) -> Body:
    """The body that a request head announces; none is a length of 0 (RFC 9112, 6.3)."""
    return Chunked() if request.chunked else Length(request.length or 0)
