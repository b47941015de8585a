"""The quick look at a stream's events misses nothing that the exact one sees."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relayd.answers import _CHOICES_END, _telling_choices

WORDS = (b'"finish_reason"', b'finish_reason"', b'"error"', b'"usage"', b"null", b"stop", b'"stop"')
SIGNS = (b":", b'"', b"{", b"}", b",", b" ", b"\n", b"n")


@given(st.lists(st.sampled_from((*WORDS, *SIGNS)), max_size=40).map(b"".join))
def test_it_finds_what_a_search_finds(data: bytes) -> None:
    found = _CHOICES_END(data)
    assert _telling_choices(data) == (found.start() if found else -1)
