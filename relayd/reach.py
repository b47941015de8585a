"""The way to the providers: pooled connections, TLS contexts, and what becomes of a connection.

Shared by all exchanges of a process; survives a reload. Does not know requests or answers.
"""

from __future__ import annotations

import errno
import socket
import ssl
from functools import partial

from .dial import connect, race, tls_context
from .failover import AttemptFailed
from .framing import Body
from .net import Conn, reason
from .outcomes import Outcome
from .pool import Origin, Pool
from .response import ResponseHead, ResponseLines
from .wake import Clock

EXPIRED = {
    "connect": Outcome.CONNECT_TIMEOUT,
    "first_content": Outcome.FIRST_CONTENT_TIMEOUT,
    "answer": Outcome.ANSWER_TIMEOUT,
    "idle": Outcome.IDLE_TIMEOUT,
}


def look(clock: Clock) -> None:
    """Raise `AttemptFailed` if a provider's time is over."""
    if clock.expired is not None:
        raise AttemptFailed(EXPIRED[clock.expired])


class Reach:
    """Connections to providers, kept or new."""

    def __init__(self, pool: Pool[Conn]) -> None:
        self.pool = pool
        self.lines = ResponseLines()
        self._contexts: dict[str, ssl.SSLContext] = {}

    def configure(self, size: int, idle_age: float, max_age: float, origins: set[Origin]) -> None:
        """Bounds and origins after a reload; CA files are read again at their next use."""
        self.pool.configure(size, idle_age, max_age)
        self.pool.keep(origins)
        self._contexts.clear()

    def borrow(self, origin: Origin, now: float) -> Conn | None:
        """An idle connection, no longer watched by the pool."""
        conn = self.pool.take(origin, now)
        if conn is not None:
            conn.silence()
        return conn

    async def dial(self, origin: Origin, clock: Clock, until: float) -> Conn:
        """A new connection, until a loop time; raises `AttemptFailed`.

        Raises `OSError` where no file is left for it, which is no fault of the provider.
        """
        clock.arm("connect", until)
        try:
            work = self._connect(origin, clock)
            return await race(work, clock.wake, partial(look, clock), Conn.abort)
        except (OSError, ValueError) as exc:
            if isinstance(exc, OSError) and exc.errno in (errno.EMFILE, errno.ENFILE):
                raise
            # Without the traceback, whose frames hold the request.
            raise _no_connection(exc) from exc.with_traceback(None)

    async def _connect(self, origin: Origin, clock: Clock) -> Conn:
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


def _no_connection(exc: OSError | ValueError) -> AttemptFailed:
    if isinstance(exc, socket.gaierror):
        return AttemptFailed(Outcome.DNS, detail=reason(exc))
    if isinstance(exc, ssl.SSLCertVerificationError):
        return AttemptFailed(Outcome.CERTIFICATE, detail=exc.verify_message)
    if isinstance(exc, ssl.SSLError):
        return AttemptFailed(Outcome.TLS, detail=str(exc.reason))
    if isinstance(exc, OSError):
        return AttemptFailed(Outcome.CONNECT, detail=reason(exc))
    # Python's own look at a name, before it asks anybody.
    return AttemptFailed(Outcome.DNS, detail="not a host name that can exist")


def release(
    reach: Reach, origin: Origin, conn: Conn, head: ResponseHead, body: Body, now: float
) -> None:
    """Keep the connection for the next exchange if its answer ended as announced, else close it."""
    clean = head.reusable and body.done and not (body.rest or conn.buffer or conn.holds_part())
    # An answer may overtake its request, the rest of which would then stand before the next one.
    if clean and not conn.ended and not conn.pending():
        reach.give_back(origin, conn, now)
    else:
        conn.abort()
