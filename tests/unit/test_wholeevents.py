"""Whole events go by as they end; what has only begun waits, and is dropped where it breaks off."""

from __future__ import annotations

import pytest

from relayd.wholeevents import HELD_MOST, WholeEvents

ONE, TWO = b'data: {"n":1}\n\n', b'data: {"n":2}\n\n'
LONG = b"data: " + b"x" * HELD_MOST


def test_whole_events_go_by_at_once() -> None:
    events = WholeEvents()
    assert events.feed(ONE + TWO) == ONE + TWO
    assert events.cut() == b""


def test_an_event_waits_for_its_end() -> None:
    events = WholeEvents()
    assert events.feed(ONE + TWO[:5]) == ONE
    assert events.feed(TWO[5:-1]) == b""
    assert events.feed(TWO[-1:]) == TWO


@pytest.mark.parametrize("end", [b"\n\n", b"\r\r", b"\r\n\r\n", b"\n\r\n", b"\r\n\n", b"\n\r"])
def test_whatever_the_line_ends(end: bytes) -> None:
    events = WholeEvents()
    assert events.feed(b"data: 1" + end + b"data: 2") == b"data: 1" + end
    assert events.rest() == b"data: 2"


@pytest.mark.parametrize("last", [b"\r\r", b"\r\n\r\n"])
def test_of_mixed_line_ends_the_last_event_that_is_whole_goes_by_too(last: bytes) -> None:
    events = WholeEvents()
    assert events.feed(ONE + b"data: 2" + last + b"data: 3") == ONE + b"data: 2" + last


def test_the_end_of_a_line_is_no_end_of_an_event() -> None:
    events = WholeEvents()
    assert events.feed(b"event: x\r\n") == b""
    assert events.feed(b"data: 1\r") == b""
    assert events.feed(b"\n") == b""
    assert events.feed(b"\r") == b"event: x\r\ndata: 1\r\n\r"
    assert events.feed(b"\ndata: 2") == b"\n"


def test_comments_between_events_go_by_with_their_line() -> None:
    events = WholeEvents()
    assert events.feed(b": pi") == b""
    assert events.feed(b"ng\n") == b": ping\n"
    assert events.feed(b"\n: ping\ndata: 1\n: ping\n") == b"\n: ping\n"
    assert events.rest() == b"data: 1\n: ping\n"


def test_what_is_held_back_is_dropped_at_a_cut() -> None:
    events = WholeEvents()
    assert events.feed(ONE + TWO[:9]) == ONE
    assert events.cut() == b""
    assert events.rest() == b""


def test_what_is_held_back_goes_by_where_the_stream_ends_with_it() -> None:
    events = WholeEvents()
    assert events.feed(TWO[:-1]) == b""
    assert events.rest() == TWO[:-1]


def test_an_event_that_is_too_long_goes_by_in_parts_and_is_ended_at_a_cut() -> None:
    events = WholeEvents()
    assert events.feed(LONG) == LONG
    assert events.feed(b"") == b""
    assert events.feed(b"xx\n") == b"xx\n"
    assert events.cut() == b"\n\n"
    assert events.feed(b"\ndata: 2") == b"\n", "expected to stand at a boundary again"
    assert events.cut() == b""


def test_the_end_of_one_that_is_too_long_may_come_with_others() -> None:
    events = WholeEvents()
    events.feed(LONG)
    assert events.feed(b"x\n\n" + ONE + TWO[:4]) == b"x\n\n" + ONE
    assert events.feed(TWO[4:]) == TWO
