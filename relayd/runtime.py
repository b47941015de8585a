"""An engine and what keeps it going: the store behind it, its background tasks, reload and end.

The daemon, an ASGI application and an embedding program each own one. Does not know clients,
listeners or signals.
"""

from __future__ import annotations

import asyncio

from . import breaker
from .admission import MAX_USER
from .breakers import Breakers
from .config import Config
from .engine import Engine, Journal, Setup, reach_for, where
from .stores import Store, open_store
from .stores.link import Link
from .turns import Turns

CLOSE_GRACE = 1.0
"""Seconds for the last words of exchanges whose drain is over."""

EXPIRE_EVERY = 5.0
"""Seconds between two looks at the idle upstream connections."""


ELSEWHERE = (
    "relayd lives in the event loop in which it was first used, and this is another: use one for "
    "each loop, and an ASGI application within its lifespan (`with TestClient(app)` runs it)"
)
"""A connection of a loop that is closed would be borrowed, and never say anything again."""


OWN = "of the program"
"""In the place of a store's URL, where the store was given."""


class Runtime:
    """One engine. `start` it once, `close` it once; both in the same event loop.

    `store` is used instead of the configured one and closed with the rest.
    """

    def __init__(self, setup: Setup, journal: Journal, store: Store | None = None) -> None:
        config = setup.config
        self._journal = journal
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = False
        self._place = OWN if store else config.store.place
        if store is None:
            kept = config.store
            store = open_store(kept.url, prefix=kept.prefix, timeout=kept.timeout)
        self.link = Link(store, timeout=config.store.timeout, on_store=self._store_changed)
        self.engine = Engine(
            setup=setup,
            reach=reach_for(config),
            breakers=Breakers(self.link, policy(config), on_change=self._breaker_changed),
            turns=Turns(
                self.link,
                continuations_per_turn=config.quota.continuations_per_turn,
                timezone=config.quota.timezone,
                on_failure=config.store.on_failure,
                on_dropped=self._turn_dropped,
            ),
            journal=journal,
        )
        self.engine.breakers.keep(provider.name for provider in config.providers)

    def claim(self) -> asyncio.AbstractEventLoop:
        """The running event loop, which it lives in from now on; raises `RuntimeError` in another.

        For whoever does not know the loop that his caller is in.
        """
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError(ELSEWHERE)
        self._loop = loop
        return loop

    def start(self) -> None:
        """Begin the background work in the running event loop; raises `RuntimeError` if it runs."""
        loop = self.claim()
        if self._tasks:
            raise RuntimeError("this has been started already: enter it once")
        self.engine.breakers.began = loop.time()
        self._tasks = [
            loop.create_task(self._expire()),
            loop.create_task(self.engine.breakers.run()),
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def keeps_from(self, config: Config) -> bool:
        """Whether this configuration names another store, which none but a new one can have."""
        return self._place not in (OWN, config.store.place)

    def reload(self, setup: Setup) -> None:
        """Swap the configuration; what is unchanged keeps its state."""
        config, engine = setup.config, self.engine
        engine.setup = setup
        engine.breakers.configure(policy(config))
        engine.breakers.keep(provider.name for provider in config.providers)
        engine.turns.configure(
            continuations_per_turn=config.quota.continuations_per_turn,
            timezone=config.quota.timezone,
            on_failure=config.store.on_failure,
        )
        pool = config.failover
        engine.reach.configure(
            pool.max_idle_connections,
            pool.idle_connection_age,
            pool.max_connection_age,
            setup.outbound.origins(),
        )

    async def close(self) -> None:
        """Close connections and store; the exchanges have ended before.

        Once is enough; one that was cancelled can be asked for again.
        """
        if self._over:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.engine.reach.pool.close()
        if untold := await self.engine.turns.close():
            text = f"the store {self._place} stays without the last turns of some users: it is away"
            self._journal.event("warning", "turns_untold", text, users=untold)
        await self.link.close()
        self._over = True

    # Inside.

    async def _expire(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(EXPIRE_EVERY)
            self.engine.reach.pool.expire(clock())

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A fault in the background would otherwise be known to nobody."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            text = "a background task of relayd has failed: restart it"
            self._journal.event("error", "internal_error", text, where=where(fault))

    def _store_changed(self, available: bool, detail: str) -> None:
        if available:
            text = f"the store {self._place} is back"
            self._journal.event("info", "store_back", text, detail=detail)
        else:
            kept = self.engine.setup.config.store.on_failure.value
            text = f"the store {self._place} is away: on_failure = {kept} holds"
            self._journal.event("error", "store_away", text, detail=detail)

    def _turn_dropped(self, user: str, fault: Exception) -> None:
        text = f"the store {self._place} cannot take the turns of a user: they are dropped"
        self._journal.event(
            "error", "turn_dropped", text, user=repr(user)[:MAX_USER], where=where(fault)
        )

    def _breaker_changed(
        self, name: str, old: breaker.State, new: breaker.State, reason: str
    ) -> None:
        level = "warning" if new is breaker.State.OPEN else "info"
        text = f"breaker of {name}: {old.value} to {new.value}"
        self._journal.event(level, "breaker", text, provider=name, state=new.value, reason=reason)


def policy(config: Config) -> breaker.Policy:
    """The breakers' policy as configured."""
    found = config.breaker
    return breaker.Policy(
        found.failures, found.window, found.cooldown, found.cooldown_growth, found.cooldown_max
    )
