"""Taking a stream apart does not depend on how it was cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from relayd.events import Event, EventReader

PARTS = [b"data: a", b"event: b", b": c", b"", b"\r", b"\n", b"\r\n", b"\xef\xbb\xbf"]


def whole(*parts: bytes) -> list[Event]:
    reader = EventReader()
    return [event for part in parts for event in reader.feed(part)]


@given(st.lists(st.sampled_from(PARTS)), st.data())
def test_any_cutting_gives_the_same_events(parts: list[bytes], draw: st.DataObject) -> None:
    stream = b"".join(parts)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(stream)))))
    pieces = [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]
    assert whole(*pieces) == whole(stream)
