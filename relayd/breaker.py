"""One provider's circuit breaker: closed, open, half-open.

    closed     every request passes. The breaker opens when the last `failures` failures lie inside
               the rolling `window`; a success in between does not excuse them
    open       nothing passes until the cooldown is over
    half-open  an open breaker whose cooldown is over: exactly one probe passes at a time, and its
               place is a lease. Success closes, failure opens again with a longer cooldown

Every change of state and every new probe starts a new *generation*, and a verdict counts only in
the generation that admitted it: what began before a trip, or outlived its probe's lease, changes
nothing any more.

`Row` is the whole state, immutable; each rule is a function from a row to the next one, which is
the same object where nothing changed. A store therefore needs no more than to replace a row
atomically. Times are seconds on any one clock, given as arguments. Does not know providers, the
event loop, or which outcome deserves which verdict.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

REST_MAX = 300.0
"""Seconds that a provider or key rests at most: a `Retry-After` of a week is no promise."""


class State(StrEnum):
    """What a breaker lets pass; the value is its name in the log and in `/health`."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


CLOSED, OPEN, HALF_OPEN = State.CLOSED, State.OPEN, State.HALF_OPEN  # as in `surfaces`


class Verdict(StrEnum):
    """What an attempt says about its provider.

    ANSWERED: an answer that blames the request or the key (400, 401): no success, but the provider
    is there, so a half-open breaker closes. NEUTRAL: says nothing (429, the client left, a drain);
    a probe gives its place back.
    """

    SUCCESS = "success"
    ANSWERED = "answered"
    FAILURE = "failure"
    NEUTRAL = "neutral"


FAILURE = Verdict.FAILURE

MOST = 1000
"""Failures that are remembered; a policy that asks for more is a breaker that never opens."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`failures` within `window` s open; the n-th cooldown in a row is `cooldown` s times
    `cooldown_growth` to the power of n - 1, at most `cooldown_max` s."""

    failures: int = 5
    window: float = 30.0
    cooldown: float = 10.0
    cooldown_growth: float = 1.0
    cooldown_max: float = 300.0

    def wait(self, trips: int) -> float:
        """Seconds of the cooldown that follows the `trips`-th trip in a row."""
        try:
            return min(self.cooldown * self.cooldown_growth ** (trips - 1), self.cooldown_max)
        except OverflowError:
            return self.cooldown_max


class Row(NamedTuple):
    """The state of one breaker.

    `since`: when the present closed or open time began. `until`: end of the cooldown, None while
    closed. `trips`: in a row, without a close between. `probe`: when the lease of the running
    probe ends, None without one. `failures`: times of the failures inside the window, oldest
    first, at most `Policy.failures` of them.
    """

    generation: int = 0
    since: float = 0.0
    until: float | None = None
    trips: int = 0
    probe: float | None = None
    failures: tuple[float, ...] = ()


def state(row: Row, now: float) -> State:
    """What the breaker lets pass at `now`."""
    if row.until is None:
        return State.CLOSED
    return State.OPEN if now < row.until else State.HALF_OPEN


def probing(row: Row, now: float) -> bool:
    """Whether the one place of a half-open breaker is taken."""
    return row.probe is not None and now < row.probe


def entered(row: Row, now: float) -> float:
    """When the present state began."""
    return row.until if row.until is not None and now >= row.until else row.since


def probe(row: Row, now: float, lease_until: float) -> Row | None:
    """The row after taking the probe's place until `lease_until`; None if it cannot be had."""
    if state(row, now) is not State.HALF_OPEN or probing(row, now):
        return None
    return row._replace(generation=row.generation + 1, probe=lease_until)


def judge(row: Row, generation: int, verdict: Verdict, policy: Policy, now: float) -> Row:
    """The row after the verdict of an attempt that was admitted in `generation`."""
    if generation != row.generation:
        return row
    return RULES[verdict](row, policy, now)


def _close(row: Row, policy: Policy, now: float) -> Row:
    if row.until is None:
        return row
    return Row(generation=row.generation + 1, since=now)


def _fail(row: Row, policy: Policy, now: float) -> Row:
    if row.until is None and policy.failures > MOST:
        return row
    recent = row.failures[bisect_right(row.failures, now - policy.window) :]
    failures = (*recent, now)[-policy.failures :]
    if row.until is None and len(failures) < policy.failures:
        return row._replace(failures=failures)
    trips = row.trips + 1
    return Row(row.generation + 1, now, now + policy.wait(trips), trips)


def _release(row: Row, policy: Policy, now: float) -> Row:
    return row if row.probe is None else row._replace(probe=None)


RULES: dict[Verdict, Callable[[Row, Policy, float], Row]] = {
    Verdict.SUCCESS: _close,
    Verdict.ANSWERED: _close,
    Verdict.FAILURE: _fail,
    Verdict.NEUTRAL: _release,
}
assert set(RULES) == set(Verdict)
