"""K72: the idle timeout of a stream also held for its first token, and reasoning models died.

https://github.com/BlockRunAI/Franklin/issues/74
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support import scripts
from tests.support.builders import PING, delta, role, stream
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.loop import takes
from tests.support.provider import Peer, Request, ScriptedProvider

CLOCKS = {"first_content": 5, "idle": 1}


def thinks(seconds: float, *before: bytes, gap: float = 0.2) -> scripts.Script:
    """A stream whose head comes at once and whose content begins after `seconds`."""

    async def script(peer: Peer, _: Request) -> None:
        await peer.stream_head()
        for event in before:
            await peer.chunk(event)
        await asyncio.sleep(seconds)
        for event in stream("hello", "world"):
            await peer.chunk(event)
            await asyncio.sleep(gap)
        await peer.last_chunk()

    return script


@pytest.mark.parametrize("before", [(), (PING,), (role(),)], ids=["silence", "ping", "role"])
@pytest.mark.parametrize("commit", ["content", "answer"])
async def test_a_first_token_may_take_longer_than_a_gap_may(
    before: tuple[bytes, ...], commit: str
) -> None:
    async with (
        ScriptedProvider(thinks(3, *before)) as a,
        gateway(config_for(a, clocks=CLOCKS, routing={"commit": commit})) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.whole
    assert answer.body == b"".join([*before, *stream("hello", "world")])
    assert g.exchange["end_reason"] == "complete"


async def test_after_the_first_content_the_idle_clock_holds() -> None:
    stops = scripts.breaks_off(role(), delta("hello"), then="stall")
    async with (
        ScriptedProvider(stops) as a,
        gateway(config_for(a, clocks=CLOCKS)) as g,
    ):
        with takes(1):
            answer = await g.chat("hi", stream=True)
    assert b'"code":"upstream_stalled"' in answer.body
    assert b"[DONE]" not in answer.body


async def test_with_the_head_as_commit_the_first_token_keeps_no_shorter_clock() -> None:
    # "head" promises nothing about the first token: what bounds it is the idle clock of a stream
    # whose content has begun, and until then the deadline.
    async with (
        ScriptedProvider(thinks(3)) as a,
        gateway(config_for(a, clocks=CLOCKS, routing={"commit": "head"})) as g,
        g.client() as client,
    ):
        with takes(0):
            answer = await client.open_stream(CHAT, {"model": "m", "stream": True, "messages": [1]})
        await answer.read()
    assert answer.whole
    assert answer.body == b"".join(stream("hello", "world"))
