"""Where lines go: in order, in batches, never stopping the loop, and what is lost is counted."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import socket
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from relayd import logsink
from relayd.logsink import FLUSH_BYTES, StreamSink

LINE = b"x" * 99 + b"\n"


class Pipe:
    """A pipe whose reading side is the test's."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def read(self) -> bytes:
        """What is there."""
        got = b""
        while True:
            try:
                piece = os.read(self.reader, 1 << 20)
            except BlockingIOError:
                return got
            if not piece:
                return got
            got += piece

    async def expect(self, length: int) -> bytes:
        """Reads, as a slow reader would, until there are `length` bytes."""
        loop, got = asyncio.get_running_loop(), b""
        while len(got) < length:
            readable = asyncio.Event()
            loop.add_reader(self.reader, readable.set)
            await readable.wait()
            loop.remove_reader(self.reader)
            got += self.read()
        return got

    def fill(self) -> int:
        """Bytes it took until there was no room."""
        with os.fdopen(os.dup(self.writer), "wb", buffering=0) as other:
            room = fcntl.fcntl(self.reader, fcntl.F_GETPIPE_SZ)
            other.write(b"f" * room)
        return room

    def close(self) -> None:
        for fd in (self.reader, self.writer):
            os.close(fd)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


@pytest.fixture(params=["own description", "shared description"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Pipes both ways: opened anew, and (as where another user made the pipe) only duplicated."""
    if request.param == "shared description":

        def refused(*_: object) -> int:
            raise PermissionError

        monkeypatch.setattr(os, "open", refused)
    return str(request.param)


def lines(count: int, start: int = 0) -> list[bytes]:
    return [b"line %06d\n" % number for number in range(start, start + count)]


# ---- without a loop


def test_outside_of_a_loop_a_line_is_written_at_once(pipe: Pipe) -> None:
    sink = StreamSink(pipe.writer)
    sink.write(b"one\n")
    assert pipe.read() == b"one\n"
    sink.close()


def test_a_file_gets_the_lines_in_order(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        sink = StreamSink(file.fileno())
        for line in lines(100):
            sink.write(line)
        sink.close()
    assert (tmp_path / "log").read_bytes() == b"".join(lines(100))


def test_outside_of_a_loop_a_reader_that_is_stuck_costs_a_bounded_time(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logsink, "CLOSE_SECONDS", 0.05)
    pipe.fill()
    sink = StreamSink(pipe.writer)
    began = time.monotonic()
    sink.write(b"one\n")
    sink.close()
    assert time.monotonic() - began < 5


def test_outside_of_a_loop_a_slow_reader_is_waited_for(pipe: Pipe) -> None:
    line = b"x" * 500_000 + b"\n"  # far more than a pipe holds
    got: list[bytes] = []

    def read_all() -> None:
        while sum(map(len, got)) < len(line):
            got.append(os.read(pipe.reader, 1 << 20))

    os.set_blocking(pipe.reader, True)
    reader = threading.Thread(target=read_all)
    reader.start()
    sink = StreamSink(pipe.writer)
    sink.write(line)
    reader.join()
    assert b"".join(got) == line
    sink.close()


# ---- in a loop


async def test_in_a_loop_lines_wait_for_a_batch(pipe: Pipe) -> None:
    sink = StreamSink(pipe.writer)
    for line in lines(10):
        sink.write(line)
    assert pipe.read() == b""
    assert await pipe.expect(120) == b"".join(lines(10))
    sink.close()


async def test_after_a_batch_the_next_one_is_planned(pipe: Pipe) -> None:
    sink = StreamSink(pipe.writer)
    sink.write(b"one\n")
    await pipe.expect(4)
    sink.write(b"two\n")
    assert await pipe.expect(4) == b"two\n"
    sink.close()


async def test_many_bytes_do_not_wait_for_the_timer(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logsink, "FLUSH_SECONDS", 3600)
    sink = StreamSink(pipe.writer)
    count = FLUSH_BYTES // len(LINE) + 5
    for _ in range(count):
        sink.write(LINE)
    assert await pipe.expect(count * len(LINE)) == count * LINE
    sink.close()


async def test_a_slow_reader_does_not_stop_the_loop_and_misses_nothing(
    pipe: Pipe, kind: str
) -> None:
    sink = StreamSink(pipe.writer)
    sent = lines(40_000)  # 480 kB, several times what a pipe holds
    for line in sent:
        sink.write(line)
    await asyncio.sleep(0)  # the flush: it fills the pipe and comes back
    expected = b"".join(sent)
    assert await pipe.expect(len(expected)) == expected
    sink.close()


async def test_a_reader_that_wakes_up_gets_what_waited(pipe: Pipe, kind: str) -> None:
    room = pipe.fill()
    sink = StreamSink(pipe.writer)
    sink.write(b"one\n")
    sink._flush()
    sink.write(b"two\n")
    sink._flush()  # still full: nothing happens twice
    got = await pipe.expect(room + 8)
    assert got[room:] == b"one\ntwo\n"
    sink.close()


async def test_the_flags_of_a_shared_descriptor_are_not_touched(pipe: Pipe, kind: str) -> None:
    sink = StreamSink(pipe.writer)
    sink.write(b"one\n")
    await pipe.expect(4)
    assert os.get_blocking(pipe.writer)
    sink.close()
    assert os.get_blocking(pipe.writer)


async def test_a_socket_gets_everything_and_keeps_its_flags() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        sink = StreamSink(ours.fileno())
        sent = lines(60_000)
        for line in sent:
            sink.write(line)
        expected, got = b"".join(sent), b""
        while len(got) < len(expected):
            got += await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)
        assert got == expected
        assert os.get_blocking(ours.fileno())
        sink.close()


async def test_a_terminal_that_is_stopped_does_not_stop_the_loop() -> None:
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    sink = StreamSink(theirs)
    try:
        termios.tcflow(theirs, termios.TCOOFF)  # Ctrl-S
        for line in lines(2000):
            sink.write(line)
        await asyncio.sleep(0.05)
        termios.tcflow(theirs, termios.TCOON)
        got = b""
        while got.count(b"\n") < 2000:
            await asyncio.sleep(0.01)
            with contextlib.suppress(BlockingIOError):
                got += os.read(ours, 65536)
        assert got.replace(b"\r", b"") == b"".join(lines(2000))
    finally:
        sink.close()
        os.close(ours)
        os.close(theirs)


async def test_lines_are_kept_whole_within_one_write(pipe: Pipe) -> None:
    sink = StreamSink(pipe.writer)
    line = b"y" * 1499 + b"\n"
    for _ in range(5):
        sink.write(line)
    sink._flush()
    batch = os.read(pipe.reader, select.PIPE_BUF)
    assert batch == line * 2 + line[: select.PIPE_BUF - 3000]
    pipe.read()
    sink.close()


# ---- loss


async def test_lines_beyond_the_limit_are_dropped_and_reported(pipe: Pipe) -> None:
    room = pipe.fill()
    sink = StreamSink(pipe.writer, limit=1000)
    sink.report = lambda count: sink.write(b"lost %d\n" % count)
    for _ in range(25):
        sink.write(LINE)
    got = await pipe.expect(room + 1000 + len(b"lost 15\n"))
    assert got[room:] == 10 * LINE + b"lost 15\n"
    assert sink.lost == 15
    sink.close()


async def test_what_was_lost_is_said_once(pipe: Pipe) -> None:
    reports: list[int] = []
    sink = StreamSink(pipe.writer, limit=150)
    sink.report = reports.append
    sink.write(LINE)
    sink.write(LINE)
    await pipe.expect(100)
    sink.write(LINE)
    await pipe.expect(100)
    sink.close()
    assert reports == [1]


async def test_the_loss_is_reported_at_the_end(pipe: Pipe) -> None:
    sink = StreamSink(pipe.writer, limit=150)
    sink.report = lambda count: sink.write(b"lost %d\n" % count)
    sink.write(LINE)
    sink.write(LINE)
    sink.close()
    assert pipe.read() == LINE + b"lost 1\n"


@pytest.mark.parametrize("kind_of_end", ["pipe", "socket"])
async def test_a_reader_that_has_gone_is_not_worth_an_error(kind_of_end: str) -> None:
    if kind_of_end == "pipe":
        theirs, ours = os.pipe()
        os.close(theirs)
    else:
        left, right = socket.socketpair()
        right.close()
        ours = left.detach()
    reports: list[int] = []
    sink = StreamSink(ours)
    sink.report = reports.append
    sink.write(b"one\n")
    sink._flush()
    sink.write(b"two\n")
    sink.close()
    os.close(ours)
    assert reports == []


async def test_a_reader_that_has_gone_is_noticed_at_the_end_too() -> None:
    theirs, ours = os.pipe()
    sink = StreamSink(ours)
    sink.write(b"one\n")
    os.close(theirs)
    sink.close()
    os.close(ours)


def test_a_full_disk_loses_lines_but_not_the_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        reports: list[int] = []
        sink = StreamSink(full.fileno())
        sink.report = reports.append
        sink.write(b"one\n")
        sink.write(b"two\n")
        assert reports == []  # a report now would only be lost as well
        with open("/dev/null", "wb", buffering=0) as room:
            os.dup2(room.fileno(), sink._out.fd)
        sink.write(b"three\n")
        sink.close()
    assert reports == [2]
    assert sink.lost == 2


# ---- the end


async def test_closing_writes_what_waits(pipe: Pipe) -> None:
    sink = StreamSink(pipe.writer)
    sink.write(b"one\n")
    sink.close()
    assert pipe.read() == b"one\n"


async def test_closing_does_not_wait_for_ever_for_a_reader(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logsink, "CLOSE_SECONDS", 0.05)
    pipe.fill()
    sink = StreamSink(pipe.writer)
    sink.write(b"one\n")
    sink._flush()
    began = time.monotonic()
    sink.close()
    assert time.monotonic() - began < 5


async def test_after_the_end_nothing_is_written_and_closing_again_is_fine(pipe: Pipe) -> None:
    sink = StreamSink(pipe.writer)
    sink.close()
    sink.write(b"late\n")
    sink.close()
    assert pipe.read() == b""


def test_a_sink_can_be_closed_after_its_loop(pipe: Pipe) -> None:
    sink = StreamSink(pipe.writer)

    async def speak() -> None:
        sink.write(b"last words\n")

    asyncio.run(speak())
    sink.close()
    assert pipe.read() == b"last words\n"


def test_a_blocked_sink_can_be_closed_after_its_loop(pipe: Pipe) -> None:
    sink = StreamSink(pipe.writer)
    room = pipe.fill()

    async def speak() -> None:
        sink.write(b"last words\n")
        sink._flush()

    asyncio.run(speak())
    assert pipe.read() == b"f" * room
    sink.close()
    assert pipe.read() == b"last words\n"


def test_the_descriptor_given_stays_open_and_ours_is_closed(pipe: Pipe) -> None:
    before = set(os.listdir("/proc/self/fd"))
    sink = StreamSink(pipe.writer)
    sink.close()
    assert set(os.listdir("/proc/self/fd")) == before
    os.fstat(pipe.writer)
