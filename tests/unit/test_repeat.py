"""The usual read: what is recognised is a chunk of an event as learned, and nothing else is."""

from __future__ import annotations

import sys
from itertools import count

import pytest

from relayd.repeat import DOUBTS, LIMIT, Repeat

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
TEXT = EVENT.index(b"%b")


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


class Way(Repeat):
    """A short way whose turns are noted; its clock goes on by a second with each look."""

    def __init__(self, most: int = sys.maxsize) -> None:
        self.usual: list[bytes] = []
        self.others: list[bytes] = []
        super().__init__(count(1.0).__next__, most, self.usual.append, self.others.append)

    def size(self, read: bytes) -> int:
        """Bytes of payload of a usual read; 0 for any other."""
        before = self.sent
        self.feed(read)
        assert (self.usual + self.others)[-1] == read
        return self.sent - before


def learned(text: bytes = b"one") -> Way:
    way = Way()
    way.learn(EVENT % text, TEXT)
    way.arm()
    return way


def test_nothing_is_usual_at_first() -> None:
    way = Way()
    way.arm()
    assert way.size(chunk(EVENT % b"a")) == 0
    assert way.others


def test_what_is_counted() -> None:
    way = learned()
    reads = [chunk(EVENT % text) for text in (b"a", b"bc")]
    for read in reads:
        way.feed(read)
    assert way.usual == reads
    assert way.others == []
    assert (way.hits, way.sent) == (2, len(EVENT % b"a") + len(EVENT % b"bc"))
    assert (way.content, way.max_gap) == (2.0, 1.0)


def test_it_is_taken_only_while_it_is_armed() -> None:
    way = learned()
    way.disarm()
    assert way.size(chunk(EVENT % b"a")) == 0
    way.arm()
    assert way.size(chunk(EVENT % b"a")) > 0
    way.close()
    way.feed(chunk(EVENT % b"a"))
    assert (len(way.usual), len(way.others)) == (1, 1)


def test_what_would_be_too_much_is_not_usual() -> None:
    event = EVENT % b"a"
    way = Way(most=2 * len(event))
    way.learn(event, TEXT)
    way.arm()
    assert [way.size(chunk(event)) for _ in range(3)] == [len(event), len(event), 0]


@pytest.mark.parametrize(
    "text",
    [
        b"one",
        b" a longer text, with {brackets} and a 'quote'",
        rb"an \"escaped\" quote, \\ and a \n",
        "é☃".encode(),
        b"x" * 255,
    ],
)
def test_the_same_event_with_another_text_is_a_usual_read(text: bytes) -> None:
    event = EVENT % text
    assert learned().size(chunk(event)) == len(event)
    assert learned(text).size(chunk(EVENT % b"two")) == len(EVENT % b"two")


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(chunk(EVENT % b""), id="no text"),
        pytest.param(chunk(EVENT % b'a","role":"b'), id="a quote ends the text"),
        pytest.param(chunk(EVENT % b"a\\"), id="half an escape"),
        pytest.param(chunk(EVENT % b"a\nb"), id="a line end"),
        pytest.param(chunk(EVENT % b"a\rb"), id="the other line end"),
        pytest.param(chunk(EVENT % b"a\\\nb"), id="a line end behind a backslash"),
        pytest.param(chunk((EVENT % b"a").replace(b"null", b'"stop"')), id="a finish"),
        pytest.param(chunk((EVENT % b"a").replace(b"index", b"Index")), id="another beginning"),
        pytest.param(chunk(EVENT % b"a" + EVENT % b"b"), id="two events in a chunk"),
        pytest.param(chunk(EVENT % b"a") + chunk(EVENT % b"b"), id="two chunks"),
        pytest.param(chunk(EVENT % b"a")[:-1], id="not all of it"),
        pytest.param(chunk(EVENT % b"a") + b"0\r\n\r\n", id="more than it"),
        pytest.param(b"0" + chunk(EVENT % b"a"), id="a leading zero"),
        pytest.param(chunk(EVENT % b"a").replace(b"\r\n", b";x\r\n", 1), id="an extension"),
        pytest.param(b"50\r\n" + EVENT % b"a" + b"\r\n", id="another size"),
        pytest.param(b"4F\r\n" + EVENT % b"abcd" + b"\r\n", id="large digits"),
        pytest.param(chunk(EVENT % (b"a" * LIMIT)), id="a long one"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_anything_else_is_none(read: bytes) -> None:
    assert learned().size(read) == 0


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (EVENT % b"a", -1),
        (EVENT % b"a", 0),
        (EVENT % b"a", TEXT + 1),
        (EVENT % b"", TEXT),
        (b'data: {"a":1}\n\n', 11),
        ((EVENT % b"a")[: TEXT + 1], TEXT),
    ],
    ids=["no text", "no beginning", "inside", "empty", "a number", "an open string"],
)
def test_no_whole_string_is_no_pattern(payload: bytes, text: int) -> None:
    way = Way()
    way.learn(payload, text)
    way.arm()
    assert way.size(chunk(EVENT % b"a")) == 0
    assert way.size(chunk(payload)) == 0


def test_the_last_pattern_counts() -> None:
    way = learned()
    other = (EVENT % b"a").replace(b"index", b"i")
    way.learn(other, other.index(b'"a"') + 1)
    assert way.size(chunk(other)) == len(other)
    assert way.size(chunk(EVENT % b"a")) == 0


def test_a_stream_whose_patterns_are_in_vain_is_given_up() -> None:
    way = Way()
    for number in range(DOUBTS + 1):
        event = EVENT.replace(b"null", b"%d" % number)
        way.learn(event % b"a", TEXT)
        way.arm()
    assert way.size(chunk(event % b"b")) == 0


def test_a_pattern_that_was_of_use_keeps_the_others_coming() -> None:
    way = Way()
    for number in range(3 * DOUBTS):
        event = EVENT.replace(b"null", b"%d" % number)
        way.learn(event % b"a", TEXT)
        way.arm()
        assert way.size(chunk(event % b"b")) == len(event % b"b")
