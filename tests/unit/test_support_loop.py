"""The jumping loop must be right before anything that it times can be."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relayd.stores.sqlite import SqliteStore
from tests.support.loop import START, Blocked, JumpingLoop, Stuck, TooSlow, elapsed, takes, untaken


@pytest.mark.virtual_time
async def test_a_long_sleep_costs_no_real_time() -> None:
    began = time.monotonic()
    with takes(3_600):
        await asyncio.sleep(3_600)
    assert time.monotonic() - began < 1


@pytest.mark.virtual_time
async def test_timers_fire_in_order_and_at_their_time() -> None:
    seen: list[tuple[str, float]] = []

    async def note(name: str, delay: float) -> None:
        await asyncio.sleep(delay)
        seen.append((name, round(elapsed(), 6)))

    await asyncio.gather(note("late", 60), note("early", 0.25), note("middle", 7))
    assert seen == [("early", 0.25), ("middle", 7.0), ("late", 60.0)]


@pytest.mark.virtual_time
async def test_bytes_in_flight_arrive_before_the_clock_moves() -> None:
    got: list[float] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for _ in range(200):
            writer.write(b"x" * 3_000)
            async with asyncio.timeout(0.001):
                await reader.readexactly(3_000)
            got.append(elapsed())
        writer.close()
        await writer.wait_closed()
    assert got == [0.0] * 200


@pytest.mark.virtual_time
async def test_the_clock_stands_still_until_a_full_reader_s_kernel_is_full() -> None:
    async def never_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        readers.append(writer)

    readers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(never_reads, "127.0.0.1", 0)
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        fd = writer.get_extra_info("socket").fileno()
        writer.write(b"x" * 16_000_000)
        await asyncio.sleep(0.001)
        left = untaken(fd), writer.transport.get_write_buffer_size()
        await asyncio.to_thread(time.sleep, 0.5)
        assert (untaken(fd), writer.transport.get_write_buffer_size()) == left
        assert left[0] > 0
        for one in (writer, *readers):
            one.transport.abort()


@pytest.mark.virtual_time
async def test_the_clock_stands_still_while_a_thread_works() -> None:
    async with asyncio.timeout(0.01):
        await asyncio.to_thread(time.sleep, 0.05)
        await asyncio.get_running_loop().getaddrinfo("localhost", 80)
    assert elapsed() == 0.0


@pytest.mark.virtual_time
async def test_the_clock_moves_again_when_the_thread_is_done() -> None:
    await asyncio.to_thread(int, "1")
    with takes(5):
        await asyncio.sleep(5)


@contextmanager
def answering(done: asyncio.Future[str], seconds: float) -> Iterator[None]:
    """A thread that the loop does not know answers after so many real seconds."""
    loop = asyncio.get_running_loop()

    def work() -> None:
        time.sleep(seconds)
        loop.call_soon_threadsafe(done.set_result, "done")

    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join()


@pytest.mark.virtual_time
async def test_a_thread_that_is_not_counted_is_waited_for_a_little() -> None:
    done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with answering(done, 0.005):
        async with asyncio.timeout(0.25):
            assert await done == "done"


@pytest.mark.virtual_time
async def test_the_clock_stands_still_until_what_is_counted_is_answered() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    done: asyncio.Future[str] = loop.count(loop.create_future())
    with answering(done, 0.2):
        async with asyncio.timeout(0.001):
            assert await done == "done"
    with takes(5):
        await asyncio.sleep(5)


@pytest.mark.virtual_time
async def test_a_step_of_a_store_in_a_file_takes_no_virtual_time(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "state.db"), timeout=5)
    await store.read(0.0)
    with sqlite3.connect(tmp_path / "state.db", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        step = asyncio.create_task(store.read(0.0))
        await asyncio.to_thread(time.sleep, 0.2)
        assert not step.done()
        other.rollback()
        async with asyncio.timeout(0.001):
            await step
    other.close()
    await store.close()


@pytest.mark.virtual_time
async def test_a_connect_that_hangs_is_ended_by_its_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        fill = [socket.socket() for _ in range(4)]
        for one in fill:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        with takes(5), pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.open_connection(*full.getsockname())
        for one in fill:
            one.close()


def test_a_wait_for_nothing_is_named() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match="nothing is left to wait for"), running() as runner:
        runner.run(forever())


def test_the_place_of_a_waiting_task_is_named() -> None:
    async def waits_here() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match=r"waits_here:\d+"), running() as runner:
        runner.run(waits_here())


def test_too_much_real_time_is_named() -> None:
    async def spin() -> None:
        while True:  # noqa: ASYNC110  # the fault that is looked for
            await asyncio.sleep(0)

    with pytest.raises(TooSlow), running(real_cap=0.05) as runner:
        runner.run(spin())


def test_an_endless_tick_is_ended_too() -> None:
    async def tick() -> None:
        while True:  # noqa: ASYNC110  # the fault that is looked for
            await asyncio.sleep(1)

    with pytest.raises(TooSlow, match="virtual time"), running(real_cap=0.05) as runner:
        runner.run(tick())


def test_a_thread_that_hangs_is_ended_too() -> None:
    async def hang() -> None:
        await asyncio.to_thread(time.sleep, 0.3)

    with pytest.raises(TooSlow), running(real_cap=0.05) as runner:
        runner.run(hang())


def test_a_callback_that_blocks_the_loop_is_named() -> None:
    async def block() -> None:
        time.sleep(0.05)  # noqa: ASYNC251  # the fault that is looked for
        await asyncio.sleep(0)

    with pytest.raises(Blocked, match="held the loop"), running(block_cap=0.02) as runner:
        runner.run(block())


def test_time_between_two_runs_is_not_a_block() -> None:
    async def nothing() -> None:
        await asyncio.sleep(0)

    with running(block_cap=0.02) as runner:
        runner.run(nothing())
        time.sleep(0.05)
        runner.run(nothing())


@pytest.mark.real_time
async def test_the_other_marker_gives_the_ordinary_loop() -> None:
    assert not isinstance(asyncio.get_running_loop(), JumpingLoop)


def test_takes_fails_when_the_time_is_another() -> None:
    async def three() -> None:
        with takes(2):
            await asyncio.sleep(3)

    with pytest.raises(AssertionError, match=r"expected 2 s .*, got 3\.000 s"), running() as runner:
        runner.run(three())


def running(**caps: float) -> asyncio.Runner:
    return asyncio.Runner(loop_factory=lambda: JumpingLoop(**caps))


def test_virtual_time_does_not_begin_at_zero() -> None:
    with running() as runner:
        assert runner.get_loop().time() == START > 0
