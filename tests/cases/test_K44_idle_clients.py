"""K44: idle connections were closed before the balancer did, and requests met a closing socket.

https://github.com/growthbook/growthbook-proxy/pull/135
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.support.client import RawClient, Response, request
from tests.support.gateway import Gateway, config_for, gateway
from tests.support.loop import elapsed, takes
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok, slow
from tests.support.wire import Ended

NGINX = 60.0
"""nginx's keepalive_timeout towards its upstream (s)."""


async def test_the_idle_timeout_is_longer_than_nginx_s_own() -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        assert (await client.get("/healthz")).status == 200
        with takes(75.0):
            assert await client.ended() is Ended.CLOSE
    assert g.app.config.server.idle_timeout > NGINX


async def test_around_the_timeout_a_request_is_answered_or_finds_the_connection_closed() -> None:
    offsets = [(number - 100) / 20_000 for number in range(200)]  # -5 ms … +5 ms
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g:
        answered = await asyncio.gather(*(is_answered(g, offset) for offset in offsets))
    assert sum(answered) >= 99


async def is_answered(g: Gateway, offset: float) -> bool:
    """Whether a second request is answered so long before or after the timeout."""
    async with g.client() as client:
        await client.get("/healthz")
        await asyncio.sleep(75.0 + offset)
        try:
            answer = await client.get("/healthz")
        except (EOFError, ConnectionError):
            assert offset >= -0.0002
            return False
        assert answer.body == b"ok\n"
        return True


@pytest.mark.parametrize("beginning", [b"G", request("GET", "/healthz")[:-1]])
async def test_a_request_that_has_begun_is_not_closed_on(beginning: bytes) -> None:
    whole = request("GET", "/healthz")
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.get("/healthz")
        await asyncio.sleep(74.9)
        await client.send(beginning)
        await asyncio.sleep(9.0)
        await client.send(whole[len(beginning) :])
        assert (await client.response()).body == b"ok\n"


@pytest.mark.parametrize("asked", [0, 1], ids=["fresh", "kept alive"])
async def test_a_drain_closes_idle_connections_at_once(asked: int) -> None:
    async with AsyncExitStack() as stack, ScriptedProvider(ok()) as a:
        async with gateway(config_for(a), drain=30.0) as g:
            client = await stack.enter_async_context(g.client())
            for _ in range(asked):
                await client.get("/healthz")
            await asyncio.sleep(1.0)
            began = elapsed()
        assert elapsed() - began < 0.1
        assert await client.ended() is Ended.CLOSE


async def test_while_an_exchange_still_runs_it_answers_them_once_more() -> None:
    async with ScriptedProvider(slow(20.0, ok())) as a, AsyncExitStack() as stack:
        async with gateway(config_for(a), drain=30.0) as g:
            running = asyncio.create_task(g.chat("hi"))
            client = await stack.enter_async_context(g.client())
            await client.get("/healthz")
            await asyncio.sleep(1.0)
            draining = asyncio.create_task(g.app.stop(30.0))
            await asyncio.sleep(5.0)
            answer = await client.get("/healthz")
            assert (answer.status, answer.field("Connection")) == (200, "close")
            assert await client.ended() is Ended.CLOSE
            assert not draining.done()
            await draining
        assert (await running).status == 200


async def test_a_connection_that_was_never_used_may_still_bring_its_first_request() -> None:
    # A client that has just connected is about to ask: closing would look like a failure to it.
    async with ScriptedProvider(slow(20.0, ok())) as a, AsyncExitStack() as stack:
        async with gateway(config_for(a), drain=30.0) as g:
            running = asyncio.create_task(g.chat("hi"))
            client = await stack.enter_async_context(g.client())
            await asyncio.sleep(1.0)
            asking = asyncio.create_task(asks_later(client))
        assert (await running).status == 200
        answer = await asking
    assert answer.body == b"ok\n"
    assert answer.field("Connection") == "close"


async def asks_later(client: RawClient) -> Response:
    await asyncio.sleep(5.0)
    return await client.get("/healthz")
