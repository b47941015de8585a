"""K43: the keep-alive timer of the first pipelined request ended the second one while it ran.

https://github.com/Kludex/uvicorn/pull/2243
"""

from __future__ import annotations

import pytest

from tests.support.builders import chat
from tests.support.client import post, request
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.loop import takes
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok_json, ok_stream, slow

IDLE = 5.0


@pytest.mark.parametrize("long", [6.0, 20.0, 59.0])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_both_are_answered_in_order(long: float, stream: bool) -> None:
    answer = ok_stream if stream else ok_json
    async with (
        ScriptedProvider(slow(0.2, answer("first")), slow(long, answer("second"))) as a,
        gateway(config_for(a, server={"idle_timeout": IDLE})) as g,
        g.client() as client,
    ):
        one = post(CHAT, chat("1", stream=stream))
        two = post(CHAT, chat("2", stream=stream))
        with takes(0.2 + long):
            await client.send(one + two)
            first = await client.response("POST")
            second = await client.response("POST")
        assert b"first" in first.body
        assert b"second" in second.body
        assert first.whole
        assert second.whole
        asked = [request.json()["messages"][0]["content"] for request in a.requests]
        assert asked == ["1", "2"]


async def test_the_timer_runs_from_the_last_answer_on() -> None:
    async with (
        ScriptedProvider(slow(0.2, ok_json()), slow(20.0, ok_json())) as a,
        gateway(config_for(a, server={"idle_timeout": IDLE})) as g,
        g.client() as client,
    ):
        await client.send(post(CHAT, chat()) + post(CHAT, chat()))
        await client.response("POST")
        await client.response("POST")
        with takes(IDLE):
            await client.ended()


async def test_a_dozen_in_one_segment_are_answered_in_order() -> None:
    async with (
        ScriptedProvider(*(ok_json(str(n)) for n in range(12))) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        await client.send(
            b"".join(post(CHAT, chat()) + request("GET", "/healthz") for _ in "x" * 12)
        )
        for number in range(12):
            answer = await client.response("POST")
            assert answer.json()["choices"][0]["message"]["content"] == str(number)
            assert (await client.response()).body == b"ok\n"
