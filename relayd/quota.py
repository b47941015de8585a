"""Turns, days and leases: the arithmetic of the daily cap.

A *turn* is one fresh request; a *continuation* answers a tool call of a turn and is free while the
user's free continuations of the day are at most `budget` times the turns of that day. A turn or a
continuation is *held* under a lease from its reservation to its settlement, and a held one counts:
it is given back only by a refund, or, in a store that outlives its processes, when its lease ends.
That is for those whose process died; it goes by the clock on the wall, so one that is set forward
by more than a lease frees what running exchanges hold, too.

A day is named by its calendar date and bounded by two instants, so that midnight is exact whatever
daylight saving does. Three days are kept, the last three that were *seen* and not the last three
of the calendar: a clock set forward and back again finds what was used before.

Times are wall-clock seconds since the epoch, given as arguments. Does not know where an account is
kept, who the user is, or what an exchange did to be charged.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from math import ceil

KEPT_DAYS = 3
"""Days of which counts are kept: two can be alive at midnight, one more for a clock set wrong."""

LEASE_GRACE = 60.0
"""Seconds by which a lease outlives the deadline of its exchange (cleaning up takes time too)."""

ONE_DAY = timedelta(days=1)


def zone(name: str) -> tzinfo:
    """The time zone of that name; ValueError when there is none. UTC needs no database."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # only those who leave UTC pay for this import

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"expected an IANA time zone such as Europe/Berlin, got {name}") from error


@dataclass(frozen=True, slots=True)
class Day:
    """A calendar day: `name` is YYYY-MM-DD; from `begins` up to, not including, `ends`."""

    name: str
    begins: float
    ends: float

    def left(self, wall: float) -> int:
        """Whole seconds to the next midnight, rounded up: waiting so long is enough. At least 1."""
        return max(1, ceil(self.ends - wall))


def day_of(wall: float, where: tzinfo) -> Day:
    """The day in which the instant `wall` lies.

    Where a clock goes back across midnight (0:01 to 23:01) the new day has begun and stays.
    """
    day = datetime.fromtimestamp(wall, where).date()
    if wall >= _midnight(day + ONE_DAY, where):
        day += ONE_DAY
    return Day(day.isoformat(), _midnight(day, where), _midnight(day + ONE_DAY, where))


def _midnight(day: date, where: tzinfo) -> float:
    # fold=0: the first of two midnights; and where 0:00 is skipped, the instant of the skip itself.
    return datetime(day.year, day.month, day.day, tzinfo=where).timestamp()


@dataclass(frozen=True, slots=True)
class Turn:
    """What is asked of a store: one reservation of `user` on `day`.

    `id` is unique in the fleet. `cap` >= 1 turns a day. `budget`: free continuations per turn when
    this is a continuation, 0 when it is a fresh turn. `wall`: when the exchange began; `lease`:
    seconds after which an unsettled reservation is free again.
    """

    id: str
    day: str
    user: str
    cap: int
    budget: int
    wall: float
    lease: float

    @property
    def ends(self) -> float:
        """Wall-clock time at which the lease ends."""
        return self.wall + self.lease


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer: `free`: it is held as a continuation; `used`: the turns of the day so far."""

    granted: bool
    free: bool
    used: int


@dataclass(frozen=True, slots=True)
class Tally:
    """Settled totals of one user on one day; absolute, so that telling them twice is harmless."""

    day: str
    user: str
    turns: int
    free: int


def is_over(day: str, kept: Collection[str]) -> bool:
    """Whether a day that is not kept has passed: to begin it again would cost one that has not."""
    return day not in kept and day < max(kept, default="")


def decide(turn: Turn, used: int, free: int) -> Grant:
    """Whether `turn` may be held, given the turns and free continuations held or settled so far."""
    if free < turn.budget * used:
        return Grant(True, True, used)
    if used < turn.cap:
        return Grant(True, False, used + 1)
    return Grant(False, False, used)


@dataclass(slots=True)
class Account:
    """One user's day: what is settled, and what is held, by lease id and whether it is free.

    It dies with its process, and so do the leases: here they end by being settled alone, and a
    clock that is set forward frees nothing.
    """

    turns: int = 0
    free: int = 0
    leases: dict[str, bool] = field(default_factory=dict)
    held_free: int = 0

    def reserve(self, turn: Turn) -> Grant:
        """Check and hold in one step."""
        used = self.turns + len(self.leases) - self.held_free
        grant = decide(turn, used, self.free + self.held_free)
        if grant.granted:
            self.leases[turn.id] = grant.free
            self.held_free += grant.free
        return grant

    def settle(self, id: str, charged: bool) -> bool:
        """Charge or give back what is held under `id`; False when nothing is (any more)."""
        free = self.leases.pop(id, None)
        if free is None:
            return False
        self.held_free -= free
        if charged:
            self.free += free
            self.turns += not free
        return True

    @property
    def empty(self) -> bool:
        """Nothing is used and nothing held: a new account would be the same."""
        return not (self.turns or self.free or self.leases)
