"""K114: a first chunk with empty `choices` (a content filter's preamble) was taken for the end.

https://github.com/AndraxDev/speak-gpt/pull/162
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.builders import DONE, chunk, delta, finish, role
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.loop import takes
from tests.support.provider import Peer, Request, ScriptedProvider

PREAMBLE = chunk([], prompt_filter_results=[{"prompt_index": 0, "content_filter_results": {}}])


@pytest.mark.parametrize("commit", ["head", "content", "answer"])
async def test_it_is_neither_an_error_nor_the_end(commit: str) -> None:
    events = [PREAMBLE, role(), delta("hello"), finish(), DONE]
    async with (
        ScriptedProvider(scripts.events(*events), name="a") as a,
        ScriptedProvider(scripts.ok("other"), name="b") as b,
        gateway(config_for(a, b, routing={"commit": commit})) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.field("X-Gateway-Provider") == "a"
    assert answer.body == b"".join(events)
    assert g.exchange["end_reason"] == "complete"


async def test_it_is_kept_until_the_first_content_and_then_both_go_out() -> None:
    async def script(peer: Peer, _: Request) -> None:
        await peer.sse(PREAMBLE, delta("hello"), finish(), DONE, delay=2.0)

    async with (
        ScriptedProvider(script) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        with takes(2):
            answer = await client.open_stream(
                CHAT, {"model": "m", "stream": True, "messages": [{"role": "user"}]}
            )
        assert [(await answer.event()).raw for _ in range(2)] == [  # type: ignore[union-attr]
            PREAMBLE,
            delta("hello"),
        ]


async def test_a_prompt_that_the_filter_stops_is_an_answer_too() -> None:
    events = [PREAMBLE, finish("content_filter"), DONE]
    async with (
        ScriptedProvider(scripts.events(*events), name="a") as a,
        ScriptedProvider(scripts.ok("other"), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.body == b"".join(events)
    assert g.exchange["finish_reason"] == "content_filter"
