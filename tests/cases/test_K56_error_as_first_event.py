"""K56: a 200 whose first event is an error was passed on as a success, and nobody took over.

https://github.com/musistudio/claude-code-router/pull/1759
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.builders import (
    DONE,
    PING,
    chat,
    error_event,
    messages,
    messages_stream,
    role,
)
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.loop import takes
from tests.support.provider import Peer, Request, ScriptedProvider

OVERLOADED = b'data: {"type":"error","error":{"type":"overloaded_error","message":"x"}}\n\n'
BEGINNINGS = {
    "after a ping, named": PING + b"event: error\n" + OVERLOADED,
    "without a name": OVERLOADED,
    "a number as its code": b'data: {"error":{"message":"x","code":429}}\n\n',
    "after a byte order mark": b"\xef\xbb\xbf" + OVERLOADED,
    "after blank lines": b"\n\n\r\n" + OVERLOADED,
    "after a role": role() + error_event("x"),
    "before the end marker": error_event("x") + DONE,
    "with line ends of CR LF": PING + OVERLOADED.replace(b"\n", b"\r\n"),
    "a name alone": b'event: error\ndata: {"message":"x"}\n\n',
}

each_beginning = pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)


@each_beginning
@pytest.mark.parametrize("end", [True, False], ids=["ended", "left open"])
async def test_the_next_provider_answers_and_nothing_of_the_first_one_shows(
    beginning: bytes, end: bool
) -> None:
    async with (
        ScriptedProvider(scripts.events(beginning, end=end), name="a") as a,
        ScriptedProvider(scripts.ok_stream("hello"), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi", stream=True)
        assert [len(a.requests), len(b.requests)] == [1, 1]
    assert answer.status == 200
    assert answer.whole
    assert b"hello" in answer.body
    assert b"error" not in answer.body
    assert not answer.body.startswith((b":", b"\xef"))
    assert g.exchange["attempts"][0]["outcome"] == "error_answer"


@each_beginning
async def test_without_another_provider_it_is_an_error_answer_and_no_stream(
    beginning: bytes,
) -> None:
    async with (
        ScriptedProvider(scripts.events(beginning)) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.status == 502
    assert answer.field("Content-Type") == "application/json"
    assert answer.error["code"] == "upstream_error"


async def test_the_beginning_is_judged_however_it_is_cut() -> None:
    beginning = BEGINNINGS["after a ping, named"]
    dripping = scripts.raw(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + beginning,
        size=1,
        then="fin",
    )
    async with (
        ScriptedProvider(dripping, name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.field("X-Gateway-Provider") == "b"


async def test_an_error_first_on_the_messages_surface_fails_over_too() -> None:
    surfaces = ["messages"]
    fails = scripts.events(PING, b"event: error\n" + OVERLOADED)
    works = scripts.events(*messages_stream("hello"))
    async with (
        ScriptedProvider(fails, name="a", surfaces=surfaces) as a,
        ScriptedProvider(works, name="b", surfaces=surfaces) as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.post("/v1/messages", messages(stream=True))
    assert answer.field("X-Gateway-Provider") == "b"
    assert b"overloaded" not in answer.body
    assert answer.whole


async def test_no_byte_of_the_status_line_goes_out_before_the_judgement() -> None:
    # The ping is there at once, the error comes after 5 s: until then the client has nothing.
    async def late(peer: Peer, _: Request) -> None:
        await peer.sse(PING, error_event("x"), delay=5.0)

    async with (
        ScriptedProvider(late, name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
        g.client() as client,
    ):
        with takes(5):
            answer = await client.open_stream(CHAT, chat(stream=True))
    assert answer.field("X-Gateway-Provider") == "b"
