"""K41: a pooled connection that the provider had closed gave the user a 500.

https://github.com/open-webui/terminals/issues/24
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.builders import completion
from tests.support.gateway import config_for, gateway
from tests.support.provider import Peer, ScriptedProvider

WAYS = ["FIN while idle", "FIN after the request", "RST after the request", "RST on its first byte"]


class Stale:
    """A provider whose first connection serves one request and then ends in one of the ways."""

    def __init__(self, way: str, ends: int = 1) -> None:
        self.way = way
        self.ends = ends
        self.served = 0

    async def __call__(self, peer: Peer) -> None:
        while await self.read(peer):
            self.served += 1
            await peer.json(200, completion(f"answer {self.served}"))
            if peer.number < self.ends:
                await self.end(peer)
                return

    async def read(self, peer: Peer) -> bool:
        return await peer.read_request() is not None

    async def end(self, peer: Peer) -> None:
        if self.way == "FIN while idle":
            await asyncio.sleep(1.0)
            await peer.fin()
        elif self.way == "RST on its first byte":
            await peer.reader.readexactly(1)
            await peer.rst()
        else:
            await peer.read_request()
            await (peer.fin() if self.way.startswith("FIN") else peer.rst())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_it_is_asked_once_more_at_no_cost(way: str, stream: bool) -> None:
    provider = Stale(way)
    async with (
        ScriptedProvider(name="a", connection=provider) as a,
        gateway(config_for(a, breaker={"failures": 1}, quota={"daily_turns": 2})) as g,
    ):
        for number in (1, 2):
            answer = await g.chat("hi", stream=stream)
            assert answer.status == 200
            assert f"answer {number}" in answer.text
            assert answer.field("X-Gateway-Attempts") == "1"
            await asyncio.sleep(2.0)
        assert a.connections == 2
    assert [len(line["attempts"]) for line in g.exchanges] == [1, 1]
    assert {line["turn"] for line in g.exchanges} == {"charged"}


async def test_a_fresh_connection_that_closes_is_a_failure() -> None:
    async def closes(peer: Peer) -> None:
        await peer.read_request()
        await peer.fin()

    async with ScriptedProvider(connection=closes) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
        assert a.connections == 1
    assert answer.status == 502
    assert g.exchange["attempts"][0]["outcome"] == "closed"


@pytest.mark.parametrize("then", ["fin", "rst"])
@pytest.mark.parametrize("begin", [b"H", b"HTTP/1.1 103 Early Hints\r\n\r\n"])
async def test_one_byte_of_an_answer_makes_it_a_failure_too(begin: bytes, then: str) -> None:
    async def half(peer: Peer) -> None:
        await peer.read_request()
        await peer.json(200, completion())
        await peer.read_request()
        await peer.send(begin)
        await asyncio.sleep(0.1)
        await getattr(peer, then)()

    async with ScriptedProvider(connection=half) as a, gateway(config_for(a)) as g:
        assert (await g.chat("hi")).status == 200
        answer = await g.chat("hi")
        assert a.connections == 1
    assert answer.status == 502


async def test_the_fresh_connection_has_no_second_try() -> None:
    served = 0

    async def script(peer: Peer) -> None:
        nonlocal served
        while await peer.read_request() and not served:
            served += 1
            await peer.json(200, completion())
        await peer.fin()

    async with ScriptedProvider(connection=script) as a, gateway(config_for(a)) as g:
        assert (await g.chat("hi")).status == 200
        answer = await g.chat("hi")
        assert a.connections == 2
    assert answer.status == 502
    assert answer.field("X-Gateway-Attempts") == "1"
