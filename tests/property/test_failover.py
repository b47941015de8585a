"""Whatever fails in whatever order: the plan ends, within its bounds, with a row of the table."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from relayd import errors
from relayd.config import Candidate, Failover, Secret
from relayd.failover import AttemptFailed, FailoverPlan, Ready, Standing, Step
from relayd.outcomes import RULES, Outcome
from tests.support.configuration import ONE, config

CANDIDATES = config("".join(ONE.replace("one", name) for name in "abcde")).routes[0].candidates
KEYS = [Secret(f"key-{n}", "VARIABLE") for n in range(3)]

POLICIES = st.builds(
    replace,
    st.just(Failover()),
    max_attempts=st.integers(1, 16),
    retries=st.integers(0, 3),
    credentials=st.booleans(),
    statuses=st.sampled_from(
        [Failover().statuses, frozenset(), frozenset({404, 429}), frozenset(range(300, 600))]
    ),
)
STATUSES = {
    Outcome.SERVER_ERROR: [500, 503, 599, 600],
    Outcome.REQUEST_TIMEOUT: [408],
    Outcome.RATE_LIMITED: [429],
    Outcome.OUT_OF_CREDIT: [402, 429],
    Outcome.REDIRECT: [302],
    Outcome.CREDENTIAL: [401, 403],
    Outcome.REFUSED: [404, 422],
    Outcome.UNSUITABLE: [400],
}
SILENT = {
    Outcome.CONNECT_TIMEOUT,
    Outcome.FIRST_CONTENT_TIMEOUT,
    Outcome.ANSWER_TIMEOUT,
    Outcome.IDLE_TIMEOUT,
}
ENDS = {o for o in Outcome if not RULES[o].moves_on} - {Outcome.CREDENTIAL, Outcome.REFUSED}
"""Nothing is asked after one of these, whatever the configuration says."""
FAILED = [outcome for outcome in Outcome if outcome is not Outcome.OK]
MOVING = [outcome for outcome in Outcome if RULES[outcome].moves_on]
KEY_FAULTS = [Outcome.CREDENTIAL, Outcome.OUT_OF_CREDIT, Outcome.RATE_LIMITED]


@st.composite
def failures(draw: st.DrawFn) -> AttemptFailed:
    outcome = draw(st.one_of(*map(st.sampled_from, (KEY_FAULTS, MOVING, FAILED))))
    status = draw(st.sampled_from(STATUSES.get(outcome, [None])))
    told = None
    if outcome in (Outcome.REFUSED, Outcome.UNSUITABLE) and status:
        told = errors.ProviderRefused(status, "no", type="t", param=None, code=None)
    wait = draw(st.sampled_from([None, 0.0, 1.0, 1e9]))
    return AttemptFailed(outcome, status=status, retry_after=wait, error=told)


USABLE = st.builds(
    lambda keys: Ready(Standing.READY, keys=tuple(keys) or (None,)),
    st.lists(st.sampled_from(KEYS), max_size=3, unique=True),
)
STANDINGS = st.one_of(
    USABLE,
    USABLE,
    st.builds(
        Ready, st.sampled_from([s for s in Standing if s is not Standing.READY]), st.floats(0, 300)
    ),
)
ROWS = [
    errors.UpstreamRateLimited,
    errors.NoProviderAvailable,
    errors.ProviderAuth,
    errors.ResponseTooLarge,
    errors.UpstreamError,
    errors.ProviderRefused,
]

Walk = list[tuple[Step, AttemptFailed | None]]


def walk(plan: FailoverPlan, standings: dict[str, Ready], data: st.DataObject) -> Walk:
    """Every step with its failure, None where the step was turned away."""
    course: Walk = []
    while (step := plan.next(lambda candidate: standings[candidate.provider.name])) is not None:
        assert len(course) <= 16 + len(standings), "the plan does not end"
        if data.draw(st.integers(0, 9)) == 0:
            plan.turned_away(Ready(Standing.OPEN, 1.0))
            course.append((step, None))
            continue
        failure = data.draw(failures())
        left = data.draw(st.sampled_from([-1.0, 0.5, 600.0]))
        plan.asked()
        plan.failed(step, failure, left)
        course.append((step, failure))
    return course


@settings(max_examples=300)
@given(st.sampled_from([5, 4, 3, 2, 1, 0]), POLICIES, st.floats(0, 1, exclude_max=True), st.data())
def test_every_course_ends_within_its_bounds(
    count: int, policy: Failover, jitter: float, data: st.DataObject
) -> None:
    candidates: tuple[Candidate, ...] = CANDIDATES[:count]
    standings = {c.provider.name: data.draw(STANDINGS) for c in candidates}
    plan = FailoverPlan(candidates, policy, lambda: jitter)
    course = walk(plan, standings, data)
    asked = [(step, failure) for step, failure in course if failure is not None]

    assert plan.attempts == len(asked) <= policy.max_attempts
    check_visits(course, standings, policy)
    check_keys(asked)
    assert not any(failure.outcome in ENDS for _, failure in asked[:-1])
    assert plan.next(lambda _: Ready(Standing.READY)) is None

    verdict = plan.verdict()
    assert type(verdict) in ROWS
    if isinstance(verdict, errors.UpstreamRateLimited | errors.NoProviderAvailable):
        assert verdict.retry_after is not None
        assert 1 <= verdict.retry_after <= 300


def check_visits(course: Walk, standings: dict[str, Ready], policy: Failover) -> None:
    """In order, each provider once, and again only with another key or as one of its retries."""
    names = [step.candidate.provider.name for step, _ in course]
    order = [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]
    assert order == [name for name in standings if name in order]
    for name, visits in Counter(names).items():
        ready = standings[name]
        assert ready.standing is Standing.READY
        assert visits <= len(ready.keys) + policy.retries
    for (step, failure), (later, _) in pairwise(course):
        if failure is None or failure.outcome in SILENT:
            assert later.candidate is not step.candidate


def check_keys(asked: list[tuple[Step, AttemptFailed]]) -> None:
    """A key that was refused, or whose account is empty, is not used again."""
    dead: set[str] = set()
    for step, failure in asked:
        assert step.key is None or step.key.id not in dead
        if step.key and failure.outcome in (Outcome.CREDENTIAL, Outcome.OUT_OF_CREDIT):
            dead.add(step.key.id)


@given(st.integers(0, 10), st.floats(0, 1, exclude_max=True), st.floats(0, 300))
def test_no_wait_is_planned_past_the_deadline(retries: int, jitter: float, left: float) -> None:
    plan = FailoverPlan(CANDIDATES[:1], replace(Failover(), retries=retries), lambda: jitter)
    while (step := plan.next(lambda _: Ready(Standing.READY))) is not None:
        assert step.delay < left or not plan.attempts
        plan.asked()
        plan.failed(step, AttemptFailed(Outcome.CONNECT), left)
