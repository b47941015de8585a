"""K32: a request with both Content-Length and Transfer-Encoding was served, and its tail as well.

https://github.com/pgjones/hypercorn/issues/279
"""

from __future__ import annotations

import pytest

from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok
from tests.support.wire import Ended

TAIL = b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
FIELDS = {
    "length first": "Content-Length: 4\r\nTransfer-Encoding: chunked",
    "coding first": "Transfer-Encoding: chunked\r\nContent-Length: 4",
    "a length of zero": "Content-Length: 0\r\nTransfer-Encoding: chunked",
    "the right length": f"Content-Length: {len(TAIL)}\r\nTransfer-Encoding: chunked",
    "odd case": "content-LENGTH: 4\r\nTRANSFER-encoding: Chunked",
}


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
async def test_it_is_a_400_and_a_close_and_the_tail_is_not_served(fields: str) -> None:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n"
    async with (
        ScriptedProvider(ok()) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        await client.send(head.encode() + TAIL)
        answer = await client.response("POST")
        assert answer.status == 400
        assert answer.error["code"] == "bad_request"
        assert answer.field("Connection") == "close"
        assert await client.ended() is Ended.CLOSE
        assert a.requests == []
        assert len(g.exchanges) <= 1


@pytest.mark.parametrize(
    ("version", "coding", "status"),
    [
        ("1.1", "gzip", 501),
        ("1.1", "gzip, chunked", 501),
        ("1.1", "chunked, chunked", 400),
        ("1.0", "gzip", 400),
        ("1.0", "gzip, chunked", 400),
    ],
)
async def test_another_coding_is_not_read(version: str, coding: str, status: int) -> None:
    head = f"POST /v1/chat/completions HTTP/{version}\r\nHost: a\r\nTransfer-Encoding: {coding}"
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.send(head.encode() + b"\r\n\r\n" + TAIL)
        answer = await client.response("POST")
        assert answer.status == status
        assert await client.ended() is Ended.CLOSE
        assert a.requests == []


async def test_chunks_are_not_read_from_http_1_0() -> None:
    head = b"POST /v1/chat/completions HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.send(head + TAIL)
        answer = await client.response("POST")
        assert answer.status == 400
        assert await client.ended() is Ended.CLOSE
