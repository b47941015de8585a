"""K105: renaming the model wrote the body anew and rounded the seed 9007199254740993.

https://github.com/llm-d/llm-d-router/issues/2518
Python's own json would do the same: -0 becomes 0, 1E5 becomes 100000.0, 1e400 Infinity.
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider

ODD = (
    b'\n {"seed" :9007199254740993,\t"a":-0, "b":1E5 ,"c":0.10000000000000000555,"d":1e400,'
    b'"e":12345678901234567890.0, "f":"\\u00e9\\/\xc3\xa9",  "model"  :  "m" ,\r\n'
    b'"messages":[{"role":"user","content":"say \\"model\\": \\"m\\"", "model":"m"}],'
    b'"z":{"model":"m","x":1,"x":2},"z":[1.0,1.00]  }\n'
)


@pytest.mark.parametrize("surface", [CHAT, "/v1/messages", "/v1/responses", "/v1/completions"])
async def test_only_the_bytes_of_the_model_differ(surface: str) -> None:
    surfaces = ["chat", "messages", "responses", "completions"]
    async with (
        ScriptedProvider(scripts.ok(), model="theirs", surfaces=surfaces) as a,
        gateway(config_for(a)) as g,
    ):
        await g.post(surface, ODD)
        got = a.requests[0].body
    assert got == ODD.replace(b'"model"  :  "m"', b'"model"  :  "theirs"')


async def test_without_a_model_of_the_provider_nothing_differs() -> None:
    async with ScriptedProvider(scripts.ok()) as a, gateway(config_for(a)) as g:
        await g.post(CHAT, ODD)
        assert a.requests[0].body == ODD


@pytest.mark.parametrize("key", [b'"model"', b'"\\u006dodel"', b'"mod\\u0065\\u006C"'])
async def test_the_key_may_be_spelled_with_escapes(key: bytes) -> None:
    body = b'{"a":-0,' + key + b':"m","messages":[{"role":"user","content":"x"}]}'
    async with ScriptedProvider(scripts.ok(), model="m2") as a, gateway(config_for(a)) as g:
        await g.post(CHAT, body)
        assert a.requests[0].body == body.replace(b':"m",', b':"m2",')


async def test_a_missing_model_is_added_and_the_rest_stays() -> None:
    body = b' {"seed":9007199254740993,"messages":[{"role":"user","content":"x"}] }'
    async with ScriptedProvider(scripts.ok(), model="m2") as a, gateway(config_for(a)) as g:
        await g.post(CHAT, body)
        got = a.requests[0]
    assert got.json()["model"] == "m2"
    assert got.body.replace(b'"model":"m2",', b"") == body


async def test_each_attempt_begins_from_the_clients_own_bytes() -> None:
    async with (
        ScriptedProvider(scripts.status(500), name="a", model="much-longer-name") as a,
        ScriptedProvider(scripts.status(500), name="b", extra_body={"seed": 1}) as b,
        ScriptedProvider(scripts.ok(), name="c") as c,
        gateway(config_for(a, b, c)) as g,
    ):
        await g.post(CHAT, ODD)
        bodies = [provider.requests[0].body for provider in (a, b, c)]
    assert bodies == [
        ODD.replace(b'"model"  :  "m"', b'"model"  :  "much-longer-name"'),
        ODD.replace(b":9007199254740993", b":1"),
        ODD,
    ]


async def test_forcing_a_stream_changes_that_member_alone() -> None:
    body = b'{"seed":1E5, "stream" : false,"messages":[{"role":"user","content":"x"}]}'
    async with (
        ScriptedProvider(scripts.ok()) as a,
        gateway(config_for(a, routing={"stream": "always"})) as g,
    ):
        await g.post(CHAT, body)
        assert a.requests[0].body == body.replace(b"false", b"true")


async def test_no_train_leaves_the_other_members_of_provider_as_they_are() -> None:
    body = (
        b'{"messages":[{"role":"user","content":"x"}],'
        b'"provider":{ "sort":"price","max":1E5,"data_collection":"allow" }}'
    )
    async with (
        ScriptedProvider(scripts.ok(), kind="openrouter", no_train=True) as a,
        gateway(config_for(a)) as g,
    ):
        await g.post(CHAT, body)
        assert a.requests[0].body == body.replace(b'"allow"', b'"deny"')


@pytest.mark.parametrize("model", ["m2", "x" * 200, "élan", 'q"uo\\te', "a/b:c"])
async def test_a_configured_model_arrives_as_it_is_written_there(model: str) -> None:
    async with ScriptedProvider(scripts.ok(), model=model) as a, gateway(config_for(a)) as g:
        await g.post(CHAT, ODD)
        assert a.requests[0].json()["model"] == model


async def test_a_body_in_chunks_arrives_as_the_same_bytes() -> None:
    cuts = [1, 7, 60, len(ODD)]
    pieces = [ODD[i:j] for i, j in zip([0, *cuts], cuts, strict=False)]
    chunked = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with (
        ScriptedProvider(scripts.ok()) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        await client.send(head + chunked, size=13)
        assert (await client.response("POST")).status == 200
        assert a.requests[0].body == ODD
