"""An answer before an ASGI server takes it: a queue whose reader waits for a client in its turn.

A server cannot be made to cut an answer: whatever stands between (a framework's middleware) may end
the body as if it were complete. So an event stream is handed over in whole events, and says in one
of its own that it broke off. Does not know messages of ASGI.
"""

from __future__ import annotations

from collections.abc import Callable

from .outcomes import LEFT_STATUS
from .queuesink import QueueSink
from .replies import EVENT_STREAM
from .sink import all_taken
from .wake import Clock
from .wholeevents import WholeEvents


class AsgiSink(QueueSink):
    """A `QueueSink` that knows what its reader has passed on (`passed`)."""

    def __init__(self) -> None:
        super().__init__()
        self._events: WholeEvents | None = None
        self._in_hand = 0  # bytes that were taken and not yet passed on
        self._on_passed: Callable[[], None] = _nothing

    # The writer's side.

    def open(self, status: int, block: bytes, length: int | None, first: bytes) -> None:
        """Status, fields, first payload."""
        if length is None and EVENT_STREAM in block:
            self._events = WholeEvents()
        super().open(status, block, length, first)

    def write(self, payload: bytes) -> None:
        """More payload; of an event stream the whole events."""
        super().write(payload if self._events is None else self._events.feed(payload))

    def end(self) -> None:
        """That was all."""
        if self._events is not None:
            super().write(self._events.rest())
        super().end()

    def cut(self, last: bytes = b"") -> None:
        """There should be more. Of no effect later.

        Before the head nobody is there: the answer then is for what stands between, some of which
        takes an application without an answer for a broken one.
        """
        if self._ended:
            return
        if not self.status:
            self.open(LEFT_STATUS, b"", 0, b"")
            super().end()
        elif self._events is not None and last:
            super().write(self._events.cut() + last)
            super().end()
        else:
            super().cut()

    def untaken(self) -> int:
        """Bytes that the server has not accepted."""
        return self._waiting + self._in_hand

    def pending(self) -> int:
        """The same, as long as somebody waits for them."""
        return 0 if self._cut else self.untaken()

    async def flush(self, clock: Clock, timeout: float) -> None:
        """See `Sink.flush`: a server accepts no more while its client is behind."""
        self._on_passed = clock.wake.wake
        await all_taken(self, clock, timeout)

    # The reader's side.

    async def take(self) -> bytes:
        """See `QueueSink.take`; `passed` must follow."""
        data = await super().take()
        self._in_hand = len(data)
        return data

    def passed(self, count: int) -> None:
        """So many bytes of what was taken have been accepted."""
        self._in_hand -= count
        if not self.untaken():
            self._on_passed()


def _nothing() -> None:
    """Nobody waits for the server."""
