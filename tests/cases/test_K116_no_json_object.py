"""K116: a JSON body that is no object fell through to routing and came back as a 503.

https://github.com/askalf/dario/pull/1231
"""

from __future__ import annotations

import json

import pytest

from tests.support import scripts
from tests.support.builders import chat
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider

GOOD = json.dumps(chat())
BODIES = {
    "nothing": b"",
    "blank": b" \n",
    "a brace": b"{",
    "half of it": GOOD[:30].encode(),
    "a list": b"[]",
    "a list of a request": b"[" + GOOD.encode() + b"]",
    "a string": b'"hi"',
    "null": b"null",
    "a number": b"5",
    "an empty object": b"{}",
    "no messages": b'{"model":"m"}',
    "messages empty": b'{"model":"m","messages":[]}',
    "messages null": b'{"model":"m","messages":null}',
    "messages a string": b'{"model":"m","messages":"hi"}',
    "model a number": b'{"model":5,"messages":[{"role":"user","content":"x"}]}',
    "model empty": b'{"model":"","messages":[{"role":"user","content":"x"}]}',
    "model null": b'{"model":null,"messages":[{"role":"user","content":"x"}]}',
    "model a list": b'{"model":["m"],"messages":[{"role":"user","content":"x"}]}',
    "stream a string": b'{"stream":"true","messages":[{"role":"user","content":"x"}]}',
    "stream a number": b'{"stream":1,"messages":[{"role":"user","content":"x"}]}',
    "5,000 deep": b"[" * 5000,
    "5,000 deep, closed": b"[" * 5000 + b"]" * 5000,
    "UTF-16": GOOD.encode("utf-16"),
    "UTF-16 without a mark": GOOD.encode("utf-16-le"),
    "UTF-32": GOOD.encode("utf-32"),
    "a byte order mark": b"\xef\xbb\xbf" + GOOD.encode(),
    "Latin-1": b'{"model":"m","messages":[{"role":"user","content":"\xe9"}]}',
    "a surrogate in bytes": b'{"model":"m","messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
    "NaN": b'{"x":NaN,"messages":[{"role":"user","content":"x"}]}',
    "Infinity": b'{"x":-Infinity,"messages":[{"role":"user","content":"x"}]}',
    "a comma too many": b'{"messages":[{"role":"user","content":"x"}],}',
    "single quotes": b"{'messages':[1]}",
    "a comment": b'{"messages":[1] /* x */}',
    "two objects": GOOD.encode() + GOOD.encode(),
    "a form": b"model=m&messages=hi",
    "zeros": b"\x00" * 32,
}

each_body = pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)


@each_body
async def test_it_is_a_fault_of_the_request_and_costs_nothing(body: bytes) -> None:
    async with (
        ScriptedProvider(scripts.ok()) as a,
        gateway(config_for(a, quota={"daily_turns": 1}, breaker={"failures": 1})) as g,
    ):
        answer = await g.post(CHAT, body)
        assert a.connections == 0
        assert (await g.chat("hi")).status == 200, "expected no turn and no breaker to be touched"
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["code"] == "bad_request"
    assert answer.field("X-Gateway-Attempts") == "0"
    assert g.exchanges[0]["end_reason"] == "refused"
    assert g.exchanges[0]["turn"] == "none"


async def test_the_connection_can_be_used_again_after_it() -> None:
    async with ScriptedProvider(scripts.ok()) as a, gateway(config_for(a)) as g:
        async with g.client() as client:
            for body in BODIES.values():
                assert (await client.post_json(CHAT, body)).status == 400
            assert (await client.post_json(CHAT, chat())).status == 200


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize("name", ["nothing", "a list", "null", "5,000 deep", "UTF-16"])
async def test_so_it_is_on_the_other_surfaces(path: str, name: str) -> None:
    surfaces = ["embeddings", "completions", "responses"]
    async with (
        ScriptedProvider(scripts.ok(), surfaces=surfaces) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.post(path, BODIES[name])
        assert a.connections == 0
    assert answer.status == 400
    assert answer.error["code"] == "bad_request"


async def test_on_the_messages_surface_it_has_anthropics_shape() -> None:
    async with (
        ScriptedProvider(scripts.ok(), surfaces=["messages"]) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.post("/v1/messages", b"[]")
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
