"""Idle upstream connections by origin: which to take, which to drop.

Synchronous and without a socket: every decision returns, or closes through the `Idle` protocol,
what it no longer keeps. The newest connection is taken first (LIFO), so that a quiet hour lets the
others age out: after a burst there are as many as it needed, and a minute later as many as are
needed then. There is no waiting queue: who finds nothing dials.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar


class Idle(Protocol):
    """What the pool asks of a connection."""

    born: float
    since: float
    """When its last answer ended: the pool's to set."""

    def is_quiet(self) -> bool:
        """True if the peer sent nothing, not even a FIN, since the last answer."""
        ...

    def close(self) -> None:
        """Give the connection up."""
        ...


C = TypeVar("C", bound=Idle)


class Origin(NamedTuple):
    """Connections are exchangeable only within one of these (`ca` is the CA file, or empty)."""

    scheme: str
    host: str
    port: int
    tls_name: str
    ca: str


class Pool(Generic[C]):
    """Kept-alive connections; times are loop time in seconds.

    `size` bounds all of them together, `idle_age` the time unused, `max_age` the time since the
    connect (so that a change of DNS is followed).
    """

    def __init__(self, size: int, idle_age: float, max_age: float) -> None:
        self.size = size
        self.idle_age = idle_age
        self.max_age = max_age
        self._idle: dict[Origin, deque[C]] = {}  # by `since`
        self._count = 0

    def configure(self, size: int, idle_age: float, max_age: float) -> None:
        """Other bounds; what is beyond a smaller `size` is closed, the oldest first."""
        self.size, self.idle_age, self.max_age = size, idle_age, max_age
        while self._count > size:
            self._lose_oldest()

    def take(self, origin: Origin, now: float) -> C | None:
        """The newest usable connection; what is found too old or not quiet is closed."""
        idle = self._idle.get(origin)
        while idle:
            conn = idle.pop()
            self._count -= 1
            if self._fresh(conn, now) and conn.is_quiet():
                return conn
            conn.close()
        return None

    def give(self, origin: Origin, conn: C, now: float) -> bool:
        """Keep a connection whose last answer ended cleanly; False if it was closed instead.

        That nothing follows the answer is looked at when it is taken again, by the kernel's word.
        """
        conn.since = now
        if not self.size or not self._fresh(conn, now):
            conn.close()
            return False
        idle = self._idle.get(origin)
        if idle is None:
            idle = self._idle[origin] = deque()
        if self._count >= self.size:
            self._lose_oldest()
        idle.append(conn)
        self._count += 1
        return True

    def drop(self, origin: Origin, conn: C, data: bytes = b"") -> None:
        """Close a connection on which something arrived (`data`, or its end) while it was idle."""
        idle = self._idle.get(origin)
        if idle is not None and conn in idle:
            idle.remove(conn)
            self._count -= 1
            conn.close()

    def expire(self, now: float) -> None:
        """Close what is too old; called every few seconds."""
        for origin, idle in list(self._idle.items()):
            kept = deque(conn for conn in idle if self._fresh(conn, now))
            gone = [conn for conn in idle if not self._fresh(conn, now)]
            self._idle[origin] = kept
            self._count -= len(gone)
            if not kept:
                del self._idle[origin]
            for conn in gone:
                conn.close()

    def keep(self, origins: Iterable[Origin]) -> None:
        """Close the connections of every other origin (a reload removed its provider)."""
        wanted = set(origins)
        for origin in [origin for origin in self._idle if origin not in wanted]:
            gone = self._idle.pop(origin)
            self._count -= len(gone)
            for conn in gone:
                conn.close()

    def close(self) -> None:
        """Close all of them."""
        self.keep(())

    def __len__(self) -> int:
        return self._count

    def _lose_oldest(self) -> None:
        self._count -= 1
        min(filter(None, self._idle.values()), key=_oldest).popleft().close()

    def _fresh(self, conn: C, now: float) -> bool:
        return now - conn.since < self.idle_age and now - conn.born < self.max_age


def _oldest(idle: deque[C]) -> float:
    return idle[0].since
