"""The pump: what the provider sends after the commit goes to the client as it arrives.

Each read of the upstream connection is decoded, shown to the watcher and written to the sink: one
write a read, no task, no queue. One like the last (`repeat`) takes a short way to the same end. A
sink that falls behind pauses the upstream connection, so its provider's send blocks. One alarm
serves all clocks: it is set to the earliest that could expire and looks again when it rings.

`run` returns how the stream ended; sending that end is the exchange's work. Does not know HTTP
heads, failover or the quota.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from .answers import CONTENT, ERROR, FINAL
from .framing import BadChunk
from .job import Answer
from .outcomes import COMPLETE, End
from .repeat import Repeat
from .sink import Sink
from .sse import Watcher
from .stall import Stall
from .upstream import LINGER, ended_well
from .wake import EARLY, Clock

NEVER = float("inf")

KEPT_WAITING = 1.0
"""Seconds for which a provider was not read, as the client was behind, from which on its end says
nothing of the provider: it may have taken us for one that has left."""


@dataclass(slots=True)
class Limits:
    """What bounds one relayed stream: seconds, and bytes (0: no limit)."""

    idle: float
    write_timeout: float
    max_bytes: int


def said(watcher: Watcher | None, end: End) -> End:
    """How a stream ended that something ends from outside: behind its last word nothing is added.

    That is an error or a final marker. A bare finish reason is none: it may be one of several
    choices, and the usage may be on its way.
    """
    if watcher is not None and watcher.error and end not in _OUR_OWN:
        return End.UPSTREAM_ERROR_EVENT
    over = watcher is not None and watcher.final and end in _FROM_OUTSIDE
    return COMPLETE if over else end


_OUR_OWN = frozenset({End.CLIENT_STALLED, End.INTERNAL_ERROR})
_FROM_OUTSIDE = frozenset(
    {End.CLIENT_LEFT, End.DEADLINE_EXCEEDED, End.SHUTTING_DOWN, End.RESPONSE_TOO_LARGE}
)


def _nothing() -> None:
    """Nobody listens."""


class Pump:
    """One answer on its way, from the commit to its end. Times are loop time in seconds."""

    __slots__ = (
        "_begins",
        "_behind",
        "_body",
        "_clock",
        "_conn",
        "_due",
        "_first_due",
        "_learns",
        "_limits",
        "_most",
        "_now",
        "_paused_at",
        "_sink",
        "_watcher",
        "_way",
        "end",
        "fault",
        "first_content",
        "held_up",
    )

    def __init__(self, answer: Answer, sink: Sink, clock: Clock, limits: Limits) -> None:
        self._conn = answer.conn
        self._body = answer.body
        self._watcher = answer.watcher
        self._sink = sink
        self._clock = clock
        self._now = clock.now
        self._limits = limits
        self._most = limits.max_bytes or sys.maxsize
        chunks = sink.chunks()
        self._learns = chunks is not None and self._watcher is not None
        self._way = Repeat(clock.now, self._most, chunks or sink.write, self._exact)
        self._begins = False  # a chunk and an event begin with the next read
        # Until when the first content must come, and when a stream that said its last word is not
        # waited for any more.
        self._first_due = NEVER if answer.first_due is None else answer.first_due
        self._due = NEVER
        self._behind: Stall | None = None  # while the sink is behind
        self._paused_at = 0.0  # since when
        self.held_up = False  # for KEPT_WAITING at least, once
        self.end: End | None = None
        self.fault: Exception | None = None  # one of our own
        self.first_content = answer.content_at
        if answer.content_at is not None:
            self._way.content = answer.content_at
        self._way.sent = len(answer.held)

    @property
    def sent(self) -> int:
        """Bytes of payload so far."""
        return self._way.sent

    @property
    def max_gap(self) -> float:
        """The longest wait between two contents, in seconds."""
        return self._way.max_gap

    async def run(self) -> End:
        """Relay until there is nothing more to relay; lets `wake.Interrupt` through."""
        self._clock.alarm.action = self._look
        self._sink.heed(self._pause, self._caught_up)
        self._conn.sink = self._way.feed
        self._conn.on_end = self._ended
        try:
            self._begin()
            while self.end is None:
                await self._clock.wake.wait()
            if self.fault is not None:
                raise self.fault
            return self.end
        finally:
            if self._behind is not None:
                self._waited()
            self._clock.alarm.action = self._clock.rang
            self._clock.disarm()
            self._conn.sink = None
            self._sink.heed(_nothing, _nothing)
            self._count()

    def _count(self) -> None:
        """Tell the sink and the watcher of what went past them."""
        way = self._way
        way.close()
        if self._watcher is not None and way.hits:
            self._watcher.events += way.hits
            self._sink.sent = way.sent

    def _begin(self) -> None:
        watcher = self._watcher
        if watcher is not None:
            self._begins = self._body.at_start and watcher.at_start
            if watcher.final or watcher.error:
                self._due = self._now() + LINGER
        if not self._sink.writable:
            self._pause()
        if self._body.done:
            self._finish()
        elif self._conn.buffer:
            self._exact(self._conn.take())
        self._ended()  # if it has: what came before its end counts
        self._look()

    def _exact(self, data: bytes) -> None:
        """Any read: decode it, show it to the watcher, write it."""
        if self.end is not None:
            return
        broken = False
        try:
            try:
                payload = self._body.feed(data)
            except BadChunk as exc:
                payload, broken = exc.payload, True
            if not self._body.at_start:  # also where there was no payload: half a size line
                self._way.disarm()
                self._begins = False
            if payload:
                self._pass_on(payload)
            if broken:
                self._stop(End.UPSTREAM_TRUNCATED)
            elif self._body.done:
                self._finish()
        except Exception as exc:  # noqa: BLE001  (raised by `run`: this is called by the event loop)
            self.fault = exc
            self._stop(End.INTERNAL_ERROR)

    def _pass_on(self, payload: bytes) -> None:
        way = self._way
        if way.sent + len(payload) > self._most:
            self._stop(End.RESPONSE_TOO_LARGE)
            return
        way.sent += len(payload)
        if self._watcher is None:
            began, way.content = way.content == NEVER, self._now()
            if began:
                self._look()
        else:
            self._watch(self._watcher, payload)
        self._sink.write(payload)

    def _watch(self, watcher: Watcher, payload: bytes) -> None:
        events = watcher.events
        if flags := watcher.feed(payload):
            self._mark(flags)
        if not self._learns:
            return
        way = self._way
        began, self._begins = self._begins, self._body.at_start and watcher.at_start
        if not self._begins:
            way.disarm()
            return
        if began and flags == CONTENT and watcher.events == events + 1:
            way.learn(payload, watcher.text(payload))
        way.arm()

    def _mark(self, flags: int) -> None:
        now = self._now()
        if flags & CONTENT:
            way = self._way
            last, way.content = way.content, now
            if last == NEVER:
                self.first_content = now
                self._first_due = NEVER
                self._look()
            elif now - last > way.max_gap:
                way.max_gap = now - last
        if flags & (FINAL | ERROR) and self._due > now + LINGER and not self._body.done:
            self._due = now + LINGER
            self._clock.alarm.set(min(self._due, self._clock.deadline))

    def _pause(self) -> None:
        if self._behind is None:
            self._conn.pause()
            now = self._paused_at = self._now()
            self._behind = Stall(self._sink.untaken, self._limits.write_timeout, now)
            self._look()

    def _caught_up(self) -> None:
        if self._behind is None:
            return
        self._behind = None
        self._first_due += self._waited()  # these clocks stood still
        if self._way.content != NEVER:
            self._way.content = self._now()
        self._conn.resume()
        self._look()

    def _waited(self) -> float:
        """Seconds for which the provider was kept waiting just now."""
        waited = self._now() - self._paused_at
        self.held_up = self.held_up or waited >= KEPT_WAITING
        return waited

    # The clocks: which would expire next, and has it?

    def _look(self) -> None:
        if self.end is not None:
            return
        now = self._now() + EARLY
        if now >= self._clock.deadline:
            self._stop(End.DEADLINE_EXCEEDED)
            return
        due = self._behind.due(now) if self._behind is not None else self._idle_due()
        if now < due:
            self._clock.alarm.set(min(due, self._clock.deadline))
        elif self._behind is not None:
            self._stop(End.CLIENT_STALLED)
        else:
            self._expire()

    def _idle_due(self) -> float:
        return min(self._way.content + self._limits.idle, self._first_due, self._due)

    def _expire(self) -> None:
        watcher = self._watcher
        if watcher is not None and watcher.error:
            self._stop(End.UPSTREAM_ERROR_EVENT)
        elif watcher is not None and watcher.over:
            self._stop(COMPLETE)
        else:
            self._stop(End.UPSTREAM_STALLED)

    # The ends.

    def _ended(self) -> None:
        """The upstream connection ended: by its framing, or in the middle of it."""
        if self.end is not None or not self._conn.ended:
            return
        if ended_well(self._conn, self._body, self._watcher):
            self._finish()
        else:
            self._stop(self._truncated())

    def _finish(self) -> None:
        """The body ended as announced; a stream must also have said that it is finished."""
        watcher = self._watcher
        if watcher is None:
            self._stop(COMPLETE)
            return
        watcher.close()
        whole = watcher.over and not watcher.error
        self._stop(COMPLETE if whole else self._truncated())

    def _truncated(self) -> End:
        watcher = self._watcher
        if watcher is not None and watcher.error:
            return End.UPSTREAM_ERROR_EVENT
        return End.UPSTREAM_TRUNCATED

    def _stop(self, end: End) -> None:
        if self.end is not None:
            return  # one read may hold more than one reason: the first one decides
        self.end = said(self._watcher, end)
        self._way.disarm()
        self._clock.wake.wake()
