"""A knife for tasks: the one that serves a connection is cancelled while it waits the nth time.

The loop's task factory wraps the task, counts how often it waits and cancels it exactly as a
`task.cancel()` from outside would. Whoever sweeps goes on until a point was not reached any more:
that is how one knows that every await was met.

Knows the name of the coroutine that serves a connection, and nothing else of relayd.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

SERVES = "Session.run"
"""The coroutine that serves one client connection."""


class CutShort:
    """A coroutine whose task is cancelled while it waits for the nth time."""

    def __init__(self, work: Coroutine[Any, Any, Any], nth: int, met: Callable[[], None]) -> None:
        self._work = work
        self._nth = nth
        self._met = met

    def __await__(self) -> Generator[Any, Any, Any]:
        work = self._work.__await__()
        count = 0
        value: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                waits_for = work.send(value) if thrown is None else work.throw(thrown)
            except StopIteration as end:
                return end.value
            count += 1
            if count == self._nth:
                self._met()
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().call_soon(task.cancel)
            value = thrown = None
            try:
                value = yield waits_for
            except BaseException as error:  # noqa: BLE001  # the coroutine itself gets it
                thrown = error


@dataclass(slots=True)
class Knife:
    """Where the next connection is cut once `armed`, and whether that point was reached."""

    nth: int
    armed: bool = False
    reached: bool = False
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    def factory(
        self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any
    ) -> asyncio.Task[Any]:
        """A task factory: the next connection's task, once armed, is cut."""
        if not (self.armed and getattr(work, "__qualname__", "") == SERVES):
            return asyncio.Task(work, loop=loop, **options)
        self.armed = False

        async def cut() -> None:
            await CutShort(work, self.nth, self._met)

        task = asyncio.Task(cut(), loop=loop, **options)
        self.tasks.append(task)
        return task

    def _met(self) -> None:
        self.reached = True


@contextmanager
def knife(nth: int) -> Iterator[Knife]:
    """A knife in the running loop, to be armed; put away afterwards."""
    loop = asyncio.get_running_loop()
    found = Knife(nth)
    loop.set_task_factory(found.factory)
    try:
        yield found
    finally:
        loop.set_task_factory(None)
