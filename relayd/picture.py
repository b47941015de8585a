"""What the status page remembers: a few minutes of each provider, failed-over exchanges, users.

    History     one provider: POINTS spans of POINT_SECONDS, answers, failures and waits in each
    FailedOver  one exchange that needed more than one provider, with its trail
    TopUsers    the users who were charged most turns today, in bounded memory however many come

All of it is this process's own view. Times are given: `now` is the event loop's clock in seconds,
`wall` seconds since the epoch. Does not know how any of it is shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, tzinfo

from .breaker import FAILURE
from .outcomes import BLAMED, RULES, Outcome
from .quota import Day, day_of
from .record import Attempt, Record
from .tally import first_content

POINTS = 60
"""Points of a sparkline: ten minutes, enough to see an outage begin and end."""

POINT_SECONDS = 10.0
"""Seconds that one point stands for."""

FAILED_OVER = 50
"""Failed-over exchanges that are remembered; older ones are in the log."""

USERS = 256
"""Users counted at a time; the error of a shown count is at most all turns divided by this."""

TOP = 20
"""Users shown: few enough that none of them could have been displaced unseen."""

BROKE_OFF = frozenset(end.value for end in BLAMED)

FAILURES = frozenset(
    {outcome.value for outcome, rule in RULES.items() if rule.verdict is FAILURE}
    | {Outcome.CREDENTIAL.value, Outcome.RATE_LIMITED.value, Outcome.OUT_OF_CREDIT.value}
)
"""Outcomes for which a provider cannot be used; a request that is at fault is none of them."""


@dataclass(slots=True)
class Point:
    """One span of a history. `waited` is the sum of `answers` waits, in seconds."""

    answers: int = 0
    failures: int = 0
    waited: float = 0.0

    @property
    def wait(self) -> float | None:
        """Mean seconds to first content; None without an answer."""
        return self.waited / self.answers if self.answers else None


class History:
    """The last `POINTS` spans of one provider."""

    __slots__ = ("_newest", "_points")

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=POINTS)
        self._newest = 0

    def answered(self, wait: float, now: float) -> None:
        """An answer whose first content took `wait` seconds."""
        point = self._at(now)
        point.answers += 1
        point.waited += wait

    def failed(self, now: float) -> None:
        """An attempt that failed, or an answer that broke off."""
        self._at(now).failures += 1

    def points(self, now: float) -> list[Point]:
        """`POINTS` points, the oldest first; the last is the span of `now`, still growing."""
        self._at(now)
        return [*(Point() for _ in range(POINTS - len(self._points))), *self._points]

    def _at(self, now: float) -> Point:
        span = int(now // POINT_SECONDS)
        if not self._points:
            self._newest = span
            self._points.append(Point())
        for _ in range(min(span - self._newest, POINTS)):
            self._points.append(Point())
        self._newest = max(span, self._newest)
        return self._points[-1]


@dataclass(frozen=True, slots=True)
class Tried:
    """One attempt of a trail; `seconds` it took, `status` None where none came."""

    provider: str
    outcome: str
    status: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class FailedOver:
    """An exchange in which a provider was left for another one. `wall`: when it ended."""

    id: str
    wall: float
    route: str
    user: str
    status: int
    end_reason: str
    seconds: float
    trail: tuple[Tried, ...]


def tried(attempts: Iterable[Attempt]) -> tuple[Tried, ...]:
    """The trail of an exchange, running or ended; a running attempt has no outcome yet."""
    return tuple(Tried(a.provider, a.outcome, a.status, a.duration) for a in attempts)


@dataclass(slots=True)
class Count:
    """Turns of one user: at most `turns`, at least `turns - error`."""

    turns: int = 0
    error: int = 0


Who = tuple[str | None, str]
"""Client name (None without clients) and user id: whose turns are counted together."""


class TopUsers:
    """The heaviest users of one day, by the Space-Saving algorithm (Metwally et al., 2005).

    When all places are taken, a new user takes the place of the lightest one and inherits its
    count as a possible error: a heavy user is never missed, a light one may look heavier.
    """

    __slots__ = ("_counts", "_day")

    def __init__(self) -> None:
        self._counts: dict[Who, Count] = {}
        self._day = Day("", 0.0, 0.0)

    def charge(self, who: Who, wall: float, zone: tzinfo) -> None:
        """One more turn, on the day of `wall`; a new day begins with nobody."""
        if wall >= self._day.ends:
            self._turn_page(wall, zone)
        elif wall < self._day.begins:
            return  # it began before midnight and ended after it: yesterday's
        count = self._counts.get(who)
        if count is None:
            count = self._counts[who] = self._place()
        count.turns += 1

    def top(self, wall: float, zone: tzinfo) -> list[tuple[Who, Count]]:
        """At most `TOP` users of today, the heaviest first."""
        if not self._day.begins <= wall < self._day.ends:
            self._turn_page(wall, zone)
        ranked = sorted(self._counts.items(), key=lambda item: -item[1].turns)
        return ranked[:TOP]

    def _place(self) -> Count:
        if len(self._counts) < USERS:
            return Count()
        lightest = min(self._counts, key=lambda who: self._counts[who].turns)
        turns = self._counts.pop(lightest).turns
        return Count(turns, turns)

    def _turn_page(self, wall: float, zone: tzinfo) -> None:
        self._day = day_of(wall, zone)
        self._counts.clear()


class Picture:
    """All of it, told as exchanges go by."""

    def __init__(self) -> None:
        self.histories: dict[str, History] = {}
        self.failed_over: deque[FailedOver] = deque(maxlen=FAILED_OVER)
        self.users = TopUsers()
        self.zone: tzinfo = UTC

    def keep(self, providers: Iterable[str], zone: tzinfo) -> None:
        """What is configured now: providers that stay keep their history."""
        self.histories = {name: self.histories.get(name) or History() for name in providers}
        self.zone = zone

    def attempt_failed(self, provider: str, outcome: str, now: float) -> None:
        """An attempt failed: told at once, as its exchange may be long."""
        history = self.histories.get(provider)
        if history is not None and outcome in FAILURES:
            history.failed(now)

    def exchange(self, record: Record, now: float, wall: float) -> None:
        """A request has ended."""
        attempts = record.attempts
        if not attempts:
            return
        history = self.histories.get(record.provider or "")
        if history is not None and record.ttfb is not None:
            history.answered(first_content(record), now)
            if record.end_reason in BROKE_OFF:
                history.failed(now)
        if attempts[0].provider != attempts[-1].provider:
            self._remember(record, wall)
        if record.turn == "charged":
            self.users.charge((record.client, record.user), record.began, self.zone)

    def _remember(self, record: Record, wall: float) -> None:
        self.failed_over.append(
            FailedOver(
                id=record.id,
                wall=wall,
                route=record.route or "",
                user=record.user,
                status=record.status,
                end_reason=record.end_reason,
                seconds=record.duration,
                trail=tried(record.attempts),
            )
        )
