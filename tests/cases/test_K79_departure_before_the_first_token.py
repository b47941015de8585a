"""K79: a client that left while waiting for the first token was not noticed.

https://github.com/BerriAI/litellm/pull/31499
There is no queue in relayd that a client could leave: a full provider is no candidate.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.support import scripts
from tests.support.builders import PING, chat, role
from tests.support.client import RawClient, post
from tests.support.gateway import CHAT, Gateway, config_for, gateway
from tests.support.provider import Peer, Request, ScriptedProvider

POLICY = {"breaker": {"failures": 1}, "failover": {"retries": 1}}

LEAVES: dict[str, Callable[[RawClient], None]] = {
    "FIN": RawClient.close,
    "RST": RawClient.rst,
    "half-close": RawClient.half_close,
}

each_way = pytest.mark.parametrize("leave", LEAVES.values(), ids=LEAVES)


async def head_only(peer: Peer, _: Request) -> None:
    await peer.stream_head()
    await peer.stall()


WINDOWS = {
    "waiting for the head": scripts.silent(),
    "waiting for the first byte": head_only,
    "in the peek": scripts.events(PING, role(), end=False),
    "in a backoff": scripts.status(429, fields=[("Retry-After", "30"), ("Connection", "close")]),
}


async def leave_after_a_second(g: Gateway, leave: Callable[[RawClient], None]) -> None:
    """Ask, wait until relayd waits, leave, and give relayd a second to notice."""
    async with g.client() as client:
        await client.send(post(CHAT, chat(stream=True)))
        await asyncio.sleep(1)
        leave(client)
        await asyncio.sleep(1)
        assert g.exchange["status"] == 499
        assert g.exchange["ended_by"] == "client"
        assert g.exchange["end_reason"] == "client_left"
        assert g.app.engine.running == 0


@each_way
@pytest.mark.parametrize("script", WINDOWS.values(), ids=WINDOWS)
async def test_the_attempt_ends_within_a_second_and_nobody_else_is_asked(
    script: scripts.Script, leave: Callable[[RawClient], None]
) -> None:
    async with (
        ScriptedProvider(script, name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b, **POLICY)) as g,
    ):
        await leave_after_a_second(g, leave)
        assert a.open == 0
        assert [len(a.requests), len(b.requests)] == [1, 0]


@asynccontextmanager
async def never_connects() -> AsyncIterator[dict[str, str]]:
    with scripts.blackhole() as (host, port):
        yield {"name": "a", "base_url": f"http://{host}:{port}/v1"}


@asynccontextmanager
async def never_shakes_hands() -> AsyncIterator[dict[str, str]]:
    async def silent(peer: Peer) -> None:
        await peer.stall()

    async with ScriptedProvider(name="a", connection=silent) as a:
        yield {"name": "a", "base_url": a.base_url.replace("http:", "https:")}
        assert a.connections == 1
        assert a.open == 0


@each_way
@pytest.mark.parametrize("hangs", [never_connects, never_shakes_hands])
async def test_so_does_a_connect(
    hangs: Callable[[], AsyncIterator[dict[str, str]]], leave: Callable[[RawClient], None]
) -> None:
    async with AsyncExitStack() as stack:
        table = await stack.enter_async_context(hangs())  # type: ignore[arg-type]
        b = await stack.enter_async_context(ScriptedProvider(scripts.ok(), name="b"))
        g = await stack.enter_async_context(gateway(config_for(table, b, **POLICY)))
        await leave_after_a_second(g, leave)
        assert not b.requests


async def test_no_breaker_is_blamed() -> None:
    async with (
        ScriptedProvider(scripts.silent(), scripts.ok(), name="a") as a,
        gateway(config_for(a, **POLICY)) as g,
    ):
        await leave_after_a_second(g, RawClient.rst)
        assert (await g.chat("hi")).status == 200


async def test_the_turn_is_charged_once_a_provider_was_asked() -> None:
    async with (
        ScriptedProvider(scripts.silent(), name="a") as a,
        gateway(config_for(a, quota={"daily_turns": 1})) as g,
    ):
        await leave_after_a_second(g, RawClient.close)
    assert g.exchange["turn"] == "charged"


async def test_a_half_open_probe_gives_its_place_back() -> None:
    breaker = {"failures": 1, "cooldown": 10}
    async with (
        ScriptedProvider(scripts.status(500), scripts.silent(), scripts.ok(), name="a") as a,
        gateway(config_for(a, breaker=breaker)) as g,
    ):
        await g.chat("hi")
        await asyncio.sleep(11)
        async with g.client() as client:
            await client.send(post(CHAT, chat()))
            await asyncio.sleep(1)
        await asyncio.sleep(1)
        assert (await g.chat("hi")).status == 200


async def test_bytes_after_the_request_are_no_departure() -> None:
    async with (
        ScriptedProvider(scripts.slow(5, scripts.ok("one")), scripts.ok("two")) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        await client.send(post(CHAT, chat("first")) + post(CHAT, chat("second")))
        answers = [await client.response("POST"), await client.response("POST")]
    assert ["one" in answers[0].text, "two" in answers[1].text] == [True, True]
