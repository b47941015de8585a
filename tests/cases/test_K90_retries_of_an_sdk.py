"""K90: the retries that an SDK makes by itself were charged as several turns.

https://github.com/Augustas11/macprovider/issues/762
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.support.gateway import Gateway, gateway
from tests.support.provider import Script, ScriptedProvider
from tests.support.scripts import ok, silent, status
from tests.support.turns import capped, left

CAP = 4
TRIES = 3
"""The first one and the SDK's default `max_retries` of 2."""

HI: list[Any] = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def relay(
    *scripts: Script, seconds: float = 600.0, **sections: Any
) -> AsyncIterator[tuple[Gateway, ScriptedProvider, openai.AsyncOpenAI]]:
    """relayd with a cap, and the SDK as its client, with a timeout of so many seconds."""
    async with ScriptedProvider(*scripts) as a, gateway(capped(a, cap=CAP, **sections)) as g:
        host, port = g.address
        url = f"http://{host}:{port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="unused", timeout=seconds) as client:
            yield g, a, client


async def ask(client: openai.AsyncOpenAI) -> Any:
    return await client.chat.completions.create(model="m", messages=HI)


async def test_where_every_provider_fails_no_try_is_charged() -> None:
    async with relay(status(503)) as (g, a, client):
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(client)
        assert caught.value.status_code == 502
        assert len(a.requests) == len(g.exchanges) == TRIES
        assert [line["turn"] for line in g.exchanges] == ["refunded"] * TRIES
        a.scripts = [ok()]
        assert await left(g) == CAP


async def test_a_retry_that_succeeds_is_the_one_turn() -> None:
    async with relay(status(503), status(503), ok("hello")) as (g, _, client):
        answer = await ask(client)
        assert answer.choices[0].message.content == "hello"
        assert [line["turn"] for line in g.exchanges] == ["refunded", "refunded", "charged"]
        assert await left(g) == CAP - 1


async def test_a_client_that_gives_up_too_early_pays_for_each_try() -> None:
    """Or a cancel before the first token would be free; its timeout should exceed relayd's."""
    async with relay(silent(), seconds=5.0) as (g, a, client):
        with pytest.raises(openai.APITimeoutError):
            await ask(client)
        await asyncio.sleep(0.1)  # relayd has seen it leave
        assert len(a.requests) == TRIES
        assert [line["turn"] for line in g.exchanges] == ["charged"] * TRIES
        a.scripts = [ok()]
        assert await left(g) == CAP - TRIES


async def test_a_used_up_cap_is_not_tried_again() -> None:
    async with relay(ok()) as (g, a, client):
        assert await left(g) == CAP
        with pytest.raises(openai.RateLimitError):
            await ask(client)
        assert len(g.exchanges) == CAP + 2
        assert len(a.requests) == CAP
