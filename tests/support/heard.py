"""What a transport's protocol is told, in order, and the loops that our own transports run on.

Knows asyncio's protocols, and of relayd its loop alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from relayd.resources import plain_loop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "plain": plain_loop,
    "asyncio": asyncio.new_event_loop,
}
"""Both loops with a selector."""

CAP = 10.0
"""Seconds in which what a test waits for has to happen."""


class Heard(asyncio.Protocol):
    """What a transport told its protocol, in order."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.keep_open = True
        self.data = bytearray()
        self.changed = asyncio.Event()
        self.on_pause: Callable[[], object] = int
        self.on_resume: Callable[[], object] = int
        self.on_data: Callable[[bytes], object] = bool

    def _note(self, call: Any) -> None:
        self.calls.append(call)
        self.changed.set()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.changed.set()
        self.on_data(data)

    def eof_received(self) -> bool:
        self._note("eof")
        return self.keep_open

    def pause_writing(self) -> None:
        self._note("pause")
        self.on_pause()

    def resume_writing(self) -> None:
        self._note("resume")
        self.on_resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._note(("lost", type(exc)))

    async def until(self, met: Callable[[], bool]) -> None:
        """Wait until this holds; it is looked at after each call."""
        async with asyncio.timeout(CAP):
            while not met():
                self.changed.clear()
                await self.changed.wait()

    @property
    def lost(self) -> bool:
        """Whether the connection was lost."""
        return any(isinstance(call, tuple) for call in self.calls)


async def turns() -> None:
    """Let the loop do what it has to do."""
    for _ in range(20):
        await asyncio.sleep(0)
