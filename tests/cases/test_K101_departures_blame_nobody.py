"""K101: clients that went away were booked as failures of their provider, and opened its breaker.

https://github.com/diegosouzapw/OmniRoute/issues/7907
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support import breakers
from tests.support.builders import PING, chat, delta, role
from tests.support.client import RawClient, post
from tests.support.gateway import CHAT
from tests.support.provider import Script
from tests.support.scripts import events, ok, silent

CLIENTS = 20

LEAVES: dict[str, Callable[[RawClient], None]] = {
    "close": RawClient.close,
    "reset": RawClient.rst,
    "half-close": RawClient.half_close,
}

STREAM = events(delta("x"), delta("y"), end=False)


@pytest.mark.parametrize("leaves", LEAVES)
async def test_twenty_that_leave_in_the_stream_change_nothing(leaves: str) -> None:
    async with breakers.relay(STREAM) as (g, a):
        for _ in range(CLIENTS):
            async with g.client() as client:
                stream = await client.open_stream(CHAT, chat(stream=True))
                await stream.event()
                LEAVES[leaves](client)
                await asyncio.sleep(0.05)
        assert await breakers.state(g) == "closed"
        assert breakers.changes(g) == []
        assert [line["end_reason"] for line in g.exchanges] == ["client_left"] * CLIENTS
        a.scripts = [ok()]
        answer = await g.chat()
        assert (answer.status, answer.field("X-Gateway-Attempts")) == (200, "1")


@pytest.mark.parametrize(
    "script", [silent(), events(role(), PING, end=False)], ids=["silent", "no content"]
)
async def test_neither_do_twenty_that_leave_before_the_first_token(script: Script) -> None:
    async with breakers.relay(script) as (g, a):
        clients = [g.client() for _ in range(CLIENTS)]
        for client in clients:
            await client.connect()
            await client.send(post(CHAT, chat(stream=True)))
        await asyncio.sleep(1)
        for client in clients:
            client.rst()
        await asyncio.sleep(0.1)
        assert await breakers.state(g) == "closed"
        lines = g.exchanges
        assert {(line["status"], line["ended_by"]) for line in lines} == {(499, "client")}
        assert {line["attempts"][0]["outcome"] for line in lines} == {"client_left"}
        a.scripts = [ok()]
        assert (await g.chat()).status == 200


async def test_nor_does_one_that_stops_reading() -> None:
    flood = events(*[delta("x" * 60_000)] * 200, end=False)
    async with breakers.relay(flood, server={"write_timeout": 5}) as (g, _):
        async with g.client() as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(post(CHAT, chat(stream=True)))
            await asyncio.sleep(10)
        assert await breakers.state(g) == "closed"
        assert g.exchange["end_reason"] == "client_stalled"


@pytest.mark.parametrize("clock", ["first_content", "answer"])
async def test_a_silent_provider_is_a_failure_once_its_clock_ran_out(clock: str) -> None:
    streams = clock == "first_content"
    async with breakers.relay(silent(), clocks={clock: 3.0}) as (g, _):
        assert (await g.chat(stream=streams)).status == 502
        assert await breakers.state(g) == "open"


async def test_the_deadline_of_the_whole_exchange_blames_nobody() -> None:
    """It is the client's limit, not the provider's: what was asked last may have had no time."""
    async with breakers.relay(silent(), clocks={"deadline": 3.0}) as (g, _):
        assert (await g.chat()).status == 504
        assert await breakers.state(g) == "closed"
