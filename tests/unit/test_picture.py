"""What the status page remembers: spans of time, failed-over exchanges, the heaviest users."""

from __future__ import annotations

from datetime import UTC
from zoneinfo import ZoneInfo

import pytest

from relayd.breaker import Verdict
from relayd.outcomes import RULES, Outcome
from relayd.picture import (
    FAILED_OVER,
    POINT_SECONDS,
    POINTS,
    TOP,
    USERS,
    Count,
    History,
    Picture,
    Point,
    TopUsers,
    tried,
)
from tests.support.records import BEGAN, attempt, exchange, failed

DAY = 86_400.0
MIDNIGHT = 1_700_006_400.0
"""The midnight (UTC) after `BEGAN`."""


def picture() -> Picture:
    made = Picture()
    made.keep(["a", "b"], UTC)
    return made


def newest(made: Picture, name: str, now: float = 5.0) -> Point:
    return made.histories[name].points(now)[-1]


# --- one provider ---


def test_a_history_without_events_is_empty_points() -> None:
    assert History().points(1e6) == [Point()] * POINTS


def test_events_of_one_span_share_a_point() -> None:
    history = History()
    history.answered(0.2, 100.0)
    history.answered(0.4, 109.9)
    history.failed(109.9)
    history.answered(9.0, 110.0)
    before, last = history.points(110.0)[-2:]
    assert (before.answers, before.failures, before.wait) == (2, 1, pytest.approx(0.3))
    assert (last.answers, last.failures, last.wait) == (1, 0, 9.0)


def test_a_point_without_answers_has_no_wait() -> None:
    assert Point(failures=3).wait is None


def test_quiet_spans_are_empty_points() -> None:
    history = History()
    history.failed(100.0)
    history.failed(100.0 + 3 * POINT_SECONDS)
    assert [point.failures for point in history.points(135.0)[-4:]] == [1, 0, 0, 1]


def test_what_is_older_than_the_history_is_forgotten() -> None:
    history = History()
    history.failed(0.0)
    assert history.points((POINTS - 1) * POINT_SECONDS)[0].failures == 1
    assert history.points(POINTS * POINT_SECONDS)[0].failures == 0


def test_a_long_silence_costs_no_more_than_a_whole_history() -> None:
    history = History()
    history.failed(0.0)
    assert history.points(1e12) == [Point()] * POINTS


def test_an_event_from_before_the_newest_span_goes_into_the_newest() -> None:
    history = History()
    history.failed(500.0)
    history.failed(100.0)
    assert [point.failures for point in history.points(500.0)[-2:]] == [0, 2]


# --- users ---


def test_the_heaviest_users_come_first_with_what_they_used() -> None:
    users = TopUsers()
    for _ in range(3):
        users.charge(("app", "ann"), BEGAN, UTC)
    users.charge((None, "bob"), BEGAN, UTC)
    assert users.top(BEGAN, UTC) == [(("app", "ann"), Count(3, 0)), ((None, "bob"), Count(1, 0))]


def test_the_same_user_id_of_two_clients_is_two_users() -> None:
    users = TopUsers()
    users.charge(("one", "ann"), BEGAN, UTC)
    users.charge(("two", "ann"), BEGAN, UTC)
    assert len(users.top(BEGAN, UTC)) == 2


def test_only_so_many_users_are_shown() -> None:
    users = TopUsers()
    for number in range(TOP + 5):
        users.charge((None, str(number)), BEGAN, UTC)
    assert len(users.top(BEGAN, UTC)) == TOP


def test_a_heavy_user_is_never_missed_among_many_light_ones() -> None:
    users = TopUsers()
    for number in range(20 * USERS):
        users.charge((None, f"light-{number}"), BEGAN, UTC)
        if number % 10 == 0:
            users.charge((None, "heavy"), BEGAN, UTC)
    who, count = users.top(BEGAN, UTC)[0]
    assert who == (None, "heavy")
    assert count.turns - count.error <= 2 * USERS <= count.turns
    light = users.top(BEGAN, UTC)[1][1]
    assert light.turns - light.error == 1


def test_a_new_day_begins_with_nobody() -> None:
    users = TopUsers()
    users.charge((None, "ann"), MIDNIGHT - 1, UTC)
    users.charge((None, "bob"), MIDNIGHT, UTC)
    assert [who for who, _ in users.top(MIDNIGHT, UTC)] == [(None, "bob")]


def test_midnight_empties_the_list_even_without_traffic() -> None:
    users = TopUsers()
    users.charge((None, "ann"), MIDNIGHT - 1, UTC)
    assert users.top(MIDNIGHT - 0.5, UTC)
    assert not users.top(MIDNIGHT, UTC)


def test_a_turn_of_yesterday_that_ends_today_is_not_counted() -> None:
    users = TopUsers()
    users.charge((None, "bob"), MIDNIGHT, UTC)
    users.charge((None, "ann"), MIDNIGHT - 1, UTC)
    assert [who for who, _ in users.top(MIDNIGHT, UTC)] == [(None, "bob")]


def test_a_clock_that_was_set_back_begins_the_day_anew() -> None:
    users = TopUsers()
    users.charge((None, "ann"), MIDNIGHT, UTC)
    assert not users.top(MIDNIGHT - 2 * DAY, UTC)


def test_the_day_is_that_of_the_configured_zone() -> None:
    users = TopUsers()
    tokyo = ZoneInfo("Asia/Tokyo")
    users.charge((None, "ann"), MIDNIGHT - 1, tokyo)  # 8:59 in the morning there
    assert users.top(MIDNIGHT, tokyo)


# --- exchanges ---


def test_an_answer_is_a_point_of_the_provider_that_gave_it() -> None:
    made = picture()
    made.exchange(exchange(attempt("b", duration=0.25)), 5.0, BEGAN)
    assert newest(made, "b") == Point(1, 0, 0.25)
    assert newest(made, "a") == Point()


@pytest.mark.parametrize("end", ["upstream_truncated", "upstream_stalled", "upstream_error_event"])
def test_an_answer_that_broke_off_is_a_failure_too(end: str) -> None:
    made = picture()
    made.exchange(exchange(end_reason=end), 5.0, BEGAN)
    assert newest(made, "a").failures == 1


def test_a_client_that_left_is_no_failure_of_the_provider() -> None:
    made = picture()
    made.exchange(exchange(end_reason="client_left"), 5.0, BEGAN)
    assert newest(made, "a").failures == 0


def test_a_failed_attempt_is_told_by_itself_and_only_of_known_providers() -> None:
    made = picture()
    made.attempt_failed("a", "closed", 5.0)
    made.attempt_failed("stranger", "closed", 5.0)
    made.exchange(failed(attempt("a", "closed")), 6.0, BEGAN)
    assert newest(made, "a", 6.0) == Point(0, 1, 0.0)
    assert set(made.histories) == {"a", "b"}


@pytest.mark.parametrize("outcome", Outcome)
def test_only_a_provider_that_cannot_be_used_has_failed(outcome: Outcome) -> None:
    made = picture()
    made.attempt_failed("a", outcome, 5.0)
    verdict = RULES[outcome].verdict
    useless = outcome in {"credential_refused", "rate_limited", "out_of_credit"}
    assert newest(made, "a").failures == int(useless or verdict is Verdict.FAILURE)


def test_an_exchange_without_attempts_leaves_no_trace() -> None:
    made = picture()
    made.exchange(failed(attempts=[], turn="charged"), 5.0, BEGAN)
    assert not made.failed_over
    assert not made.users.top(BEGAN, UTC)


def test_an_answer_of_a_provider_that_is_gone_is_no_point() -> None:
    made = picture()
    made.exchange(exchange(attempt("gone")), 5.0, BEGAN)
    assert set(made.histories) == {"a", "b"}


def test_a_failed_over_exchange_is_remembered_with_its_trail() -> None:
    made = picture()
    steps = [attempt("a", "server_error", 1.5, 503), attempt("b", duration=0.5)]
    made.exchange(exchange(*steps, user="ann", duration=2.5), 5.0, BEGAN + 2.5)
    (past,) = made.failed_over
    assert (past.id, past.wall, past.route, past.user) == ("id", BEGAN + 2.5, "r", "ann")
    assert (past.status, past.end_reason, past.seconds) == (200, "complete", 2.5)
    assert past.trail == tried(steps)
    assert [(step.provider, step.outcome, step.status, step.seconds) for step in past.trail] == [
        ("a", "server_error", 503, 1.5),
        ("b", "ok", 200, 0.5),
    ]


def test_a_retry_at_the_same_provider_is_no_failover() -> None:
    made = picture()
    made.exchange(exchange(attempt("a", "closed"), attempt("a"), route=None), 5.0, BEGAN)
    assert not made.failed_over


def test_only_the_last_failed_over_exchanges_are_remembered() -> None:
    made = picture()
    for number in range(FAILED_OVER + 7):
        record = failed(attempt("a", "closed"), attempt("b", "closed"), status=number, route=None)
        made.exchange(record, 5.0, BEGAN)
    assert [past.status for past in made.failed_over] == list(range(7, FAILED_OVER + 7))


@pytest.mark.parametrize(("turn", "count"), [("charged", 1), ("refunded", 0), ("free", 0)])
def test_only_charged_turns_count(turn: str, count: int) -> None:
    made = picture()
    made.exchange(exchange(turn=turn, client="app", user="ann"), 5.0, BEGAN)
    assert len(made.users.top(BEGAN, UTC)) == count


def test_a_reload_keeps_the_history_of_providers_that_stay() -> None:
    made = picture()
    made.attempt_failed("a", "closed", 5.0)
    made.attempt_failed("b", "closed", 5.0)
    made.keep(["c", "a"], UTC)
    assert list(made.histories) == ["c", "a"]
    assert newest(made, "a").failures == 1
