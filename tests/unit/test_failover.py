"""The failover plan: who is next, when to stop, what the client is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from relayd import errors
from relayd.breaker import REST_MAX
from relayd.config import Candidate, Failover, Secret
from relayd.failover import (
    CREDIT_REST,
    DEFAULT_REST,
    AttemptFailed,
    FailoverPlan,
    Ready,
    Standing,
    Step,
)
from relayd.outcomes import Outcome
from tests.support.configuration import ONE, config

A, B, C = config("".join(ONE.replace("one", name) for name in "abc")).routes[0].candidates
POLICY = Failover()
K1, K2, K3 = (Secret(f"key-{n}", "VARIABLE") for n in (1, 2, 3))

READY = Ready(Standing.READY)
OPEN = Ready(Standing.OPEN, 7.2)
RESTING = Ready(Standing.RESTING, 3.0)
FULL = Ready(Standing.FULL, 1.0)

REFUSAL = errors.ProviderRefused(404, "no", type="t", param=None, code=None)

DOWN = AttemptFailed(Outcome.CONNECT)
SILENT = AttemptFailed(Outcome.FIRST_CONTENT_TIMEOUT)
BROKEN = AttemptFailed(Outcome.SERVER_ERROR, status=500)
LIMITED = AttemptFailed(Outcome.RATE_LIMITED, status=429, retry_after=20.0)
EMPTY = AttemptFailed(Outcome.OUT_OF_CREDIT, status=402)
WRONG_KEY = AttemptFailed(Outcome.CREDENTIAL, status=401)
REFUSED = AttemptFailed(Outcome.REFUSED, status=404, error=REFUSAL)


def policy(**changes: Any) -> Failover:
    return replace(POLICY, **changes)


def plan(*candidates: Candidate, jitter: float = 0.5, **changes: Any) -> FailoverPlan:
    return FailoverPlan(candidates or (A, B, C), policy(**changes), lambda: jitter)


def always(candidate: Candidate) -> Ready:
    return READY


def standing(**found: Ready) -> Callable[[Candidate], Ready]:
    """Candidates by provider name; who is not named is ready."""
    return lambda candidate: found.get(candidate.provider.name, READY)


Course = list[tuple[str, Secret | None, float]]


def play(
    plan: FailoverPlan,
    *failures: AttemptFailed,
    ready: Callable[[Candidate], Ready] = always,
    left: float = 100.0,
) -> Course:
    """Fail each step with the next of `failures`, until the plan or they end."""
    course: Course = []
    script = iter(failures)
    while (step := plan.next(ready)) is not None:
        course.append((step.candidate.provider.name, step.key, step.delay))
        if (failure := next(script, None)) is None:
            return course
        plan.asked()
        plan.failed(step, failure, left)
    return course


def names(course: Course) -> str:
    return "".join(name for name, _, _ in course)


# ------------------------------------------------------------------ who is next


def test_the_first_candidate_comes_first_and_at_once() -> None:
    assert plan().next(always) == Step(A, None, 0.0)


def test_each_provider_is_visited_once_in_order() -> None:
    course = plan()
    assert play(course, DOWN, BROKEN, SILENT) == [("a", None, 0), ("b", None, 0), ("c", None, 0)]
    assert course.attempts == 3
    assert course.next(always) is None


@pytest.mark.parametrize("found", [OPEN, RESTING, FULL])
def test_who_cannot_be_asked_is_passed_over_without_an_attempt(found: Ready) -> None:
    course = plan()
    assert names(play(course, DOWN, DOWN, ready=standing(a=found, c=found))) == "b"
    assert course.attempts == 1


def test_attempts_are_bounded_all_together() -> None:
    assert names(play(plan(max_attempts=2), DOWN, DOWN, DOWN)) == "ab"


def test_retries_count_as_attempts() -> None:
    assert names(play(plan(max_attempts=2, retries=5), DOWN, DOWN, DOWN)) == "aa"


def test_who_turns_us_away_is_not_asked_again() -> None:
    course = plan(A, B)
    course.next(always)
    course.turned_away(OPEN)
    assert names(play(course, DOWN)) == "b"
    assert course.attempts == 1


def test_a_retry_that_is_turned_away_moves_on() -> None:
    course = plan(A, B, retries=1)
    play(course, DOWN)  # the second step, a's retry, is left unasked
    course.turned_away(OPEN)
    assert names(play(course)) == "b"


def test_what_a_provider_said_still_counts_when_its_retry_is_turned_away() -> None:
    course = plan(A, B, retries=1)
    play(course, BROKEN)
    course.turned_away(RESTING)
    play(course, LIMITED, left=1.0)
    assert isinstance(course.verdict(), errors.UpstreamError)


@pytest.mark.parametrize(
    "failure",
    [DOWN, SILENT, BROKEN, LIMITED, EMPTY],
)
def test_a_failure_moves_on(failure: AttemptFailed) -> None:
    assert names(play(plan(A, B), failure)) == "ab"


@pytest.mark.parametrize("outcome", [Outcome.TOO_LARGE, Outcome.INTERNAL, Outcome.REFUSED])
def test_some_failures_end_the_exchange(outcome: Outcome) -> None:
    course = plan()
    assert names(play(course, AttemptFailed(outcome))) == "a"
    assert course.next(always) is None


# ------------------------------------------------------------------ statuses


def test_a_status_that_is_not_listed_ends_the_exchange() -> None:
    assert names(play(plan(statuses=frozenset({503})), BROKEN)) == "a"
    assert names(play(plan(statuses=frozenset({503})), LIMITED)) == "a"
    assert names(play(plan(statuses=frozenset({500})), BROKEN)) == "ab"


def test_a_request_fault_moves_on_where_it_is_listed() -> None:
    course = plan(A, B, statuses=frozenset({404}))
    assert names(play(course, REFUSED, REFUSED)) == "ab"
    assert course.verdict() is REFUSAL


def test_a_failure_without_a_status_does_not_ask_the_list() -> None:
    assert names(play(plan(A, B, statuses=frozenset()), DOWN)) == "ab"


def test_a_request_that_suits_another_model_moves_on_whatever_is_listed() -> None:
    unsuitable = AttemptFailed(Outcome.UNSUITABLE, status=400, error=REFUSAL)
    course = plan(A, B, statuses=frozenset())
    assert names(play(course, unsuitable, unsuitable)) == "ab"
    assert course.verdict() is REFUSAL


# ------------------------------------------------------------------ retries


def test_a_transient_failure_is_retried_with_exponential_backoff_and_jitter() -> None:
    course = play(plan(A, B, retries=3, retry_backoff=1.0), *[DOWN] * 4)
    delays = [0.0, 0.5, 1.0, 2.0, 0.0]
    assert course == [(name, None, d) for name, d in zip("aaaab", delays, strict=True)]


def limited(retry_after: float) -> AttemptFailed:
    return AttemptFailed(Outcome.RATE_LIMITED, status=429, retry_after=retry_after)


def test_what_a_provider_said_last_counts() -> None:
    course = plan(A, B, retries=1)
    play(course, limited(1.0), limited(60.0), limited(30.0), limited(40.0))
    verdict = course.verdict()
    assert isinstance(verdict, errors.UpstreamRateLimited)
    assert verdict.retry_after == 40
    course = plan(A, B, retries=1)
    play(course, BROKEN, limited(60.0), limited(50.0), limited(30.0))
    assert course.verdict().retry_after == 30


def test_what_the_key_before_said_counts_too() -> None:
    course = plan(A, retries=1)
    two_keys = Ready(Standing.READY, keys=(K1, K2))
    play(course, BROKEN, limited(7.0), limited(9.0), ready=lambda _: two_keys)
    assert course.verdict().retry_after == 7


def test_every_provider_has_its_own_retries() -> None:
    assert names(play(plan(A, B, retries=1), *[DOWN] * 4)) == "aabb"


@pytest.mark.parametrize(
    "failure",
    [
        SILENT,
        EMPTY,
        AttemptFailed(Outcome.CERTIFICATE),
        AttemptFailed(Outcome.CONNECT_TIMEOUT),
        AttemptFailed(Outcome.BAD_RESPONSE),
        AttemptFailed(Outcome.NO_ANSWER, status=200),
        AttemptFailed(Outcome.REQUEST_TIMEOUT, status=408),
    ],
)
def test_what_is_not_transient_is_not_retried(failure: AttemptFailed) -> None:
    assert names(play(plan(A, B, retries=3), failure)) == "ab"


def test_a_429_is_retried_after_its_retry_after() -> None:
    assert play(plan(A, retries=1), LIMITED) == [("a", None, 0.0), ("a", None, 20.0)]


def test_a_429_that_does_not_say_when_is_not_retried() -> None:
    silent = AttemptFailed(Outcome.RATE_LIMITED, status=429)
    assert names(play(plan(A, B, retries=1), silent)) == "ab"
    assert names(play(plan(A, B, retries=1), silent, left=float("inf"))) == "ab"


@pytest.mark.parametrize("left", [20.0, 0.0, -1.0])
def test_no_retry_is_planned_past_the_deadline(left: float) -> None:
    assert names(play(plan(A, B, retries=1), LIMITED, left=left)) == "ab"


def test_a_provider_error_is_retried_after_the_backoff_whatever_it_names() -> None:
    """A provider that asks for minutes would hold a client for whom another one is there."""
    backoff = play(plan(A, retries=1), DOWN)[1]
    for named in (0.0, 2.0, 300.0):
        busy = AttemptFailed(Outcome.SERVER_ERROR, status=503, retry_after=named)
        assert play(plan(A, retries=1), busy)[1] == backoff


def test_a_429_is_not_retried_sooner_than_after_the_backoff() -> None:
    at_once = AttemptFailed(Outcome.RATE_LIMITED, status=429, retry_after=0.0)
    assert play(plan(A, retries=1), at_once)[1] == play(plan(A, retries=1), DOWN)[1]


def test_a_request_that_is_at_fault_is_told_whoever_fails_later() -> None:
    refused = errors.ProviderRefused(400, "too long", type="x", param=None, code="y")
    unsuitable = AttemptFailed(Outcome.UNSUITABLE, status=400, error=refused)
    for later in (DOWN, LIMITED, WRONG_KEY):
        assert verdict(unsuitable, later, later) is refused


# ------------------------------------------------------------------ keys


def keys(*given: Secret | None) -> Ready:
    return Ready(Standing.READY, keys=given)


@pytest.mark.parametrize("rests", [LIMITED, EMPTY])
def test_a_refused_key_stops_the_chain_only_where_every_key_is_refused(
    rests: AttemptFailed,
) -> None:
    ready = standing(a=keys(K1, K2))
    for course in ((WRONG_KEY, rests), (rests, WRONG_KEY)):
        assert names(play(plan(A, B), *course, ready=ready)) == "aab", "whatever their order"
    assert names(play(plan(A, B), WRONG_KEY, WRONG_KEY, ready=ready)) == "aa"
    ready = standing(a=keys(K1, K2), b=keys(K3))
    later = play(plan(A, B, C), rests, WRONG_KEY, WRONG_KEY, ready=ready)
    assert names(later) == "aab", "each provider's keys for themselves"


@pytest.mark.parametrize("failure", [WRONG_KEY, LIMITED, EMPTY])
def test_the_next_key_is_asked_before_the_next_provider(failure: AttemptFailed) -> None:
    ready = standing(a=keys(K1, K2, K3))
    course = play(plan(A, B, credentials=True), *[failure] * 3, ready=ready)
    assert [(name, key) for name, key, _ in course] == [
        ("a", K1),
        ("a", K2),
        ("a", K3),
        ("b", None),
    ]


def test_each_use_of_a_key_is_an_attempt() -> None:
    course = plan(A, B, max_attempts=2)
    assert names(play(course, WRONG_KEY, WRONG_KEY, ready=standing(a=keys(K1, K2, K3)))) == "aa"
    assert course.attempts == 2


def test_what_is_not_the_keys_fault_does_not_ask_the_next_key() -> None:
    assert names(play(plan(A, B), BROKEN, ready=standing(a=keys(K1, K2)))) == "ab"


def test_a_refused_key_ends_the_exchange_when_it_was_the_last() -> None:
    course = plan(A, B)
    assert names(play(course, WRONG_KEY, WRONG_KEY, ready=standing(a=keys(K1, K2)))) == "aa"
    assert isinstance(course.verdict(), errors.ProviderAuth)


def test_a_refused_key_is_not_shown_to_the_next_provider() -> None:
    ready = standing(a=keys(K1), b=keys(K1, K2), c=keys(K1))
    course = plan(credentials=True)
    shown = [(name, key) for name, key, _ in play(course, *[WRONG_KEY] * 3, ready=ready)]
    assert shown == [("a", K1), ("b", K2)]
    assert isinstance(course.verdict(), errors.ProviderAuth)


def test_a_limited_key_may_be_shown_to_the_next_provider() -> None:
    ready = standing(a=keys(K1), b=keys(K1))
    assert names(play(plan(A, B), LIMITED, ready=ready)) == "ab"


def test_a_retry_uses_the_key_that_was_last() -> None:
    ready = standing(a=keys(K1, K2))
    course = play(plan(A, retries=1), LIMITED, LIMITED, ready=ready)
    assert course == [("a", K1, 0.0), ("a", K2, 0.0), ("a", K2, 20.0)]


# ------------------------------------------------------------------ the verdict


def verdict(
    *failures: AttemptFailed, ready: Callable[[Candidate], Ready] = always, **changes: Any
) -> errors.RelayError:
    course = plan(**changes)
    play(course, *failures, ready=ready)
    return course.verdict()


def test_the_last_failure_speaks() -> None:
    assert isinstance(verdict(LIMITED, LIMITED, DOWN), errors.UpstreamError)
    assert isinstance(
        verdict(DOWN, LIMITED, AttemptFailed(Outcome.TOO_LARGE)), errors.ResponseTooLarge
    )
    assert isinstance(verdict(BROKEN, WRONG_KEY), errors.ProviderAuth)
    assert verdict(BROKEN, REFUSED) is REFUSAL


def test_a_mix_of_limits_and_faults_is_an_upstream_error() -> None:
    assert isinstance(verdict(DOWN, LIMITED, LIMITED), errors.UpstreamError)


def test_when_all_are_limited_the_smallest_wait_is_told() -> None:
    soon = AttemptFailed(Outcome.RATE_LIMITED, status=429, retry_after=4.2)
    error = verdict(LIMITED, soon, LIMITED)
    assert isinstance(error, errors.UpstreamRateLimited)
    assert error.retry_after == 5


def test_who_rests_is_limited_too() -> None:
    error = verdict(LIMITED, LIMITED, ready=standing(b=RESTING))
    assert isinstance(error, errors.UpstreamRateLimited)
    assert error.retry_after == 3


def test_an_account_that_is_empty_by_a_429_rests_like_a_limit() -> None:
    empty = AttemptFailed(Outcome.OUT_OF_CREDIT, status=429, retry_after=1.0)
    error = verdict(empty, empty, empty)
    assert isinstance(error, errors.UpstreamRateLimited)
    assert error.retry_after == CREDIT_REST


def test_an_open_breaker_among_limits_is_no_limit() -> None:
    assert isinstance(verdict(LIMITED, LIMITED, ready=standing(b=OPEN)), errors.UpstreamError)


def test_when_all_rest_nobody_is_asked_and_the_client_is_told_when() -> None:
    error = verdict(ready=standing(a=RESTING, b=RESTING, c=Ready(Standing.RESTING, 0.1)))
    assert isinstance(error, errors.UpstreamRateLimited)
    assert error.retry_after == 1


def test_who_was_not_asked_is_not_limited() -> None:
    assert isinstance(verdict(LIMITED, LIMITED, max_attempts=2), errors.UpstreamError)
    assert isinstance(verdict(LIMITED, retries=1, max_attempts=1), errors.UpstreamError)
    assert isinstance(verdict(LIMITED, statuses=(500,)), errors.UpstreamError)
    course = plan(A, statuses=(500,))
    play(course, LIMITED, left=1.0)
    assert isinstance(course.verdict(), errors.UpstreamRateLimited)


@pytest.mark.parametrize("other", [OPEN, FULL])
def test_when_nobody_could_be_asked_the_client_is_told_when(other: Ready) -> None:
    error = verdict(ready=standing(a=other, b=RESTING, c=OPEN))
    assert isinstance(error, errors.NoProviderAvailable)
    assert error.retry_after == min(3, other.retry_in)


def test_without_candidates_no_provider_is_available() -> None:
    course = FailoverPlan((), POLICY, lambda: 0.0)
    assert course.next(always) is None
    error = course.verdict()
    assert isinstance(error, errors.NoProviderAvailable)
    assert error.retry_after == 1


def test_an_unnamed_wait_is_a_second() -> None:
    silent = AttemptFailed(Outcome.RATE_LIMITED, status=429)
    assert verdict(silent, silent, silent).retry_after == DEFAULT_REST


# ------------------------------------------------------------------ one failure


@pytest.mark.parametrize(
    ("failure", "rest"),
    [
        (LIMITED, 20.0),
        (AttemptFailed(Outcome.RATE_LIMITED, status=429, retry_after=0.0), 0.0),
        (AttemptFailed(Outcome.RATE_LIMITED, status=429), DEFAULT_REST),
        (AttemptFailed(Outcome.RATE_LIMITED, status=429, retry_after=9e9), REST_MAX),
        (EMPTY, CREDIT_REST),
        (AttemptFailed(Outcome.SERVER_ERROR, status=503, retry_after=20.0), 0.0),
        (WRONG_KEY, 0.0),
    ],
)
def test_a_failure_says_how_long_its_provider_rests(failure: AttemptFailed, rest: float) -> None:
    assert failure.rest == rest


def test_a_failure_names_itself() -> None:
    assert str(DOWN) == "connect_failed"
    assert str(AttemptFailed(Outcome.DNS, detail="no such host")) == "dns_failed: no such host"
