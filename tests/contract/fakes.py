"""A shared store with moods: it can go away, fall silent, or do as asked and never say so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum, auto
from typing import TypeVar

from relayd.breaker import Policy, Row, Verdict
from relayd.quota import Grant, Tally, Turn
from relayd.stores import Probe, Settlement, Shared, StoreAway, Unstorable
from relayd.stores.memory import MemoryStore

T = TypeVar("T")


class Mood(Enum):
    """WELL: like any store. AWAY: every step fails. SILENT: no step is done, none ends. MUTE: every
    step is done, none ends."""

    WELL = auto()
    AWAY = auto()
    SILENT = auto()
    MUTE = auto()


class Moody:
    """A store in memory that says it is elsewhere; `asked` names every step.

    `added`: the tallies. `trip`: seconds of the way there and back. `refused`: users that it cannot
    hold, in any mood.
    """

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.mood = Mood.WELL
        self.trip = 0.0
        self.refused: set[str] = set()
        self.asked: list[str] = []
        self.added: list[Tally] = []

    async def _step(self, name: str, step: Callable[[], Awaitable[T]]) -> T:
        self.asked.append(name)
        if self.trip:
            await asyncio.sleep(self.trip)
        if self.mood is Mood.AWAY:
            raise StoreAway("moody: sent away")
        if self.mood is not Mood.SILENT:
            answer = await step()
        if self.mood is not Mood.WELL:
            await asyncio.Event().wait()
        return answer

    def _check(self, users: Iterable[str]) -> None:
        if self.refused.intersection(users):
            raise Unstorable("moody: not this user")

    async def reserve(self, turn: Turn) -> Grant:
        self._check([turn.user])
        return await self._step("reserve", lambda: self.inner.reserve(turn))

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        self._check(turn.user for turn, _ in settlements)
        await self._step("settle", lambda: self.inner.settle(settlements))

    async def add(self, ledger: str, tallies: Sequence[Tally]) -> None:
        self._check(tally.user for tally in tallies)
        self.added += tallies
        await self._step("add", lambda: self.inner.add(ledger, tallies))

    async def probe(self, name: str, lease: float, now: float) -> Probe:
        return await self._step("probe", lambda: self.inner.probe(name, lease, now))

    async def judge(
        self, name: str, generation: int, verdict: Verdict, policy: Policy, age: float, now: float
    ) -> Row:
        return await self._step(
            "judge", lambda: self.inner.judge(name, generation, verdict, policy, age, now)
        )

    async def rest(self, name: str, seconds: float, now: float) -> None:
        await self._step("rest", lambda: self.inner.rest(name, seconds, now))

    async def read(self, now: float) -> Shared:
        return await self._step("read", lambda: self.inner.read(now))

    async def close(self) -> None:
        await self._step("close", lambda: self.inner.close())
