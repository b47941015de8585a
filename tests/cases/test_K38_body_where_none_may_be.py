"""K38: the body behind a 204 stayed on the pooled connection, and the next request hung.

https://github.com/letuhao/lore-weave/issues/299
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok, raw

BAD = {
    "204": b"HTTP/1.1 204 No Content\r\n\r\nnull",
    "204 with a length": b"HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nnull",
    "304": b"HTTP/1.1 304 Not Modified\r\n\r\nnull",
    "304 with a length": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\nnull",
    "204 with chunks": (
        b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nnull\r\n0\r\n\r\n"
    ),
    "an error": b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\nnull",
}

each_bad = pytest.mark.parametrize("data", BAD.values(), ids=BAD)


@each_bad
@pytest.mark.parametrize("commit", ["head", "content", "answer"])
async def test_the_next_request_gets_a_fresh_connection(data: bytes, commit: str) -> None:
    async with (
        ScriptedProvider(raw(data), ok("second")) as a,
        gateway(config_for(a, routing={"commit": commit})) as g,
    ):
        await g.chat("hi")
        answer = await g.chat("hi")
        assert [request.connection for request in a.requests] == [0, 1]
    assert answer.status == 200
    assert b"second" in answer.body


@each_bad
async def test_so_it_does_when_the_body_comes_late(data: bytes) -> None:
    at = data.index(b"\r\n\r\n") + 4
    late = raw(data[:at], data[at:], delay=0.2)
    async with ScriptedProvider(late, ok("second")) as a, gateway(config_for(a)) as g:
        await g.chat("hi")
        await asyncio.sleep(1.0)
        answer = await g.chat("hi")
        assert [request.connection for request in a.requests] == [0, 1]
    assert answer.status == 200
    assert b"second" in answer.body


async def test_head_is_answered_by_relayd_itself_without_a_body() -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        for path in ("/healthz", "/v1/models", "/v1/chat/completions", "/nothing"):
            await client.request("HEAD", path)
            await client.response("HEAD")
        assert (await client.get("/healthz")).body == b"ok\n"
        assert a.requests == []
