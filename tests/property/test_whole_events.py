"""Any cutting of any stream: the same bytes go by, and each time they end at an event boundary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relayd.sse import Watcher
from relayd.surfaces import Surface
from relayd.wholeevents import WholeEvents

PIECES = st.lists(
    st.sampled_from(
        [b"data: 1", b"event: x", b": ping", b":", b"\n", b"\r", b"\r\n", b"\n\n", b"x"]
    ),
    max_size=12,
).map(b"".join)


@given(st.lists(PIECES, max_size=6))
def test_what_goes_by_ends_between_two_events_and_is_all_there_is(reads: list[bytes]) -> None:
    events, watcher, passed = WholeEvents(), Watcher(Surface.CHAT), b""
    for data in reads:
        piece = events.feed(data)
        passed += piece
        watcher.feed(piece)
        assert watcher.at_boundary
    assert passed + events.rest() == b"".join(reads)


@given(st.binary(max_size=40))
def test_each_byte_may_be_a_read_of_its_own(data: bytes) -> None:
    whole, cut = WholeEvents(), WholeEvents()
    at_once = whole.feed(data)
    one_by_one = b"".join(cut.feed(data[i : i + 1]) for i in range(len(data)))
    assert at_once == one_by_one
