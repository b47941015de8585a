"""The jumping event loop: real sockets, virtual time.

When no socket is readable and no thread is at work, waiting is pointless: only a timer can make
progress, so the loop moves its clock to the next one. A provider's 60 s of silence then costs about
a millisecond, and production timeouts can be tested as they are.

Works only where every peer lives in the same loop: what another process does takes real time, and
the clock would run past it. Work given to `run_in_executor` is counted, so `getaddrinfo` and
`asyncio.to_thread` are too, and what a thread of another kind does for `count`; while a thread
lives that nobody counts, each jump waits a little for it.
Where a reader is behind, the kernel moves bytes by a clock of its own (a late acknowledgement, a
probe of a closed window): virtual time stands still until it has moved all that it will.
Three faults end a test with a named error instead of a hang: nothing left to wait for, too much
real time, and a callback that blocked the loop.

Knows nothing of relayd.
"""

from __future__ import annotations

import asyncio
import fcntl
import selectors
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, TypeVarTuple, Unpack

Events = list[tuple[selectors.SelectorKey, int]]
_Arguments = TypeVarTuple("_Arguments")
_T = TypeVar("_T")

START = 1_000.0
"""Where virtual time begins (s): not zero, so that a forgotten "never" of 0.0 shows."""

GRACE = 0.0001
"""Real time (s) given to the kernel before each jump. Loopback delivery happens inside `send`,
except when the kernel moves it to its own thread; a short sleep lets that thread run."""

THREAD_GRACE = 0.06
"""The same (s) while a thread lives whose work nobody counts, e.g. that of a test's own server."""

KERNEL_GRACE = 0.25
"""The same (s) while a socket cannot take what is to be written: longer than the kernel waits with
an acknowledgement (0.04) or with its first probe of a closed window (0.2)."""

REAL_CAP = 50.0
"""Real time (s) that one loop may live."""

BLOCK_CAP = 2.0
"""Real time (s) between two looks at the sockets. Generous: the machine may be busy."""

QUIET_CAP = 1.0
"""Real time (s) without an event, a timer or a thread after which nothing can happen any more."""

LAST_WORDS = 5.0
"""Real time (s) that the clean-up gets after one of the three faults was raised."""


class LoopFault(AssertionError):
    """The test cannot go on; the message says why and which tasks were waiting where."""


class Stuck(LoopFault):
    """No timer, no thread, no readable socket: nothing can ever happen."""


class TooSlow(LoopFault):
    """The loop used more real time than `REAL_CAP`."""


class Blocked(LoopFault):
    """A callback kept the loop from its sockets for longer than `BLOCK_CAP`."""


def untaken(fd: int) -> int:
    size = bytearray(4)
    with suppress(OSError):
        fcntl.ioctl(fd, termios.TIOCOUTQ, size)
    return int.from_bytes(size, sys.byteorder)


class JumpingSelector(selectors.DefaultSelector):
    """A selector that asks `wait(timeout)` instead of waiting itself."""

    def __init__(self) -> None:
        super().__init__()
        self.wait: Callable[[float | None], Events] | None = None

    def select(self, timeout: float | None = None) -> Events:
        return self.look(0) if self.wait is None else self.wait(timeout)

    def look(self, timeout: float) -> Events:
        """The real thing: ready sockets, after at most `timeout` real seconds."""
        return super().select(timeout)

    def untaken(self) -> dict[int, int]:
        """For each socket that waits to be writable what `untaken` says, unless it is nothing."""
        waiting = [one.fd for one in self.get_map().values() if one.events & selectors.EVENT_WRITE]
        return {fd: size for fd in waiting if (size := untaken(fd))}


class JumpingLoop(asyncio.SelectorEventLoop):
    """`time()` is virtual; `jumps` counts how often it was moved instead of waited for.

    `counted` is how the names of those threads begin whose work is given to `count`.
    """

    counted = ("asyncio_",)

    def __init__(self, *, real_cap: float = REAL_CAP, block_cap: float = BLOCK_CAP) -> None:
        self._virtual = START
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)
        self.jumps = 0
        self.threads = 0
        self._settled: dict[int, int] = {}
        self._older_threads = {*threading.enumerate(), threading.current_thread()}
        self._block_cap = block_cap
        self._ends = time.monotonic() + real_cap
        self._left_at: float | None = None
        self._jumping.wait = self._wait

    def time(self) -> float:
        return self._virtual

    def run_in_executor(
        self,
        executor: Executor | None,
        func: Callable[[Unpack[_Arguments]], _T],
        *args: *_Arguments,
    ) -> asyncio.Future[_T]:
        """As usual, and counted: the clock stands still until the thread is done."""
        return self.count(super().run_in_executor(executor, func, *args))

    def count(self, future: asyncio.Future[_T]) -> asyncio.Future[_T]:
        """The clock stands still until a thread, or whoever it is, has answered this."""
        self.threads += 1
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        """As usual, and counted too: it joins the threads in a thread."""
        self.threads += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self.threads -= 1

    def run_forever(self) -> None:
        # Time between two runs of the loop belongs to the test framework, not to a callback.
        self._left_at = None
        super().run_forever()

    def _thread_done(self, _: asyncio.Future[Any]) -> None:
        self.threads -= 1

    def _wait(self, timeout: float | None) -> Events:
        self._check_block()
        try:
            return self._turn(timeout)
        finally:
            self._left_at = time.monotonic()

    def _check_block(self) -> None:
        now = time.monotonic()
        if self._left_at is not None and now - self._left_at > self._block_cap:
            held = now - self._left_at
            self._fault(Blocked, f"a callback held the loop for {held:.1f} s")
        if now > self._ends:
            self._fault(TooSlow, "the test used up its real time")

    def _turn(self, timeout: float | None) -> Events:
        events = self._jumping.look(0)
        if events or timeout == 0:
            return events
        if self.threads:
            return self._look_until_cap()
        time.sleep(self._grace())
        events = self._jumping.look(0) or self._look_until_settled()
        if events:
            return events
        if timeout is None:
            return self._look_quietly()
        self.jumps += 1
        self._virtual += timeout
        return []

    def _grace(self) -> float:
        strange = [one for one in threading.enumerate() if not one.name.startswith(self.counted)]
        return THREAD_GRACE if set(strange) - self._older_threads else GRACE

    def _look_until_settled(self) -> Events:
        # Nothing, at once, unless what is untaken has changed since the last time.
        while (untaken := self._jumping.untaken()) != self._settled:
            self._settled = untaken
            if untaken and (events := self._jumping.look(KERNEL_GRACE)):
                return events
        return []

    def _look_until_cap(self) -> Events:
        # A finished thread writes to the loop's own socket pair, so this ends when it is done.
        return self._jumping.look(max(0.0, self._ends - time.monotonic()))

    def _look_quietly(self) -> Events:
        events = self._jumping.look(QUIET_CAP)
        if not events:
            self._fault(Stuck, "nothing is left to wait for: no timer, no thread, no socket")
        return events

    def _fault(self, kind: type[LoopFault], words: str) -> None:
        self._ends = time.monotonic() + LAST_WORDS
        self._left_at = None
        lines = waiting_places(asyncio.all_tasks(self))
        waiting = "\n".join(f"  {line}" for line in lines) or "  (no task)"
        raise kind(f"{words}; virtual time {self._virtual - START:.3f} s; waiting:\n{waiting}")


def waiting_places(tasks: Iterable[asyncio.Task[Any]]) -> list[str]:
    """For each task its name and the line it waits at."""
    return [f"{task.get_name()}: {_place(task)}" for task in tasks]


def _place(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    if not frames:
        return "(not running)"
    return f"{frames[0].f_code.co_qualname}:{frames[0].f_lineno}"


def virtual_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """For pytest-asyncio's loop factory hook: the jumping loop alone."""
    return {"virtual": JumpingLoop}


def real_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """For pytest-asyncio's loop factory hook: the ordinary loop alone."""
    return {"real": asyncio.new_event_loop}


def elapsed() -> float:
    """Virtual seconds since the running loop began."""
    return asyncio.get_running_loop().time() - START


@contextmanager
def takes(expected: float, within: float = 0.05) -> Iterator[None]:
    """The block takes `expected` virtual seconds, give or take `within`."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    yield
    took = loop.time() - began
    assert abs(took - expected) <= within, f"expected {expected} s (± {within}), got {took:.3f} s"
