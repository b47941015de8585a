"""The states of one breaker."""

from __future__ import annotations

import pytest

from relayd.breaker import (
    MOST,
    Policy,
    Row,
    State,
    Verdict,
    entered,
    judge,
    probe,
    probing,
    state,
)

POLICY = Policy(failures=3, window=30.0, cooldown=10.0, cooldown_growth=2.0, cooldown_max=35.0)
CLOSING = [Verdict.SUCCESS, Verdict.ANSWERED]


def failed(*times: float, row: Row | None = None) -> Row:
    row = row or Row()
    for at in times:
        row = judge(row, row.generation, Verdict.FAILURE, POLICY, at)
    return row


def half_open(lease_until: float = 600.0) -> Row:
    """Tripped at 3, probed at 20."""
    row = probe(failed(1, 2, 3), 20.0, lease_until)
    assert row is not None
    return row


def test_a_new_breaker_is_closed() -> None:
    assert state(Row(), 0.0) is State.CLOSED


def test_failures_inside_the_window_open_it() -> None:
    assert state(failed(1, 2), 2.0) is State.CLOSED
    assert state(failed(1, 2, 3), 3.0) is State.OPEN


def test_failures_that_leave_the_window_do_not_count() -> None:
    assert state(failed(0, 1, 30), 30.0) is State.CLOSED
    assert state(failed(0, 1, 30, 30.5), 30.5) is State.OPEN


def test_a_failure_as_old_as_the_window_is_outside() -> None:
    assert failed(0, 30).failures == (30,)


def test_no_more_failures_are_remembered_than_can_matter() -> None:
    assert failed(0, 40, 80, 120, 160).failures == (160,)


def test_a_success_does_not_excuse_the_failures_before() -> None:
    row = failed(1, 2)
    assert judge(row, row.generation, Verdict.SUCCESS, POLICY, 2.5) is row
    assert state(failed(3, row=row), 3.0) is State.OPEN


@pytest.mark.parametrize("verdict", [Verdict.SUCCESS, Verdict.ANSWERED, Verdict.NEUTRAL])
def test_only_failures_change_a_closed_breaker(verdict: Verdict) -> None:
    row = failed(1)
    assert judge(row, row.generation, verdict, POLICY, 2.0) is row


def test_it_is_open_until_the_cooldown_is_over() -> None:
    row = failed(1, 2, 3)
    assert state(row, 12.99) is State.OPEN
    assert state(row, 13.0) is State.HALF_OPEN


def test_nothing_passes_while_it_is_open_or_closed() -> None:
    assert probe(failed(1, 2, 3), 12.99, 600.0) is None
    assert probe(Row(), 0.0, 600.0) is None


def test_exactly_one_probe_passes() -> None:
    row = half_open()
    assert probing(row, 20.0)
    assert probe(row, 20.0, 600.0) is None


def test_the_place_of_a_probe_ends_with_its_lease() -> None:
    row = half_open(lease_until=50.0)
    assert probe(row, 49.99, 600.0) is None
    assert probe(row, 50.0, 600.0) is not None


@pytest.mark.parametrize("verdict", CLOSING)
def test_a_probe_that_was_answered_closes_it_and_clears_the_count(verdict: Verdict) -> None:
    row = half_open()
    row = judge(row, row.generation, verdict, POLICY, 21.0)
    assert state(row, 21.0) is State.CLOSED
    assert row.failures == ()
    assert state(failed(22, 23, row=row), 23.0) is State.CLOSED


def test_a_probe_that_fails_opens_it_again() -> None:
    row = failed(21.0, row=half_open())
    assert state(row, 40.99) is State.OPEN  # 10 s * 2
    assert state(row, 41.0) is State.HALF_OPEN
    assert not probing(row, 41.0)


def test_a_neutral_probe_gives_its_place_back_without_a_verdict() -> None:
    row = half_open()
    row = judge(row, row.generation, Verdict.NEUTRAL, POLICY, 21.0)
    assert state(row, 21.0) is State.HALF_OPEN
    assert probe(row, 21.0, 600.0) is not None


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_verdict_from_before_the_trip_changes_nothing(verdict: Verdict) -> None:
    row = half_open()
    assert judge(row, 0, verdict, POLICY, 21.0) is row


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_probe_that_outlived_its_lease_has_no_say_after_the_next(verdict: Verdict) -> None:
    first = half_open(lease_until=50.0)
    second = probe(first, 50.0, 600.0)
    assert second is not None
    assert judge(second, first.generation, verdict, POLICY, 51.0) is second


def test_what_began_before_a_trip_is_stale_after_the_breaker_closed_again() -> None:
    row = half_open()
    row = judge(row, row.generation, Verdict.SUCCESS, POLICY, 21.0)
    assert judge(row, 0, Verdict.FAILURE, POLICY, 22.0) is row


def test_the_cooldown_grows_up_to_its_limit_and_starts_anew_after_a_close() -> None:
    assert [POLICY.wait(trips) for trips in (1, 2, 3, 4)] == [10.0, 20.0, 35.0, 35.0]
    row = failed(21.0, row=half_open())
    row = probe(row, 41.0, 600.0) or row
    row = judge(row, row.generation, Verdict.SUCCESS, POLICY, 42.0)
    row = failed(43, 44, 45, row=row)
    assert row.until == 55.0


def test_a_growth_beyond_all_numbers_is_the_limit() -> None:
    assert Policy(cooldown_growth=10.0).wait(10_000) == 300.0


def test_the_time_of_the_present_state_is_known() -> None:
    assert entered(failed(1, 2, 3), 5.0) == 3
    assert entered(half_open(), 21.0) == 13.0
    assert entered(Row(since=7.0), 21.0) == 7.0


def test_fewer_allowed_failures_after_a_reload_count_those_already_seen() -> None:
    strict = Policy(failures=2)
    row = failed(1, 2)
    assert state(judge(row, row.generation, Verdict.FAILURE, strict, 3.0), 3.0) is State.OPEN


def test_a_policy_that_asks_for_more_than_is_remembered_never_opens() -> None:
    policy = Policy(failures=MOST + 1)
    row = Row()
    for second in range(3):
        row = judge(row, 0, Verdict.FAILURE, policy, float(second))
    assert row == Row()
