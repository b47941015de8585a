"""Providers that mean harm, or answer as if they did.

What the answers of ordinary providers come to is `test_outcomes`' and `test_after_the_commit`'s.
"""

from __future__ import annotations

import asyncio

import pytest

from relayd.peek import MAX_PEEK
from tests.support.builders import DONE, delta, finish
from tests.support.gateway import config_for, gateway
from tests.support.provider import Peer, Request, ScriptedProvider
from tests.support.scripts import events, ok


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" "])
async def test_a_stream_behind_many_blanks_is_watched_like_any_other(blank: bytes) -> None:
    blanks = blank * MAX_PEEK
    cut = events(blanks, b"\n", delta("a"), delta("b"))
    whole = events(blanks, b"\n", delta("a"), finish(), DONE)
    async with ScriptedProvider(cut, whole) as a, gateway(config_for(a)) as g:
        answer = await g.chat(stream=True)
        assert '"code":"upstream_truncated"' in answer.text
        assert g.exchanges[-1]["end_reason"] == "upstream_truncated"
        assert (await g.chat(stream=True)).body.endswith(DONE)
        assert g.exchanges[-1]["end_reason"] == "complete"


async def test_nothing_but_blanks_is_never_a_complete_answer() -> None:
    async with ScriptedProvider(events(b"\n" * 2 * MAX_PEEK)) as a, gateway(config_for(a)) as g:
        await g.chat(stream=True)
        assert g.exchange["end_reason"] != "complete"


async def test_a_json_answer_that_ends_by_a_reset_is_not_whole_however_it_looks() -> None:
    async def cut(peer: Peer, request: Request) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        await peer.send(b'{"choices":[{"message":{"content":"' + b"x" * 300_000 + b'"}}')
        await asyncio.sleep(1.0)
        await peer.rst()

    async with ScriptedProvider(cut, name="a") as a, ScriptedProvider(ok(), name="b") as b:
        async with gateway(config_for(a, b)) as g:
            answer = await g.chat("hi")
    assert (answer.status, answer.field("X-Gateway-Provider")) == (200, "b")
    assert g.exchange["attempts"][0]["outcome"] == "closed"


async def test_a_stream_that_was_finished_before_a_reset_is_whole() -> None:
    # Asking another provider after a finished answer would only cost its price again.
    async def finished(peer: Peer, request: Request) -> None:
        await peer.stream_head(chunked=False)
        await peer.send(delta("hi") + finish("stop") + DONE)
        await asyncio.sleep(1.0)
        await peer.rst()

    async with ScriptedProvider(finished, name="a") as a, ScriptedProvider(ok(), name="b") as b:
        async with gateway(config_for(a, b, routing={"commit": "answer"})) as g:
            answer = await g.chat("hi", stream=True)
    assert (answer.status, answer.field("X-Gateway-Provider")) == (200, "a")
    assert b.requests == []
