"""A reader that is behind: one that takes a little is slow, one that takes nothing has stalled."""

from __future__ import annotations

import pytest

from relayd.stall import SETTLE, Stall

TIMEOUT = 60.0


class Reader:
    """Somebody for whom `left` bytes wait."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.left = 1000
        self.stall = Stall(lambda: self.left, timeout, 0.0)

    def has_stalled(self, now: float) -> bool:
        return self.stall.due(now) <= now


def test_who_takes_nothing_has_stalled_after_the_timeout() -> None:
    reader = Reader()
    assert reader.stall.due(0.0) == SETTLE
    assert reader.stall.due(SETTLE) == TIMEOUT
    assert not reader.has_stalled(TIMEOUT - 0.1)
    assert reader.has_stalled(TIMEOUT)


def test_what_its_own_kernel_takes_at_first_is_nothing_that_it_took() -> None:
    reader = Reader()
    reader.stall.due(0.0)
    reader.left = 400
    reader.stall.due(SETTLE)
    assert reader.has_stalled(TIMEOUT)


def test_who_takes_a_byte_has_all_its_time_again() -> None:
    reader = Reader()
    reader.stall.due(SETTLE)
    for looked in (TIMEOUT, 2 * TIMEOUT, 3 * TIMEOUT):
        reader.left -= 1
        assert reader.stall.due(looked) == looked + TIMEOUT
    assert reader.has_stalled(4 * TIMEOUT)


@pytest.mark.parametrize("timeout", [0.1, SETTLE])
def test_a_timeout_may_be_shorter_than_the_first_look(timeout: float) -> None:
    reader = Reader(timeout)
    assert reader.stall.due(0.0) == timeout
    assert reader.has_stalled(timeout)
