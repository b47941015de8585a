"""A place to wait, and a clock that moves.

Waiting: one task waits on one `Wake`. Whatever may end the wait (bytes, the end of a connection, a
clock, a departing client, the drain) calls `Wake.wake`, `Wake.turn` or `Wake.interrupt`, so no
second task, no future and no timeout object is needed per wait.
Does not know sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from enum import Enum
from types import coroutine

EARLY = 1e-4
"""Seconds by which a timer may fire too soon, as the loop's clock has a resolution: it is due."""


class Why(Enum):
    """What interrupts an exchange from outside; none of them is the provider's fault."""

    CLIENT_LEFT = "client_left"
    CLIENT_STALLED = "client_stalled"
    DEADLINE = "deadline"
    DRAINING = "draining"


DRAINING = Why.DRAINING  # looked up once (see `surfaces`)


class Interrupt(Exception):
    """Raised by `Wake.wait`: the exchange must end now, `why` says for what."""

    def __init__(self, why: Why) -> None:
        super().__init__(why.value)
        self.why = why


class Wake:
    """Where one task waits. `wake` may be spurious: the waiter looks again at what it waits for.

    `interrupt` is sticky until `reset`: every later wait raises it too. To the task it is a future,
    of those that asyncio knows by their attributes (`asyncio.isfuture`), and each wait the same.
    """

    __slots__ = ("_asyncio_future_blocking", "_context", "_loop", "_step", "why")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False  # True from a wait until its task has seen it
        self._loop = loop
        self._step: Callable[[Wake], object] | None = None  # of the task that waits
        self._context: Context
        self.why: Why | None = None

    @coroutine
    def wait(self) -> Generator[Wake, None, None]:
        """Return after the next `wake`; raise `Interrupt` if there was one."""
        if self.why is None:
            self._asyncio_future_blocking = True
            yield self
        self.check()

    def check(self) -> None:
        """Raise `Interrupt` if there was one: asked before something begins that costs."""
        if self.why is not None:
            raise Interrupt(self.why)

    def wake(self) -> None:
        """End the wait, if there is one: the task goes on in its turn."""
        step, self._step = self._step, None
        if step is not None:
            self._loop.call_soon(step, self, context=self._context)

    def turn(self) -> None:
        """End the wait, if there is one, and let the task go on within this call.

        For a callback of the event loop, as the last that it does: what the task does next may
        change whatever the callback was about.
        """
        step, self._step = self._step, None
        if step is None:
            return
        if asyncio.current_task(self._loop) is None:
            try:
                self._context.run(step, self)
                return
            except RuntimeError:
                pass  # the callback runs in the task's own context
        self._loop.call_soon(step, self, context=self._context)

    def interrupt(self, why: Why) -> None:
        """End this wait and each later one with `Interrupt(why)`; the first reason stays."""
        if self.why is None:
            self.why = why
        self.wake()

    def reset(self) -> None:
        """Forget the interrupt: the next exchange starts clean."""
        self.why = None

    # What a task asks of a future.

    def add_done_callback(self, step: Callable[[Wake], object], *, context: Context) -> None:
        """The task waits: `step` lets it go on."""
        self._step = step
        self._context = context

    def result(self) -> None:
        """A wait has no result, and never fails of itself."""

    def cancel(self, msg: object = None) -> bool:
        """The task is cancelled: it is let go on, and sees to the rest since this says False."""
        self.wake()
        return False


class Alarm:
    """A clock that is moved, not recreated: a later `set` leaves the loop's timer where it is.

    The timer then fires early once, sees that it is not yet due, and moves itself.
    """

    __slots__ = ("_at", "_due", "_loop", "_now", "_timer", "action")

    def __init__(self, loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
        self._loop = loop
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._now = loop.time
        self._at = 0.0  # when the timer fires; uvloop's handle of a timer that is due has no `when`
        self.action = action

    def set(self, when: float) -> None:
        """Ring at `when` (loop time, seconds) instead of any earlier or later time set before."""
        self._due = when
        timer = self._timer
        if timer is None:
            self._start(when)
        elif self._at > when:
            timer.cancel()
            self._start(when)

    def clear(self) -> None:
        """Do not ring; cheap, since the loop's timer stays for the next `set`."""
        self._due = None

    def stop(self) -> None:
        """Do not ring any more and leave nothing in the loop."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self, when: float) -> None:
        self._at = when
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        due = self._due
        if due is None:
            return
        if self._now() + EARLY < due:
            self._start(due)
            return
        self._due = None
        self.action()


class Clock:
    """The one clock of whoever waits: a named due time below a deadline.

    When the deadline rings, the wake is interrupted; when the named time rings, `expired` holds
    its name and the waiter is woken to look at it.
    """

    __slots__ = ("alarm", "deadline", "expired", "loop", "name", "now", "wake")

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Wake) -> None:
        self.loop = loop
        self.now = loop.time  # loop time in seconds
        self.wake = wake
        self.alarm = Alarm(loop, self.rang)
        self.deadline = float("inf")
        self.name = ""
        self.expired: str | None = None

    def arm(self, name: str, when: float) -> None:
        """Name what is awaited now and until when."""
        self.name = name
        self.expired = None
        self.alarm.set(when if when < self.deadline else self.deadline)  # noqa: FURB136  (`min` is slow)

    def check(self) -> None:
        """Raise `Interrupt` if there was one, or if the deadline is over."""
        if self.now() >= self.deadline:
            self.wake.interrupt(Why.DEADLINE)
        self.wake.check()

    async def pause(self, seconds: float) -> None:
        """Wait that long; an interrupt ends it."""
        self.arm("pause", self.now() + seconds)
        while self.expired is None:
            await self.wake.wait()

    def disarm(self) -> None:
        """Nothing is awaited."""
        self.expired = None
        self.alarm.clear()

    def rang(self) -> None:
        """The alarm's action: the deadline, or what is named."""
        if self.now() + EARLY >= self.deadline:
            self.wake.interrupt(Why.DEADLINE)
            return
        self.expired = self.name
        self.wake.turn()
