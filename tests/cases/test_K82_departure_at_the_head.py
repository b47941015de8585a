"""K82: a client gone between the provider's head and its first byte left the upstream stream open;
the pool ran full and all later calls were 502.

https://github.com/headroomlabs-ai/headroom/pull/2882
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.builders import chat
from tests.support.client import post
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import Peer, Request, ScriptedProvider
from tests.support.scripts import ok

LIMIT = 4
CLIENTS = 50


@pytest.mark.parametrize("commit", ["content", "head", "answer"])
async def test_its_place_and_its_connection_come_back(commit: str) -> None:
    has_sent_its_head = asyncio.Semaphore(0)

    async def head_then_nothing(peer: Peer, request: Request) -> None:
        if request.json()["messages"][0]["content"] == "normal":
            await ok("hello")(peer, request)
            return
        await peer.stream_head()
        has_sent_its_head.release()
        await peer.stall()

    async with (
        ScriptedProvider(head_then_nothing, max_in_flight=LIMIT) as a,
        gateway(config_for(a, routing={"commit": commit})) as g,
    ):
        for _ in range(CLIENTS):
            async with g.client() as client:
                await client.send(post(CHAT, chat("leaves", stream=True)))
                await has_sent_its_head.acquire()
                client.rst()
            await asyncio.sleep(0.1)
        assert a.open == 0
        assert sum(g.app.engine.in_flight.values()) == 0
        answer = await g.chat("normal", stream=True)
    assert answer.status == 200
    assert b"hello" in answer.body
    assert len(g.exchanges) == CLIENTS + 1
    assert all(line["ended_by"] == "client" for line in g.exchanges[:-1])


async def test_many_at_once_give_their_places_back_too() -> None:
    async def head_then_nothing(peer: Peer, request: Request) -> None:
        if request.json()["messages"][0]["content"] == "normal":
            await ok("hello")(peer, request)
            return
        await peer.stream_head()
        await peer.stall()

    async with (
        ScriptedProvider(head_then_nothing, max_in_flight=LIMIT) as a,
        gateway(config_for(a)) as g,
    ):
        clients = [g.client() for _ in range(LIMIT + 2)]
        for client in clients:
            await client.connect()
            await client.send(post(CHAT, chat("leaves", stream=True)))
        await asyncio.sleep(1)
        refused = [await client.response("POST") for client in clients[LIMIT:]]
        assert [answer.status for answer in refused] == [503, 503]
        for client in clients:
            await client.__aexit__()
        await asyncio.sleep(1)
        answer = await g.chat("normal")
    assert answer.status == 200
