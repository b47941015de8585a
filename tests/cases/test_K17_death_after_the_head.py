"""K17: the provider died after its 200, and the client took the cut stream for a finished one.

https://github.com/open-webui/open-webui/issues/29628
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support import scripts
from tests.support.builders import chat, delta
from tests.support.client import post
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import Peer, Request, Script, ScriptedProvider
from tests.support.wire import Ended

IDLE = 7.0
EVENTS = [delta("a"), delta("b")]
DEATHS = {
    "reset": ("rst", "upstream_truncated"),
    "FIN without the last chunk": ("fin", "upstream_truncated"),
    "silence": ("stall", "upstream_stalled"),
}

each_death = pytest.mark.parametrize(("then", "code"), DEATHS.values(), ids=DEATHS)


def dies(*events: bytes, then: str) -> Script:
    """Lets each event arrive before the next one, and then ends as it is told."""

    async def script(peer: Peer, request: Request) -> None:
        await peer.stream_head()
        for event in events:
            await peer.chunk(event)
            await asyncio.sleep(0.1)
        await getattr(peer, then)()

    return script


@each_death
async def test_between_two_events_one_error_event_says_so(then: str, code: str) -> None:
    async with (
        ScriptedProvider(dies(*EVENTS, then=then), name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b, clocks={"idle": IDLE})) as g,
        g.client() as client,
    ):
        answer = await client.open_stream(CHAT, chat(stream=True))
        events = await answer.events()
        assert b.requests == []
    assert [event.raw for event in events[:-1]] == EVENTS
    error = events[-1].json()["error"]
    assert error["code"] == code
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.ended is Ended.CHUNKS
    assert answer.unfinished == b""
    assert b"[DONE]" not in answer.body
    assert g.exchange["end_reason"] == code
    assert g.exchange["ended_by"] == "provider"


@each_death
async def test_inside_an_event_the_body_is_cut(then: str, code: str) -> None:
    half = delta("b")[:20]
    async with (
        ScriptedProvider(dies(delta("a"), half, then=then)) as a,
        gateway(config_for(a, clocks={"idle": IDLE})) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.body == delta("a") + half
    assert answer.ended is Ended.CUT
    assert g.exchange["end_reason"] == code


@each_death
async def test_it_counts_for_the_breaker(then: str, code: str) -> None:
    async with (
        ScriptedProvider(dies(*EVENTS, then=then)) as a,
        gateway(config_for(a, clocks={"idle": IDLE}, breaker={"failures": 1})) as g,
    ):
        assert (await g.chat("hi", stream=True)).status == 200
        assert (await g.chat("hi", stream=True)).status == 503


@each_death
async def test_an_http_1_0_client_is_reset(then: str, code: str) -> None:
    half = delta("b")[:20]
    async with (
        ScriptedProvider(dies(delta("a"), half, then=then)) as a,
        gateway(config_for(a, clocks={"idle": IDLE})) as g,
        g.client() as client,
    ):
        await client.send(post(CHAT, chat(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        answer = await (await client.head("POST")).read()
    assert answer.field("Transfer-Encoding") is None
    assert answer.ended is Ended.RESET
