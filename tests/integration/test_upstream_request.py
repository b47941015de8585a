"""What a provider receives: the request line, exactly these fields, and the client's own bytes."""

from __future__ import annotations

from typing import Any

import pytest

from relayd import __version__
from tests.support import builders
from tests.support.client import Response
from tests.support.gateway import config_for, gateway
from tests.support.provider import Request, ScriptedProvider
from tests.support.scripts import ok, status

from .shapes import ALL, CHAT, EMBEDDINGS, EVERY_SURFACE, MESSAGES, STREAMED, Shape, whole


async def received(
    body: bytes | dict[str, Any] | None = None,
    fields: dict[str, str] | None = None,
    shape: Shape = CHAT,
    *,
    path: str = "",
    sections: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    **settings: Any,
) -> Request:
    """The request that a provider with these settings receives for this one of a client."""
    settings = {"surfaces": EVERY_SURFACE, **settings}
    async with ScriptedProvider(whole(shape.answer), name="a", **settings) as a:
        async with gateway(config_for(a, **(sections or {})), environ=environ or {}) as g:
            sent = shape.request() if body is None else body
            answer = await g.post(path or shape.path, sent, fields)
            assert answer.status == 200, answer.text
        return a.requests[0]


# ---- the head


@pytest.mark.parametrize("shape", ALL, ids=str)
async def test_the_request_line_is_the_surfaces_own(shape: Shape) -> None:
    request = await received(shape=shape)
    assert (request.method, request.version) == ("POST", "HTTP/1.1")
    assert request.target == shape.path


async def test_exactly_these_fields_go_upstream() -> None:
    request = await received(fields={"X-Request-ID": "id-1"}, key_env="KEY", environ={"KEY": "sk"})
    fields = dict(request.fields)
    host = fields.pop("Host")
    assert host.startswith("127.0.0.1:")
    assert fields == {
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": f"relayd/{__version__}",
        "Via": "1.1 relayd",
        "Authorization": "Bearer sk",
        "X-Request-ID": "id-1",
        "Content-Length": str(len(request.body)),
    }
    assert len(request.fields) == len(set(request.names()))


async def test_a_request_that_streams_says_so() -> None:
    async with ScriptedProvider(ok(), name="a") as a, gateway(config_for(a)) as g:
        await g.chat(stream=True)
        accept = a.requests[0].field("Accept")
        assert accept is not None
        assert accept.startswith("text/event-stream")


SECRETS = {
    "Authorization": "Bearer client-key",
    "Cookie": "session=1",
    "Proxy-Authorization": "Basic x",
    "x-api-key": "client-key",
    "api-key": "client-key",
    "X-Forwarded-For": "10.0.0.9",
    "X-Forwarded-Proto": "http",
    "X-Forwarded-Host": "relay.example",
    "Forwarded": "for=10.0.0.9",
    "X-Real-IP": "10.0.0.9",
    "X-User-Id": "ann",
    "User-Agent": "OpenAI/Python 1.0",
    "X-Stainless-Lang": "python",
    "OpenAI-Organization": "org",
    "OpenAI-Project": "proj",
    "Accept": "*/*",
    "Accept-Encoding": "gzip, br",
    "Origin": "https://a.example",
    "Referer": "https://a.example/x",
    "TE": "trailers",
    "Upgrade": "h2c",
    "Keep-Alive": "x",
    "Proxy-Connection": "keep-alive",
    "Connection": "keep-alive, X-Secret",
    "X-Secret": "1",
    "Trailer": "X",
    "Range": "bytes=0-1",
    "If-None-Match": "x",
    "Via": "1.1 nginx",
}


@pytest.mark.parametrize("shape", ALL, ids=str)
async def test_nothing_else_of_the_client_crosses(shape: Shape) -> None:
    plain = await received(shape=shape, fields={"X-Request-ID": "id-1"})
    request = await received(shape=shape, fields={**SECRETS, "X-Request-ID": "id-1"})
    assert request.names() == plain.names()
    for value in ("client-key", "session=1", "10.0.0.9", "relay.example", "ann", "nginx", "gzip"):
        assert value.encode() not in request.head


CROSSING = {
    "anthropic-version": ("2023-06-01", {"messages"}),
    "anthropic-beta": ("tools-2024", {"messages"}),
    "OpenAI-Beta": ("assistants=v2", {"chat", "completions", "responses", "embeddings"}),
}


@pytest.mark.parametrize("shape", ALL, ids=str)
@pytest.mark.parametrize("name", CROSSING)
async def test_three_fields_cross_on_their_surfaces(name: str, shape: Shape) -> None:
    value, surfaces = CROSSING[name]
    request = await received(shape=shape, fields={name: value})
    assert request.field(name) == (value if shape.name in surfaces else None)


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("value", "crosses"),
    [
        (TRACE, True),
        (TRACE.replace("4bf9", "zzzz"), False),
        ("00-" + "0" * 32 + "-00f067aa0ba902b7-01", False),
        (TRACE + "-more", False),
        ("ff" + TRACE[2:], False),
    ],
)
async def test_a_valid_traceparent_crosses(value: str, crosses: bool) -> None:
    request = await received(fields={"traceparent": value})
    assert request.field("traceparent") == (value if crosses else None)


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a,b", "umlaut-ä", "a/b"])
async def test_a_request_id_that_is_none_is_replaced(given: str) -> None:
    request = await received(fields={"X-Request-ID": given})
    sent = request.field("X-Request-ID")
    assert sent
    assert sent != given


async def test_an_untrusted_peer_does_not_choose_the_request_id() -> None:
    request = await received(
        fields={"X-Request-ID": "chosen"}, sections={"server": {"trusted_proxies": []}}
    )
    assert request.field("X-Request-ID") != "chosen"


async def test_the_same_request_id_goes_to_every_provider_and_to_the_client() -> None:
    async with (
        ScriptedProvider(status(500), name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat()
        ids = {
            a.requests[0].field("X-Request-ID"),
            b.requests[0].field("X-Request-ID"),
            answer.field("X-Request-ID"),
            g.exchange["id"],
        }
        assert len(ids) == 1


# ---- credentials, the provider's own fields, URL


@pytest.mark.parametrize("shape", ALL, ids=str)
@pytest.mark.parametrize(
    ("kind", "field"),
    [("openai", "Authorization"), ("azure", "api-key"), ("anthropic", "Authorization")],
)
async def test_each_kind_takes_its_credential_in_its_own_form(
    kind: str, field: str, shape: Shape
) -> None:
    request = await received(shape=shape, kind=kind, key_env="KEY", environ={"KEY": " sk-own\n"})
    found = {name: value for name, value in request.fields if "sk-own" in value}
    if shape is MESSAGES:
        assert found == {"x-api-key": "sk-own"}
    elif field == "Authorization":
        assert found == {"Authorization": "Bearer sk-own"}
    else:
        assert found == {"api-key": "sk-own"}


async def test_a_provider_without_a_key_gets_no_credential() -> None:
    request = await received(fields={"Authorization": "Bearer client-key"})
    assert not {"authorization", "x-api-key", "api-key"} & set(request.names())


async def test_each_provider_gets_its_own_key_alone() -> None:
    async with (
        ScriptedProvider(status(500), name="a", key_env="KEY_A") as a,
        ScriptedProvider(ok(), name="b", key_env="KEY_B") as b,
    ):
        environ = {"KEY_A": "sk-aaaa", "KEY_B": "sk-bbbb"}
        async with gateway(config_for(a, b), environ=environ) as g:
            await g.chat()
        assert b"sk-aaaa" in a.requests[0].head
        assert b"sk-bbbb" not in a.requests[0].head
        assert b"sk-bbbb" in b.requests[0].head
        assert b"sk-aaaa" not in b.requests[0].head


async def test_headers_of_a_provider_are_added() -> None:
    request = await received(headers={"HTTP-Referer": "https://a.example", "X-Title": "A"})
    assert request.field("HTTP-Referer") == "https://a.example"
    assert request.field("X-Title") == "A"


@pytest.mark.parametrize("path", ["", "/v1/chat"])
async def test_what_headers_of_a_provider_set_a_client_does_not(path: str) -> None:
    request = await received(
        {"messages": [{"role": "user", "content": "hi"}]} if path else None,
        {"Anthropic-Version": "2023-06-01", "Anthropic-Beta": "b", "traceparent": TRACE},
        MESSAGES,
        path=path,
        kind="anthropic",
        surfaces=["messages"],
        model="m",
        headers={"Anthropic-version": "2030-01-01"},
    )
    assert request.field("anthropic-version") == "2030-01-01"
    assert request.field("anthropic-beta") == (None if path else "b")
    assert request.field("traceparent") == TRACE


async def test_the_clients_query_is_not_forwarded_and_the_providers_own_is() -> None:
    request = await received(path=CHAT.path + "?api_key=SEKRET&x=1")
    assert request.target == CHAT.path
    request = await received(
        path=CHAT.path + "?api-version=evil", query={"api-version": "2024-10-21"}
    )
    assert request.target == CHAT.path + "?api-version=2024-10-21"


async def test_a_base_url_may_be_the_whole_chat_url() -> None:
    async with ScriptedProvider(ok(), name="a") as a:
        table = {"name": "a", "base_url": a.base_url + "/chat/completions"}
        async with gateway(config_for(table)) as g:
            await g.chat()
        assert a.requests[0].target == CHAT.path


# ---- the body

ODD = (
    b'{ "a":1.0e+2 ,"model" : "gpt\\u002d4", "big":123456789012345678901234567890,\n'
    b'\t"dup":{"x":1,"x":2},'
    b'"messages":[{"role":"user","content":"\\ud83d\\ude00 \\/ caf\xc3\xa9"}],'
    b'"zero":-0,"stream" :false , "unknown":[ ]  }\r\n'
)


async def test_a_body_goes_upstream_byte_for_byte() -> None:
    assert (await received(ODD)).body == ODD


@pytest.mark.parametrize("shape", ALL, ids=str)
async def test_the_model_is_replaced_in_place(shape: Shape) -> None:
    body = builders.encode(shape.request())
    request = await received(body, shape=shape, model="other/model-7")
    assert request.body == body.replace(b'"model":"m"', b'"model":"other/model-7"')


async def test_nothing_but_the_models_value_changes_in_an_odd_body() -> None:
    request = await received(ODD, model="other")
    assert request.body == ODD.replace(b'"gpt\\u002d4"', b'"other"')


async def test_a_missing_model_is_added() -> None:
    request = await received(builders.chat(model=None), model="other")
    assert request.json() == builders.chat(model="other")


async def test_without_a_model_of_its_own_the_clients_goes_through() -> None:
    request = await received(builders.chat(model="whatever"))
    assert request.json()["model"] == "whatever"


async def test_a_routes_models_go_before_the_providers() -> None:
    async with ScriptedProvider(ok(), name="a", model="base") as a:
        routes = [
            {"name": "one", "providers": ["a"], "models": {"a": "special"}},
            {"name": "two", "providers": ["a"]},
        ]
        async with gateway(config_for(a, route=routes)) as g:
            await g.chat(model="one")
            await g.chat(model="two")
        assert [request.json()["model"] for request in a.requests] == ["special", "base"]


async def test_each_provider_gets_its_own_model() -> None:
    async with (
        ScriptedProvider(status(500), name="a", model="m-a") as a,
        ScriptedProvider(ok(), name="b", model="m-b") as b,
        gateway(config_for(a, b)) as g,
    ):
        await g.chat(model="x")
        assert a.requests[0].json() == builders.chat(model="m-a")
        assert b.requests[0].json() == builders.chat(model="m-b")


@pytest.mark.parametrize("shape", ALL, ids=str)
async def test_stream_always_turns_streams_on_where_they_exist(shape: Shape) -> None:
    async with ScriptedProvider(whole(shape.answer), name="a", surfaces=EVERY_SURFACE) as a:
        async with gateway(config_for(a, routing={"stream": "always"})) as g:
            await g.post(shape.path, shape.request())
            await g.post(shape.path, {**shape.request(), "stream": False})
        told = [request.json().get("stream") for request in a.requests]
        assert told == ([None, False] if shape is EMBEDDINGS else [True, True])


@pytest.mark.parametrize("shape", STREAMED, ids=str)
async def test_stream_always_answers_with_a_stream(shape: Shape) -> None:
    async def script(peer: Any, request: Request) -> None:
        assert request.json()["stream"] is True
        await peer.sse(*shape.stream)

    async with ScriptedProvider(script, name="a", surfaces=EVERY_SURFACE) as a:
        async with gateway(config_for(a, routing={"stream": "always"})) as g:
            answer: Response = await g.post(shape.path, shape.request())
            assert answer.body == b"".join(shape.stream)
            assert answer.field("Content-Type") == "text/event-stream"


async def test_extra_body_replaces_top_level_members() -> None:
    extra = {"reasoning": {"effort": "low"}, "user": "relay", "n": 1}
    body = builders.chat(user="client", reasoning={"effort": "high", "more": 1})
    request = await received(body, extra_body=extra)
    assert request.json() == {**body, **extra}


async def test_no_train_denies_data_collection_and_keeps_the_rest() -> None:
    settings = {"kind": "openrouter", "no_train": True, "key_env": "KEY"}
    environ = {"KEY": "sk"}
    request = await received(environ=environ, **settings)
    assert request.json()["provider"] == {"data_collection": "deny"}
    own = builders.chat(provider={"order": ["x"], "data_collection": "allow"})
    request = await received(own, environ=environ, **settings)
    assert request.json()["provider"] == {"order": ["x"], "data_collection": "deny"}


async def test_no_train_cannot_be_undone_by_a_repeated_member() -> None:
    body = (
        b'{"messages":[{"role":"user","content":"x"}],'
        b'"provider":{"data_collection":"allow"},"provider":{"data_collection":"allow"}}'
    )
    async with ScriptedProvider(
        ok(), name="a", kind="openrouter", no_train=True, key_env="KEY"
    ) as a:
        async with gateway(config_for(a), environ={"KEY": "sk"}) as g:
            answer = await g.post(CHAT.path, body)
            assert answer.status == 200
            assert b'"allow"' not in a.requests[0].body


async def test_a_large_body_arrives_whole() -> None:
    body = builders.encode(builders.chat("x" * 900_000))
    assert (await received(body)).body == body


async def test_a_chunked_body_arrives_with_its_length() -> None:
    body = builders.encode(CHAT.request())
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    async with ScriptedProvider(ok(), name="a") as a, gateway(config_for(a)) as g:
        async with g.client() as client:
            await client.send(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n" + chunks
            )
            assert (await client.response()).status == 200
        assert a.requests[0].body == body
        assert a.requests[0].field("Content-Length") == str(len(body))
        assert a.requests[0].field("Transfer-Encoding") is None


# ---- what comes back


async def test_only_named_fields_come_back() -> None:
    fields = [
        ("Content-Type", "application/json"),
        ("openai-processing-ms", "12"),
        ("openai-version", "2020-10-01"),
        ("x-request-id", "req_upstream"),
        ("Set-Cookie", "a=b"),
        ("X-Accel-Redirect", "/etc/passwd"),
        ("X-Accel-Buffering", "yes"),
        ("x-ratelimit-remaining-requests", "9"),
        ("Server", "cloudflare"),
        ("CF-RAY", "x"),
        ("Keep-Alive", "timeout=5"),
        ("Location", "http://127.0.0.1:1/"),
        ("WWW-Authenticate", "Basic"),
        ("Cache-Control", "max-age=60"),
        ("Via", "1.1 other"),
    ]
    async with ScriptedProvider(whole(CHAT.answer, *fields), name="a") as a:
        async with gateway(config_for(a)) as g:
            answer = await g.chat(fields={"X-Request-ID": "mine"})
        got = dict(answer.fields)
        assert got.pop("Date")
        assert got == {
            "Content-Type": "application/json",
            "Content-Length": str(len(CHAT.answer)),
            "openai-processing-ms": "12",
            "openai-version": "2020-10-01",
            "X-Upstream-Request-ID": "req_upstream",
            "X-Gateway-Provider": "a",
            "X-Gateway-Attempts": "1",
            "X-Request-ID": "mine",
            "Via": "1.1 relayd",
        }


async def test_what_connection_names_does_not_come_back() -> None:
    fields = [("openai-version", "x"), ("Connection", "openai-version")]
    async with ScriptedProvider(whole(CHAT.answer, *fields), name="a") as a:
        async with gateway(config_for(a)) as g:
            assert (await g.chat()).field("openai-version") is None


async def test_a_redirect_is_never_followed() -> None:
    async with ScriptedProvider(ok(), name="evil") as evil:
        script = status(307, b"", [("Location", evil.base_url + "/chat/completions")])
        async with ScriptedProvider(script, name="a") as a, gateway(config_for(a)) as g:
            answer = await g.chat()
            assert (answer.status, answer.field("Location")) == (502, None)
        assert not evil.connections


async def test_connections_to_a_provider_are_kept() -> None:
    async with ScriptedProvider(ok(), name="a") as a, gateway(config_for(a)) as g:
        for stream in (True, False, True):
            await g.chat(stream=stream)
        assert (a.connections, len(a.requests)) == (1, 3)
