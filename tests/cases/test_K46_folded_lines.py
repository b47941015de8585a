"""K46: folded header lines were read loosely.

https://github.com/python-hyper/h11/issues/59
"""

from __future__ import annotations

import pytest

from tests.support.builders import chat, completion, encode
from tests.support.client import post
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok, raw
from tests.support.wire import Ended

BODY = encode(completion())
FOLDS = {"a tab": b"a \r\n\tb", "a space": b"a\r\n b", "two": b"a\r\n \t\r\n  b"}

each_fold = pytest.mark.parametrize("value", FOLDS.values(), ids=FOLDS)


@each_fold
@pytest.mark.parametrize("name", [b"X-Long", b"Authorization", b"Content-Length", b"OpenAI-Beta"])
async def test_in_a_request_it_is_a_400_and_a_close(value: bytes, name: bytes) -> None:
    data = post(CHAT, chat()).replace(b"\r\n\r\n", b"\r\n%b: %b\r\n\r\n" % (name, value), 1)
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.send(data)
        answer = await client.response("POST")
        assert answer.status == 400
        assert answer.error["code"] == "bad_request"
        assert await client.ended() is Ended.CLOSE
        assert a.requests == []


@each_fold
async def test_in_an_answer_it_becomes_a_space(value: bytes) -> None:
    fields = b"openai-version: %b\r\nContent-Type: application/json;\r\n\tcharset=utf-8\r\n" % value
    data = b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (fields, len(BODY), BODY)
    async with ScriptedProvider(raw(data)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
        again = await g.chat("hi")
        assert a.connections == 1
    assert answer.field("openai-version") is not None
    assert str(answer.field("openai-version")).split() == ["a", "b"]
    assert answer.field("Content-Type") == "application/json; charset=utf-8"
    assert answer.body == again.body == BODY


ODD = {
    "a bare CR": b"a\rX-Injected: 1",
    "a bare LF": b"a\nX-Injected: 1",
    "NUL": b"a\x00b",
}


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
async def test_odd_bytes_in_an_answer_make_it_a_failed_attempt(value: bytes) -> None:
    data = b"HTTP/1.1 200 OK\r\nopenai-version: %b\r\nContent-Length: 2\r\n\r\n{}" % value
    async with (
        ScriptedProvider(raw(data), name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi")
    assert answer.field("X-Gateway-Provider") == "b"
    assert answer.field("X-Injected") is None


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
async def test_odd_bytes_in_a_request_are_a_400(value: bytes) -> None:
    data = post(CHAT, chat()).replace(b"\r\n\r\n", b"\r\nX-Odd: %b\r\n\r\n" % value, 1)
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.send(data)
        assert (await client.response("POST")).status == 400
        assert await client.ended() is Ended.CLOSE
        assert a.requests == []
