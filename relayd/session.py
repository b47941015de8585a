"""One client connection: requests in, answers out, one after the other.

The connection's task reads a head, lets `endpoints` serve it and comes back for the next. Errors
that make the connection's state unknown are answered, half-closed and drained, so that a client
which is still sending receives the answer instead of a reset (RFC 9112, 9.6). Does not know what is
served.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from . import errors
from .admission import new_id
from .config import Config, Trusted
from .framing import BadChunk
from .headers import may_end
from .http1 import Request, request_body, take_request
from .httpsink import CONTINUE, DateLine, HttpSink
from .knownlines import KnownLines
from .net import Conn
from .record import Record
from .replies import refuse
from .transport import discard
from .visit import Left, Peer, Visit
from .wake import DRAINING, Clock, Interrupt, Wake, Why

BODY_BUFFER = 262144
"""Bytes of a body that wait for its reader before the client is paused."""

LINGER = 2.0
"""Seconds in which a refused client may finish sending before the connection is closed."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The server's limits, in bytes and seconds, and whom it believes."""

    max_head_bytes: int
    max_request_bytes: int
    head_timeout: float
    body_timeout: float
    write_timeout: float
    idle_timeout: float
    buffer: int
    """Bytes of a head or a body that wait before the client is paused."""
    trusted: Trusted

    @classmethod
    def of(cls, config: Config) -> Rules:
        """As configured."""
        server = config.server
        return cls(
            server.max_head_bytes,
            server.max_request_bytes,
            server.head_timeout,
            server.body_timeout,
            server.write_timeout,
            server.idle_timeout,
            max(server.max_head_bytes, BODY_BUFFER),
            server.trusted_proxies,
        )


class HttpVisit(Visit):
    """A request on a connection of our own server."""

    __slots__ = ("_session",)

    def __init__(self, session: Session, request: Request) -> None:
        super().__init__(request, session.sink, session.clock, session.peer())
        self._session = session

    async def body(self) -> bytes:
        """The whole body; raises what `Session.read_body` raises."""
        body = self._session.body_at_hand(self.request)
        if body is None:
            body = await self._session.read_body(self.request)
        self.body_waits = False
        return body

    def watch(self) -> None:
        """See `Session.watch`."""
        self._session.watch()

    def close_after(self) -> None:
        """Close the connection after this answer."""
        self._session.sink.keep_alive = False


Serve = Callable[[Visit], Awaitable[None]]


class Session:
    """The life of one connection; `run` returns when it is closed.

    `peer_name`: see `Peer.named`.
    """

    __slots__ = (
        "_draining",
        "_known",
        "_peer",
        "_peer_name",
        "_refused",
        "_rules",
        "_serve",
        "_trusted",
        "busy",
        "clock",
        "conn",
        "sink",
        "wake",
    )

    _peer: Peer

    def __init__(
        self,
        conn: Conn,
        peer_name: str,
        clock: Clock,
        rules: Callable[[], Rules],
        serve: Serve,
        draining: Callable[[], bool],
        date: DateLine,
        known: KnownLines,
        refused: Callable[[Record], None],
    ) -> None:
        self.conn = conn
        self._peer_name = peer_name
        self._trusted: Trusted | None = None
        self.clock = clock
        self.wake: Wake = clock.wake
        self.sink = HttpSink(conn, date)
        self._rules = rules
        self._serve = serve
        self._draining = draining
        self.busy = False  # from the first byte of a request to the end of its answer
        self._known = KnownLines(known)
        self._refused = refused
        conn.wake = self.wake

    async def run(self, refusal: errors.RelayError | None = None, *, patient: bool = True) -> None:
        """Serve until one side ends the connection; with a `refusal`, say that and nothing else.

        `patient`: a refused client may finish sending, so that it reads the answer.
        """
        try:
            if refusal is not None:
                self._answer(refusal)
                if patient:
                    await self._after()
            while refusal is None and await self._one():
                pass
        except Interrupt as interrupt:
            if self.busy and not self.sink.opened:
                self._answer(errors.Draining())  # in the middle of a request
            elif interrupt.why is Why.CLIENT_STALLED:
                self.conn.abort()
        finally:
            self.clock.alarm.stop()
            if not self.conn.lost:
                self.conn.close()

    async def _one(self) -> bool:
        """One request; True if another may follow on this connection."""
        self.sink.start(None)
        try:
            request = await self._head()
            if request is None:
                return False
            self.busy = True
            self.sink.start(request)
            if self._draining():
                self.sink.keep_alive = False
            await self._serve(HttpVisit(self, request))
        except errors.RelayError as error:
            self._answer(error)
        except Left:
            return False
        return await self._after()

    def peer(self) -> Peer:
        """Whose connection it is, and whether the present configuration believes it."""
        trusted = self._rules().trusted
        if trusted is not self._trusted:  # the first request, or there was a reload
            self._trusted = trusted
            self._peer = Peer.named(self._peer_name, trusted)
        return self._peer

    def last(self) -> None:
        """An answer whose head has not gone out yet says that the connection ends with it."""
        if not self.sink.opened:
            self.sink.keep_alive = False

    async def _after(self) -> bool:
        self.conn.on_end = _nothing
        stopping = self.wake.why is DRAINING
        self.wake.reset()
        self.clock.deadline = float("inf")
        ended = self.conn.lost or (self.conn.ended and not self.conn.buffer)
        if self.sink.keep_alive and not ended and not self.conn.overran:
            self.conn.hold = True
            if self.conn.buffer or not self.conn.writable:
                await self._pace()
            return not stopping
        if self.sink.opened and not self.conn.ended and not self.conn.transport.is_closing():
            await self._linger()
        return False

    async def _pace(self) -> None:
        """Between pipelined requests: others get their turn, and answers are not piled up."""
        await asyncio.sleep(0)
        if not self.conn.writable:
            await self.sink.flush(self.clock, self._rules().write_timeout)

    def _answer(self, error: errors.RelayError) -> None:
        """An error before there was a request to speak of."""
        self.sink.keep_alive = False
        record = Record(new_id(), time.time())
        record.peer, record.end_reason = self.peer().address, "refused"
        refuse(self.sink, error, None, record)
        self._refused(record)

    # Reading.

    async def _head(self) -> Request | None:
        """The next request head; None when the client has nothing (more) to say."""
        conn, rules = self.conn, self._rules()
        conn.limit = rules.buffer
        begun = awaited = False
        read = 0  # bytes that were looked at and are no head yet
        while True:
            if conn.buffer and may_end(conn.buffer, read):
                request = take_request(conn.buffer, rules.max_head_bytes, self._known)
                if request is not None:
                    self.clock.disarm()
                    if len(conn.buffer) <= conn.limit:
                        conn.resume()
                    return request
                read = len(conn.buffer)
            if conn.ended:
                return None
            if conn.buffer and not begun:
                begun = self.busy = True
                self.clock.arm("head", self.clock.now() + rules.head_timeout)
            elif not begun and not awaited:  # empty lines, which may precede it, win no time
                awaited, self.busy = True, False
                self.clock.arm("idle", self.clock.now() + rules.idle_timeout)
            await self.wake.wait()
            if self.clock.expired == "idle" and not conn.buffer:
                return None
            if self.clock.expired == "head":
                raise errors.RequestTimeout()

    def body_at_hand(self, request: Request) -> bytes | None:
        """The body, if it came with the head and tells its length."""
        buffer, length = self.conn.buffer, request.length
        if length is None or len(buffer) < length:
            return None
        body = bytes(buffer[:length])
        del buffer[:length]
        return body

    async def read_body(self, request: Request) -> bytes:
        """The body, whole.

        Raises `RequestTimeout`, `RequestTooLarge`, `BadFraming`, `Draining` or `Left`.
        """
        conn, rules = self.conn, self._rules()
        if request.expects and not conn.buffer:
            conn.write(CONTINUE)
        self.clock.arm("body", self.clock.now() + rules.body_timeout)
        try:
            return await self._read_slowly(request, rules.max_request_bytes)
        except BadChunk as exc:
            raise errors.BadFraming(f"the request body is not framed well: {exc}") from exc
        except Interrupt as exc:  # the client is not watched yet, so relayd ends
            raise errors.Draining() from exc
        finally:
            self.clock.disarm()

    async def _read_slowly(self, request: Request, limit: int) -> bytes:
        decoder = request_body(request)
        body = bytearray()
        while not decoder.done:
            if not self.conn.buffer:
                if self.conn.ended:
                    raise Left
                await self.wake.wait()
            body += decoder.feed(self.conn.take())
            if len(body) > limit:
                raise errors.RequestTooLarge()
            if self.clock.expired is not None and not decoder.done:
                raise errors.RequestTimeout()
        self.conn.buffer[:0] = decoder.rest  # the next request, pipelined
        return bytes(body)

    # While an exchange runs.

    def watch(self) -> None:
        """From the end of the request on, the end of the connection interrupts the exchange."""
        conn = self.conn
        conn.hold = False
        conn.limit = self._rules().max_head_bytes
        conn.resume()
        conn.on_end = self._left
        if conn.ended:
            self._left()

    def _left(self) -> None:
        self.wake.interrupt(Why.CLIENT_LEFT)

    async def _linger(self) -> None:
        """Half-close, then discard what still comes, until the client closes or time is up."""
        conn = self.conn
        conn.buffer.clear()
        conn.resume()
        conn.sink = discard  # what a refused client still sends
        conn.finish()
        self.clock.arm("linger", self.clock.now() + LINGER)
        try:
            while not conn.ended and self.clock.expired is None:
                await self.wake.wait()
        except Interrupt:
            pass


def _nothing() -> None:
    """No exchange runs."""
