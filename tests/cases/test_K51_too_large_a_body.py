"""K51: the limit on bodies reset the connection, so that clients tried three times.

https://github.com/MAXeaglet/commandcode-proxy/issues/7
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.support.builders import chat, encode
from tests.support.client import RawClient, request
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok
from tests.support.wire import Ended

MIB = 1_048_576
LIMIT = 10 * MIB
BODY = encode(chat("x" * (11 * MIB)))


async def declared(client: RawClient) -> None:
    await client.request("POST", CHAT, BODY)


async def chunked(client: RawClient) -> None:
    fields = {"Content-Length": "", "Transfer-Encoding": "chunked"}
    await client.send(request("POST", CHAT, fields=fields))
    for at in range(0, len(BODY), MIB):
        piece = BODY[at : at + MIB]
        await client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
    await client.send(b"0\r\n\r\n")


@pytest.mark.parametrize("send", [declared, chunked])
async def test_a_client_that_writes_all_before_it_reads_gets_a_413(
    send: Callable[[RawClient], Awaitable[None]],
) -> None:
    async with (
        ScriptedProvider(ok()) as a,
        gateway(config_for(a, server={"max_request_bytes": LIMIT})) as g,
        g.client() as client,
    ):
        await send(client)
        answer = await client.response("POST")
        assert answer.status == 413
        assert answer.error["code"] == "request_too_large"
        assert answer.field("Content-Type") == "application/json"
        assert answer.field("Connection") == "close"
        assert answer.whole
        assert await client.ended() is Ended.CLOSE
        assert a.requests == []


async def test_a_declared_length_is_refused_before_the_body_is_read() -> None:
    head = request("POST", CHAT, fields={"Content-Length": str(LIMIT + 1)})
    async with (
        ScriptedProvider(ok()) as a,
        gateway(config_for(a, server={"max_request_bytes": LIMIT})) as g,
        g.client() as client,
    ):
        await client.send(head)
        answer = await client.response("POST")
        assert answer.status == 413


async def test_a_client_that_never_stops_sending_is_let_go_soon() -> None:
    async with (
        ScriptedProvider(ok()) as a,
        gateway(config_for(a, server={"max_request_bytes": LIMIT})) as g,
        g.client() as client,
    ):
        await client.send(request("POST", CHAT, fields={"Content-Length": str(LIMIT + 1)}))
        answer = await client.response("POST")
        assert answer.status == 413
        began = asyncio.get_running_loop().time()
        with pytest.raises(ConnectionError):
            while True:
                await client.send(b"x" * 1000)
                await asyncio.sleep(0.1)
        assert asyncio.get_running_loop().time() - began < 3.0
