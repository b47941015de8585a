"""The usual read: what is recognised is a chunk of an event as learned, and nothing else is."""

from __future__ import annotations

import pytest

from relayd.repeat import DOUBTS, LIMIT, Repeat

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
TEXT = EVENT.index(b"%b")


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def learned(text: bytes = b"one") -> Repeat:
    repeat = Repeat()
    repeat.learn(EVENT % text, TEXT, 0)
    return repeat


def test_nothing_is_known_at_first() -> None:
    assert not Repeat().known
    assert learned().known


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
    repeat = Repeat()
    repeat.learn(payload, text, 0)
    assert not repeat.known


def test_the_last_pattern_counts() -> None:
    repeat = learned()
    other = (EVENT % b"a").replace(b"index", b"i")
    repeat.learn(other, other.index(b'"a"') + 1, 0)
    assert repeat.size(chunk(other)) == len(other)
    assert repeat.size(chunk(EVENT % b"a")) == 0


def test_a_stream_whose_patterns_are_in_vain_is_given_up() -> None:
    repeat = Repeat()
    for number in range(DOUBTS + 1):
        event = EVENT.replace(b"null", b"%d" % number)
        repeat.learn(event % b"a", TEXT, 0)
    assert repeat.size(chunk(event % b"b")) == 0


def test_a_pattern_that_was_of_use_keeps_the_others_coming() -> None:
    repeat = Repeat()
    for number in range(3 * DOUBTS):
        event = EVENT.replace(b"null", b"%d" % number)
        repeat.learn(event % b"a", TEXT, number)
    assert repeat.size(chunk(event % b"b")) == len(event % b"b")
