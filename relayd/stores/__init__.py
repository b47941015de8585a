"""Where turns and breakers are kept: one small protocol, and one file for each place.

A store does no more than replace state atomically: every operation is one step that happens
entirely or not at all, whoever else uses the same store. The rules themselves are `quota` and
`breaker`. An object of an embedder with these methods is a store too; it must pass the suite in
`tests/contract`.

What goes wrong inside a store is raised as `StoreAway`, and nothing of it is asked for a while; a
value that it could never hold as `Unstorable`, which is a fault of that value alone. A store waits
for nobody: the limit on waiting, and what happens without a store, are its callers' (`link`,
`turns`, `breakers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from ..breaker import Policy, Row, Verdict
from ..quota import Grant, Tally, Turn


class StoreAway(Exception):
    """The store did not do what was asked; the message says why, without URL or credential.

    `asked`: the request may have reached it, so that the step may have happened after all.
    """

    def __init__(self, message: str, *, asked: bool = True) -> None:
        super().__init__(message)
        self.asked = asked


class Unstorable(Exception):
    """A step was about something that the store cannot hold; nothing of the step has happened."""


UNREADABLE = (ValueError, TypeError, OverflowError, RecursionError)
"""What reading a row raises that something else has written: such a row counts as none."""


class Settlement(NamedTuple):
    """The end of a reservation: charged, or given back."""

    turn: Turn
    charged: bool

    @property
    def user(self) -> str:
        """Whose it is."""
        return self.turn.user


class Probe(NamedTuple):
    """Whether the probe's place was given, and the breaker as it is now."""

    granted: bool
    row: Row


class Shared(NamedTuple):
    """What a fleet agrees on: breakers by name, and seconds left of each rest."""

    rows: dict[str, Row]
    rests: dict[str, float]


class Store(Protocol):
    """State of turns and breakers.

    `now` is in seconds on the caller's monotonic clock, which all processes of a machine share. A
    store with a clock of its own may use that one: a `Row` goes in and comes out on the caller's
    clock anyway, so that only spans of time need to agree.
    """

    async def reserve(self, turn: Turn) -> Grant:
        """Check the cap and hold the turn, in one step.

        A store that outlives its processes drops the leases that have ended.
        """
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """End reservations. One that is unknown, or whose lease has ended, changes nothing."""
        ...

    async def add(self, ledger: str, tallies: Sequence[Tally]) -> None:
        """Add what was counted elsewhere, under the name `ledger`, while this store was away.

        A tally is the absolute total of its ledger: telling it again adds only the difference.
        """
        ...

    async def probe(self, name: str, lease: float, now: float) -> Probe:
        """Take the one place of a half-open breaker for `lease` seconds, if it is free."""
        ...

    async def judge(
        self, name: str, generation: int, verdict: Verdict, policy: Policy, age: float, now: float
    ) -> Row:
        """Apply a verdict (`breaker.judge`) that fell `age` seconds ago; the breaker after it."""
        ...

    async def rest(self, name: str, seconds: float, now: float) -> None:
        """Let a provider or key rest for at least that long; a longer rest stays."""
        ...

    async def read(self, now: float) -> Shared:
        """Everything about breakers at once; also the question whether the store is there."""
        ...

    async def close(self) -> None:
        """Let go of files, threads and connections."""
        ...


def check_users(entries: Iterable[Turn | Tally | Settlement]) -> None:
    """Raise `Unstorable` for a user whose name is no text or cannot be spelled in UTF-8.

    Asked before a step goes where it shares its way with others, who must not suffer from it.
    """
    for entry in entries:
        try:
            entry.user.encode()
        except (AttributeError, UnicodeEncodeError) as error:
            raise Unstorable("a user's name is no text in UTF-8") from error


def open_store(url: str, *, prefix: str = "relayd:", timeout: float = 0.25) -> Store:
    """The store behind `store.url`; nothing is opened yet.

    `prefix` of every Redis key; `timeout` in seconds, for what a store would otherwise wait for
    inside (a lock, a connection). Raises ValueError with the remedy for a URL that is no store, or
    whose extra is not installed.
    """
    scheme = url.partition(":")[0]
    if scheme not in SCHEMES:
        raise ValueError(f"expected memory:, sqlite:PATH or redis://HOST, got {scheme}:")
    return SCHEMES[scheme](url, prefix, timeout)


def _memory(url: str, prefix: str, timeout: float) -> Store:
    from .memory import MemoryStore

    return MemoryStore()


def _sqlite(url: str, prefix: str, timeout: float) -> Store:
    from .sqlite import SqliteStore

    path = url.partition(":")[2]
    if not path:
        raise ValueError("expected sqlite:PATH, got no path")
    return SqliteStore(path, timeout=timeout)


def _redis(url: str, prefix: str, timeout: float) -> Store:
    try:
        from .redis import RedisStore
    except ImportError as error:
        raise ValueError(
            "a redis store needs the redis package: pip install 'relayd[redis]'"
        ) from error
    return RedisStore(url, prefix=prefix, timeout=timeout)


SCHEMES: dict[str, Callable[[str, str, float], Store]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "redis": _redis,
    "rediss": _redis,
    "unix": _redis,
}
"""What opens each scheme. Imports are late: only the store in use is loaded."""
