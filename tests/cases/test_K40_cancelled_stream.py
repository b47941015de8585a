"""K40: the connection of a cancelled stream went back to the pool half-read.

https://github.com/http4s/http4s-netty/pull/999
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.builders import chat, delta
from tests.support.client import post
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import Peer, Request, ScriptedProvider
from tests.support.scripts import ok


async def goes_on(peer: Peer, _: Request) -> None:
    await peer.stream_head()
    for number in range(1000):
        await peer.chunk(delta(str(number)))
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("leave", ["close", "rst", "half_close"])
@pytest.mark.parametrize("events", [0, 1, 2])
async def test_the_next_request_gets_its_own_answer(leave: str, events: int) -> None:
    async with (
        ScriptedProvider(goes_on, ok("yours")) as a,
        gateway(config_for(a)) as g,
    ):
        async with g.client() as client:
            answer = await client.open_stream(CHAT, chat(stream=True))
            for _ in range(events):
                await answer.event()
            getattr(client, leave)()
            await asyncio.sleep(0.01)
            second = await g.chat("hi")
        assert [request.connection for request in a.requests] == [0, 1]
        await asyncio.sleep(1.0)
        assert a.seen.peers[0].left_at is not None
    assert second.status == 200
    assert b"yours" in second.body
    left = [line for line in g.exchanges if line["end_reason"] == "client_left"]
    assert len(left) == 1


@pytest.mark.parametrize("leave", ["close", "rst", "half_close"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_so_it_is_before_the_commit(leave: str, stream: bool) -> None:
    async def silent(peer: Peer, _: Request) -> None:
        await peer.stall()

    async with ScriptedProvider(silent, ok("yours")) as a, gateway(config_for(a)) as g:
        async with g.client() as client:
            await client.send(post(CHAT, chat(stream=stream)))
            await asyncio.sleep(0.5)
            getattr(client, leave)()
            await asyncio.sleep(0.01)
            second = await g.chat("hi")
        await asyncio.sleep(1.0)
        assert a.seen.peers[0].left_at is not None
        assert [request.connection for request in a.requests] == [0, 1]
    assert b"yours" in second.body
    assert [line["status"] for line in g.exchanges] == [499, 200]
