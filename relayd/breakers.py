"""The breakers of all providers, as an exchange sees them, and the rests after a 429.

The hot path reads memory only: a closed breaker admits without asking anybody. With a store in this
process that memory is the truth. With a shared store it is a mirror: verdicts are applied to it at
once and told to the store in the background, `run` copies the store's word back every second, and
only the probe's place of a half-open breaker is asked for, because exactly one in the fleet may
have it. While the store is away the mirror goes on alone.

The mirror counts generations of its own: a permit carries both its local and its shared one, and
each side judges staleness by its own. Knows `breaker` and the store; not what a provider is or
which outcome earns which verdict. Times are seconds on the event loop's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from .breaker import (
    CLOSED,
    FAILURE,
    HALF_OPEN,
    OPEN,
    REST_MAX,
    Policy,
    Row,
    State,
    Verdict,
    entered,
    judge,
    probe,
    probing,
    state,
)
from .stores import Shared, StoreAway
from .stores.fleet import Fleet, News
from .stores.link import Link
from .stores.memory import NEW, MemoryStore

PULL = 1.0
"""Seconds between two looks at a shared store: so long another process's trip may go unseen."""

PROBE_WAIT = 1.0
"""`retry_in` while the probe's place is taken: its lease may be long, its answer seldom is."""

ASK_LIMIT = 2
"""Times `store.timeout` that an exchange waits for a probe's place, deaf to its client then."""

OnChange = Callable[[str, State, State, str], None]


class Look(NamedTuple):
    """`rests`: after a 429 or 402. `retry_in`: seconds until it is worth asking again, 0 = now."""

    state: State
    retry_in: float
    rests: bool


CLEAR = Look(CLOSED, 0.0, False)
"""Nothing stands against asking."""


class Permit:
    """Leave to ask a provider once. `state`: the breaker's at admission, for the log.

    Ends once, with `settle`; after a success, `broke` reports that the answer broke off.
    """

    __slots__ = ("_breakers", "broken", "generation", "name", "shared", "state", "verdict")

    def __init__(
        self, breakers: Breakers, name: str, state: State, generation: int, shared: int
    ) -> None:
        self._breakers = breakers
        self.name = name
        self.state = state
        self.generation = generation
        self.shared = shared
        self.verdict: Verdict | None = None
        self.broken = False

    def settle(self, verdict: Verdict, now: float) -> None:
        """The attempt's verdict; never waits, never fails; only the first call counts."""
        if self.verdict is None:
            self.verdict = verdict
            if verdict is FAILURE or self.state is not CLOSED:
                self._breakers.judge(self, verdict, now)

    def broke(self, now: float) -> None:
        """A failure after the commit, whose success was settled before; counts once."""
        if self.verdict is Verdict.SUCCESS and not self.broken:
            self.broken = True
            if self.state is not CLOSED:
                # The probe's success closed the breaker: one generation later.
                self.generation += 1
                self.shared += 1
                self.state = CLOSED
            self._breakers.judge(self, FAILURE, now)


class Breakers:
    """All breakers of this process; survives reloads (`configure`, `keep`).

    `began`: loop time of the start. `on_change(name, old, new, reason)` is called once for each
    change of state.
    """

    def __init__(
        self,
        link: Link,
        policy: Policy,
        *,
        began: float = 0.0,
        on_change: OnChange | None = None,
    ) -> None:
        self._link = link
        self._table = link.local or MemoryStore()
        self._policy = policy
        self.began = began
        self._on_change = on_change
        self._names: tuple[str, ...] = ()
        self._ever: set[str] = set()  # configured here at any time; others may be another relay's
        self._told: dict[str, State] = {}
        self._fleet = Fleet()
        self._lock = asyncio.Lock()
        self._asking: dict[str, asyncio.Task[Permit | None]] = {}

    def configure(self, policy: Policy) -> None:
        """The policy for verdicts from now on; a running cooldown keeps its end."""
        self._policy = policy

    def keep(self, names: Iterable[str]) -> None:
        """The configured providers: those that stay keep their state, those that go lose it."""
        self._names = tuple(names)
        gone = self._ever.difference(self._names)
        self._ever.update(self._names)
        for table in (self._table.rows, self._table.rests, self._told, self._fleet.generations):
            for name in [name for name in table if name.partition("#")[0] in gone]:
                del table[name]

    # the hot path

    def look(self, provider: str, now: float) -> Look:
        """Whether `provider` is a candidate: from memory, without effect on its breaker."""
        left = self.resting(provider, now) if self._table.rests else 0.0
        row = self._table.rows.get(provider)
        if row is None or row.until is None:
            return Look(CLOSED, left, True) if left else CLEAR
        found = self._state(provider, row, now)
        wait = max(row.until - now, PROBE_WAIT if probing(row, now) else 0.0)
        return Look(found, max(wait, left, 0.0), left > 0)

    def closed(self, provider: str) -> Permit | None:
        """A permit if the breaker is closed, which nobody has to be asked for; else None."""
        row = self._table.rows.get(provider, NEW)
        return self._permit(provider, CLOSED, row) if row.until is None else None

    async def admit(self, provider: str, now: float, lease_until: float) -> Permit | None:
        """A permit, or None if the breaker is open or its probe's place is taken.

        The place is given up by itself at `lease_until`, the deadline of the exchange. One at a
        time asks a shared store for it: there may be another provider, so the others do not wait.
        """
        if (permit := self.closed(provider)) is not None:
            return permit
        row = self._table.rows[provider]
        if self._is_taken(provider, row, now) or provider in self._asking:
            return None
        if self._link.local is not None:
            return self._probe_here(provider, now, lease_until)
        asking = asyncio.create_task(self._probe_there(provider, lease_until))
        self._asking[provider] = asking
        asking.add_done_callback(lambda _: self._asking.pop(provider))
        in_time = False
        try:
            limit = min(ASK_LIMIT * self._link.timeout, lease_until - now)
            await asyncio.wait([asking], timeout=limit)
            in_time = asking.done()
            return asking.result() if in_time else None
        finally:
            if not in_time:
                # The place may be taken for one who has left: give it back as soon as known.
                asking.add_done_callback(_give_back)

    def judge(self, permit: Permit, verdict: Verdict, now: float) -> None:
        """Apply the verdict of a permit (`Permit.settle` calls this)."""
        name, probe = permit.name, permit.state is not CLOSED
        row = self._table.rows.get(name, NEW)
        after = judge(row, permit.generation, verdict, self._policy, now)
        if after is row and not probe:
            return  # what changes nothing is no news: hundreds may fail after the trip
        if after is not row:
            self._table.rows[name] = after
            if after.generation != row.generation:
                # The store will do the same when it hears of it, and count one generation on.
                self._fleet.generations[name] = permit.shared + 1
            self._announce(name, state(after, now), self._reason(verdict, row))
        if self._link.local is None:
            self._fleet.tell(News(name, permit.shared, verdict, probe, now))

    def rest(self, name: str, until: float) -> None:
        """Let a provider, or one of its keys (`provider#key`), rest until then or longer."""
        if until > self._table.rests.get(name, 0.0):
            self._table.rests[name] = until
            if self._link.local is None:
                self._fleet.rest(name, until)

    def resting(self, name: str, now: float) -> float:
        """Seconds of rest left; 0 when it does not rest."""
        until = self._table.rests.get(name, now)
        if until <= now:
            self._table.rests.pop(name, None)
        return max(until - now, 0.0)

    def snapshot(self, now: float) -> list[dict[str, str | float]]:
        """For `/health`: `name`, `state`, `since` (seconds ago) and `retry_in` (seconds)."""
        return [self._describe(name, now) for name in self._names]

    # inside

    def _describe(self, name: str, now: float) -> dict[str, str | float]:
        row, look = self._table.rows.get(name, NEW), self.look(name, now)
        since = entered(row, now) if row.generation else self.began
        return {
            "name": name,
            "state": look.state.value,
            "since": round(max(now - since, 0.0), 3),
            "retry_in": round(look.retry_in, 3),
        }

    def _known(self, name: str) -> bool:
        return name.partition("#")[0] in self._names

    def _permit(self, name: str, at: State, row: Row) -> Permit:
        return Permit(self, name, at, row.generation, self._fleet.generations.get(name, 0))

    def _probe_here(self, name: str, now: float, lease_until: float) -> Permit | None:
        row = probe(self._table.rows.get(name, NEW), now, lease_until)
        if row is None:
            return None
        self._table.rows[name] = row
        return self._permit(name, HALF_OPEN, row)

    def _state(self, name: str, row: Row, now: float) -> State:
        found = state(row, now)
        if found is HALF_OPEN:
            self._announce(name, found, "the cooldown is over")
        return found

    def _is_taken(self, name: str, row: Row, now: float) -> bool:
        return self._state(name, row, now) is OPEN or probing(row, now)

    def _announce(self, name: str, new: State, reason: str) -> None:
        old = self._told.get(name, CLOSED)
        if new is not old:
            self._told[name] = new
            if self._on_change is not None:
                self._on_change(name, old, new, reason)

    def _reason(self, verdict: Verdict, before: Row) -> str:
        if before.until is not None:
            return f"the probe's verdict was {verdict.value}"
        return f"{self._policy.failures} failures within {self._policy.window:g} s"

    # the shared store

    async def run(self) -> None:
        """Keep the mirror and a shared store in step until cancelled; returns at once without."""
        clock = asyncio.get_running_loop().time
        while self._link.local is None:
            try:
                await self.synchronise(clock)
            except StoreAway:
                await self._link.back()
            else:
                await self._fleet.wait(PULL)

    async def synchronise(self, clock: Callable[[], float]) -> None:
        """Tell the store everything that waits, then copy its state. Raises StoreAway."""
        async with self._lock:
            await self._tell_the_store(clock)
            now = clock()
            self._copy(await self._link.ask(self._link.store.read, now), now)

    def _copy(self, shared: Shared, now: float) -> None:
        self._fleet.begin_anew(self._fleet.generations.keys() - shared.rows.keys())
        for name, row in shared.rows.items():
            # What was told to nobody yet would be undone by what the store knew before.
            if self._known(name) and not self._fleet.waiting[name]:
                self._adopt(name, row, now)
        for name, left in shared.rests.items():
            if self._known(name):
                mine = self._table.rests.get(name, 0.0)
                self._table.rests[name] = max(mine, now + min(left, REST_MAX))

    def _adopt(self, name: str, row: Row, now: float) -> None:
        mine = self._table.rows.get(name, NEW)
        same = (mine.until is None) is (row.until is None)
        expected = row.generation == self._fleet.generations.get(name, 0)
        generation = mine.generation if same and expected else mine.generation + 1
        since = row.since if row.generation else now  # one that the store has not seen yet
        self._table.rows[name] = row._replace(generation=generation, since=since)
        self._fleet.generations[name] = row.generation
        self._announce(name, state(row, now), "seen by another relayd")

    async def _probe_there(self, name: str, lease_until: float) -> Permit | None:
        clock = asyncio.get_running_loop().time
        async with self._lock:
            if (permit := self.closed(name)) is not None:
                return permit  # the fleet's word came while the lock was waited for
            row, now = self._table.rows[name], clock()
            if self._is_taken(name, row, now):
                return None
            try:
                await self._tell_the_store(clock)
                now = clock()
                step = self._link.store.probe
                given, row = await self._link.ask(step, name, lease_until - now, now)
            except StoreAway:
                return self._probe_here(name, clock(), lease_until)
            self._adopt(name, row, now)
            row = self._table.rows[name]
            return self._permit(name, HALF_OPEN, row) if given else self.closed(name)

    async def _tell_the_store(self, clock: Callable[[], float]) -> None:
        fleet, ask, store = self._fleet, self._link.ask, self._link.store
        while fleet.news:
            # Told again if the answer gets lost: then a failure may count twice, which is better
            # than a breaker that another one's copy closes because the store never heard of it.
            name, generation, verdict, probe, at = news = fleet.news[0]
            now = clock()
            age = max(now - at, 0.0)
            if probe or age < self._policy.window or self.closed(name) is None:
                row = await ask(store.judge, name, generation, verdict, self._policy, age, now)
                if fleet.waiting[name] == 1 and self._known(name):
                    self._adopt(name, row, now)
            fleet.forget(news)
        while fleet.rests:
            name, until = next(iter(fleet.rests.items()))
            if (left := until - clock()) > 0:
                await ask(store.rest, name, min(left, REST_MAX), clock())
            if fleet.rests.get(name) == until:
                del fleet.rests[name]


def _give_back(asking: asyncio.Task[Permit | None]) -> None:
    if not asking.cancelled() and asking.exception() is None and (permit := asking.result()):
        permit.settle(Verdict.NEUTRAL, asyncio.get_running_loop().time())
