"""The turns of users, as an exchange sees them: reserve before the first attempt, settle after.

A reservation waits for the store at most as long as its `Link` allows; settling never waits. While
a shared store is away, `store.on_failure` decides: count here and tell the store afterwards
(LOCAL), refuse (DENY), or let everybody pass (ALLOW). Knows `quota` and the store; not who the user
is, nor why an exchange is charged.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from typing import TypeVar

from .config import OnFailure
from .errors import RateLimited, StoreUnavailable
from .quota import KEPT_DAYS, Day, Grant, Tally, Turn, day_of, zone
from .stores import Settlement, StoreAway
from .stores.link import Link
from .stores.memory import MemoryStore

E = TypeVar("E", Settlement, Tally)

MAX_PENDING = 65_536
"""Settlements that wait for the store; beyond it some are left to the end of their lease."""

BATCH = 256
"""Settlements or tallies told to the store in one round trip."""

CLOSE_LIMIT = 2.0
"""Seconds that `close` waits for the store to take what is still to be told."""


class Place(Enum):
    """Where a reservation is held: nowhere (nothing to count), in this process, in the store."""

    NOWHERE = "nowhere"
    HERE = "here"
    STORE = "store"


class Lease:
    """One reservation, to be settled once. `free`: it costs no turn, however the exchange ends."""

    __slots__ = ("free", "place", "settled", "turn")

    def __init__(self, turn: Turn | None, place: Place, free: bool) -> None:
        self.turn = turn
        self.place = place
        self.free = free
        self.settled = turn is None

    def fate(self, charged: bool) -> str:
        """What became of it, for the log."""
        if self is NO_LEASE:
            return "none"
        if self.free:
            return "free"
        return "charged" if charged else "refunded"


NO_LEASE = Lease(None, Place.NOWHERE, True)
"""Nothing to count: no cap, or a store that is away and not needed. Stateless, so shared."""


class Turns:
    """The account book. One for each process; `configure` changes its settings on a reload.

    `wall` gives seconds since the epoch: only to see that a lease has ended while its settlement
    waited. `on_dropped(user, error)` is called for each thing that the store, though there, could
    not take: it is not told again, unless the store goes away just then. `without_store` counts the
    reservations that were decided without the store, `refused` those that a used-up cap refused.
    """

    def __init__(
        self,
        link: Link,
        *,
        continuations_per_turn: int = 64,
        timezone: str = "UTC",
        on_failure: OnFailure = OnFailure.LOCAL,
        wall: Callable[[], float] = time.time,
        on_dropped: Callable[[str, Exception], None] | None = None,
    ) -> None:
        self.without_store = 0
        self.refused = 0
        self._link = link
        self._here = link.local or MemoryStore()
        self._wall = wall
        self._on_dropped = on_dropped
        self._instance = ""  # has its name from the first turn on: a process may fork before
        self._count = 0
        self._pending: deque[Settlement] = deque(maxlen=MAX_PENDING)
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._news = asyncio.Event()
        self._told = asyncio.Event()
        self._told.set()
        self._teller: asyncio.Task[None] | None = None
        self._telling: set[asyncio.Task[None]] = set()
        self.configure(
            continuations_per_turn=continuations_per_turn, timezone=timezone, on_failure=on_failure
        )

    def configure(
        self, *, continuations_per_turn: int, timezone: str, on_failure: OnFailure
    ) -> None:
        """Settings for reservations from now on. ValueError for an unknown time zone."""
        self._zone = zone(timezone)
        self._budget = continuations_per_turn
        self._on_failure = on_failure
        self._day = Day("", 0.0, 0.0)

    async def reserve(
        self, user: str, cap: int, continuation: bool, wall: float, lease: float
    ) -> Lease:
        """Hold one turn of `user`, of `cap` a day (0: no limit, nothing is asked).

        `wall`: when the exchange began, seconds since the epoch. `lease`: seconds after which an
        unsettled turn is free again (the deadline and `quota.LEASE_GRACE`). Raises RateLimited, or
        StoreUnavailable when the store is away and that means to refuse.
        """
        if cap == 0:
            return NO_LEASE
        day = self._day
        if not day.begins <= wall < day.ends:
            day = self._day = day_of(wall, self._zone)
            self._drop_old_tallies()
        if not self._count:  # one of all that share a store, whatever the machine
            self._instance = os.urandom(16).hex()
        self._count += 1
        id = f"{self._instance}:{self._count}"
        turn = Turn(id, day.name, user, cap, self._budget if continuation else 0, wall, lease)
        if self._link.local is None:
            held, grant = await self._ask(turn)
        else:
            held, grant = Place.HERE, self._here.hold(turn)
        if not grant.granted:
            self.refused += 1
            raise RateLimited(limit=cap, retry_after=day.left(wall))
        return NO_LEASE if held is Place.NOWHERE else Lease(turn, held, grant.free)

    def settle(self, lease: Lease, charged: bool) -> None:
        """Charge it or give it back. Never waits, never fails; only the first call counts."""
        turn = lease.turn
        if lease.settled or turn is None:
            return
        lease.settled = True
        if lease.place is Place.STORE:
            self._tell(Settlement(turn, charged))
            return
        tally = self._here.end(turn, charged)
        if charged and tally is not None and self._link.local is None:
            self._tallies[tally.day, tally.user] = tally
            self._wake()

    @property
    def store(self) -> dict[str, bool | int]:
        """For `/health`: whether the store is `available`, how often it was `lost`."""
        return {"available": self._link.available, "lost": self._link.lost}

    async def flush(self) -> None:
        """Wait until the store has been told everything."""
        await self._told.wait()

    async def close(self) -> int:
        """Tell the store what is left, for a limited time, and stop. The link stays open.

        Of how many users the store has not heard; what was held for them ends with its lease.
        """
        teller = self._teller  # kept until the end: who was cancelled may ask for it again
        if teller is None:
            return 0
        try:
            async with asyncio.timeout(CLOSE_LIMIT if self._link.available else 0):
                await self._told.wait()
        except TimeoutError:
            pass
        tasks = [teller, *self._telling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._teller = None
        counted = {user for _, user in self._tallies}
        return len(counted.union(left.user for left in self._pending if left.charged))

    async def _ask(self, turn: Turn) -> tuple[Place, Grant]:
        held, grant = await self._ask_once(turn)
        untold = self._link.available and (self._pending or self._telling)
        if grant.granted or not untold:
            return held, grant
        # A turn that was given back here a moment ago may not have arrived there yet.
        self._hand_over()
        await asyncio.wait(self._telling)
        return await self._ask_once(turn)

    async def _ask_once(self, turn: Turn) -> tuple[Place, Grant]:
        try:
            return Place.STORE, await self._link.ask(self._link.store.reserve, turn)
        except StoreAway as error:
            if error.asked:
                self._tell(Settlement(turn, False))  # it may have been held after all
            return self._without(turn, error)
        except asyncio.CancelledError:
            self._tell(Settlement(turn, False))
            raise

    def _without(self, turn: Turn, error: StoreAway) -> tuple[Place, Grant]:
        self.without_store += 1
        if self._on_failure is OnFailure.DENY:
            raise StoreUnavailable from error
        if self._on_failure is OnFailure.ALLOW:
            return Place.NOWHERE, Grant(True, True, 0)
        return Place.HERE, self._here.hold(turn)

    def _drop_old_tallies(self) -> None:
        """A store that is away for long is told of no more days than it keeps, the new one too."""
        kept = sorted({day for day, _ in self._tallies})[1 - KEPT_DAYS :]
        self._tallies = {key: told for key, told in self._tallies.items() if key[0] in kept}

    def _tell(self, settlement: Settlement) -> None:
        self._pending.append(settlement)
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._told.clear()
        if self._teller is None:
            self._teller = asyncio.get_running_loop().create_task(self._tell_the_store())

    async def _tell_the_store(self) -> None:
        while True:
            await self._news.wait()
            await self._link.back()
            self._news.clear()
            self._hand_over()
            try:
                await self._tell_tallies()
            except StoreAway:
                self._news.set()
            self._look_whether_told()

    def _hand_over(self) -> None:
        while self._pending:
            count = min(BATCH, len(self._pending))
            batch = [self._pending.popleft() for _ in range(count)]
            telling = asyncio.get_running_loop().create_task(self._tell_settlements(batch))
            self._telling.add(telling)
            telling.add_done_callback(self._told_one)

    def _told_one(self, telling: asyncio.Task[None]) -> None:
        self._telling.discard(telling)
        self._look_whether_told()

    def _look_whether_told(self) -> None:
        if not (self._pending or self._telling or self._tallies):
            self._told.set()

    async def _tell_tallies(self) -> None:
        # Absolute totals: a tally that is told again, or has grown meanwhile, does no harm.
        while self._tallies:
            batch = list(self._tallies.items())[:BATCH]
            told = [tally for _, tally in batch]
            await self._tell_each(partial(self._link.store.add, self._instance), told)
            for key, tally in batch:
                if self._tallies.get(key) is tally:
                    del self._tallies[key]

    async def _tell_settlements(self, batch: list[Settlement]) -> None:
        try:
            await self._tell_each(self._link.store.settle, batch)
        except StoreAway:
            wall = self._wall()
            self._pending.extendleft(s for s in reversed(batch) if wall < s.turn.ends)
            self._news.set()

    async def _tell_each(self, step: Callable[[list[E]], Awaitable[None]], some: list[E]) -> None:
        """Tell the store; an entry that fails by itself is dropped, and costs no other."""
        try:
            await self._link.ask(step, some)
        except StoreAway:
            raise
        except Exception as error:  # noqa: BLE001  # unstorable, or a fault in a program's store
            if len(some) > 1:
                for entry in some:
                    await self._tell_each(step, [entry])
            elif self._on_dropped is not None:
                self._on_dropped(some[0].user, error)
