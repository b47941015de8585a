"""K96: a probe that was cancelled, because its client left, kept the breaker half-open for ever.

https://github.com/BerriAI/litellm/pull/39701
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support import breakers
from tests.support.builders import chat, delta, role
from tests.support.client import RawClient, post
from tests.support.gateway import CHAT, Gateway
from tests.support.provider import Script
from tests.support.scripts import events, ok, silent

SOON = 0.05
"""Seconds after which the probe's client is gone."""

LEAVES: dict[str, Callable[[RawClient], None]] = {
    "a close": RawClient.close,
    "a reset": RawClient.rst,
    "a half-close": RawClient.half_close,
}

WAITS: dict[str, Script] = {
    "for the head": silent(),
    "for an event": events(end=False),
    "for content": events(role(), b": ping\n\n", end=False),
}


async def probe_and_leave(g: Gateway, leave: Callable[[RawClient], None]) -> None:
    async with g.client() as client:
        await client.send(post(CHAT, chat(stream=True)))
        await asyncio.sleep(SOON)
        leave(client)
        await asyncio.sleep(SOON)


@pytest.mark.parametrize("waits", WAITS)
@pytest.mark.parametrize("leaves", LEAVES)
async def test_its_place_is_free_and_nobody_is_blamed(leaves: str, waits: str) -> None:
    async with breakers.tripped(WAITS[waits], ok()) as (g, a):
        await probe_and_leave(g, LEAVES[leaves])
        assert await breakers.told(g) == {
            "name": "a",
            "state": "half-open",
            "since": pytest.approx(2 * SOON, abs=0.05),
            "retry_in": 0.0,
        }
        assert (await g.chat()).status == 200
        assert len(a.requests) == 3
        assert breakers.changes(g) == ["open", "half-open", "closed"]


async def test_a_hundred_that_leave_are_no_penalty() -> None:
    policy = {**breakers.TOUCHY, "cooldown_growth": 2.0}
    async with breakers.tripped(*[silent()] * 100, ok(), breaker=policy) as (g, a):
        for _ in range(100):
            await probe_and_leave(g, RawClient.close)
        assert len(a.requests) == 101, "expected the place to be free each time"
        assert await breakers.state(g) == "half-open"
        assert (await g.chat()).status == 200


async def test_one_that_leaves_after_the_commit_had_its_success() -> None:
    async with breakers.tripped(events(delta("x"), end=False), ok()) as (g, _):
        async with g.client() as client:
            await client.open_stream(CHAT, chat(stream=True))
            client.rst()
        await asyncio.sleep(SOON)
        assert await breakers.state(g) == "closed"
        assert [line["end_reason"] for line in g.exchanges][-1] == "client_left"
