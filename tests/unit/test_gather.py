"""Dense events gather for a moment before the next look; rare ones and those at hand never wait."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from relayd.gather import DENSE, PATIENCE, PAUSE, PAUSES, SPAN, Gather, Pauses, told
from relayd.net import Conn, plain
from relayd.resources import plain_loop, uv_loop
from tests.support.heard import turns
from tests.support.tlspeer import opened

RATE = DENSE / PAUSE
"""Events a second from which on it pays."""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Traffic:
    """Events at a rate of so many a second, one at each look."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.gather = Gather(self.clock)

    def spans(self, count: int, rate: float) -> list[bool]:
        """Whether they gather, after each of so many spans."""
        seen = []
        for _ in range(count):
            for _ in range(SPAN):
                self.clock.now += 1 / rate
                self.gather.seen(1)
            seen.append(self.gather.on)
        return seen


def test_events_gather_while_they_are_dense() -> None:
    traffic = Traffic()
    assert not traffic.gather.pays()
    assert traffic.spans(3, RATE * 1.01) == [True] * 3
    assert traffic.gather.pays()
    assert traffic.spans(2, RATE * 0.99) == [False] * 2
    assert not traffic.gather.pays()


def test_a_look_that_finds_many_is_many_events() -> None:
    traffic = Traffic()
    traffic.clock.now += 0.9 * SPAN / RATE
    traffic.gather.seen(SPAN)
    assert traffic.gather.pays()


def test_it_pays_no_more_once_the_events_have_ceased() -> None:
    traffic = Traffic()
    traffic.spans(1, RATE * 2)
    traffic.clock.now += 0.99 * SPAN / RATE
    assert traffic.gather.pays()
    traffic.clock.now += 0.02 * SPAN / RATE
    assert not traffic.gather.pays()


def after_vain_trials(count: int) -> int:
    """Dense spans that pass until it is tried again, where each pause brought but one event."""
    traffic = Traffic()
    for _ in range(count):
        while not traffic.gather.on:
            traffic.spans(1, RATE * 2)
        traffic.spans(1, 1 / PAUSE)
    passed = traffic.spans(PATIENCE + 1, RATE * 2)
    return passed.index(True)


def test_who_waits_for_each_answer_is_seldom_delayed() -> None:
    waits = [after_vain_trials(count) for count in range(1, 9)]
    assert waits == [1, 3, 7, 15, 31, PATIENCE, PATIENCE, PATIENCE]


def test_a_success_makes_it_eager_again() -> None:
    traffic = Traffic()
    for rate in (RATE * 2, 1 / PAUSE):
        traffic.spans(1, rate)
    assert traffic.spans(3, RATE * 2) == [False, True, True]
    traffic.spans(1, 1 / PAUSE)
    assert traffic.spans(2, RATE * 2) == [False, True]


# ------------------------------------------------------------------ a loop that looks by itself


class Looks:
    """A loop of which only the order of its turns is of interest."""

    def __init__(self) -> None:
        self.turns: list[Callable[[], None]] = []
        self.call_soon = self.turns.append

    def look(self) -> None:
        """What waits for its turn, up to the next look."""
        turns = self.turns.copy()
        self.turns.clear()
        for turn in turns:
            turn()


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


def dense(loop: Looks, clock: Callable[[], float] = lambda: 0.0) -> Pauses:
    pauses = Pauses(loop.call_soon, clock)
    pauses.on = True
    return pauses


def test_a_pause_follows_a_look_that_found_nothing_more(slept: list[float]) -> None:
    loop = Looks()
    pauses = dense(loop)
    pauses.read()
    pauses.read()
    loop.look()
    assert loop.turns  # so that the look after it waits for nothing
    pauses.read()
    loop.look()
    assert slept == []
    loop.look()
    assert slept == [PAUSE]
    assert loop.turns == []
    pauses.read()
    assert len(loop.turns) == 1


def test_rare_events_ask_for_no_turn(slept: list[float]) -> None:
    loop = Looks()
    clock = Clock()
    pauses = Pauses(loop.call_soon, clock)
    for _ in range(4 * SPAN):
        clock.now += 2 / RATE
        pauses.read()
        loop.look()
    assert (loop.turns, slept) == ([], [])


def test_what_has_ceased_is_not_waited_for(slept: list[float]) -> None:
    loop, clock = Looks(), Clock()
    pauses = dense(loop, clock)
    pauses.read()
    clock.now += 1
    for _ in range(3):
        loop.look()
    assert (loop.turns, slept) == ([], [])


def test_only_a_loop_of_ours_has_pauses() -> None:
    reads: list[bytes] = []
    received = reads.append
    for make in (plain_loop, asyncio.new_event_loop):
        loop = make()
        assert told(loop, received) is received
        loop.close()
    ours = uv_loop()
    told(ours, received)(b"x")
    assert reads == [b"x"]
    assert told(ours, received) is not received
    ours.close()


class Spy:
    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> None:
        self.reads += 1


def on_uvloop(test: Callable[[Spy], Coroutine[Any, Any, None]]) -> None:
    spy = Spy()

    def make() -> asyncio.AbstractEventLoop:
        loop = uv_loop()
        setattr(loop, PAUSES, spy)
        return loop

    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(test(spy))


def test_reads_of_a_plain_connection_are_told() -> None:
    async def reads(spy: Spy) -> None:
        ours, theirs = socket.socketpair()
        _, writer = await asyncio.open_connection(sock=ours)
        conn = Conn(plain(writer), None, 0.0)
        for said in range(3):
            theirs.send(b"x")
            await turns()
            assert len(conn.buffer) == said + 1
        assert spy.reads == 3
        theirs.close()
        conn.abort()

    on_uvloop(reads)


def test_reads_inside_tls_are_told() -> None:
    async def reads(spy: Spy) -> None:
        async with opened(ssl.TLSVersion.TLSv1_3) as (_, heard, peer):
            before = spy.reads
            await peer.send(peer.sealed(b"x"))
            await heard.until(lambda: heard.data == b"x")
            assert spy.reads == before + 1

    on_uvloop(reads)
