"""Turns over any course of events equal a model that keeps a plain list of what happened."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relayd.quota import Turn, day_of, zone
from relayd.stores.memory import MemoryStore

CAP = 4
BUDGET = 2
LEASE = 10.0
DAY = "2026-03-01"

ZONES = [
    "UTC",
    "Africa/Cairo",
    "America/Havana",
    "America/New_York",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Asia/Pyongyang",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Pacific/Apia",
]


@dataclass
class Noted:
    """One granted reservation as the model remembers it."""

    turn: Turn
    free: bool
    state: str = "held"


class Course(RuleBasedStateMachine):
    """One user's day: reservations, settlements in any order, and time, which ends no lease."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.wall = 0.0
        self.noted: list[Noted] = []
        self.count = 0

    def counted(self, free: bool) -> int:
        """What holds or has used something."""
        return sum(n.free is free and n.state in ("held", "charged") for n in self.noted)

    @rule(budget=st.sampled_from([0, BUDGET]))
    def reserve(self, budget: int) -> None:
        used, free = self.counted(False), self.counted(True)
        self.count += 1
        turn = Turn(str(self.count), DAY, "ann", CAP, budget, self.wall, LEASE)
        grant = self.store.hold(turn)
        is_free = free < budget * used
        assert grant.granted is (is_free or used < CAP)
        if grant.granted:
            assert grant.free is is_free
            self.noted.append(Noted(turn, is_free))

    @precondition(lambda self: self.noted)
    @rule(data=st.data(), charged=st.booleans())
    def settle(self, data: st.DataObject, charged: bool) -> None:
        noted = data.draw(st.sampled_from(self.noted))
        self.store.end(noted.turn, charged)
        if noted.state == "held":
            noted.state = "charged" if charged else "refunded"

    @rule(seconds=st.sampled_from([0.5, 3.0, LEASE]))
    def wait(self, seconds: float) -> None:
        self.wall += seconds

    @invariant()
    def the_cap_holds(self) -> None:
        assert self.counted(False) <= CAP
        assert self.counted(True) <= BUDGET * CAP

    def teardown(self) -> None:
        for noted in self.noted:
            self.store.end(noted.turn, False)
        settled = sum(n.state == "charged" and not n.free for n in self.noted)
        last = Turn("last", DAY, "ann", 10**6, 0, self.wall, LEASE)
        assert self.store.hold(last).used - 1 == settled


TestCourse = Course.TestCase


@given(
    st.sampled_from(ZONES),
    st.datetimes(datetime(1995, 1, 1), datetime(2037, 1, 1)),
    st.integers(-7200, 7200),
)
def test_days_cover_all_time_without_gap_or_overlap(
    name: str, around: datetime, seconds: int
) -> None:
    where = zone(name)
    midnight = around.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=where)
    wall = (midnight + timedelta(0)).timestamp() + seconds
    day = day_of(wall, where)
    assert day.begins <= wall < day.ends
    assert day_of(day.begins, where) == day
    assert day_of(day.ends, where).begins == day.ends
    assert day_of(day.begins - 1, where).ends == day.begins
    assert 0 < day.ends - day.begins <= 25 * 3600
    assert 1 <= day.left(wall) <= 25 * 3600
