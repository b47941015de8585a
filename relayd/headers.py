"""The fields of a head, of either side: what they say together, and which of them pass.

Both directions are allow-lists: hop-by-hop fields, credentials, cookies, `X-Accel-*` (nginx would
obey them) and whatever else is not named here stay behind. Does not know framing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from . import errors
from .surfaces import Surface

Field = tuple[bytes, bytes]
Fields = list[Field]
"""Names (in lower case where a head was read) and values, in their order."""

VISIBLE = bytes(b for b in range(256) if b >= 0x20 and b != 0x7F) + b"\t\r\n"
TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Bytes that a line of a head may hold, and those of a token (RFC 9110, 5.6.2)."""


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


CROSSING: dict[Surface | None, dict[bytes, bytes]] = {
    **{surface: {b"openai-beta": b"OpenAI-Beta"} for surface in Surface},
    Surface.MESSAGES: {name: name for name in (b"anthropic-version", b"anthropic-beta")},
    None: {},
}
"""Fields of the client that reach a provider, by surface: lower-case name to the name sent.

None is the small API: what is asked there is of relayd's own making."""

TRACE = {b"traceparent": b"traceparent"}
"""What crosses on every surface, if it is valid (W3C Trace Context, 3.2)."""

RETURNING = {
    b"openai-processing-ms": b"openai-processing-ms",
    b"openai-version": b"openai-version",
    b"x-request-id": b"X-Upstream-Request-ID",
    b"request-id": b"X-Upstream-Request-ID",  # Anthropic's
}
"""Fields of a provider that reach the client: lower-case name to the name sent."""

MAX_FIELDS = 256
"""Of a head, on either side: each costs the loop some microseconds, and nobody sends a hundred."""

MAX_RETURNING = 2048
"""Bytes of a provider's fields that reach the client, some 100 in earnest: nginx makes a 502 of a
head that is larger than its buffer, which is 4 KiB by default."""

MAX_CROSSING = 4096
"""Bytes of a client's fields that reach a provider, some 200 in earnest: a head that the provider
resets for its size would count against the provider's breaker."""

_MAY_CROSS = {surface: frozenset(names | TRACE) for surface, names in CROSSING.items()}
MAY_CROSS = frozenset().union(*_MAY_CROSS.values())
"""Whatever may cross on any surface."""
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


def crossing(first: dict[bytes, bytes], fields: Fields, surface: Surface | None) -> bytes:
    """The lines (each with its CR LF) of a client's head that go upstream.

    `first` has the first value of each field's name. Raises `errors.HeadTooLarge` for more than
    `MAX_CROSSING` bytes.
    """
    if first.keys().isdisjoint(_MAY_CROSS[surface]):
        return b""
    names = CROSSING[surface]
    traces = [value for name, value in fields if name == b"traceparent"]
    if len(traces) == 1 and is_traceparent(traces[0]):  # of several, none can be trusted
        names = names | TRACE
    lines = _picked(first, fields, names)
    if len(lines) > MAX_CROSSING:
        raise errors.HeadTooLarge("the fields for the provider are larger than this server passes")
    return lines


def without(lines: bytes, names: frozenset[bytes]) -> bytes:
    """`lines`, each with its CR LF, less those with a name (in lower case) in `names`."""
    kept = [line for line in lines.split(b"\r\n") if line.partition(b":")[0].lower() not in names]
    return b"\r\n".join(kept)


def returning(first: dict[bytes, bytes], fields: Fields) -> bytes:
    """The lines (each with its CR LF) of a provider's head that go to the client.

    `first` has the first value of each field's name. No line at all where they are more than
    `MAX_RETURNING` bytes together.
    """
    lines = _picked(first, fields, RETURNING)
    return lines if len(lines) <= MAX_RETURNING else b""


def _picked(first: dict[bytes, bytes], fields: Fields, names: dict[bytes, bytes]) -> bytes:
    """The lines of those that have a name in `names`, and that `Connection` does not name."""
    found = names.keys() & first.keys()
    if found and b"connection" in first:
        found -= connection_names(first, fields)
    if not found:
        return b""
    picked = [(names[name], value) for name, value in fields if name in found]
    return b"".join([b"%b: %b\r\n" % line for line in picked])


def listed(first: dict[bytes, bytes], fields: Fields, name: bytes) -> bytes:
    """The whole list of a field, however many lines it has."""
    if len(first) == len(fields):
        return first[name]
    return b",".join([value for key, value in fields if key == name])


def closes(first: dict[bytes, bytes], fields: Fields) -> bool:
    """Whether `Connection` says so, in any of its fields."""
    options = listed(first, fields, b"connection").lower()
    return options != b"keep-alive" and b"close" in members(options)


def connection_names(first: dict[bytes, bytes], fields: Fields) -> set[bytes]:
    """What `Connection` names: these fields are of the connection, not of the message."""
    return set(members(listed(first, fields, b"connection")))


def members(value: bytes) -> list[bytes]:
    """The members of a comma list, in lower case, without the empty ones."""
    return [item for item in (part.strip(b" \t").lower() for part in value.split(b",")) if item]


def is_coded(first: dict[bytes, bytes], fields: Fields) -> bool:
    """Whether a body has a content coding; `first` has the first value of each field's name."""
    if b"content-encoding" not in first:
        return False
    codings = members(listed(first, fields, b"content-encoding"))
    return any(coding != b"identity" for coding in codings)


def is_traceparent(value: bytes) -> bool:
    """Valid by W3C Trace Context: no zero ids, not version ff, version 00 with nothing behind."""
    match = _TRACEPARENT.fullmatch(value)
    if match is None:
        return False
    version, trace, span, more = match.groups()
    zero = not trace.strip(b"0") or not span.strip(b"0")
    return not zero and version != b"ff" and not (version == b"00" and more)


def is_request_id(value: bytes) -> bool:
    """1 to 128 characters of `[A-Za-z0-9._:-]`."""
    return _REQUEST_ID.fullmatch(value) is not None


def may_end(buffer: bytearray, read: int) -> bool:
    """Whether a head that comes in pieces is worth another look, `read` bytes after the last one.

    It is when its end may be there, or twice as much as then: so one that comes byte by byte is
    read a logarithmic number of times.
    """
    return len(buffer) > 2 * read or buffer.find(b"\r\n\r\n", max(0, read - 3)) >= 0
