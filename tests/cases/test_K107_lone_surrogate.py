r"""K107: an escaped half of a surrogate pair became a 500 when the body was encoded again.

https://github.com/headroomlabs-ai/headroom/pull/3134
`"\ud800"` is valid JSON (RFC 8259, 8.2): what it means is the provider's business.
"""

from __future__ import annotations

import json

import pytest

from tests.support import scripts
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider

HALVES = [rb"\ud800", rb"\udfff", rb"\udc00\ud800", rb"\uD83D", rb"a\ud800b"]

each_half = pytest.mark.parametrize("half", HALVES, ids=lambda half: half.decode())


def in_message(half: bytes, model: bytes = b"m") -> bytes:
    return b'{"model":"%b","messages":[{"role":"user","content":"%b"}]}' % (model, half)


@each_half
@pytest.mark.parametrize("settings", [{}, {"model": "m2"}], ids=["as it is", "another model"])
async def test_in_a_message_it_crosses_untouched(half: bytes, settings: dict[str, str]) -> None:
    body = in_message(half)
    async with ScriptedProvider(scripts.ok(), **settings) as a, gateway(config_for(a)) as g:
        answer = await g.post(CHAT, body)
        expected = settings.get("model", "m").encode()
        assert a.requests[0].body == in_message(half, expected)
    assert answer.status == 200


@each_half
async def test_as_a_key_or_a_user_it_crosses_untouched(half: bytes) -> None:
    body = b'{"%b":1,"user":"%b","messages":[{"role":"user","content":"x"}]}' % (half, half)
    async with ScriptedProvider(scripts.ok()) as a, gateway(config_for(a)) as g:
        assert (await g.post(CHAT, body)).status == 200
        assert a.requests[0].body == body


@each_half
async def test_in_the_model_it_is_a_fault_of_the_request(half: bytes) -> None:
    async with (
        ScriptedProvider(scripts.ok()) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.post(CHAT, in_message(b"x", half))
        assert not a.requests
    assert answer.status == 400
    assert answer.error["param"] == "model"
    json.dumps(g.exchange, ensure_ascii=False).encode()


async def test_a_whole_pair_in_the_model_is_a_model() -> None:
    async with ScriptedProvider(scripts.ok()) as a, gateway(config_for(a)) as g:
        answer = await g.post(CHAT, in_message(b"x", rb"\ud83d\ude00"))
    assert answer.status == 200
    assert g.exchange["model"] == "\U0001f600"


@each_half
async def test_in_an_answer_it_crosses_untouched_and_the_log_can_be_written(half: bytes) -> None:
    body = b'{"choices":[{"message":{"content":"%b"},"finish_reason":"%b"}]}' % (half, half)
    async with ScriptedProvider(scripts.status(200, body)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert answer.body == body
    json.dumps(g.exchange, ensure_ascii=False).encode()


@each_half
async def test_in_a_providers_error_the_answer_can_be_written(half: bytes) -> None:
    body = b'{"error":{"message":"%b","code":"%b"}}' % (half, half)
    async with ScriptedProvider(scripts.status(400, body)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert answer.status == 400
    json.dumps(g.log, ensure_ascii=False).encode()
