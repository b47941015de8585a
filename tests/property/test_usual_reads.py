"""The short way of a usual read: a client and a record cannot tell that it was taken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relayd.framing import Chunked
from relayd.job import Answer
from relayd.outcomes import End
from relayd.pump import Limits, Pump
from relayd.sse import Watcher
from relayd.surfaces import Surface
from relayd.wake import Clock, Interrupt, Wake, Why

TEXTS = st.sampled_from(
    ["a", "b c", "", '"', "\\", "error", '"error":', "\n", "é", "[DONE]", "x" * 99]
)
OPEN = {"finish_reason": None}
ENDED = {"finish_reason": "length"}
USUAL = st.tuples(st.sampled_from(["content", "reasoning"]), TEXTS).map(
    lambda said: {"id": "c", "choices": [{"index": 0, "delta": {said[0]: said[1]}, **OPEN}]}
)
OTHERS = st.sampled_from(
    [
        {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant"}}]},
        {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"id": "c", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
        {"id": "d", "choices": [{"index": 0, "delta": {"content": "other id"}}]},
        {"id": "c", "choices": [{"index": 0, "delta": {"content": "end"}, **ENDED}]},
        {"id": "c", "choices": [{"index": 0, "delta": {"content": "a", "x": "b"}, **OPEN}]},
        *[
            {"choices": [{"delta": {"content": "a"}}], "usage": {"completion_tokens": count}}
            for count in (1, 1, 2, 3)
        ],
        {"error": {"message": "broke"}},
    ]
)
LINES = st.sampled_from([b": ping\n\n", b"\n", b"data: [DONE]\n\n", b"data:\n\n", b"event: x\n"])
EVENTS = st.one_of(USUAL, USUAL, USUAL, OTHERS).map(
    lambda event: b"data: " + json.dumps(event).encode() + b"\n\n"
)
PIECES = st.lists(st.one_of(EVENTS, EVENTS, EVENTS, EVENTS, LINES), min_size=1, max_size=14)


def chunk(payload: bytes, size: bytes = b"%x") -> bytes:
    return (size + b"\r\n%b\r\n") % (len(payload), payload)


@st.composite
def reads(draw: st.DrawFn) -> list[bytes]:
    """A chunked stream as it is read: most often one event a chunk and one chunk a read."""
    pieces = draw(PIECES)
    if draw(st.integers(0, 9)) == 0:
        pieces = [piece.replace(b"\n", b"\r\n") for piece in pieces]
    sizes = st.sampled_from([b"%x", b"%x", b"%x", b"%X", b"0%x"])
    found = [chunk(piece, draw(sizes)) for piece in pieces]
    if draw(st.booleans()):
        found.append(b"0\r\n\r\n")
    if draw(st.integers(0, 3)) == 0:  # framing alone, right or wrong, between two reads
        lone = st.sampled_from([b"0\r\n", b"1", b"\r", b"a\r", b"\n", b"103\r", b"x: y\r\n"])
        found.insert(draw(st.integers(0, len(found))), draw(lone))
    if draw(st.integers(0, 4)) == 0:  # the cuts are somewhere else
        text = b"".join(found)
        places = sorted(draw(st.sets(st.integers(1, len(text) - 1), max_size=6)))
        found = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    return found


class Source:
    """The upstream connection, as far as a pump asks."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.ended = False
        self.error = None
        self.sink: Callable[[bytes], None] | None = None
        self.on_end: Callable[[], None] = nothing


def nothing() -> None:
    pass


class Reader:
    """A client that is never behind; `short` says whether it takes chunks as they come."""

    def __init__(self, *, short: bool) -> None:
        self.short = short
        self.said = b""
        self.passed = 0
        self.sent = 0
        self.writable = True

    def heed(self, behind: Callable[[], None], writable: Callable[[], None]) -> None:
        pass

    def write(self, payload: bytes) -> None:
        self.sent += len(payload)
        self.said += payload

    def chunks(self) -> Callable[[bytes], None] | None:
        return self.take if self.short else None

    def take(self, framed: bytes) -> None:
        self.passed += 1
        body = Chunked()
        self.said += body.feed(framed)
        assert body.at_start


async def relayed(found: list[bytes], limit: int, *, short: bool) -> tuple[Any, ...]:
    """What came of a stream: for the client, for the record; last, how much went the short way."""
    loop = asyncio.get_running_loop()
    clock = Clock(loop, Wake(loop))
    source, reader, watcher = Source(), Reader(short=short), Watcher(Surface.CHAT)
    answer: Any = Answer(
        None,
        None,
        source,
        Chunked(),
        b"",
        False,
        watcher,
        "head",
        None,
        None,
        60.0,  # type: ignore[arg-type]
    )
    pump = Pump(answer, reader, clock, Limits(60.0, 60.0, limit))  # type: ignore[arg-type]
    running = loop.create_task(pump.run())
    await asyncio.sleep(0)
    for read in found:
        assert source.sink is not None
        source.sink(read)
    clock.wake.interrupt(Why.CLIENT_LEFT)
    end: End | None = None
    try:
        end = await running
    except Interrupt:
        end = pump.end
    seen = (watcher.events, watcher.finished, watcher.error, watcher.final, watcher.usage)
    seen += (watcher.finish_reason,)
    content = pump.first_content is not None
    return end, reader.said, reader.sent, pump.sent, content, *seen, reader.passed


@given(reads(), st.sampled_from([0, 0, 0, 700]))
@settings(max_examples=400)
def test_the_short_way_says_the_same_as_the_exact_one(found: list[bytes], limit: int) -> None:
    short = asyncio.run(relayed(found, limit, short=True))
    exact = asyncio.run(relayed(found, limit, short=False))
    assert short[:-1] == exact[:-1]


def test_the_short_way_is_taken() -> None:
    said = [f'data: {{"choices":[{{"delta":{{"content":"{n}"}}}}]}}\n\n'.encode() for n in range(9)]
    end, text, sent, *_, passed = asyncio.run(
        relayed([chunk(event) for event in said], 0, short=True)
    )
    assert (end, text, sent) == (None, b"".join(said), len(b"".join(said)))
    assert passed == 7  # behind the first one events begin, the second is learned


SAID = [b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % text for text in (b"a", b"b", b"c")]
LEARNED = [chunk(SAID[0]), chunk(SAID[1])]


@pytest.mark.parametrize(
    "found",
    [
        [b"0\r\n", chunk(SAID[2]), b"\r\n"],
        [b"1", chunk(SAID[2]), b"x" * 400],
        [b"103\r", b"\n" + SAID[2].replace(b"c", b"c" * 213) + b"\r\n"],
        [chunk(SAID[2])[:1], chunk(SAID[2])[1:], chunk(SAID[0])],
    ],
    ids=["behind the last chunk", "half a size", "a size in two reads", "cut at once"],
)
def test_framing_without_payload_ends_the_short_way(found: list[bytes]) -> None:
    short = asyncio.run(relayed(LEARNED + found, 0, short=True))
    exact = asyncio.run(relayed(LEARNED + found, 0, short=False))
    assert short[:-1] == exact[:-1]
    assert short[-1] <= 1


def test_an_event_that_says_more_than_content_is_no_pattern() -> None:
    event = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":%d}}\n\n'
    found = [chunk(event % count) for count in (1, 2, 3, 4, 5, 6, 5)]
    short = asyncio.run(relayed(found, 0, short=True))
    assert short == asyncio.run(relayed(found, 0, short=False))
