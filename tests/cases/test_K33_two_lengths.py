"""K33: of two different lengths one was believed, and the body became a second request.

https://github.com/mopemope/meinheld/issues/111
"""

from __future__ import annotations

import pytest

from tests.support.builders import chat, encode
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok
from tests.support.wire import Ended

SECOND = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
BODY = encode(chat())
WRONG = {
    "two values": ["36", "0"],
    "the other way round": ["0", "36"],
    "a list": ["36, 0"],
    "a sign": ["+2"],
    "a parameter": ["2;"],
    "negative": ["-1"],
    "hexadecimal": ["0x2"],
    "two numbers": ["2 2"],
    "nothing": [""],
    "an open list": ["2,"],
    "a fraction": ["2.0"],
    "too many digits": ["9" * 5000],
    "other digits": ["²"],
}


def head(lengths: list[str]) -> bytes:
    rows = "".join(f"Content-Length: {value}\r\n" for value in lengths)
    return f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n{rows}\r\n".encode("latin-1")


@pytest.mark.parametrize("lengths", WRONG.values(), ids=WRONG)
async def test_it_is_a_400_and_a_close(lengths: list[str]) -> None:
    async with (
        ScriptedProvider(ok()) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        await client.send(head(lengths) + SECOND)
        answer = await client.response("POST")
        assert answer.status == 400
        assert answer.error["code"] == "bad_request"
        assert await client.ended() is Ended.CLOSE
        assert a.requests == []


@pytest.mark.parametrize("shape", [["{n}", "{n}"], ["{n}, {n}"], ["{n},{n}", "{n}"]])
async def test_equal_lengths_are_one_and_one_goes_upstream(shape: list[str]) -> None:
    lengths = [value.format(n=len(BODY)) for value in shape]
    async with (
        ScriptedProvider(ok(), model="a much longer name of a model") as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        await client.send(head(lengths) + BODY + SECOND)
        assert (await client.response("POST")).status == 200
        assert (await client.response()).body == b"ok\n"
        request = a.requests[0]
    assert request.field("Content-Length") == str(len(request.body))
    assert len(request.body) > len(BODY)
