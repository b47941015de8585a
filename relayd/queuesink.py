"""An answer for a reader in this process: a bounded queue between an exchange and who takes it.

The exchange writes and never waits; the reader takes and waits for more. More than `HIGH` bytes
that are not taken pause the provider. Does not know HTTP framing or who reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .headers import Fields
from .transport import WRITE_HIGH
from .wake import Clock

HIGH = WRITE_HIGH
"""Bytes that may wait for the reader before the provider is paused: as for an HTTP client."""


class Cut(Exception):
    """The answer ends here and is not complete."""


class QueueSink:
    """Holds one answer, as a `Sink` for its writer and with `opened` and `take` for one reader.

    `status` is 0 until the head is there; `fields` have lower-case names.
    """

    def __init__(self) -> None:
        self._on_behind: Callable[[], None] = _nothing
        self._on_writable: Callable[[], None] = _nothing
        self.sent = 0
        self.status = 0
        self.fields: Fields = []
        self._parts: list[bytes] = []
        self._waiting = 0
        self._cut = False
        self._ended = False
        self._news = asyncio.Event()

    # The writer's side.

    @property
    def writable(self) -> bool:
        """False while more than `HIGH` bytes wait."""
        return self._waiting <= HIGH

    def open(self, status: int, block: bytes, length: int | None, first: bytes) -> None:
        """Status, fields, first payload."""
        self.status = status
        self.fields = read_block(block)
        if length is not None and status != 204:  # RFC 9110, 8.6
            self.fields.append((b"content-length", b"%d" % length))
        self.write(first)
        self._news.set()

    def write(self, payload: bytes) -> None:
        """More payload."""
        if payload:
            self.sent += len(payload)
            self._waiting += len(payload)
            self._parts.append(payload)
            self._news.set()
            if not self.writable:
                self._on_behind()

    def heed(self, behind: Callable[[], None], writable: Callable[[], None]) -> None:
        """See `Sink.heed`."""
        self._on_behind, self._on_writable = behind, writable

    def chunks(self) -> None:
        """Chunks are not spoken here."""

    def end(self) -> None:
        """That was all."""
        self._ended = True
        self._news.set()

    def cut(self, last: bytes = b"") -> None:
        """There should be more; a reader meets `Cut` behind what has come. Of no effect later."""
        if not self._ended:
            self._cut = self._ended = True
            self._news.set()

    def pending(self) -> int:
        """Bytes that were not taken yet."""
        return self._waiting

    untaken = pending
    """None is on its way: the reader is here."""

    async def flush(self, clock: Clock, timeout: float) -> None:
        """Nothing to wait for: what is queued is already where its reader is."""

    # The reader's side.

    async def opened(self) -> None:
        """Wait for the head; raises `Cut` if there will be none."""
        while not self.status:
            if self._ended:
                raise Cut
            await self._next()

    async def take(self) -> bytes:
        """What has come, all of it; b"" at the end. Raises `Cut` where more was due."""
        while not self._parts:
            if self._cut:
                raise Cut
            if self._ended:
                return b""
            await self._next()
        data = b"".join(self._parts)
        self._parts.clear()
        was_full = not self.writable
        self._waiting = 0
        if was_full:
            self._on_writable()
        return data

    async def _next(self) -> None:
        self._news.clear()
        await self._news.wait()


def read_block(block: bytes) -> Fields:
    """The fields in a block of lines that relayd wrote itself; names in lower case."""
    pairs = (line.partition(b": ") for line in block.split(b"\r\n") if line)
    return [(name.lower(), value) for name, _, value in pairs]


def _nothing() -> None:
    """Nobody waits for the reader."""
