"""What outlives an exchange and is shared by all of them.

`Setup` is one configuration with what follows from it, swapped whole on a reload; a running
exchange keeps the one it began with. `Engine` is the rest: connections, breakers, turns, the count
of requests in flight, the log. Does not know clients, HTTP or when to stop.
"""

from __future__ import annotations

import asyncio
import errno
import random
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from .breaker import OPEN, REST_MAX
from .breakers import Breakers, Permit
from .config import Candidate, Config, Provider, Secret
from .failover import READY, SOON, Ready, Standing
from .masking import Masker
from .outbound import Outbound
from .pool import Pool
from .reach import Reach
from .record import Attempt, Record
from .turns import Turns
from .wake import Clock

REFUSED_REST = REST_MAX
"""Seconds for which a key that was refused is not asked while the provider has another one."""


class Journal(Protocol):
    """Who is told: the access log, the metrics, the status page (see `accesslog.Log`)."""

    def exchange(self, record: Record) -> None: ...

    def attempt_failed(self, record: Record, attempt: Attempt, detail: str) -> None: ...

    def event(
        self, level: str, event: str, message: str, **fields: str | int | float | bool | None
    ) -> None: ...


class Guarded:
    """A journal of the program around relayd: what it raises goes to the loop's exception handler.

    It is told of what has happened, so nothing that happens may depend on it.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def exchange(self, record: Record) -> None:
        """See `Journal`."""
        self._tell("exchange", record)

    def attempt_failed(self, record: Record, attempt: Attempt, detail: str) -> None:
        """See `Journal`."""
        self._tell("attempt_failed", record, attempt, detail)

    def event(
        self, level: str, event: str, message: str, **fields: str | int | float | bool | None
    ) -> None:
        """See `Journal`."""
        self._tell("event", level, event, message, **fields)

    def _tell(self, method: str, /, *told: Any, **fields: Any) -> None:
        try:
            getattr(self._journal, method)(*told, **fields)
        except (Exception, asyncio.CancelledError) as fault:  # noqa: BLE001  # it awaits nothing
            context = {"message": f"relayd: the journal failed in {method}()", "exception": fault}
            asyncio.get_running_loop().call_exception_handler(context)


@dataclass(frozen=True, slots=True)
class Setup:
    """A configuration and what is built from it once."""

    config: Config
    mask: Callable[[str], str]
    outbound: Outbound

    @classmethod
    def of(cls, config: Config) -> Setup:
        """Build what follows from a configuration."""
        mask = Masker(config.secrets)
        # A provider's own words reach the client: where it is asked is not for them either.
        places = {place for p in config.providers for place in (p.base_url, p.authority)}
        return cls(config, mask, Outbound(config, Masker(config.secrets | places)))


@dataclass(slots=True)
class Loaded:
    """The configuration's age, in seconds since the epoch, and why it is not a newer one."""

    at: float
    problem: str | None = None


@dataclass(slots=True)
class Engine:
    """The state behind all exchanges of one process."""

    setup: Setup
    reach: Reach
    breakers: Breakers
    turns: Turns
    journal: Journal
    in_flight: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    open: dict[int, Record] = field(default_factory=dict)
    jitter: Callable[[], float] = random.random
    loaded: Loaded = field(default_factory=lambda: Loaded(time.time()))
    _quiet: asyncio.Event = field(default_factory=asyncio.Event)
    _next_key: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    _refused: dict[str, float] = field(default_factory=dict)

    def ready(self, candidate: Candidate, now: float) -> Ready:
        """Whether a candidate can be asked now, and with which keys in which order."""
        provider = candidate.provider
        look = self.breakers.look(provider.name, now)
        if look.state is OPEN:
            return Ready(Standing.OPEN, look.retry_in)
        if look.rests:
            return Ready(Standing.RESTING, look.retry_in)
        if self._is_full(provider):
            return FULL
        return self._keys(provider, now) if provider.keys else _NO_KEYS

    def admit_at_once(self, provider: Provider) -> Permit | None:
        """What `admit` gives where nobody has to be asked; None where it has to be called."""
        if self._is_full(provider):
            return None
        permit = self.breakers.closed(provider.name)
        if permit is not None:
            self.in_flight[provider.name] += 1
        return permit

    async def admit(self, provider: Provider, clock: Clock) -> Permit | Ready:
        """Take a place in flight and the breaker's permit; or why one of them cannot be had.

        Whoever gets a permit gives both back. `ready` may have said otherwise before a backoff.
        """
        if self._is_full(provider):
            return FULL
        name, permit = provider.name, None
        self.in_flight[name] += 1
        try:
            permit = await self.breakers.admit(name, clock.now(), clock.deadline)
        finally:
            if permit is None:
                self.in_flight[name] -= 1
        return permit or Ready(Standing.OPEN, self.breakers.look(name, clock.now()).retry_in)

    @property
    def running(self) -> int:
        """Exchanges that are open."""
        return len(self.open)

    def enter(self, record: Record) -> None:
        """An exchange begins."""
        self.open[id(record)] = record
        self._quiet.clear()

    def leave(self, record: Record) -> None:
        """An exchange has ended."""
        del self.open[id(record)]
        if not self.open:
            self._quiet.set()

    async def idle(self, limit: float | None) -> bool:
        """Wait until no exchange runs, for `limit` seconds at most; True if none does."""
        try:
            async with asyncio.timeout(limit):
                while self.open:
                    await self._quiet.wait()
        except TimeoutError:
            return False
        return True

    def fault(self, exc: BaseException) -> None:
        """A fault of our own goes to the log by type and place, without what it was about."""
        self.journal.event(
            "error", "internal_error", "relayd failed to serve a request", where=where(exc)
        )

    def refused(self, provider: Provider, key: Secret | None, now: float) -> None:
        """The provider refused one of its keys: the others are asked for a while."""
        if len(provider.keys) > 1:
            self._refused[_pooled(provider, key)] = now + REFUSED_REST

    def rest(self, provider: Provider, key: Secret | None, seconds: float, now: float) -> None:
        """Do not ask for a while: the key alone where the provider has others."""
        alone = key is None or len(provider.keys) < 2
        self.breakers.rest(provider.name if alone else _pooled(provider, key), now + seconds)

    def _is_full(self, provider: Provider) -> bool:
        return 0 < provider.max_in_flight <= self.in_flight[provider.name]

    def _keys(self, provider: Provider, now: float) -> Ready:
        keys = provider.keys
        if len(keys) == 1:
            return Ready(READY, 0.0, keys)
        first = self._next_key[provider.name] % len(keys)
        self._next_key[provider.name] = first + 1
        turned = keys[first:] + keys[:first]
        good = [key for key in turned if self._refused.get(_pooled(provider, key), 0.0) <= now]
        if not good:
            return Ready(READY, keys=turned)  # so that whoever asks is told what is wrong
        waits = {key: self.breakers.resting(_pooled(provider, key), now) for key in good}
        usable = tuple(key for key in good if not waits[key])
        if not usable:
            return Ready(Standing.RESTING, min(waits.values()))
        return Ready(READY, keys=usable)


FULL = Ready(Standing.FULL, SOON)
"""Nobody knows when a place will be free: soon, as a rule."""

_NO_KEYS = Ready(READY)


def _pooled(provider: Provider, key: Secret | None) -> str:
    return f"{provider.name}#{key.id if key else ''}"


def reach_for(config: Config) -> Reach:
    """An empty pool with the bounds of a configuration."""
    policy = config.failover
    return Reach(
        Pool(policy.max_idle_connections, policy.idle_connection_age, policy.max_connection_age)
    )


def where(exc: BaseException) -> str:
    """Type and place of a fault of our own: what a log line may say of it."""
    kind = type(exc).__name__
    if isinstance(exc, OSError) and exc.errno:
        kind = f"{kind} {errno.errorcode.get(exc.errno, exc.errno)}"
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return kind
    name = trace.tb_frame.f_code.co_filename.rpartition("/")[2]
    return f"{kind} at {name}:{trace.tb_lineno}"
