"""K120: a response was not released when reading stopped before its end: leaked sockets, and log
lines with the proxy's password in them.

https://github.com/Soju06/codex-lb/pull/2045
"""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.support import leaks, scripts
from tests.support.builders import DONE, chat, delta, finish, messages, messages_stream
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.loop import takes
from tests.support.provider import ScriptedProvider

TIMES = 300
KEY = "sk-the-key-of-relayd-0001"

HOLDS_OPEN = scripts.events(delta("hello"), finish(), DONE, end=False)


async def test_many_of_them_leave_no_socket_and_no_word_of_the_key() -> None:
    async with (
        ScriptedProvider(HOLDS_OPEN, key_env="KEY", query={"api-version": KEY}) as a,
        gateway(config_for(a, log={"level": "debug"}), environ={"KEY": KEY}) as g,
    ):
        async with leaks.nothing_left():
            for _ in range(TIMES):
                answer = await g.chat("hi", stream=True)
                assert answer.whole
                assert answer.body.endswith(DONE)
            await asyncio.sleep(1)
            assert a.open == 0
        assert a.requests[0].field("Authorization") == f"Bearer {KEY}"
    assert [line["end_reason"] for line in g.exchanges] == ["complete"] * TIMES
    assert KEY not in json.dumps(g.log)


@pytest.mark.parametrize("commit", ["head", "content", "answer"])
async def test_the_body_ends_within_two_seconds_of_the_final_marker(commit: str) -> None:
    async with (
        ScriptedProvider(HOLDS_OPEN) as a,
        gateway(config_for(a, routing={"commit": commit})) as g,
    ):
        with takes(1, within=1.05):
            answer = await g.chat("hi", stream=True)
    assert answer.whole
    assert g.exchange["end_reason"] == "complete"


async def test_so_it_does_after_message_stop() -> None:
    holds_open = scripts.events(*messages_stream("hello"), end=False)
    async with (
        ScriptedProvider(holds_open, surfaces=["messages"]) as a,
        gateway(config_for(a)) as g,
    ):
        with takes(1, within=1.05):
            answer = await g.post("/v1/messages", messages(stream=True))
        assert a.open == 0
    assert answer.whole


async def test_after_a_finish_reason_alone_silence_for_idle_is_the_end() -> None:
    holds_open = scripts.events(delta("hello"), finish(), end=False)
    async with (
        ScriptedProvider(holds_open) as a,
        gateway(config_for(a, clocks={"idle": 7})) as g,
    ):
        with takes(7):
            answer = await g.chat("hi", stream=True)
        assert a.open == 0
    assert answer.whole
    assert b"error" not in answer.body


async def test_the_client_may_ask_again_on_the_same_connection_after_it() -> None:
    async with (
        ScriptedProvider(HOLDS_OPEN) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        for _ in range(3):
            answer = await client.post_json(CHAT, chat(stream=True))
            assert answer.whole
        assert a.connections == 3
