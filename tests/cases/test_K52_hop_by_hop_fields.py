"""K52: hop-by-hop fields, and those that Connection names, went upstream.

https://github.com/google/capsem/issues/119
"""

from __future__ import annotations

import pytest

from tests.integration.shapes import whole
from tests.support.builders import completion, encode
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok

HOPS = {
    "Connection": "close, X-Secret, keep-alive",
    "X-Secret": "1",
    "Keep-Alive": "x",
    "TE": "trailers",
    "Upgrade": "h2c",
    "Proxy-Connection": "keep-alive",
    "Proxy-Authorization": "Basic c2VjcmV0",
    "Trailer": "X-Sum",
    "HTTP2-Settings": "AAMAAABkAAQAAP__",
    "X-Anything": "1",
    "Cookie": "a=b",
}


async def test_none_of_them_arrives_upstream() -> None:
    async with (
        ScriptedProvider(ok(), key_env="K") as a,
        gateway(config_for(a), environ={"K": "sk-relayd"}) as g,
    ):
        assert (await g.chat("hi", fields=HOPS)).status == 200
        names = a.requests[0].names()
    assert not {name.lower() for name in HOPS} & set(names)
    assert set(names) == {
        "host",
        "content-type",
        "accept",
        "accept-encoding",
        "user-agent",
        "via",
        "authorization",
        "x-request-id",
        "content-length",
    }


@pytest.mark.parametrize(
    "named", ["content-length", "authorization", "host", "content-type", "x-request-id", "via"]
)
async def test_a_client_can_delete_neither_framing_nor_credential(named: str) -> None:
    fields = {"Connection": f"close, {named}", "Authorization": "Bearer theirs"}
    async with (
        ScriptedProvider(ok(), key_env="K") as a,
        gateway(config_for(a), environ={"K": "sk-relayd"}) as g,
    ):
        answer = await g.chat("hi", fields=fields)
        request = a.requests[0]
    assert answer.status == 200
    assert request.field("Authorization") == "Bearer sk-relayd"
    assert request.field("Content-Length") == str(len(request.body))
    assert request.field(named) is not None


async def test_a_field_that_crosses_stays_behind_when_connection_names_it() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    fields = {"OpenAI-Beta": "assistants=v2", "traceparent": trace}
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g:
        await g.chat("hi", fields=fields)
        await g.chat("hi", fields={**fields, "Connection": "OpenAI-Beta, traceparent"})
        assert a.requests[0].field("OpenAI-Beta") == "assistants=v2"
        assert a.requests[0].field("traceparent") == trace
        assert a.requests[1].field("OpenAI-Beta") is None
        assert a.requests[1].field("traceparent") is None


async def test_none_of_them_comes_back_either() -> None:
    fields = [
        ("Connection", "X-Secret, openai-version, content-type, content-length"),
        ("X-Secret", "1"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Authenticate", "Basic"),
        ("Upgrade", "h2c"),
        ("Trailer", "X-Sum"),
        ("Set-Cookie", "a=b"),
        ("X-Accel-Redirect", "/etc/passwd"),
        ("X-RateLimit-Remaining", "7"),
        ("Server", "theirs"),
        ("openai-version", "2020-10-01"),
        ("openai-processing-ms", "12"),
        ("Content-Type", "application/json"),
    ]
    body = encode(completion())
    async with ScriptedProvider(whole(body, *fields)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert answer.body == body
    assert answer.field("Content-Length") == str(len(body))
    assert answer.field("Content-Type") == "application/json"
    assert {name.lower() for name, _ in answer.fields} == {
        "date",
        "content-type",
        "content-length",
        "openai-processing-ms",
        "x-gateway-provider",
        "x-gateway-attempts",
        "x-request-id",
        "via",
    }
