"""K86: the count of requests in flight was not released after timeouts: a key was locked for ever.

https://github.com/BerriAI/litellm/issues/20256
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.builders import DONE, chat, delta
from tests.support.client import post
from tests.support.gateway import CHAT, Gateway, gateway
from tests.support.provider import Script, ScriptedProvider
from tests.support.scripts import breaks_off, events, hangs_up, ok, resets, silent, slow, status
from tests.support.turns import capped, left

PLACES = 2
TIMES = 10


async def left_before_the_answer(g: Gateway) -> None:
    async with g.client() as client:
        await client.send(post(CHAT, chat()))
        await asyncio.sleep(0.5)
        client.rst()
    await asyncio.sleep(0.1)


async def left_in_the_stream(g: Gateway) -> None:
    async with g.client() as client:
        await client.open_stream(CHAT, chat(stream=True))
        client.rst()
    await asyncio.sleep(0.1)


ENDS: dict[str, Script] = {
    "a timeout": silent(),
    "a 502": status(502),
    "a reset": resets(),
    "a close": hangs_up(),
    "a refusal": status(400),
    "no answer": events(),
    "a rate limit": status(429, fields=[("Retry-After", "0")]),
    "our key refused": status(401),
}

SETTINGS = {"breaker": {"failures": 1000}, "clocks": {"first_content": 3, "answer": 3}}


async def check_all_is_back(g: Gateway, a: ScriptedProvider) -> None:
    """All places can be had at once, and all turns of the day (as many) are there."""
    a.scripts = [slow(1.0, ok())]
    answers = await asyncio.gather(*[g.chat() for _ in range(PLACES)])
    assert [answer.status for answer in answers] == [200] * PLACES
    assert (await g.chat()).status == 429
    assert not any(g.app.engine.in_flight.values())
    assert g.app.engine.running == 0


@pytest.mark.parametrize("end", ENDS)
async def test_every_failure_gives_its_place_and_its_turn_back(end: str) -> None:
    async with (
        ScriptedProvider(ENDS[end], max_in_flight=PLACES) as a,
        gateway(capped(a, cap=PLACES, **SETTINGS)) as g,
    ):
        for _ in range(TIMES):
            await g.chat()
        assert len(a.requests) == TIMES, "a place was not given back"
        await check_all_is_back(g, a)


async def test_so_does_a_client_that_leaves_before_the_answer() -> None:
    async with (
        ScriptedProvider(silent(), max_in_flight=PLACES) as a,
        gateway(capped(a, cap=TIMES + PLACES, **SETTINGS)) as g,
    ):
        for _ in range(TIMES):
            await left_before_the_answer(g)
        assert len(a.requests) == TIMES
        assert [line["turn"] for line in g.exchanges] == ["charged"] * TIMES
        a.scripts = [ok()]
        assert await left(g) == PLACES
        assert not any(g.app.engine.in_flight.values())


async def test_so_do_streams_that_break_off_stall_or_lose_their_reader() -> None:
    scripts = [
        breaks_off(delta("x"), then="rst"),
        breaks_off(delta("x"), then="fin"),
        breaks_off(delta("x"), then="stall"),
        events(delta("x"), DONE, end=False),
    ]
    settings = {**SETTINGS, "clocks": {"idle": 3}}
    async with (
        ScriptedProvider(*scripts, max_in_flight=1) as a,
        gateway(capped(a, cap=100, **settings)) as g,
    ):
        for _ in scripts:
            await g.chat(stream=True)
        await left_in_the_stream(g)
        assert len(a.requests) == len(scripts) + 1
        a.scripts = [ok()]
        assert (await g.chat()).status == 200
        assert not any(g.app.engine.in_flight.values())


async def test_so_does_a_fault_of_relayd_itself() -> None:
    def broken() -> float:
        raise ZeroDivisionError

    async with (
        ScriptedProvider(status(503), max_in_flight=1) as a,
        gateway(capped(a, cap=1, failover={"retries": 1}, **SETTINGS)) as g,
    ):
        g.app.engine.jitter = broken
        for _ in range(TIMES):
            answer = await g.chat()
            assert answer.status == 500
            assert answer.error["code"] == "internal_error"
        assert len(a.requests) == TIMES
        a.scripts = [ok()]
        assert await left(g) == 1
        assert not any(g.app.engine.in_flight.values())
        lines = [line for line in g.log if line.get("event") == "internal_error"]
        assert len(lines) == TIMES
        assert "Traceback" not in str(g.log)
