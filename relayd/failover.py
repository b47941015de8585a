"""The failover plan: who is next, when to stop, what to tell the client.

    plan = FailoverPlan(route.candidates, config.failover, jitter)
    while (step := plan.next(ready)) is not None:
        plan.asked()                        # or plan.turned_away(...) if nobody let it in
        ...                                 # a failure: plan.failed(step, failure, left)
    raise plan.verdict()

The order within one provider: its next key after a key's fault, then `retries` of the same, then
the next candidate; each provider is otherwise visited once. Knows no socket, no clock (`left` is
given) and no breaker (`ready` is asked).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from . import errors
from .breaker import REST_MAX
from .config import Candidate, Failover, Secret
from .outcomes import CREDENTIAL, OUT_OF_CREDIT, RATE_LIMITED, RULES, Outcome, listed

DEFAULT_REST = 1.0
"""Seconds of rest after a 429 that named none."""

CREDIT_REST = REST_MAX
"""Seconds of rest when the account is empty (402, 429 `insufficient_quota`)."""

SOON = 1.0
"""Seconds after which a client may ask again where nothing says when it will be of use."""

_KEY_FAULTS = frozenset({Outcome.CREDENTIAL, Outcome.OUT_OF_CREDIT, Outcome.RATE_LIMITED})
_BY_STATUS = frozenset(
    {
        Outcome.SERVER_ERROR,
        Outcome.REQUEST_TIMEOUT,
        Outcome.RATE_LIMITED,
        Outcome.OUT_OF_CREDIT,
        Outcome.REDIRECT,
        Outcome.REFUSED,
    }
)


class AttemptFailed(Exception):
    """One attempt ended without an answer.

    `status` is the provider's, if it sent one; `retry_after` in seconds; `detail` is for the log,
    masked and trimmed; `error` what the client may be told of a request-fault 4xx.
    """

    def __init__(
        self,
        outcome: Outcome,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        detail: str = "",
        error: errors.ProviderRefused | None = None,
    ) -> None:
        super().__init__(outcome, detail)
        self.outcome = outcome
        self.status = status
        self.retry_after = retry_after
        self.detail = detail
        self.error = error

    def __str__(self) -> str:
        return f"{self.outcome}: {self.detail}" if self.detail else str(self.outcome)

    @property
    def rest(self) -> float:
        """Seconds for which the provider, or its key, is not asked; 0 if it may be."""
        if self.outcome is OUT_OF_CREDIT:
            return CREDIT_REST
        if self.outcome is not RATE_LIMITED:
            return 0.0
        return DEFAULT_REST if self.retry_after is None else min(self.retry_after, REST_MAX)


class Standing(Enum):
    """Whether a candidate can be asked now."""

    READY = "ready"
    OPEN = "open"
    RESTING = "resting"
    FULL = "full"


READY = Standing.READY  # looked up once (see `surfaces`)


@dataclass(frozen=True, slots=True)
class Ready:
    """A candidate's standing, when to ask again (seconds), and its usable keys in their order.

    A provider without credential has the one key None.
    """

    standing: Standing
    retry_in: float = 0.0
    keys: tuple[Secret | None, ...] = (None,)


@dataclass(slots=True)
class Step:
    """What to do next: wait `delay` seconds, then ask this candidate with this key."""

    candidate: Candidate
    key: Secret | None
    delay: float = 0.0


class FailoverPlan:
    """The course of one exchange over its candidates; `jitter` gives numbers in [0, 1)."""

    __slots__ = (
        "_again",
        "_at",
        "_candidates",
        "_dead",
        "_failures",
        "_good_key",
        "_keys",
        "_over",
        "_policy",
        "_retries",
        "_skipped",
        "_then",
        "attempts",
        "jitter",
    )

    def __init__(
        self, candidates: Sequence[Candidate], policy: Failover, jitter: Callable[[], float]
    ) -> None:
        self._candidates = candidates
        self._policy = policy
        self.jitter = jitter
        self._at = 0
        self._then: Step | None = None  # decided already: another key, or the same again
        self._keys: tuple[Secret | None, ...] = ()  # of the present candidate, not yet used
        self._good_key = False  # one of the present candidate's was not refused, but rests
        self._dead: set[str] = set()  # keys (by id) that were refused in this exchange
        self._retries = 0
        self._again = False  # the step was the one before once more
        self._over = False
        self._failures: list[AttemptFailed] = []
        self._skipped: list[Ready] = []
        self.attempts = 0

    def next(self, ready: Callable[[Candidate], Ready]) -> Step | None:
        """The next step, or None when the exchange has failed (`verdict` says how)."""
        if self._over or self.attempts >= self._policy.max_attempts:
            return None
        if self._then is not None:
            step, self._then = self._then, None
            return step
        while self._at < len(self._candidates):
            candidate = self._candidates[self._at]
            found = ready(candidate)
            keys = found.keys
            if self._dead:
                keys = tuple(k for k in keys if k is None or k.id not in self._dead)
            can = found.standing is READY
            if can and keys:
                self._retries = 0
                self._again = False
                self._good_key = False
                self._keys = keys[1:]
                return Step(candidate, keys[0])
            if not can:
                self._skipped.append(found)
            self._at += 1
        return None

    def asked(self) -> None:
        """The step's request is being made: it counts, whatever becomes of it."""
        self.attempts += 1

    def turned_away(self, found: Ready) -> None:
        """The candidate could not be asked after all (its probe's place was taken)."""
        self._skipped.append(found)
        self._at += 1

    def failed(self, step: Step, failure: AttemptFailed, left: float) -> None:
        """The step failed; `left` is the time to the deadline in seconds."""
        # The frames of its traceback hold the request, which would live as long as this plan.
        failure.__traceback__ = failure.__cause__ = failure.__context__ = None
        if self._again:  # what it said before is no longer so
            self._failures.pop()
            self._again = False
        self._failures.append(failure)
        if failure.outcome in _KEY_FAULTS:
            self._good_key = self._good_key or failure.outcome is not CREDENTIAL
            if step.key is not None and failure.outcome is not RATE_LIMITED:
                self._dead.add(step.key.id)
            if self._keys:
                self._then = Step(step.candidate, self._keys[0])
                self._keys = self._keys[1:]
                return
        if not self._moves_on(failure):
            self._over = True
            return
        delay = self._delay(failure)
        if RULES[failure.outcome].again and self._retries < self._policy.retries and delay < left:
            self._retries += 1
            self._again = True
            self._then = Step(step.candidate, step.key, delay)
            return
        self._at += 1

    def verdict(self) -> errors.RelayError:
        """What the client is told when no candidate answered."""
        at_fault = [failure.error for failure in self._failures if failure.error is not None]
        if at_fault:
            return at_fault[-1]  # whoever else is down: it is the request that cannot be served
        if self._is_rate_limited():
            waits = [failure.rest for failure in self._failures]
            waits += [found.retry_in for found in self._skipped]
            return errors.UpstreamRateLimited(retry_after=_whole(min(waits)))
        if not self._failures:
            waits = [found.retry_in for found in self._skipped]
            return errors.NoProviderAvailable(retry_after=_whole(min(waits, default=SOON)))
        last = self._failures[-1]
        if last.outcome is CREDENTIAL:
            return errors.ProviderAuth()
        if last.outcome is Outcome.TOO_LARGE:
            return errors.ResponseTooLarge()
        return errors.UpstreamError()

    def _is_rate_limited(self) -> bool:
        if not (self._failures or self._skipped):
            return False
        asked = self._at + (self._over or self._then is not None)
        if asked < len(self._candidates):  # `statuses` or `max_attempts` kept it from the others
            return False
        limited = all(failure.status == 429 for failure in self._failures)
        return limited and all(found.standing is Standing.RESTING for found in self._skipped)

    def _moves_on(self, failure: AttemptFailed) -> bool:
        if failure.outcome is CREDENTIAL:
            return self._policy.credentials or self._good_key
        if failure.outcome in _BY_STATUS and failure.status is not None:
            return listed(failure.status, self._policy.statuses)
        return RULES[failure.outcome].moves_on

    def _delay(self, failure: AttemptFailed) -> float:
        backoff = self.jitter() * self._policy.retry_backoff * 2.0**self._retries
        if failure.outcome is not RATE_LIMITED:
            return backoff  # whatever it says: there may be a healthy one to move on to
        # Only a 429 that says when is worth waiting for.
        return math.inf if failure.retry_after is None else max(failure.retry_after, backoff)


def _whole(seconds: float) -> int:
    """Seconds for a Retry-After: whole, at least one."""
    return max(1, math.ceil(seconds))
