"""Events by the WHATWG rules, in any cuts."""

from __future__ import annotations

import pytest

from relayd.events import MAX_EVENT, Event, EventReader

BOM = b"\xef\xbb\xbf"


def whole(*parts: bytes) -> list[Event]:
    reader = EventReader()
    return [event for part in parts for event in reader.feed(part)]


def data(*texts: bytes) -> list[Event]:
    return [Event(b"", text) for text in texts]


def test_an_event_ends_at_its_empty_line() -> None:
    reader = EventReader()
    assert reader.feed(b"data: one\n") == []
    assert reader.feed(b"\n") == data(b"one")


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_lines_may_end_with_any_line_end(end: bytes) -> None:
    stream = end.join([b"event: e", b"data: 1", b"data: 2", b"", b"data:3", b"", b""])
    assert whole(stream) == [Event(b"e", b"1\n2"), Event(b"", b"3")]


def test_an_event_that_ends_with_cr_does_not_wait_for_the_next_byte() -> None:
    assert whole(b"data: one\r\r") == data(b"one")


def test_a_line_feed_after_a_cut_belongs_to_its_carriage_return() -> None:
    assert whole(b"data: 1\r", b"\ndata: 2\r", b"\n\r", b"\n") == data(b"1\n2")


def test_two_line_feeds_after_a_carriage_return_are_two_line_ends() -> None:
    assert whole(b"data: 1\r", b"", b"\n", b"\n") == data(b"1")


def test_comments_and_other_fields_are_skipped() -> None:
    assert whole(b": ping\n\nid: 7\nretry: 1\ndata: x\n\n") == data(b"x")


def test_an_event_without_data_is_none() -> None:
    assert whole(b"event: e\n\ndata\n\ndata: x\n\n") == data(b"x")


@pytest.mark.parametrize("cut", range(4))
def test_a_byte_order_mark_is_dropped_wherever_it_is_cut(cut: int) -> None:
    stream = BOM + b"data: x\n\n"
    assert whole(stream[:cut], stream[cut:]) == data(b"x")


def test_the_end_of_the_stream_ends_the_last_event() -> None:
    reader = EventReader()
    assert reader.feed(b"data: x") == []
    assert reader.close() == data(b"x")
    assert EventReader().close() == []


@pytest.mark.parametrize(
    "large",
    [b"data: " + b"x" * MAX_EVENT, b"data: xxxx\n" * (MAX_EVENT // 8), b"data: x\n" * MAX_EVENT],
)
@pytest.mark.parametrize("size", [65536, 10_000_000])
def test_nothing_is_read_from_an_event_beyond_the_limit_on(large: bytes, size: int) -> None:
    reader = EventReader()
    stream = b"data: a\n\n" + large + b"\n\ndata: b\n\n"
    found = [
        event for at in range(0, len(stream), size) for event in reader.feed(stream[at : at + size])
    ]
    assert found == data(b"a")
    assert reader.overran
    assert reader.close() == []


def test_an_event_at_the_limit_is_read() -> None:
    text = b"x" * (MAX_EVENT - len(b"data: "))
    assert whole(b"data: " + text + b"\n\n") == data(text)
