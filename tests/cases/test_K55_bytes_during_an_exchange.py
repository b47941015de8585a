"""K55: looking for a departure by reading a byte ate the first byte of the next request.

https://github.com/metabase/metabase/pull/49773
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.builders import chat
from tests.support.client import post, request
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok, ok_json, ok_stream, silent
from tests.support.wire import Ended

NEXT = post(CHAT, chat("next"))


@pytest.mark.parametrize("size", [0, 1, 7], ids=["at once", "byte by byte", "in sevens"])
async def test_the_bytes_of_the_next_request_are_served_after_the_stream(size: int) -> None:
    async with (
        ScriptedProvider(ok_stream("a", "b", "c", delay=1.0), ok_json("second")) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        stream = await client.open_stream(CHAT, chat(stream=True))
        await stream.event()
        await client.send(NEXT, size=size)
        await stream.read()
        assert stream.whole
        assert b"second" in (await client.response("POST")).body
        assert [r.json()["messages"][0]["content"] for r in a.requests] == ["hi", "next"]


async def test_half_of_a_request_may_come_during_one_and_half_after_it() -> None:
    async with (
        ScriptedProvider(ok_stream("a", "b", delay=1.0), ok_json("second")) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        stream = await client.open_stream(CHAT, chat(stream=True))
        await client.send(NEXT[:40])
        await stream.read()
        await asyncio.sleep(5.0)
        await client.send(NEXT[40:])
        assert b"second" in (await client.response("POST")).body


@pytest.mark.parametrize("extra", [b"", b"GET /healthz HTTP/1.1\r\n", NEXT])
@pytest.mark.parametrize("streams", [True, False], ids=["while streaming", "before the commit"])
async def test_a_half_close_is_a_departure(extra: bytes, streams: bool) -> None:
    script = ok_stream("a", "b", "c", delay=5.0) if streams else silent()
    async with (
        ScriptedProvider(script) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        await client.send(post(CHAT, chat(stream=True)) + extra)
        await asyncio.sleep(2.0)
        client.half_close()
        await asyncio.sleep(1.0)
        assert a.open == 0
        assert len(a.requests) == 1
    assert g.exchange["end_reason"] == "client_left"
    assert g.exchange["ended_by"] == "client"
    assert g.exchange["attempts"][0]["outcome"] in ("ok", "client_left")


async def test_who_sends_more_than_a_head_may_hold_is_closed_after_the_answer() -> None:
    limit = 65_536
    async with (
        ScriptedProvider(ok_stream("a", "b", "c", delay=1.0)) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        stream = await client.open_stream(CHAT, chat(stream=True))
        await stream.event()
        for _ in range(40):
            await client.send(post(CHAT, chat("x" * 10_000)))
            await asyncio.sleep(0.01)
        await stream.read()
        assert stream.whole
        assert await client.ended() in (Ended.CLOSE, Ended.RESET)
        assert len(a.requests) == 1
    assert limit == g.app.config.server.max_head_bytes


async def test_who_sends_less_keeps_the_connection() -> None:
    async with (
        ScriptedProvider(ok_stream("a", "b", delay=1.0), ok()) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        stream = await client.open_stream(CHAT, chat(stream=True))
        await client.send(request("GET", "/healthz", fields={"X-Long": "a" * 60_000}))
        await stream.read()
        assert (await client.response()).body == b"ok\n"
