"""K94: a half-open probe never ended, and the breaker was stuck for six days.

https://github.com/diegosouzapw/OmniRoute/issues/13836
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support import breakers
from tests.support.builders import chat, delta
from tests.support.client import post
from tests.support.gateway import CHAT
from tests.support.loop import takes
from tests.support.provider import Script
from tests.support.scripts import breaks_off, events, ok, silent

SILENT: dict[str, Script] = {
    "no head": silent(),
    "a head and nothing more": events(end=False),
    "comments for ever": events(*[b": still here\n\n"] * 100, delay=1.0, end=False),
    "half an answer": breaks_off(b'data: {"choices', then="stall"),
}

PATIENT = {"first_content": 600.0, "answer": 600.0, "idle": 600.0, "deadline": 20.0}
"""Only the deadline ends the probe."""


@pytest.mark.parametrize("how", SILENT)
async def test_its_place_is_free_again_at_its_deadline(how: str) -> None:
    async with breakers.tripped(SILENT[how], ok(), clocks=PATIENT) as (g, a):
        probe = asyncio.create_task(g.chat(stream=True))
        for _ in range(3):
            await asyncio.sleep(5)
            assert (await g.chat()).status == 503, "expected one probe at a time"
        assert (await probe).status == 504
        assert len(a.requests) == 2
        assert await breakers.state(g) == "half-open"
        assert (await g.chat()).status == 200
        assert await breakers.state(g) == "closed"


async def test_its_clock_ends_it_before_and_opens_again() -> None:
    clocks = {"first_content": 5.0, "answer": 5.0}
    async with breakers.tripped(silent(), ok(), clocks=clocks) as (g, _):
        with takes(5):
            assert (await g.chat()).status == 502
        assert await breakers.state(g) == "open"
        assert (await g.chat()).status == 503
        await asyncio.sleep(breakers.COOLDOWN)
        assert (await g.chat()).status == 200


async def test_a_client_that_leaves_without_a_word_does_not_keep_it() -> None:
    async with breakers.tripped(silent(), ok(), clocks=PATIENT) as (g, _):
        async with g.client() as client:
            await client.send(post(CHAT, chat()))
            await asyncio.sleep(1)
            client.rst()
        await asyncio.sleep(0.1)
        assert (await g.chat()).status == 200


async def test_a_stream_that_goes_on_for_ever_does_not_keep_it() -> None:
    async with breakers.tripped(events(delta("x"), end=False), ok()) as (g, _):
        async with g.client() as client:
            await client.open_stream(CHAT, chat(stream=True))
            assert await breakers.state(g) == "closed"
            assert (await g.chat()).status == 200


async def test_while_it_hangs_the_others_are_served_by_the_next_provider() -> None:
    async with breakers.tripped(silent(), second=ok("from b"), clocks=PATIENT) as (g, a):
        probe = asyncio.create_task(g.chat())
        await asyncio.sleep(1)
        answers = [await g.chat() for _ in range(5)]
        assert {answer.field("X-Gateway-Provider") for answer in answers} == {"b"}
        assert {answer.field("X-Gateway-Attempts") for answer in answers} == {"1"}
        assert (await probe).status == 504
        assert len(a.requests) == 2


async def test_half_open_is_tried_again_however_often_the_probe_hangs() -> None:
    async with breakers.tripped(*[silent()] * 4, ok(), clocks=PATIENT) as (g, _):
        codes = [(await g.chat()).status for _ in range(5)]
        assert codes == [504] * 4 + [200]
