"""When a loop with much to do lets it gather, so that one look finds several events.

A look costs more than what it finds: the way into the kernel, the sleep and the waking, and caches
that held something else meanwhile. So where events are dense, a loop that has nothing left to do
waits a moment before it looks again, as a network card does with its interrupts. It never waits
while there is something to read, and not at all where a moment brings but one event.

Does not know what an event is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PAUSE = 0.001
"""Seconds that an event may wait at the most: a twentieth of the time between two tokens."""

DENSE = 3
"""Events in a `PAUSE` from which on it pays."""

SPAN = 32
"""Events over which the density is measured."""

PATIENCE = 63
"""Dense spans that pass at the most until it is tried again, after it was in vain: the next event
of a client that waits for each answer comes no sooner for a pause."""


PAUSES = "pauses"
"""The attribute of a loop of ours that has `Pauses`: an application's own loop is let alone."""


class Gather:
    """Whether events are dense enough, by how many were `seen`; `on` while they are."""

    __slots__ = ("_clock", "_patience", "_seen", "_since", "_skip", "on")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()  # beginning of the span
        self._seen = 0
        self._skip = 0  # dense spans to let pass
        self._patience = 0
        self.on = False

    def seen(self, events: int) -> None:
        """So many more."""
        self._seen += events
        if self._seen >= SPAN:
            self._judge()

    def pays(self) -> bool:
        """Whether a pause now is likely to be worth it: not if the events have become rare."""
        return self.on and self._clock() - self._since < SPAN / DENSE * PAUSE

    def _judge(self) -> None:
        now = self._clock()
        dense = self._seen * PAUSE >= DENSE * (now - self._since)
        self._seen = 0
        self._since = now
        if self.on:
            self._patience = 0 if dense else min(2 * self._patience + 1, PATIENCE)
            self._skip = self._patience
        elif dense and self._skip:
            self._skip -= 1
            dense = False
        self.on = dense


class Pauses(Gather):
    """One for a loop that looks by itself, as uvloop does, and is told of each read.

    Whether others have asked for a turn meanwhile cannot be seen: theirs may come a `PAUSE` later.
    """

    __slots__ = ("_asked", "_before", "_call_soon", "_reads")

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock)
        self._call_soon = call_soon
        self._reads = 0
        self._before = 0
        self._asked = False  # for a turn

    def read(self) -> None:
        """One read."""
        self._reads += 1
        self._seen += 1  # as `seen` does, whose call would cost each event 2 %
        if self._seen >= SPAN:
            self._judge()
        if self.on and not self._asked:
            self._asked = True
            self._call_soon(self._looked)

    def _looked(self) -> None:
        """All that was found is read. With a turn asked for, the next look waits for nothing."""
        self._before = self._reads
        self._call_soon(self._rest)

    def _rest(self) -> None:
        if self._reads != self._before:  # there is work
            self._looked()
            return
        self._asked = False
        if self.pays():
            time.sleep(PAUSE)


def told(
    loop: asyncio.AbstractEventLoop, received: Callable[[bytes], None]
) -> Callable[[bytes], None]:
    """`received`, and the loop's `Pauses` told of each read, if it is a loop of ours with some."""
    pauses: Pauses | None = getattr(loop, PAUSES, None)
    if pauses is None:
        return received
    read = pauses.read

    def both(data: bytes) -> None:
        read()
        received(data)

    return both
