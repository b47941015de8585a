"""The way to the providers: pooled connections, TLS contexts, and what becomes of a connection.

Shared by all exchanges of a process; survives a reload. Does not know requests or answers.
"""

from __future__ import annotations

import ssl
from functools import partial

from .dial import connect, tls_context
from .framing import Body
from .net import Conn
from .pool import Origin, Pool
from .response import ResponseHead, ResponseLines
from .wake import Clock


class Reach:
    """Connections to providers, kept or new."""

    def __init__(self, pool: Pool[Conn]) -> None:
        self.pool = pool
        self.lines = ResponseLines()
        self._contexts: dict[str, ssl.SSLContext] = {}

    def configure(self, size: int, idle_age: float, max_age: float, origins: set[Origin]) -> None:
        """Bounds and origins after a reload; CA files are read again at their next use."""
        self.pool.size, self.pool.idle_age, self.pool.max_age = size, idle_age, max_age
        self.pool.keep(origins)
        self._contexts.clear()

    def borrow(self, origin: Origin, now: float) -> Conn | None:
        """An idle connection, no longer watched by the pool."""
        conn = self.pool.take(origin, now)
        if conn is not None:
            conn.silence()
        return conn

    async def dial(self, origin: Origin, clock: Clock) -> Conn:
        """A new connection; raises what `dial.connect` raises."""
        tls = self.context(origin.ca) if origin.scheme == "https" else None
        return await connect(origin.host, origin.port, tls, origin.tls_name, clock.loop)

    def give_back(self, origin: Origin, conn: Conn, now: float) -> None:
        """Keep a connection whose answer ended cleanly; bytes or a FIN while idle drop it."""
        conn.silence()
        conn.resume()  # an answer's last read may have paused it, for a client that was behind
        if self.pool.give(origin, conn, now):
            if conn.unasked is None:
                conn.unasked = partial(self.pool.drop, origin, conn)
            conn.on_end = conn.sink = conn.unasked

    def context(self, ca_file: str) -> ssl.SSLContext:
        """One context per CA file, made at its first use (reading the system's takes 20 ms)."""
        if ca_file not in self._contexts:
            self._contexts[ca_file] = tls_context(ca_file)
        return self._contexts[ca_file]


def release(
    reach: Reach, origin: Origin, conn: Conn, head: ResponseHead, body: Body, now: float
) -> None:
    """Keep the connection for the next exchange if its answer ended as announced, else close it."""
    clean = head.reusable and body.done and not body.rest and not conn.buffer
    # An answer may overtake its request, the rest of which would then stand before the next one.
    if clean and not conn.ended and not conn.pending():
        reach.give_back(origin, conn, now)
    else:
        conn.abort()
