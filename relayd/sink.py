"""Where an answer goes: the one interface between an exchange and whoever asked.

Three kinds exist: an HTTP client (`httpsink`), a queue for a reader in this process (`queuesink`),
and one for an ASGI server (`asgisink`). The small API puts a translator before any. Does not know
what is written, or why it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .stall import Stall
from .wake import EARLY, Clock, Interrupt, Why


class Sink(Protocol):
    """One answer on its way to whoever asked.

    `open` is called once, then `write` any number of times, then `end` or `cut` once. `writable`
    is False while the reader is behind.
    """

    sent: int
    """Body bytes written so far."""

    @property
    def writable(self) -> bool:
        """False while the reader is behind."""
        ...

    def heed(self, behind: Callable[[], None], writable: Callable[[], None]) -> None:
        """Call `behind`, from within `write`, when the reader falls behind, `writable` once it has
        caught up."""

    def open(self, status: int, block: bytes, length: int | None, first: bytes) -> None:
        """Send status and fields (a block of lines, each with its CR LF) and the first payload.

        `length` is None for a body of unknown length.
        """

    def write(self, payload: bytes) -> None:
        """Send payload."""

    def chunks(self) -> Callable[[bytes], None] | None:
        """A way past `write` for whole chunks in plain framing, where the reader is sent chunks.

        Whoever takes it sets `sent` when done.
        """

    def end(self) -> None:
        """The body is complete."""

    def cut(self, last: bytes = b"") -> None:
        """The body is not complete, and the reader must be able to tell.

        `last`: an event that says so, for a stream whose reader could not tell otherwise.
        """

    def pending(self) -> int:
        """Bytes that wait here for the reader."""

    def untaken(self) -> int:
        """Bytes that the reader has not taken yet: those pending, and what is on its way."""

    async def flush(self, clock: Clock, timeout: float) -> None:
        """Wait until the reader has taken everything, if that can be waited for.

        Raises `wake.Interrupt` (`CLIENT_STALLED`) when it takes nothing for `timeout` seconds.
        """


async def all_taken(sink: Sink, clock: Clock, timeout: float) -> None:
    """Wait until nothing is pending, for a sink that calls `clock.wake.wake` then.

    Raises `wake.Interrupt` (`CLIENT_STALLED`) when the reader takes nothing for `timeout` seconds.
    """
    stall = Stall(sink.untaken, timeout, clock.now())
    clock.arm("write", stall.due(clock.now()))
    while sink.pending():
        await clock.wake.wait()
        if clock.expired:
            now = clock.now() + EARLY
            due = stall.due(now)
            if due <= now:
                raise Interrupt(Why.CLIENT_STALLED)
            clock.arm("write", due)
    clock.disarm()
