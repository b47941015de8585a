r"""K109: of two `model` keys the gateway checked the first one and the provider ran the last one.

https://github.com/ENTERPILOT/GoModel/pull/870
"""

from __future__ import annotations

import hashlib

import pytest

from tests.support import scripts
from tests.support.builders import embeddings
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider

M = rb'"messages":[{"role":"user","content":"x"}]'
REPEATED = {
    "model": b'{"model":"cheap","model":"forbidden",' + M + b"}",
    "model, one of them escaped": rb'{"mod\u0065l":"forbidden","model":"cheap",' + M + b"}",
    "model, both escaped": rb'{"\u006dodel":"a","mod\u0065\u006C":"b",' + M + b"}",
    "model, the same value": b'{"model":"cheap","model":"cheap",' + M + b"}",
    "model, far apart": b'{"model":"a",' + M + b',"x":{"model":"n"},"model":"b"}',
    "stream": b'{"stream":true,"stream":false,' + M + b"}",
    "stream, escaped": rb'{"stream":true,"str\u0065am":false,' + M + b"}",
    "messages": b"{" + M + b"," + M + b"}",
    "model, in other letters": b'{"model":"cheap","Model":"forbidden",' + M + b"}",
    "model three times": b'{"model":"a","model":"b","model":"c",' + M + b"}",
}
LEGAL = {
    "in a message": b'{"model":"m","messages":[{"role":"user","content":"x","model":"a"}]}',
    "twice in a nested object": b'{"model":"m","x":{"model":"a","model":"b"},' + M + b"}",
    "as a value": b'{"model":"m","x":"model","y":["model","model"],' + M + b"}",
    "with a blank": b'{"model":"m","model ":"c",' + M + b"}",
    "another member twice": b'{"model":"m","x":1,"x":2,' + M + b"}",
}


@pytest.mark.parametrize("body", REPEATED.values(), ids=REPEATED)
async def test_a_repeated_member_is_a_fault_and_nothing_is_sent(body: bytes) -> None:
    async with (
        ScriptedProvider(scripts.ok()) as a,
        gateway(config_for(a, quota={"daily_turns": 1})) as g,
    ):
        answer = await g.post(CHAT, body)
        assert not a.requests
        assert (await g.chat("hi")).status == 200, "expected the turn to be left"
    assert answer.status == 400
    assert answer.error["code"] == "bad_request"
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["param"] in ("model", "stream", "messages")


@pytest.mark.parametrize("body", LEGAL.values(), ids=LEGAL)
async def test_what_is_not_repeated_at_the_top_crosses_as_it_is(body: bytes) -> None:
    async with ScriptedProvider(scripts.ok(), model="m2") as a, gateway(config_for(a)) as g:
        answer = await g.post(CHAT, body)
        assert a.requests[0].body == body.replace(b'"m"', b'"m2"', 1)
    assert answer.status == 200


@pytest.mark.parametrize(
    ("path", "surface"), [("/v1/embeddings", "embeddings"), ("/v1/responses", "responses")]
)
async def test_a_repeated_model_is_a_fault_on_the_other_surfaces_too(
    path: str, surface: str
) -> None:
    async with (
        ScriptedProvider(scripts.ok(), surfaces=[surface]) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.post(path, b'{"model":"a","input":"x","model":"b"}')
        assert (await g.post(path, embeddings())).status == 200
        assert len(a.requests) == 1
    assert answer.status == 400


async def test_a_client_cannot_reach_a_route_that_is_not_its_own_that_way() -> None:
    client = {
        "name": "c",
        "key_sha256": hashlib.sha256(b"client-key-0001").hexdigest(),
        "routes": ["cheap"],
    }
    async with ScriptedProvider(scripts.ok(), name="a", model="theirs") as a:
        routes = [{"name": name, "providers": ["a"]} for name in ("cheap", "forbidden")]
        config = config_for(a, route=routes, client=[client])
        async with gateway(config) as g:
            fields = {"Authorization": "Bearer client-key-0001"}
            statuses = [
                (await g.post(CHAT, body, fields)).status
                for body in (
                    b'{"model":"cheap",' + M + b"}",
                    b'{"model":"forbidden",' + M + b"}",
                    REPEATED["model"],
                    REPEATED["model, one of them escaped"],
                )
            ]
        assert len(a.requests) == 1
    assert statuses == [200, 404, 400, 400]
