"""K37: a 204 with a length broke the client's parser.

https://github.com/encode/httpx/issues/1474
"""

from __future__ import annotations

import pytest

from tests.support.builders import chat
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok, raw

HEAD = b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n"
ANSWERS = {
    "a length alone": HEAD,
    "a length and a body": HEAD + b"hello",
    "chunks": b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a stream's label": b"HTTP/1.1 204 No\r\nContent-Type: text/event-stream\r\n\r\n",
    "neither": b"HTTP/1.1 204 No Content\r\n\r\n",
}

each_answer = pytest.mark.parametrize("data", ANSWERS.values(), ids=ANSWERS)
each_stream = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


@each_answer
@each_stream
async def test_a_204_is_no_answer_so_the_next_provider_is_asked(data: bytes, stream: bool) -> None:
    async with (
        ScriptedProvider(raw(data), name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi", stream=stream)
    assert answer.field("X-Gateway-Provider") == "b"
    assert g.exchange["attempts"][0]["status"] == 204


@each_answer
@each_stream
async def test_where_the_head_commits_it_goes_out_without_length_and_body(
    data: bytes, stream: bool
) -> None:
    async with (
        ScriptedProvider(raw(data)) as a,
        gateway(config_for(a, routing={"commit": "head"})) as g,
        g.client() as client,
    ):
        answer = await client.post_json(CHAT, chat(stream=stream))
        assert answer.status == 204
        assert answer.field("Content-Length") is None
        assert answer.field("Transfer-Encoding") is None
        assert answer.body == b""
        # Nothing is left on the wire that would stand before the next answer.
        assert (await client.get("/healthz")).body == b"ok\n"


async def test_a_connection_with_a_body_behind_it_is_dropped() -> None:
    async with ScriptedProvider(raw(HEAD + b"hello")) as a, gateway(config_for(a)) as g:
        for _ in range(2):
            assert (await g.chat("hi")).status == 502
        assert a.connections == 2
        assert a.open == 0
