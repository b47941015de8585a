"""K34: an answer with both Content-Length and Transfer-Encoding was passed on with both.

https://github.com/mitmproxy/mitmproxy/issues/4799
"""

from __future__ import annotations

import pytest

from tests.support.builders import DONE, completion, delta, encode
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import raw
from tests.support.wire import Ended

BOTH = [
    b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
]


def chunked(fields: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (fields, len(body), body)


@pytest.mark.parametrize("fields", BOTH, ids=["length first", "coding first"])
@pytest.mark.parametrize("commit", ["head", "content"])
async def test_chunks_win_and_the_connection_is_not_used_again(fields: bytes, commit: str) -> None:
    body = encode(completion())
    async with (
        ScriptedProvider(raw(chunked(fields, body))) as a,
        gateway(config_for(a, routing={"commit": commit})) as g,
    ):
        for _ in range(2):
            answer = await g.chat("hi")
            assert answer.body == body
            assert answer.field("Content-Length") in (None, str(len(body)))
            assert answer.whole
        assert a.connections == 2
        assert a.open == 0


@pytest.mark.parametrize("fields", BOTH, ids=["length first", "coding first"])
async def test_a_stream_goes_out_in_chunks_alone(fields: bytes) -> None:
    async with (
        ScriptedProvider(raw(chunked(fields, delta("a") + DONE))) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.body == delta("a") + DONE
    assert answer.field("Content-Length") is None
    assert answer.ended is Ended.CHUNKS


FRAMINGS = {
    "another coding": b"Transfer-Encoding: gzip, chunked\r\n",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 3\r\n",
    "no number": b"Content-Length: 2;\r\n",
    "negative": b"Content-Length: -2\r\n",
}


@pytest.mark.parametrize("fields", FRAMINGS.values(), ids=FRAMINGS)
async def test_framing_that_cannot_be_trusted_is_a_failed_attempt(fields: bytes) -> None:
    async with (
        ScriptedProvider(raw(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n{}"), name="a") as a,
        ScriptedProvider(raw(chunked(BOTH[0], encode(completion()))), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi")
    assert answer.field("X-Gateway-Provider") == "b"
    assert g.exchange["attempts"][0]["outcome"] == "bad_response"
