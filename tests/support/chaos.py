"""A TCP proxy that spoils what passes: small pieces, delays, cuts, resets, a reader that stops.

    async with ChaosProxy(provider.address, down=Rules(size=1)) as between:
        ... relayd connects to between.address ...

`up` holds for what the connecting side sends, `down` for what comes back. Knows bytes only.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import Self

from .provider import LINGER_NONE
from .wire import READ


@dataclass(frozen=True, slots=True)
class Rules:
    """What happens to one direction of each connection. Counts are bytes, delays seconds."""

    size: int = 0
    """Pieces of so many bytes, each read before the next is written; 0: as they come."""
    delay: float = 0.0
    """Before each piece."""
    fin_after: int | None = None
    """FIN towards the receiver after so many bytes; the rest of this direction is dropped."""
    rst_after: int | None = None
    """Reset both sides after so many bytes."""
    stop_after: int | None = None
    """Stop reading after so many bytes, and keep the connection open."""


PASS = Rules()


async def let_the_other_side_read() -> None:
    """Two turns of the loop: the bytes become readable in the first and are read in the second."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


class ChaosProxy:
    """Listens on `address` and connects each connection to `target`."""

    def __init__(self, target: tuple[str, int], *, up: Rules = PASS, down: Rules = PASS) -> None:
        self.target = target
        self.up = up
        self.down = down
        self.passed = {"up": 0, "down": 0}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> tuple[str, int]:
        assert self._server is not None, "the proxy is not listening yet"
        host, port = self._server.sockets[0].getsockname()
        return host, port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
            ends.append(far_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass("up", reader, far_writer, ends))
                both.create_task(self._pass("down", far_reader, writer, ends))
        except (OSError, ExceptionGroup):
            _reset(ends)  # one side reset, or the target refuses: so does the proxy
        finally:
            self._tasks.discard(task)
            for end in ends:
                end.transport.abort()

    async def _pass(
        self,
        way: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ends: list[asyncio.StreamWriter],
    ) -> None:
        rules = self.up if way == "up" else self.down
        count = 0
        while data := await reader.read(_room(rules, count)):
            count += len(data)
            self.passed[way] += len(data)
            await _deliver(rules, data, writer)
            if count == rules.stop_after:
                reader._transport.pause_reading()  # type: ignore[attr-defined]
                await asyncio.get_running_loop().create_future()
            if count == rules.rst_after:
                await let_the_other_side_read()
                _reset(ends)
                raise ConnectionResetError("as the rules say")
            if count == rules.fin_after:
                break
        with contextlib.suppress(OSError):
            writer.write_eof()


def _room(rules: Rules, count: int) -> int:
    """How much may be read at once, so that a limit is met exactly."""
    limits = (rules.fin_after, rules.rst_after, rules.stop_after)
    return min([READ, *(limit - count for limit in limits if limit is not None)])


async def _deliver(rules: Rules, data: bytes, writer: asyncio.StreamWriter) -> None:
    size = rules.size or len(data)
    for at in range(0, len(data), size):
        await asyncio.sleep(rules.delay)
        writer.write(data[at : at + size])
        await writer.drain()
        if rules.size:
            await let_the_other_side_read()


def _reset(ends: list[asyncio.StreamWriter]) -> None:
    for end in ends:
        sock = end.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        end.transport.abort()
