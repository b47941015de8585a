"""Any cutting of any stream: the watcher sees what a slow and simple reader sees in the whole."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from relayd.answers import CONTENT
from relayd.peek import Peek, Verdict
from relayd.record import Usage
from relayd.sse import MAX_EVENT, Watcher
from relayd.surfaces import STREAMING, Surface

# ---- streams


def chunk(**members: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": members, "finish_reason": None}], "usage": None}


COUNTS = {"prompt_tokens": 7, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 1}}
TOKENS = {"input_tokens": 7, "output_tokens": 9, "input_tokens_details": {"cached_tokens": 1}}
TRICKY = [
    '"',
    "\\",
    "\n",
    "\r",
    "[DONE]",
    '"error":{',
    '"finish_reason":"stop"',
    "\u2028",
    "é",
    "a",
]
TEXTS = st.lists(st.sampled_from(TRICKY), max_size=4).map("".join)

CHAT = st.one_of(
    TEXTS.map(lambda text: chunk(content=text)),
    TEXTS.map(lambda text: chunk(role="assistant", content=text, refusal=None)),
    TEXTS.map(lambda text: chunk(content="", reasoning=text)),
    st.sampled_from(
        [
            chunk(),
            chunk(role="assistant"),
            chunk(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]),
            chunk(tool_calls=[]),
            {"choices": [], "usage": COUNTS},
            {"choices": [], "error": None},
            {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": COUNTS},
            {"choices": [{"delta": {}, "finish_reason": ""}]},
            {"choices": None},
            {"choices": [{"text": "a"}]},
            {"choices": [{"text": "", "finish_reason": "length"}]},
        ]
    ),
)
TYPED = st.sampled_from(
    [
        {"type": "ping"},
        {"type": "response.created", "response": {"error": None}},
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": "response.output_text.done", "text": "response.completed"},
        {"type": "response.completed", "response": {"usage": TOKENS}},
        {"type": "response.failed", "response": {"error": {"code": "x"}}},
        {"type": "message_start", "message": {"usage": {"input_tokens": 4}}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "message_"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": TOKENS},
        {"type": "message_stop"},
    ]
)
FAULTS = st.sampled_from(
    [
        {"error": {"message": "x"}},
        {"error": "x", "choices": [{"finish_reason": "error"}]},
        {"type": "error", "message": "x"},
    ]
)
ODD = st.sampled_from(["[DONE]", "[DONE] ", "", " ", "5", "null", "{bad", "\ufeff"])
NAMES = st.sampled_from(["", "", "ping", "message", "response.output_text.delta", "error"])
ENDS = ["\n", "\r\n", "\r"]


@st.composite
def events(draw: st.DrawFn) -> str:
    """One event as its sender writes it, without its empty line."""
    document = draw(st.one_of(CHAT, CHAT, CHAT, TYPED, TYPED, FAULTS, ODD))
    if isinstance(document, str):
        text = document
    else:
        indent = draw(st.sampled_from([None, None, None, 1]))
        separators = draw(st.sampled_from([None, (",", ":")]))
        ascii_only = draw(st.booleans())
        text = json.dumps(document, indent=indent, separators=separators, ensure_ascii=ascii_only)
    kind = document.get("type") if isinstance(document, dict) else None
    name = draw(st.sampled_from([draw(NAMES), str(kind or "")]))
    blank = draw(st.sampled_from(["", " "]))
    lines = [f"event:{blank}{name}"] if name else []
    lines += [f"data:{blank}{line}" for line in text.split("\n")]
    lines += draw(st.sampled_from([[], [], [], [": note"], ["id: 1"]]))
    return "\n".join(lines)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    pieces = ["\ufeff"] if draw(st.booleans()) else []
    ends = draw(st.sampled_from([["\n"], ["\n"], ["\r\n"], ENDS]))
    for event in draw(st.lists(events(), max_size=6)):
        pieces += draw(st.sampled_from([[], [], [": ping\n"], [": ping\n\n"], ["\n"]]))
        pieces.append(event + "\n\n")
    if pieces and draw(st.booleans()):
        pieces.append(pieces.pop()[: draw(st.integers(-30, -1))])
    text = "".join(pieces).split("\n")
    with_ends = "".join(line + draw(st.sampled_from(ends)) for line in text[:-1]) + text[-1]
    return with_ends.encode("utf-8")


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


PLACES = st.lists(st.integers(0, 10_000), max_size=12)
SURFACES = st.sampled_from(sorted(STREAMING, key=lambda surface: surface.value))

# ---- the slow reader


@dataclass
class Seen:
    """What there is to be seen in a stream."""

    content: bool = False
    events: int = 0
    finished: bool = False
    final: bool = False
    error: bool = False
    finish_reason: str | None = None
    usage: Usage | None = None
    at_boundary: bool = True


def lines_of(stream: bytes) -> tuple[list[bytes], bytes]:
    """The lines of a stream and what follows the last line end, a byte at a time."""
    stream = stream.removeprefix(b"\xef\xbb\xbf")
    lines = []
    line = b""
    at = 0
    while at < len(stream):
        byte = stream[at : at + 1]
        at += 1
        if byte not in b"\r\n":
            line += byte
            continue
        if byte == b"\r" and stream[at : at + 1] == b"\n":
            at += 1
        lines.append(line)
        line = b""
    return lines, line


def slowly(stream: bytes, surface: Surface) -> Seen:
    """Read by the letter of the rules: every line split, every event parsed."""
    seen = Seen()
    lines, rest = lines_of(stream)
    block: list[bytes] = []
    for line in lines:
        if line:
            block.append(line)
            continue
        name, data = fields_of(block)
        block = []
        if data:
            note(seen, name, data, surface)
        if seen.error:
            return seen
    block += [rest] if rest else []
    seen.at_boundary = not rest and all(line.startswith(b":") for line in block)
    name, data = fields_of(block)
    if data.startswith(b"[DONE]") or isinstance(parsed(data), dict):
        note(seen, name, data, surface)
    return seen


def fields_of(lines: list[bytes]) -> tuple[bytes, bytes]:
    name, data = b"", []
    for line in lines:
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return name, b"\n".join(data)


def parsed(data: bytes) -> object:
    try:
        return json.loads(data)
    except ValueError:
        return None


def note(seen: Seen, name: bytes, data: bytes, surface: Surface) -> None:
    seen.events += 1
    if seen.final:
        return
    if data.startswith(b"[DONE]"):
        seen.finished = seen.final = True
        return
    document = parsed(data)
    if name == b"error" or (isinstance(document, dict) and is_fault(document)):
        seen.error = True
    elif not isinstance(document, dict):
        return
    elif surface is Surface.CHAT or surface is Surface.COMPLETIONS:
        note_choices(seen, document, surface)
    else:
        note_typed(seen, document.get("type") or name.decode(), document, surface)


def is_fault(document: dict[str, object]) -> bool:
    return document.get("error") is not None or document.get("type") == "error"


def note_choices(seen: Seen, document: dict[str, object], surface: Surface) -> None:
    choices = document.get("choices") or []
    assert isinstance(choices, list)
    for choice in choices:
        delta = choice.get("delta", {})
        if surface is Surface.COMPLETIONS:
            delta = {"text": choice.get("text")}
        if any(value for member, value in delta.items() if member != "role"):
            seen.content = True
        if choice.get("finish_reason"):
            seen.content = seen.finished = True
            seen.finish_reason = choice["finish_reason"]
    if document.get("usage"):
        counts = document["usage"]
        assert isinstance(counts, dict)
        seen.usage = Usage(7, 9, 1) if counts in (COUNTS, TOKENS) else None


def note_typed(seen: Seen, kind: object, document: dict[str, object], surface: Surface) -> None:
    assert isinstance(kind, str)
    if surface is Surface.RESPONSES:
        if kind in ("response.completed", "response.failed"):
            seen.finished = seen.final = True
            seen.content = seen.content or kind == "response.completed"
            seen.finish_reason = kind.partition(".")[2]
            if "response" in document and kind == "response.completed":
                seen.usage = Usage(7, 9, 1)
        seen.content = seen.content or (kind.startswith("response.") and kind.endswith(".delta"))
        return
    if kind == "message_stop":
        seen.finished = seen.final = True
    if kind == "content_block_delta":
        seen.content = True
    if kind == "message_start":
        older = seen.usage or Usage()
        seen.usage = Usage(4, older.output, older.cached)
    if kind == "message_delta":
        seen.content, seen.finish_reason, seen.usage = True, "end_turn", Usage(7, 9, 1)


def watched(pieces: list[bytes], surface: Surface) -> tuple[Watcher, Seen]:
    watcher = Watcher(surface)
    flags = 0
    for piece in pieces:
        flags |= watcher.feed(piece)
    flags |= watcher.close()
    assert not watcher.broken
    return watcher, Seen(
        bool(flags & CONTENT),
        watcher.events,
        watcher.finished,
        watcher.final,
        watcher.error,
        watcher.finish_reason,
        watcher.usage,
        watcher.at_boundary,
    )


# ---- the properties


@settings(max_examples=400)
@given(streams(), PLACES, SURFACES)
def test_any_cutting_of_a_stream_is_seen_as_the_slow_reader_sees_the_whole(
    stream: bytes, places: list[int], surface: Surface
) -> None:
    expected = slowly(stream, surface)
    _, cut_up = watched(cut(stream, places), surface)
    _, at_once = watched([stream], surface)
    assert at_once == expected
    assert cut_up == expected


@given(streams(), SURFACES)
def test_a_stream_byte_by_byte_is_seen_as_the_slow_reader_sees_the_whole(
    stream: bytes, surface: Surface
) -> None:
    _, seen = watched([stream[at : at + 1] for at in range(len(stream))], surface)
    assert seen == slowly(stream, surface)


@settings(max_examples=30)
@given(streams(), streams(), st.integers(-60, 60), PLACES, SURFACES)
def test_an_event_around_the_limit_is_seen_alike_in_any_cutting(
    before: bytes, after: bytes, more: int, places: list[int], surface: Surface
) -> None:
    data = json.dumps(chunk(content="x" * (MAX_EVENT - 100 + more))).encode()
    stream = before + b"\n\ndata: " + data + b"\n\n" + after
    assert (
        watched(cut(stream, [place * 97 for place in places]), surface)[1]
        == watched([stream], surface)[1]
    )


@given(st.lists(st.binary(max_size=40), max_size=12), SURFACES)
def test_any_bytes_are_watched_without_a_fault(pieces: list[bytes], surface: Surface) -> None:
    whole = b"".join(pieces)
    assert watched(pieces, surface)[1] == watched([whole], surface)[1]


@given(streams(), PLACES, SURFACES, st.booleans(), st.booleans())
def test_a_peek_ends_alike_in_any_cutting_and_loses_no_byte(
    stream: bytes, places: list[int], surface: Surface, streaming: bool, whole: bool
) -> None:
    verdicts = set()
    for pieces in ([stream], cut(stream, places)):
        peek = Peek(surface, streaming, whole)
        verdict = Verdict.MORE
        fed = b""
        for piece in pieces:
            if verdict in (Verdict.MORE, Verdict.WHOLE):
                verdict = peek.feed(piece)
                fed += piece
        assert bytes(peek.held) == fed
        if verdict in (Verdict.MORE, Verdict.WHOLE):
            verdict = peek.close()
        verdicts.add((verdict, peek.reason))
    assert len(verdicts) == 1
