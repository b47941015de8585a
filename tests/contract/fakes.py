"""A store that can be sent away, and one that answers when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from relayd.breaker import Policy, Row, Verdict
from relayd.quota import Grant, Tally, Turn
from relayd.stores import Probe, Settlement, Shared, Store, StoreAway

T = TypeVar("T")


class Moody:
    """`inner`, except while `away` (every step fails) or `silent` (no step ends).

    `done_but_silent`: steps are carried out, and nobody hears of it. `asked` names every step.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.away = False
        self.silent = False
        self.done_but_silent = False
        self.asked: list[str] = []
        self.arrived = asyncio.Event()

    async def _step(self, name: str, step: Awaitable[T]) -> T:
        self.asked.append(name)
        self.arrived.set()
        if self.done_but_silent:
            await step
        if self.silent or self.done_but_silent:
            asyncio.ensure_future(step).cancel() if self.silent else None
            await asyncio.Event().wait()
        if self.away:
            asyncio.ensure_future(step).cancel()
            raise StoreAway("moody: sent away")
        return await step

    async def reserve(self, turn: Turn) -> Grant:
        return await self._step("reserve", self.inner.reserve(turn))

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        await self._step("settle", self.inner.settle(settlements))

    async def add(self, ledger: str, tallies: Sequence[Tally]) -> None:
        await self._step("add", self.inner.add(ledger, tallies))

    async def probe(self, name: str, lease: float, now: float) -> Probe:
        return await self._step("probe", self.inner.probe(name, lease, now))

    async def judge(
        self, name: str, generation: int, verdict: Verdict, policy: Policy, now: float
    ) -> Row:
        step = self.inner.judge(name, generation, verdict, policy, now)
        return await self._step("judge", step)

    async def rest(self, name: str, seconds: float, now: float) -> None:
        await self._step("rest", self.inner.rest(name, seconds, now))

    async def read(self, now: float) -> Shared:
        return await self._step("read", self.inner.read(now))

    async def close(self) -> None:
        await self._step("close", self.inner.close())
