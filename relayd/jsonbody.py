"""The facts of a request body, and the byte spans where a value may be put in its place.

    client's bytes ── read ──► Facts ── splice(replace) ──► provider's bytes

The rules of this file:

- Nothing is ever re-serialised. Numbers, escapes, the order of keys, unknown and repeated nested
  keys reach the provider as the client wrote them; only the bytes of a replaced value differ.
- RFC 8259 as written: UTF-8 without a BOM, one object, no NaN. A number of any length is legal, and
  is never converted.
- What two readers could take for different things (a repeated `model`, `stream` or `messages`, also
  when one of them is spelled with escapes, or in other letter cases) is a fault: a filter may see
  the first of them, a provider the last, and one written in Go reads `Model` as `model`.
- The depth of nesting is judged by our own count before anything recursive runs, because the limit
  of the interpreter moves between versions of Python.

Does not know HTTP, routes, providers or quotas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from json.scanner import make_scanner
from typing import NamedTuple, NoReturn

from .surfaces import CHAT, MESSAGES, RESPONSES, Surface

MAX_DEPTH = 100
"""Levels of arrays and objects, the outermost one included. Real requests stay below 20."""

MAX_MEMBERS = 1024
"""Top-level members: real requests have some twenty, and the place of each is kept until the
commit, in some thirty times its bytes."""

ONCE = ("model", "stream", "messages")
"""Top-level members that may not be repeated."""

_BLANK = " \t\n\r"
_KNOWN = {
    f'"{name}"': name
    for name in ("model", "messages", "stream", "temperature", "max_tokens", "tools")
}
_USUAL = frozenset(_KNOWN.values())
assert _USUAL.issuperset(ONCE)
_OPENING = re.compile(r"[ \t\n\r]*+\{")
_CLOSING = re.compile(r"[ \t\n\r]*+\}")
_KEY = r'[ \t\n\r]*+("[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+")[ \t\n\r]*+:[ \t\n\r]*+'
_FIRST = re.compile(_KEY)
_NEXT = re.compile(r"[ \t\n\r]*+," + _KEY)
# From a quote to its end, or to the end of the body: it matches at every quote, so that no
# sequence of escaped quotes makes the search start over and over.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEP = tuple({91: 1, 123: 1, 93: -1, 125: -1}.get(byte, 0) for byte in range(256))

Span = tuple[int, int]


class BodyFault(ValueError):
    """The body is no usable request; `message` is for the client, `param` the member at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


@dataclass(slots=True)
class Facts:
    """What relayd needs to know of one body; all offsets are in bytes of that body.

    `members`: top-level key (escapes resolved) to the [start, end) of each of its values.
    `insert_at`: just behind the opening brace. `empty`: the object has no member.
    `continuation`: the last message hands in the result of a tool, so it continues a turn.
    """

    model: str | None
    stream: bool
    continuation: bool
    members: Mapping[str, Sequence[Span]]
    insert_at: int
    empty: bool

    def value(self, body: bytes, name: str) -> bytes | None:
        """The bytes of a top-level member's (last) value, or None when there is none."""
        spans = self.members.get(name)
        return body[slice(*spans[-1])] if spans else None


FORGOTTEN = Facts(None, False, False, {}, 0, True)
"""In place of the facts of a body that is sent no more."""


def read(body: bytes, surface: Surface) -> Facts:
    """Judge a whole request body. Raises BodyFault with words for the client."""
    text = _letters(body)
    openings = len(body) - len(body.translate(None, b"[{"))
    if openings > MAX_DEPTH and _depth(body) > MAX_DEPTH:
        raise BodyFault(f"the body nests deeper than {MAX_DEPTH} levels")
    outline = _outline(text, MAX_MEMBERS)
    top, spans, insert_at = outline
    if sum(map(len, spans.values())) > len(spans):
        _need_one_each(spans)
    if unusual := spans.keys() - _USUAL:
        _need_letters(unusual)
    if surface is CHAT or surface is MESSAGES:
        _need_messages(top)
    return Facts(
        _model(top, text, spans),
        _stream(top),
        _continues(top, surface),
        spans,
        insert_at,
        not spans,
    )


def splice(body: bytes, facts: Facts, replace: Mapping[str, bytes]) -> bytes:
    """`body` with top-level members set to the given JSON values; every other byte stays.

    Each occurrence of a member gets the value; what is missing goes to the start of the object.
    """
    edits: list[tuple[int, int, bytes]] = []
    missing: list[str] = []
    for name, value in replace.items():
        spans = facts.members.get(name)
        if spans is None:
            missing.append(name)
        elif len(replace) == len(spans) == 1:  # most often `model`, and nothing else
            start, end = spans[0]
            return body[:start] + value + body[end:]
        else:
            edits += [(start, end, value) for start, end in spans]
    if missing:
        added = b",".join(_quoted(name) + b":" + replace[name] for name in missing)
        comma = b"" if facts.empty else b","
        edits.append((facts.insert_at, facts.insert_at, added + comma))
    edits.sort()
    pieces: list[bytes] = []
    done = 0
    for start, end, value in edits:
        pieces += (body[done:start], value)
        done = end
    pieces.append(body[done:])
    return b"".join(pieces)


def with_member(value: bytes | None, name: str, member: bytes) -> bytes:
    """The JSON object `value` with `name` set to `member`, its other members as they were.

    None, or JSON that is no object, gives an object of that one member. Made for `no_train`:
    `with_member(facts.value(body, "provider"), "data_collection", b'"deny"')`.
    """
    if value is None or not value.startswith(b"{"):
        value = b"{}"
    outline = _outline(value.decode("latin-1"), len(value))
    facts = Facts(
        model=None,
        stream=False,
        continuation=False,
        members=outline.spans,
        insert_at=outline.insert_at,
        empty=not outline.spans,
    )
    return splice(value, facts, {name: member})


class _Outline(NamedTuple):
    """The top level of an object: each member's last value, and where all of them are."""

    values: dict[str, object]
    spans: dict[str, list[Span]]
    insert_at: int


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# Of a number only its being one matters: `len` makes a small int of its digits, at C speed, where
# a conversion would take quadratic time or meet the interpreter's limit on digits. The scanner is
# what `raw_decode` calls: (text, index) to (value, end), StopIteration where no value begins.
_scan: Callable[[str, int], tuple[object, int]] = make_scanner(
    # typeshed mistakes the scanner's parameter for a scanner
    json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=_refuse)  # type: ignore[arg-type]
)


def _letters(body: bytes) -> str:
    """The body with one character per byte, so that an index into it is an offset in bytes.

    The syntax of JSON is ASCII and bytes above 127 stand only inside strings, where the few that
    matter are read again as what they are (`_exact`).
    """
    if not body.isascii():
        try:
            body.decode("utf-8")
        except UnicodeDecodeError as fault:
            raise BodyFault(f"the body is not UTF-8: byte {fault.start} is wrong") from None
    return body.decode("latin-1")


def _exact(quoted: str) -> str:
    """The text that a JSON string, quotes included, stands for."""
    if quoted.isascii() and "\\" not in quoted:
        return quoted[1:-1]
    text = json.loads(quoted.encode("latin-1").decode("utf-8"))
    assert isinstance(text, str)
    return text


def _depth(body: bytes) -> int:
    """The deepest nesting, without recursion. Exact up to the first syntax error."""
    brackets = _STRING.sub(b"", body).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0)


def _outline(text: str, most: int) -> _Outline:
    opening = _OPENING.match(text)
    if opening is None:
        raise BodyFault("the body is not a JSON object")
    values: dict[str, object] = {}
    spans: dict[str, list[Span]] = {}
    try:
        at = _walk(text, opening.end(), values, spans, most)
    except (ValueError, StopIteration):
        raise BodyFault("the body is not valid JSON") from None
    closing = _CLOSING.match(text, at)
    if closing is None:
        many = _NEXT.match(text, at) is not None
        raise BodyFault(f"more than {most} members" if many else "the body is not valid JSON")
    if text[closing.end() :].strip(_BLANK):
        raise BodyFault("the body goes on after its JSON object")
    return _Outline(values, spans, opening.end())


def _walk(
    text: str, at: int, values: dict[str, object], spans: dict[str, list[Span]], most: int
) -> int:
    """Go over the members from `at`, `most` of them, fill both maps; the end of the last one."""
    found = _FIRST.match(text, at)
    for _ in range(most):
        if not found:
            break
        quoted = found[1]
        key = _KNOWN.get(quoted) or _exact(quoted)
        start = found.end()
        values[key], at = _scan(text, start)
        if key in spans:
            spans[key].append((start, at))
        else:
            spans[key] = [(start, at)]
        found = _NEXT.match(text, at)
    return at


def _quoted(name: str) -> bytes:
    return json.dumps(name).encode("ascii")


def _model(top: dict[str, object], text: str, spans: Mapping[str, Sequence[Span]]) -> str | None:
    if "model" not in top:
        return None
    model = top["model"]
    if not isinstance(model, str) or not model:
        raise BodyFault("`model` must be a non-empty string", "model")
    if model.isascii():
        return model
    exact = _exact(text[slice(*spans["model"][0])])
    try:
        exact.encode("utf-8")
    except UnicodeEncodeError:
        raise BodyFault("`model` holds half of a surrogate pair", "model") from None
    return exact


def _stream(top: dict[str, object]) -> bool:
    stream = top.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise BodyFault("`stream` must be true or false", "stream")
    return bool(stream)


def _need_one_each(spans: Mapping[str, Sequence[Span]]) -> None:
    for name in ONCE:
        if len(spans.get(name, ())) > 1:
            raise BodyFault(f"`{name}` is given more than once", name)


def _need_letters(names: Iterable[str]) -> None:
    for name in names:
        if (meant := name.casefold()) in ONCE:
            raise BodyFault(f"`{meant}` is spelled in other letters", meant)


def _need_messages(top: dict[str, object]) -> None:
    messages = top.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BodyFault("`messages` must be a non-empty array", "messages")


def _continues(top: dict[str, object], surface: Surface) -> bool:
    """Whether the last message only hands in results of tools; a malformed one does not."""
    items = top.get("input" if surface is RESPONSES else "messages")
    if not isinstance(items, list) or not items or not isinstance(items[-1], dict):
        return False
    if surface is CHAT:
        return _answers_tool_call(items)
    if surface is MESSAGES:
        return _only_tool_results(items[-1])
    return surface is RESPONSES and items[-1].get("type") == "function_call_output"


def _answers_tool_call(messages: list[object]) -> bool:
    """Chat: the last message answers a call of the assistant message before the tool messages."""
    last = messages[-1]
    assert isinstance(last, dict)
    if last.get("role") != "tool":
        return last.get("role") == "function"
    for message in reversed(messages):
        if not isinstance(message, dict):
            return False
        if message.get("role") != "tool":
            return message.get("role") == "assistant" and _called(message, last.get("tool_call_id"))
    return False


def _called(assistant: dict[str, object], call_id: object) -> bool:
    calls = assistant.get("tool_calls")
    # Strings only: of two numbers nothing is kept that could tell them apart.
    if not isinstance(calls, list) or not isinstance(call_id, str):
        return False
    return any(isinstance(call, dict) and call.get("id") == call_id for call in calls)


def _only_tool_results(message: dict[str, object]) -> bool:
    """Messages: a `user` message with nothing but `tool_result` blocks, at least one."""
    content = message.get("content")
    if message.get("role") != "user" or not isinstance(content, list) or not content:
        return False
    return all(isinstance(block, dict) and block.get("type") == "tool_result" for block in content)
