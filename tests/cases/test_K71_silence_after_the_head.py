"""K71: the deadline covered the response head; it came at once, and no first token ever did.

https://github.com/jferreiros/vortex/pull/198
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.builders import PING, messages_event, role
from tests.support.gateway import config_for, gateway
from tests.support.loop import takes
from tests.support.provider import Peer, Request, ScriptedProvider

FIRST = 1.0
NOTHING_YET = {
    "nothing": b"",
    "a ping": PING,
    "a role": role(),
    "a blank line": b"\n",
    "half an event": b'data: {"choices":[{"delta":{"content":"x"',
    "an event with no choices": b'data: {"choices":[]}\n\n',
}

each_nothing = pytest.mark.parametrize("sent", NOTHING_YET.values(), ids=NOTHING_YET)


def begins(sent: bytes) -> scripts.Script:
    async def script(peer: Peer, _: Request) -> None:
        await peer.stream_head()
        if sent:
            await peer.chunk(sent)
        await peer.stall()

    return script


@each_nothing
async def test_the_clock_runs_until_the_first_content_and_then_another_one_answers(
    sent: bytes,
) -> None:
    async with (
        ScriptedProvider(begins(sent), name="a") as a,
        ScriptedProvider(scripts.ok("hello"), name="b") as b,
        gateway(config_for(a, b, clocks={"first_content": FIRST})) as g,
    ):
        with takes(FIRST):
            answer = await g.chat("hi", stream=True)
        assert a.open == 0, "expected the silent connection to be closed"
    assert answer.field("X-Gateway-Provider") == "b"
    assert b"hello" in answer.body
    assert g.exchange["attempts"][0]["outcome"] == "first_content_timeout"


async def test_pings_that_keep_coming_do_not_move_the_clock() -> None:
    async def pings(peer: Peer, _: Request) -> None:
        await peer.sse(*[PING] * 30, delay=0.1, end=False)
        await peer.stall()

    async with (
        ScriptedProvider(pings, name="a") as a,
        ScriptedProvider(scripts.ok("hello"), name="b") as b,
        gateway(config_for(a, b, clocks={"first_content": FIRST})) as g,
    ):
        with takes(FIRST):
            answer = await g.chat("hi", stream=True)
    assert answer.field("X-Gateway-Provider") == "b"


async def test_an_answer_that_must_be_whole_is_bounded_by_its_own_clock() -> None:
    async def head_only(peer: Peer, _: Request) -> None:
        await peer.head(200, [("Content-Type", "application/json"), ("Content-Length", "100")])
        await peer.stall()

    clocks = {"first_content": 1, "answer": 20}
    async with (
        ScriptedProvider(head_only, name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b, clocks=clocks)) as g,
    ):
        with takes(20):
            answer = await g.chat("hi")
    assert answer.field("X-Gateway-Provider") == "b"
    assert g.exchange["attempts"][0]["outcome"] == "answer_timeout"


async def test_lifecycle_events_of_the_messages_surface_are_no_content() -> None:
    begun = messages_event("message_start", message={"role": "assistant", "content": []})
    async with (
        ScriptedProvider(begins(begun), name="a", surfaces=["messages"]) as a,
        ScriptedProvider(
            scripts.events(messages_event("message_stop")), name="b", surfaces=["messages"]
        ) as b,
        gateway(config_for(a, b, clocks={"first_content": FIRST})) as g,
    ):
        with takes(FIRST):
            await g.post(
                "/v1/messages",
                {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]},
            )
        assert len(b.requests) == 1


async def test_where_nobody_else_is_left_it_is_an_error_answer() -> None:
    async with (
        ScriptedProvider(begins(PING)) as a,
        gateway(config_for(a, clocks={"first_content": FIRST})) as g,
    ):
        with takes(FIRST):
            answer = await g.chat("hi", stream=True)
    assert answer.status == 502
    assert answer.error["code"] == "upstream_error"
