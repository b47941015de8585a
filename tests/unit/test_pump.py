"""The pump with a connection and a sink of wood: what no real ones do at a wanted moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from relayd.framing import Chunked
from relayd.job import Answer
from relayd.outcomes import End
from relayd.pump import KEPT_WAITING, Limits, Pump
from relayd.sse import Watcher
from relayd.surfaces import Surface
from relayd.wake import Clock, Wake
from tests.support.loop import takes

pytestmark = pytest.mark.virtual_time


class Wood:
    """Connection and sink in one."""

    ended, buffer, writable, sent = False, b"", True, 0
    error: Exception | None = None
    sink: Callable[[bytes], None]
    on_end: Callable[[], None]
    behind: Callable[[], None]

    def heed(self, behind: Callable[[], None], writable: Callable[[], None]) -> None:
        self.behind = behind

    def pause(self) -> None:
        pass

    def chunks(self) -> None:
        pass

    def untaken(self) -> int:
        return 1

    def write(self, payload: bytes) -> None:
        raise LookupError("a fault of our own")

    def lose(self) -> None:
        self.ended, self.error = True, ConnectionResetError()
        self.on_end()


class Paper(Wood):
    """The same with a sink that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""

    def take(self) -> bytes:
        data, self.buffer = self.buffer, b""
        return data

    def write(self, payload: bytes) -> None:
        self.written += payload


async def begun(
    wood: Any = None, watched: bool = True, most: int = 0
) -> tuple[Any, Pump, asyncio.Task[End]]:
    loop = asyncio.get_running_loop()
    clock = Clock(loop, Wake(loop))
    wood = wood or Wood()
    watcher, now = Watcher(Surface.CHAT) if watched else None, loop.time()
    origin: Any = None
    answer = Answer(
        origin, origin, wood, Chunked(), b"", False, watcher, "content", now, None, 30.0
    )
    pump = Pump(answer, wood, clock, Limits(30.0, 60.0, most))
    task = asyncio.create_task(pump.run())
    await asyncio.sleep(0)
    return wood, pump, task


@pytest.mark.parametrize("seconds", [KEPT_WAITING / 2, KEPT_WAITING])
async def test_an_end_that_comes_while_the_client_is_behind_counts_its_wait(seconds: float) -> None:
    wood, pump, task = await begun()
    wood.behind()
    await asyncio.sleep(seconds)
    wood.lose()
    assert await task is End.UPSTREAM_TRUNCATED
    assert pump.held_up is (seconds >= KEPT_WAITING)


@pytest.mark.parametrize("more", [b"", b"zz\r\n"], ids=["whole", "broken behind it"])
async def test_a_fault_of_our_own_is_raised_by_the_pump_whatever_the_read(more: bytes) -> None:
    wood, _, task = await begun()
    wood.sink(b"5\r\ndata:\r\n" + more)
    with pytest.raises(LookupError):
        await task


async def test_a_fault_of_our_own_is_raised_at_once() -> None:
    wood, _, task = await begun()
    wood.sink(b"5\r\ndata:\r\n")
    with takes(0.0), pytest.raises(LookupError):
        await task


@pytest.mark.parametrize(
    ("last", "end"),
    [
        (b"9\r\n123456789\r\n", End.RESPONSE_TOO_LARGE),
        (b"zz\r\n", End.UPSTREAM_TRUNCATED),
    ],
    ids=["too large", "broken"],
)
async def test_a_read_behind_the_one_that_ended_the_answer_is_not_passed_on(
    last: bytes, end: End
) -> None:
    paper, _, task = await begun(Paper(), watched=False, most=8)
    paper.sink(last)
    paper.sink(b"1\r\nx\r\n")  # in the same turn of the event loop
    assert await task is end
    assert paper.written == b""


async def test_what_came_before_the_end_of_the_connection_is_relayed() -> None:
    paper = Paper()
    paper.buffer, paper.ended = b"5\r\nhello\r\n0\r\n\r\n", True
    _, _, task = await begun(paper, watched=False)
    assert await task is End.COMPLETE
    assert paper.written == b"hello"
