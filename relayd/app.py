"""What outlives a request: the configuration, the engine, the servers; start, reload, drain.

One `App` is one running relayd inside an event loop. Its parts are swapped or kept here on a
reload; the process around it (signals, systemd, the command line) is `daemon`'s.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence

from . import breaker
from .accesslog import Log
from .breakers import Breakers
from .config import Config, Format
from .dial import small_tls_buffers
from .endpoints import Endpoints
from .engine import Engine, Setup, reach_for
from .server import Server
from .session import Rules
from .stores import open_store
from .stores.link import Link
from .turns import Turns

EXPIRE_EVERY = 5.0
"""Seconds between two looks at the idle upstream connections."""

CLOSE_GRACE = 1.0
"""Seconds for the last words of exchanges whose drain is over."""


class App:
    """A relayd. `start` it once, `stop` it once; both in the same event loop.

    `write` takes log lines as bytes; `log_sink` (instead) as text, one line a call.
    """

    def __init__(
        self,
        config: Config,
        *,
        write: Callable[[bytes], None] | None = None,
        log_sink: Callable[[str], None] | None = None,
        priorities: bool = False,
        text: bool = False,
    ) -> None:
        self.config = config
        self._text = text
        setup = Setup.of(config)
        self.log = Log(
            write or _lines_to(log_sink),
            level=config.log.level.value,
            format=self._format(config),
            priorities=priorities,
            mask=setup.mask,
            wall=time.time,
        )
        self.link = Link(
            open_store(config.store.url, prefix=config.store.prefix, timeout=config.store.timeout),
            timeout=config.store.timeout,
            on_store=self._store_changed,
        )
        self.engine = Engine(
            setup=setup,
            reach=reach_for(config),
            breakers=Breakers(self.link, policy(config), on_change=self._breaker_changed),
            turns=Turns(
                self.link,
                continuations_per_turn=config.quota.continuations_per_turn,
                timezone=config.quota.timezone,
                on_failure=config.store.on_failure,
            ),
            journal=self.log,
        )
        self.engine.breakers.keep(provider.name for provider in config.providers)
        self.endpoints = Endpoints(self.engine, lambda: self.server.draining)
        self.server = Server(
            self.endpoints.serve,
            self._rules,
            lambda: self.config.server.trusted_proxies,
            lambda: self.config.server.max_connections,
            self.engine.fault,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._drain: asyncio.Task[bool] | None = None

    @property
    def addresses(self) -> list[tuple[str, int] | str]:
        """Where it listens: (host, port), or the path of a unix socket."""
        return [
            name if isinstance(name := sock.getsockname(), str) else (name[0], name[1])
            for sock in self.server.sockets
        ]

    async def start(self, sockets: Sequence[socket.socket] = ()) -> None:
        """Listen, on the given sockets or on the configured addresses; raises `ListenError`."""
        small_tls_buffers()
        self.engine.breakers.began = asyncio.get_running_loop().time()
        server = self.config.server
        for sock in sockets:
            await self.server.adopt(sock)
        for address in () if sockets else server.listen:
            await self.server.listen(
                address, unix_mode=server.unix_mode, reuse_port=server.reuse_port
            )
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._expire()), loop.create_task(self._synchronise())]

    def reload(self, config: Config) -> None:
        """Swap the configuration; what is unchanged keeps its state."""
        setup = Setup.of(config)
        self.config = config
        self.engine.setup = setup
        self.engine.breakers.configure(policy(config))
        self.engine.breakers.keep(provider.name for provider in config.providers)
        self.engine.turns.configure(
            continuations_per_turn=config.quota.continuations_per_turn,
            timezone=config.quota.timezone,
            on_failure=config.store.on_failure,
        )
        pool = config.failover
        self.engine.reach.configure(
            pool.max_idle_connections,
            pool.idle_connection_age,
            pool.max_connection_age,
            setup.outbound.origins(),
        )
        self.log.configure(
            level=config.log.level.value, format=self._format(config), mask=setup.mask
        )

    async def stop(self, drain: float) -> None:
        """Accept no more, let exchanges finish for `drain` seconds, then end them honestly."""
        self.server.draining = True
        self.server.close_listeners()
        self._drain = asyncio.get_running_loop().create_task(self.engine.idle(drain))
        await asyncio.wait([self._drain])
        await self.server.close(CLOSE_GRACE)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.engine.reach.pool.close()
        await self.engine.turns.close()
        await self.link.close()

    def hurry(self) -> None:
        """End the drain now."""
        if self._drain is not None:
            self._drain.cancel()

    # Inside.

    def _format(self, config: Config) -> str:
        if config.log.format is Format.AUTO:
            return "text" if self._text else "json"
        return config.log.format.value

    def _rules(self) -> Rules:
        server = self.config.server
        return Rules(
            server.max_head_bytes,
            server.max_request_bytes,
            server.head_timeout,
            server.body_timeout,
            server.idle_timeout,
        )

    async def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(EXPIRE_EVERY)
            self.engine.reach.pool.expire(loop.time())

    async def _synchronise(self) -> None:
        await self.engine.breakers.run()

    def _store_changed(self, available: bool, detail: str) -> None:
        if available:
            self.log.event("info", "store_back", "the store is back", detail=detail)
        else:
            text = f"the store is away: on_failure = {self.config.store.on_failure.value} holds"
            self.log.event("error", "store_away", text, detail=detail)

    def _breaker_changed(
        self, name: str, old: breaker.State, new: breaker.State, reason: str
    ) -> None:
        level = "warning" if new is breaker.State.OPEN else "info"
        text = f"breaker of {name}: {old.value} to {new.value}"
        self.log.event(level, "breaker", text, provider=name, state=new.value, reason=reason)


def policy(config: Config) -> breaker.Policy:
    """The breakers' policy as configured."""
    found = config.breaker
    return breaker.Policy(
        found.failures, found.window, found.cooldown, found.cooldown_growth, found.cooldown_max
    )


def _lines_to(sink: Callable[[str], None] | None) -> Callable[[bytes], None]:
    return (lambda line: sink(line.decode().rstrip("\n"))) if sink else (lambda _: None)
