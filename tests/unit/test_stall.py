"""A reader that is behind: one that takes a little is slow, one that takes nothing has stalled."""

from __future__ import annotations

import pytest

from relayd.stall import EARLY_LOOK, LOOKS, Stall

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
    assert reader.stall.due(0.0) == EARLY_LOOK
    assert reader.stall.due(EARLY_LOOK) == EARLY_LOOK + TIMEOUT / LOOKS
    assert reader.stall.due(TIMEOUT - 1) == TIMEOUT
    assert not reader.has_stalled(TIMEOUT - 0.1)
    assert reader.has_stalled(TIMEOUT)


def test_what_its_own_kernel_takes_at_first_gives_it_a_second() -> None:
    reader = Reader()
    reader.left = 400
    assert reader.stall.due(EARLY_LOOK) == EARLY_LOOK + TIMEOUT / LOOKS
    assert not reader.has_stalled(TIMEOUT)
    assert reader.has_stalled(EARLY_LOOK + TIMEOUT)


def test_who_takes_a_byte_has_all_its_time_again() -> None:
    reader = Reader()
    for looked in (TIMEOUT - 1, 2 * TIMEOUT - 2, 3 * TIMEOUT - 3):
        reader.left -= 1
        assert not reader.has_stalled(looked)
    assert not reader.has_stalled(4 * TIMEOUT - 4)
    assert reader.has_stalled(4 * TIMEOUT - 3)


def test_who_stops_between_two_looks_is_cut_a_quarter_late_at_the_most() -> None:
    reader = Reader()
    now, stopped = 0.0, 17.0
    while (due := reader.stall.due(now)) > now:
        now = due
        if now < stopped:
            reader.left -= 1
    assert stopped + TIMEOUT <= now + TIMEOUT / LOOKS
    assert now <= stopped + TIMEOUT * (1 + 1 / LOOKS)


@pytest.mark.parametrize("timeout", [0.05, EARLY_LOOK, 1.5])
def test_a_short_timeout_is_looked_at_halfway(timeout: float) -> None:
    reader = Reader(timeout)
    assert reader.stall.due(0.0) == timeout / 2
    reader.left -= 1
    assert reader.stall.due(timeout / 2) == timeout * (1 / 2 + 1 / LOOKS)
    assert not reader.has_stalled(timeout)
    assert reader.has_stalled(timeout * 1.5)
