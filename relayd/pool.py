"""Idle upstream connections by origin: which to take, which to drop.

Synchronous and without a socket: every decision returns, or closes through the `Idle` protocol,
what it no longer keeps. The newest connection is taken first (LIFO), so that a quiet hour lets the
others age out. There is no waiting queue: who finds nothing dials.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar


class Idle(Protocol):
    """What the pool asks of a connection."""

    born: float

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


class _Entry(NamedTuple, Generic[C]):
    conn: C
    since: float


class Pool(Generic[C]):
    """Kept-alive connections; times are loop time in seconds.

    `size` bounds one origin, `idle_age` the time unused, `max_age` the time since the connect (so
    that a change of DNS is followed).
    """

    def __init__(self, size: int, idle_age: float, max_age: float) -> None:
        self.size = size
        self.idle_age = idle_age
        self.max_age = max_age
        self._idle: dict[Origin, deque[_Entry[C]]] = {}

    def take(self, origin: Origin, now: float) -> C | None:
        """The newest usable connection; what is found too old or not quiet is closed."""
        entries = self._idle.get(origin)
        while entries:
            entry = entries.pop()
            if self._fresh(entry, now) and entry.conn.is_quiet():
                return entry.conn
            entry.conn.close()
        return None

    def give(self, origin: Origin, conn: C, now: float) -> bool:
        """Keep a connection whose last answer ended cleanly; False if it was closed instead.

        That nothing follows the answer is looked at when it is taken again, by the kernel's word.
        """
        entry = _Entry(conn, now)
        if not self.size or not self._fresh(entry, now):
            conn.close()
            return False
        entries = self._idle.setdefault(origin, deque())
        while len(entries) >= self.size:  # more than one after a reload with a smaller size
            entries.popleft().conn.close()
        entries.append(entry)
        return True

    def drop(self, origin: Origin, conn: C) -> None:
        """Close a connection on which something arrived while it was idle."""
        entries = self._idle.get(origin, deque())
        for entry in entries:
            if entry.conn is conn:
                entries.remove(entry)
                conn.close()
                return

    def expire(self, now: float) -> None:
        """Close what is too old; called every few seconds."""
        for origin, entries in list(self._idle.items()):
            kept = deque(entry for entry in entries if self._fresh(entry, now))
            gone = [entry for entry in entries if not self._fresh(entry, now)]
            self._idle[origin] = kept
            if not kept:
                del self._idle[origin]
            for entry in gone:
                entry.conn.close()

    def keep(self, origins: Iterable[Origin]) -> None:
        """Close the connections of every other origin (a reload removed its provider)."""
        wanted = set(origins)
        for origin in [origin for origin in self._idle if origin not in wanted]:
            for entry in self._idle.pop(origin):
                entry.conn.close()

    def close(self) -> None:
        """Close all of them."""
        self.keep(())

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._idle.values())

    def _fresh(self, entry: _Entry[C], now: float) -> bool:
        return now - entry.since < self.idle_age and now - entry.conn.born < self.max_age
