"""The poller does what the standard library's selector does, as far as asyncio asks."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from functools import partial
from select import EPOLLIN, EPOLLOUT
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector, EpollSelector
from typing import Any

import pytest

from relayd.gather import PAUSE, SPAN, Gather
from relayd.poller import AT_ONCE, PlainLoop, Poller
from relayd.resources import plain_loop
from tests.support.provider import LINGER_NONE
from tests.support.sockets import tcp_pair

Pair = tuple[socket.socket, socket.socket]
BOTH = EVENT_READ | EVENT_WRITE


@pytest.fixture(params=[lambda: Poller(pytest.fail), EpollSelector], ids=["ours", "standard"])
def selector(request: pytest.FixtureRequest) -> Iterator[BaseSelector]:
    made: BaseSelector = request.param()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def told(selector: BaseSelector) -> list[tuple[int, int, object]]:
    return [(key.fd, mask & key.events, key.data) for key, mask in selector.select(0)]


def test_nothing_watched_is_nothing_told(selector: BaseSelector) -> None:
    assert selector.select(0) == []
    assert selector.select(-1) == []


def test_what_can_be_read_and_written_is_told(selector: BaseSelector, pair: Pair) -> None:
    one, other = pair
    fd = one.fileno()
    assert selector.register(fd, EVENT_READ, "data") == (fd, fd, EVENT_READ, "data")
    assert told(selector) == []
    other.send(b"x")
    assert told(selector) == [(fd, EVENT_READ, "data")]
    selector.modify(fd, BOTH, "more")
    assert told(selector) == [(fd, BOTH, "more")]
    selector.modify(fd, BOTH, "the same events")
    assert told(selector) == [(fd, BOTH, "the same events")]
    selector.modify(fd, EVENT_WRITE, None)
    assert told(selector) == [(fd, EVENT_WRITE, None)]
    assert selector.unregister(fd).fd == fd
    assert selector.select(0) == []


def test_an_end_is_told_to_readers_and_writers(selector: BaseSelector, pair: Pair) -> None:
    one, other = pair
    selector.register(one, BOTH)
    other.close()
    assert told(selector) == [(one.fileno(), BOTH, None)]


def test_a_reset_is_told_to_a_reader_alone(selector: BaseSelector) -> None:
    one, other = tcp_pair()
    with one, other:
        selector.register(one.fileno(), EVENT_READ)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        other.close()
        ((key, mask),) = selector.select(1)
        assert (key.fd, mask & key.events) == (one.fileno(), EVENT_READ)


def test_faults_of_the_caller_are_key_errors(selector: BaseSelector, pair: Pair) -> None:
    fd = pair[0].fileno()
    with pytest.raises(KeyError):
        selector.get_key(fd)
    with pytest.raises(KeyError):
        selector.unregister(fd)
    with pytest.raises(KeyError):
        selector.modify(fd, EVENT_READ)
    key = selector.register(fd, EVENT_READ)
    assert selector.get_key(fd) == selector.get_key(pair[0]) == key
    assert list(selector.get_map()) == [fd]
    with pytest.raises(KeyError):
        selector.register(fd, EVENT_READ)


def test_a_descriptor_that_was_closed_can_be_taken_out(selector: BaseSelector) -> None:
    one, other = socket.socketpair()
    with other:
        fd = one.fileno()
        selector.register(fd, EVENT_READ)
        one.close()
        assert selector.unregister(fd).fd == fd
        assert selector.select(0) == []


def test_one_that_lives_on_elsewhere_is_not_told(selector: BaseSelector) -> None:
    one, other = socket.socketpair()
    with other:
        kept = os.dup(one.fileno())
        fd = one.fileno()
        selector.register(fd, EVENT_READ)
        one.close()  # epoll goes by the open file, which `kept` keeps open
        selector.unregister(fd)
        other.send(b"x")
        assert selector.select(0) == []
        os.close(kept)


def test_it_waits_as_long_as_it_is_told(selector: BaseSelector, pair: Pair) -> None:
    selector.register(pair[0].fileno(), EVENT_READ)
    began = time.monotonic()
    assert selector.select(0.0101) == []
    assert time.monotonic() - began >= 0.0101
    pair[1].send(b"x")
    assert len(selector.select()) == 1


def test_a_loop_runs_on_it(pair: Pair) -> None:
    async def heard() -> bytes:
        reader, writer = await asyncio.open_connection(sock=pair[0])
        pair[1].sendall(b"over")
        pair[1].shutdown(socket.SHUT_WR)
        found = await reader.read()
        writer.close()
        return found

    with asyncio.Runner(loop_factory=plain_loop) as runner:
        assert runner.run(heard()) == b"over"


def test_without_epoll_asyncio_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("select.epoll")
    loop = plain_loop()
    loop.close()
    assert not isinstance(vars(loop)["_selector"], Poller)


# ------------------------------------------------------------------ who is called from the poll


@pytest.fixture
def faults() -> list[BaseException]:
    return []


@pytest.fixture
def poller(faults: list[BaseException]) -> Iterator[Poller]:
    made = Poller(faults.append)
    yield made
    made.close()


def test_who_watches_is_called_and_not_told(poller: Poller, pair: Pair) -> None:
    one, other = pair
    said: list[str] = []
    poller.watch(one.fileno(), EPOLLIN, lambda: said.append("read"))
    assert poller.select(0) == []
    assert said == []
    other.send(b"x")
    assert poller.select(0) == []
    assert said == ["read"]
    poller.watch(one.fileno(), EPOLLOUT, lambda: said.append("write"))
    poller.select(0)
    assert said == ["read", "read", "write"]
    assert poller.forget(one.fileno(), EPOLLIN)
    poller.select(0)
    assert said == ["read", "read", "write", "write"]
    assert poller.forget(one.fileno(), EPOLLOUT)
    poller.select(0)
    assert len(said) == 4
    assert not poller.forget(one.fileno(), EPOLLOUT)


def test_a_later_call_replaces_the_earlier(poller: Poller, pair: Pair) -> None:
    one, other = pair
    said: list[str] = []
    for word in ("first", "second"):
        poller.watch(one.fileno(), EPOLLIN, partial(said.append, word))
    other.send(b"x")
    poller.select(0)
    assert said == ["second"]


def test_an_end_calls_readers_and_writers(poller: Poller, pair: Pair) -> None:
    one, other = pair
    said: list[str] = []
    poller.watch(one.fileno(), EPOLLOUT, lambda: said.append("write"))
    poller.watch(one.fileno(), EPOLLIN, lambda: said.append("read"))
    other.close()
    poller.select(0)
    assert said == ["read", "write"]
    poller.forget(one.fileno(), EPOLLIN)
    poller.select(0)
    assert said == ["read", "write", "write"]


@pytest.mark.parametrize("fault", [ValueError, asyncio.CancelledError])
def test_a_fault_of_one_does_not_keep_the_others_waiting(
    poller: Poller, faults: list[BaseException], fault: type[BaseException]
) -> None:
    said: list[int] = []

    def hear(fd: int) -> None:
        said.append(fd)
        raise fault(fd)

    pairs = [socket.socketpair() for _ in range(3)]
    for one, other in pairs:
        for bit in (EPOLLIN, EPOLLOUT):
            poller.watch(one.fileno(), bit, partial(hear, one.fileno()))
        other.send(b"x")
    poller.select(0)
    assert sorted(said) == sorted([one.fileno() for one, _ in pairs] * 2)
    assert len(faults) == 6
    for one, other in pairs:
        one.close()
        other.close()


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("bit", [EPOLLIN, EPOLLOUT])
def test_the_end_of_the_program_is_no_fault(
    poller: Poller, pair: Pair, bit: int, end: type[BaseException]
) -> None:
    def leave() -> None:
        raise end

    poller.watch(pair[0].fileno(), bit, leave)
    pair[1].send(b"x")
    with pytest.raises(end):
        poller.select(0)


def test_who_asked_anew_within_a_poll_is_told_by_the_new_key(poller: Poller) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    (ours, one), (theirs, other) = pairs

    def ask_anew() -> None:
        poller.forget(ours.fileno(), EPOLLIN)
        poller.unregister(theirs.fileno())
        poller.register(theirs.fileno(), EVENT_READ, "new")

    poller.register(theirs.fileno(), EVENT_READ, "old")
    other.send(b"x")
    poller.watch(ours.fileno(), EPOLLIN, ask_anew)
    one.send(b"x")
    assert [key.data for key, _ in poller.select(0)] == ["new"]
    for sock in (ours, one, theirs, other):
        sock.close()


def test_one_that_is_let_go_in_the_same_poll_is_not_called(poller: Poller) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    said: list[int] = []

    def hear(own: int) -> None:
        said.append(own)
        for one, _ in pairs:
            if one.fileno() not in (own, -1):
                poller.forget(one.fileno(), EPOLLIN)
                one.close()

    for one, other in pairs:
        poller.watch(one.fileno(), EPOLLIN, partial(hear, one.fileno()))
        other.send(b"x")
    poller.select(0)
    assert len(said) == 1
    for one, other in pairs:
        one.close()
        other.close()


def test_what_was_closed_too_early_can_be_forgotten(poller: Poller) -> None:
    one, other = socket.socketpair()
    with other:
        fd = one.fileno()
        poller.watch(fd, EPOLLIN, pytest.fail)
        one.close()
        assert poller.forget(fd, EPOLLIN)
        assert poller.select(0) == []


def test_what_cannot_be_watched_is_an_error_and_not_remembered(poller: Poller) -> None:
    with open(__file__, "rb") as file:
        with pytest.raises(PermissionError):
            poller.watch(file.fileno(), EPOLLIN, pytest.fail)
        assert not poller.forget(file.fileno(), EPOLLIN)


def test_all_are_called_however_many_are_ready(poller: Poller) -> None:
    said: set[int] = set()
    one, other = socket.socketpair()
    with one, other:
        other.send(b"x")
        copies = [os.dup(one.fileno()) for _ in range(AT_ONCE + 3)]
        for fd in copies:
            poller.watch(fd, EPOLLIN, partial(said.add, fd))
        poller.select(0)
        assert len(said) == AT_ONCE
        poller.select(0)
        assert said == set(copies)
        for fd in copies:
            poller.forget(fd, EPOLLIN)
            os.close(fd)


# ------------------------------------------------------------------ the loop above it


def run(main: Any) -> Any:
    with asyncio.Runner(loop_factory=PlainLoop) as runner:
        return runner.run(main)


def test_readers_and_writers_of_the_loop(pair: Pair) -> None:
    one, other = pair

    async def main() -> list[object]:
        loop = asyncio.get_running_loop()
        said: list[object] = []
        loop.add_reader(one, said.append, "read")
        loop.add_writer(one.fileno(), said.append, "write")
        other.send(b"x")
        await asyncio.sleep(0)
        assert loop.remove_writer(one)
        assert loop.remove_reader(one)
        assert not loop.remove_reader(one)
        assert not loop.remove_writer(one)
        await asyncio.sleep(0)
        return said

    assert run(main()) == ["read", "write"]


def test_the_loops_own_watching_goes_on_beside_it(pair: Pair) -> None:
    one, other = pair
    one.setblocking(False)

    async def main() -> bytes:
        loop = asyncio.get_running_loop()
        reading = asyncio.ensure_future(loop.sock_recv(one, 100))
        await asyncio.sleep(0)
        other.send(b"hello")
        found = await reading
        assert not loop.remove_reader(one), "asyncio has let go of it, by our own method"
        return found

    assert run(main()) == b"hello"


def test_a_fault_of_a_reader_is_told_to_the_loop(pair: Pair) -> None:
    one, other = pair

    async def main() -> None:
        loop = asyncio.get_running_loop()
        told = loop.create_future()
        loop.set_exception_handler(lambda _, context: told.set_result(context["exception"]))
        fault = ValueError("of a reader")

        def hear() -> None:
            loop.remove_reader(one)
            raise fault

        loop.add_reader(one, hear)
        other.send(b"x")
        assert await told is fault

    run(main())


def test_a_timer_rings_beside_a_reader_that_always_has_something(pair: Pair) -> None:
    one, other = pair
    other.send(b"never read")

    async def main() -> int:
        loop = asyncio.get_running_loop()
        calls: list[None] = []
        loop.add_reader(one, calls.append, None)
        async with asyncio.timeout(5):
            await asyncio.sleep(0.02)
        loop.remove_reader(one)
        return len(calls)

    assert run(main()) > 1


@pytest.mark.parametrize("how", ["call_soon", "call_at", "call_soon_threadsafe"])
def test_what_a_reader_asks_for_is_not_kept_waiting(pair: Pair, how: str) -> None:
    one, other = pair

    async def main() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def hear() -> None:
            one.recv(1)
            soon = partial(done.set_result, None)
            loop.call_at(loop.time() + 0.01, soon) if how == "call_at" else getattr(loop, how)(soon)

        loop.add_reader(one, hear)
        late = loop.call_later(60, pytest.fail)
        await asyncio.sleep(0)
        other.send(b"x")
        async with asyncio.timeout(30):
            await done
        late.cancel()
        loop.remove_reader(one)

    began = time.monotonic()
    run(main())
    assert time.monotonic() - began < 20


def test_a_reader_may_stop_the_loop(pair: Pair) -> None:
    one, other = pair
    loop = PlainLoop()

    def hear() -> None:
        one.recv(1)
        loop.stop()

    loop.add_reader(one, hear)
    loop.call_later(20, pytest.fail)
    other.send(b"x")
    loop.run_forever()
    loop.remove_reader(one)
    loop.close()


def test_it_waits_on_after_its_own_calls(pair: Pair) -> None:
    one, other = pair
    said: list[bytes] = []
    poller = Poller(pytest.fail)

    def hear() -> None:
        said.append(one.recv(1))
        if len(said) < 3:
            other.send(b"x")

    poller.watch(one.fileno(), EPOLLIN, hear)
    other.send(b"x")
    assert poller.select(0.01) == []
    assert said == [b"x"] * 3
    poller.close()


# ------------------------------------------------------------------ dense events


@pytest.fixture
def dense(poller: Poller) -> Poller:
    poller.gather = Gather(lambda: 0.0)
    poller.gather.on = True
    return poller


def test_dense_events_gather_before_a_look_that_would_wait(
    dense: Poller, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [socket.socketpair() for _ in range(4)]
    said: list[tuple[str, int]] = []

    def hear(index: int) -> None:
        pairs[index][0].recv(1)
        said.append(("heard", index))
        dense.stale = index == 3  # enough

    def sleep(seconds: float) -> None:
        said.append(("slept", round(seconds / PAUSE)))
        for _, other in pairs[2:]:
            other.send(b"x")

    monkeypatch.setattr(time, "sleep", sleep)
    for index, (one, _) in enumerate(pairs):
        dense.watch(one.fileno(), EPOLLIN, partial(hear, index))
    for _, other in pairs[:2]:
        other.send(b"x")
    assert dense.select(60.0) == []
    assert said == [("heard", 0), ("heard", 1), ("slept", 1), ("heard", 2), ("heard", 3)]
    for pair in pairs:
        for one in pair:
            one.close()


@pytest.mark.parametrize(("timeout", "pause"), [(PAUSE / 4, PAUSE / 4), (60 * PAUSE, PAUSE)])
def test_a_pause_is_no_longer_than_a_timer_would_wait(
    dense: Poller, timeout: float, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    assert dense.select(timeout) == []
    assert slept == [pause]


def test_nothing_waits_where_there_is_a_turn_to_take_or_events_are_rare(
    dense: Poller, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    assert dense.select(0) == []
    dense.gather.on = False
    assert dense.select(PAUSE) == []
    assert slept == []


def test_the_poller_tells_how_many_there_were(poller: Poller, pair: Pair) -> None:
    one, other = pair
    poller.gather = Gather(lambda: 0.0)
    poller.watch(one.fileno(), EPOLLIN, lambda: one.recv(1))
    for _ in range(SPAN):
        assert not poller.gather.on
        other.send(b"x")
        poller.select(0)
    assert poller.gather.on
