"""K106: integers from 1e15 on were written as 1e+15 and refused as not being integers.

https://github.com/0xShug0/audio.cpp/issues/132
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider

NUMBERS = [
    b"1000000000000000",
    b"1000000000000000000000",
    b"-9223372036854775809",
    b"18446744073709551616",
    b"0.0000001",
    b"1e5",
    b"1E+05",
    b"-0",
    b"-0.0",
    b"100",
    b"9" * 5000,  # longer than the interpreter converts
    b"1e999999999",
]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:24].decode())
async def test_the_digits_stay_through_a_change_of_model(number: bytes) -> None:
    body = (
        b'{"seed":%b,"model":"m","n":[%b],"messages":[{"role":"user","content":"x"}],"max":%b}'
        % (number, number, number)
    )
    async with (
        ScriptedProvider(scripts.ok_json(), model="theirs") as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.post(CHAT, body)
        assert a.requests[0].body == body.replace(b'"m"', b'"theirs"', 1)
    assert answer.status == 200


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:24].decode())
async def test_the_digits_of_an_answer_stay_too(number: bytes) -> None:
    body = b'{"id":"x","created":%b,"choices":[{"message":{"content":"y"}}]}' % number
    async with ScriptedProvider(scripts.status(200, body)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert answer.body == body
