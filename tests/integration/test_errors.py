"""What the client gets when it fails: the whole error table, its shapes, its order, its fields.

How malformed HTTP is refused is the framing tests' subject; here each code is met once, with all
that an error answer has to carry.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest

from tests.support import builders
from tests.support.client import Response
from tests.support.gateway import Gateway, config_for, gateway
from tests.support.loop import takes
from tests.support.provider import ScriptedProvider
from tests.support.scripts import hangs_up, ok, raw, refusing, silent, slow, status

from .shapes import ALL, CHAT, EVERY_SURFACE, MESSAGES, Shape, open_stream, whole

shapes = pytest.mark.parametrize("shape", ALL, ids=str)
KEY = "sk-client-key-0123456789"
CLIENT = {
    "name": "app",
    "key_sha256": hashlib.sha256(KEY.encode()).hexdigest(),
    "routes": ["smart"],
}
BEARER = {"Authorization": f"Bearer {KEY}"}
NAMED = [
    {"name": "smart", "providers": ["a"]},
    {"name": "spare", "providers": ["a"]},
]

GATEWAY = ("X-Gateway-Attempts", "X-Request-ID")


def check(answer: Response, code: int, word: str, kind: str | None = None) -> None:
    """An error answer as every one has to be."""
    assert (answer.status, answer.error["code"]) == (code, word)
    assert set(answer.json()) == {"error"}
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert isinstance(answer.error["message"], str)
    assert answer.error["message"]
    assert kind is None or answer.error["type"] == kind
    assert answer.field("Content-Type") == "application/json"
    assert answer.field("Content-Length") == str(len(answer.body))
    assert answer.field("X-Request-ID")
    assert answer.field("X-Gateway-Attempts") is not None
    assert answer.field("Date")
    assert answer.whole


async def raw_request(g: Gateway, data: bytes) -> tuple[Response, bool]:
    """The answer to these bytes, and whether the connection was closed after it."""
    async with g.client() as client:
        await client.send(data)
        answer = await client.response()
        closes = answer.field("Connection") == "close"
        if closes:
            client.half_close()
            await client.ended()
        return answer, closes


# ---- a fault of relayd's own


@pytest.mark.parametrize("place", ["relayd.admission.read", "relayd.endpoints.identify"])
async def test_a_fault_of_relayd_is_a_500(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError("of a secret")

    async with ScriptedProvider(ok(), name="a") as a, gateway(config_for(a)) as g:
        with monkeypatch.context() as patched:
            patched.setattr(place, fault)
            answer = await g.chat()
        check(answer, 500, "internal_error")
        assert (g.exchange["status"], g.exchange["end_reason"]) == (500, "internal_error")
        assert [line["event"] for line in g.log if "event" in line] == ["internal_error"]
        assert "secret" not in json.dumps(g.log)
        assert (await g.chat()).status == 200


# ---- refused on the head

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
FRAMING = {
    "not HTTP": (b"hello\r\n\r\n", 400, "bad_request"),
    "length and chunks": (
        POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
        "bad_request",
    ),
    "two lengths": (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n", 400, "bad_request"),
    "obs-fold": (POST + b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n", 400, "bad_request"),
    "bare LF": (b"GET /healthz HTTP/1.1\nHost: a\n\n", 400, "bad_request"),
    "HTTP/1.0 with chunks": (
        b"POST /v1/chat/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
        "bad_request",
    ),
    "HTTP/2.0": (b"GET /healthz HTTP/2.0\r\nHost: a\r\n\r\n", 505, "bad_request"),
    "Expect": (POST + b"Expect: magic\r\nContent-Length: 2\r\n\r\n", 417, "bad_request"),
    "an unknown coding": (POST + b"Transfer-Encoding: gzip\r\n\r\n", 501, "bad_request"),
    "a head too large": (
        b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        431,
        "head_too_large",
    ),
    "a body too large": (POST + b"Content-Length: 9999999\r\n\r\n", 413, "request_too_large"),
}


@pytest.mark.parametrize("case", FRAMING)
async def test_a_fault_of_framing_is_answered_and_closes(case: str) -> None:
    data, code, word = FRAMING[case]
    async with ScriptedProvider(ok(), name="a") as a, gateway(config_for(a)) as g:
        answer, closes = await raw_request(g, data)
        check(answer, code, word, "invalid_request_error")
        assert closes
        assert not a.requests


async def test_a_slow_head_is_a_408() -> None:
    async with ScriptedProvider(name="a") as a, gateway(config_for(a)) as g:
        with takes(10.0):
            answer, closes = await raw_request(g, b"GET /healthz HTTP/1.1\r\n")
        check(answer, 408, "timeout")
        assert closes


async def test_a_slow_body_is_a_408() -> None:
    async with ScriptedProvider(name="a") as a, gateway(config_for(a)) as g:
        with takes(60.0):
            answer, closes = await raw_request(g, POST + b"Content-Length: 10\r\n\r\n{")
        check(answer, 408, "timeout")
        assert closes


async def test_a_coded_request_is_a_415() -> None:
    async with ScriptedProvider(name="a") as a, gateway(config_for(a)) as g:
        answer = await g.post(CHAT.path, b"\x1f\x8b", {"Content-Encoding": "gzip"})
        check(answer, 415, "unsupported_encoding", "invalid_request_error")


# ---- refused on path, key, body, model


async def test_an_unknown_path_is_a_404() -> None:
    async with ScriptedProvider(name="a") as a, gateway(config_for(a)) as g:
        check(await g.get("/v2/nothing"), 404, "not_found", "invalid_request_error")


async def test_a_base_url_without_its_v1_is_told_where_the_api_is() -> None:
    async with ScriptedProvider(name="a") as a, gateway(config_for(a)) as g:
        answer = await g.post("/chat/completions", builders.chat())
        check(answer, 404, "not_found")
        assert answer.error["message"] == "there is nothing at this path; the API is below /v1"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", CHAT.path, "POST"),
        ("OPTIONS", CHAT.path, "POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("POST", "/healthz", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_a_405_that_names_the_right_ones(
    method: str, path: str, allow: str
) -> None:
    async with ScriptedProvider(name="a") as a, gateway(config_for(a)) as g:
        async with g.client() as client:
            await client.request(method, path)
            answer = await client.response(method)
        check(answer, 405, "method_not_allowed")
        assert answer.field("Allow") == allow


BODIES: dict[str, bytes] = {
    "empty": b"",
    "not JSON": b"hello",
    "half": b'{"model":"m","messages":[',
    "an array": b"[]",
    "a string": b'"x"',
    "two values": b"{}{}",
    "not UTF-8": b'{"model":"\xff","messages":[{"role":"user","content":"x"}]}',
    "no messages": b'{"model":"m"}',
    "empty messages": b'{"model":"m","messages":[]}',
    "messages of another type": b'{"model":"m","messages":"hi"}',
    "model twice": b'{"model":"a","model":"b","messages":[{"role":"user","content":"x"}]}',
    "stream twice": b'{"stream":true,"stream":false,"messages":[{"role":"user","content":"x"}]}',
    "messages twice": b'{"messages":[{"role":"user","content":"x"}],"messages":[]}',
    "101 deep": b'{"model":"m","messages":[{"role":"user","content":"x"}],"x":'
    + b"[" * 101
    + b"]" * 101
    + b"}",
    "20,000 deep": b'{"model":"m","x":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
}


@pytest.mark.parametrize("case", BODIES)
async def test_a_body_that_is_no_request_is_a_400_and_goes_nowhere(case: str) -> None:
    async with ScriptedProvider(ok(), name="a") as a:
        async with gateway(config_for(a, quota={"daily_turns": 1})) as g:
            check(await g.post(CHAT.path, BODIES[case]), 400, "bad_request")
            assert not a.requests
            assert (await g.chat()).status == 200, "the refused request was charged"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"Authorization": "Bearer sk-wrong-key-9876543210"},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {KEY}x"},
        {"x-api-key": KEY},
        {"Authorization": "Bearer " + "k" * 10_000},
        {"Authorization": "Bearer schlüssel"},
    ],
)
async def test_a_wrong_key_is_a_401_that_does_not_repeat_it(fields: dict[str, str]) -> None:
    async with ScriptedProvider(ok(), name="a", model="m") as a:
        async with gateway(config_for(a, client=[CLIENT], route=NAMED)) as g:
            answer = await g.chat(model="smart", fields=fields)
            check(answer, 401, "invalid_api_key", "invalid_request_error")
            assert answer.field("WWW-Authenticate") == "Bearer"
            value = next(iter(fields.values()), "x" * 50).removeprefix("Bearer ")
            assert not value.strip() or value not in answer.text + json.dumps(g.log)


async def test_the_messages_surface_takes_its_own_key_field() -> None:
    async with ScriptedProvider(whole(MESSAGES.answer), model="m", surfaces=["messages"]) as a:
        async with gateway(config_for(a, client=[CLIENT], route=NAMED)) as g:
            body = {**MESSAGES.request(), "model": "smart"}
            assert (await g.post(MESSAGES.path, body, {"x-api-key": KEY})).status == 200
            assert (await g.post(MESSAGES.path, body, BEARER)).status == 200
            assert (await g.post(MESSAGES.path, body)).status == 401


async def test_a_path_below_messages_takes_it_too_and_answers_in_its_shape() -> None:
    async with ScriptedProvider(name="a", model="m") as a:
        async with gateway(config_for(a, client=[CLIENT], route=NAMED)) as g:
            answer = await g.post(MESSAGES.path + "/count_tokens", b"{}", {"x-api-key": KEY})
            assert (answer.status, answer.json()["error"]["type"]) == (404, "not_found_error")


async def test_an_answer_to_messages_has_the_id_under_the_name_that_its_sdks_read() -> None:
    script = whole(MESSAGES.answer, ("request-id", "req_theirs"))
    async with ScriptedProvider(script, status(500), name="a", surfaces=["messages"]) as a:
        async with gateway(config_for(a)) as g:
            for code in (200, 502, 400):
                request = b"{}" if code == 400 else MESSAGES.request()
                answer = await g.post(MESSAGES.path, request)
                assert answer.status == code
                assert answer.field("request-id") == answer.field("X-Request-ID")
                theirs = "req_theirs" if code == 200 else None
                assert answer.field("X-Upstream-Request-ID") == theirs
            assert (await g.chat()).field("request-id") is None


async def test_an_unknown_model_is_a_404_where_names_are_enforced() -> None:
    async with ScriptedProvider(ok(), name="a", model="m") as a:
        async with gateway(config_for(a, route=NAMED, routing={"unknown": "reject"})) as g:
            answer = await g.chat(model="gpt-9")
            check(answer, 404, "model_not_found", "invalid_request_error")
            assert answer.error["param"] == "model"
            assert "gpt-9" not in answer.text
            assert (await g.chat(model="spare")).status == 200


async def test_an_unknown_model_takes_the_first_route_by_default() -> None:
    async with ScriptedProvider(ok(), name="a", model="m") as a:
        async with gateway(config_for(a, route=NAMED)) as g:
            assert (await g.chat(model="gpt-9")).status == 200
            assert g.exchange["route"] == "smart"


async def test_a_route_that_is_not_the_clients_is_a_404() -> None:
    async with ScriptedProvider(ok(), name="a", model="m") as a:
        async with gateway(config_for(a, route=NAMED, client=[CLIENT])) as g:
            check(await g.chat(model="spare", fields=BEARER), 404, "model_not_found")
            assert (await g.chat(model="smart", fields=BEARER)).status == 200


async def test_the_used_up_quota_is_a_429_that_sdks_do_not_retry() -> None:
    async with ScriptedProvider(ok(), name="a") as a:
        async with gateway(config_for(a, quota={"daily_turns": 1})) as g:
            assert (await g.chat()).status == 200
            answer = await g.chat()
            check(answer, 429, "rate_limited", "rate_limit_error")
            seconds = answer.field("Retry-After")
            assert seconds is not None
            assert 1 <= int(seconds) <= 86_400
            assert answer.field("x-should-retry") == "false"
            assert answer.field("RateLimit") == f'"turns";r=0;t={seconds}'
            assert answer.field("RateLimit-Policy") == '"turns";q=1;w=86400'
            assert len(a.requests) == 1


# ---- a provider's request fault


async def test_a_request_fault_crosses_with_four_fields() -> None:
    told = {
        "error": {
            "message": "max_tokens is too large",
            "type": "invalid_request_error",
            "param": "max_tokens",
            "code": 123,
            "more": {"internal": "x"},
        },
        "request_id": "y",
    }
    async with ScriptedProvider(status(422, told), name="a") as a, gateway(config_for(a)) as g:
        answer = await g.chat()
        assert answer.status == 422
        assert answer.json() == {
            "error": {
                "message": "max_tokens is too large",
                "type": "invalid_request_error",
                "param": "max_tokens",
                "code": "123",
            }
        }
        assert answer.field("X-Gateway-Provider") == "a"


@pytest.mark.parametrize(
    "body", [b"<html>no</html>", b"[]", b'[{"error": {"message": "secret"}}]', b"", b"\xff\xfe"]
)
async def test_a_request_fault_that_cannot_be_read_becomes_a_plain_message(body: bytes) -> None:
    async with ScriptedProvider(status(400, body), name="a") as a, gateway(config_for(a)) as g:
        answer = await g.chat()
        assert answer.status == 400
        assert answer.error["type"] == "invalid_request_error"
        assert "400" in answer.error["message"]
        assert "secret" not in answer.text


async def test_a_request_fault_shows_neither_key_nor_url_and_is_trimmed() -> None:
    words = "Incorrect key sk-own at http://127.0.0.1:1/v1/x?key=abc " + "x" * 5000
    script = status(400, builders.error_object(words))
    async with ScriptedProvider(script, name="a", key_env="KEY") as a:
        async with gateway(config_for(a), environ={"KEY": "sk-own"}) as g:
            answer = await g.chat()
            assert "sk-own" not in answer.text + json.dumps(g.log)
            assert "key=abc" not in answer.text + json.dumps(g.log)
            assert len(answer.error["message"].encode()) <= 2048


async def test_expose_none_hides_the_providers_words() -> None:
    script = status(400, builders.error_object("secret words", code="secret_code"))
    async with ScriptedProvider(script, name="a") as a:
        async with gateway(config_for(a, errors={"expose": "none"})) as g:
            answer = await g.chat()
            assert answer.status == 400
            assert "secret" not in answer.text


@pytest.mark.parametrize("code", [400, 404, 409, 413, 415, 422, 451])
async def test_a_request_fault_keeps_its_status(code: int) -> None:
    async with ScriptedProvider(status(code), name="a") as a, gateway(config_for(a)) as g:
        assert (await g.chat()).status == code


# ---- nobody could answer


async def test_a_deadline_is_a_504() -> None:
    async with ScriptedProvider(silent(), name="a") as a:
        async with gateway(config_for(a, clocks={"deadline": 5})) as g:
            check(await g.chat(), 504, "deadline_exceeded", "upstream_error")


async def test_everybody_rate_limited_is_a_429_with_the_smallest_retry_after() -> None:
    async with (
        ScriptedProvider(status(429, None, [("Retry-After", "40")]), name="a") as a,
        ScriptedProvider(status(429, None, [("Retry-After", "20")]), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat()
        check(answer, 429, "upstream_rate_limited", "rate_limit_error")
        assert answer.field("Retry-After") == "20"
        assert answer.field("X-Gateway-Attempts") == "2"
        answer = await g.chat()
        check(answer, 429, "upstream_rate_limited")
        assert answer.field("X-Gateway-Attempts") == "0"
        assert answer.field("Retry-After") == "20"
        assert answer.field("x-should-retry") is None


async def test_a_429_and_another_failure_is_a_502() -> None:
    async with (
        ScriptedProvider(status(429), name="a") as a,
        ScriptedProvider(status(500), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        check(await g.chat(), 502, "upstream_error", "upstream_error")


async def test_open_breakers_are_a_503_before_anything_is_sent() -> None:
    async with ScriptedProvider(status(500), name="a") as a:
        async with gateway(config_for(a, breaker={"failures": 1, "cooldown": 25})) as g:
            check(await g.chat(), 502, "upstream_error")
            await asyncio.sleep(5)
            answer = await g.chat()
            check(answer, 503, "no_provider_available", "upstream_error")
            assert answer.field("Retry-After") == "20"
            assert answer.field("X-Gateway-Attempts") == "0"
            assert answer.field("X-Gateway-Provider") is None
            assert len(a.requests) == 1


async def test_one_resting_and_one_open_is_a_503() -> None:
    async with (
        ScriptedProvider(status(429, None, [("Retry-After", "50")]), name="a") as a,
        ScriptedProvider(status(500), name="b") as b,
        gateway(config_for(a, b, breaker={"failures": 1, "cooldown": 25})) as g,
    ):
        await g.chat()
        answer = await g.chat()
        check(answer, 503, "no_provider_available")
        assert answer.field("Retry-After") == "25"


async def test_a_full_provider_alone_is_a_503() -> None:
    async with ScriptedProvider(slow(5, ok()), name="a", max_in_flight=1) as a:
        async with gateway(config_for(a)) as g:
            first = asyncio.create_task(g.chat())
            await asyncio.sleep(1)
            answer = await g.chat()
            check(answer, 503, "no_provider_available")
            assert answer.field("Retry-After") == "1"
            assert (await first).status == 200


async def test_a_refused_key_of_our_own_is_a_502_that_says_so() -> None:
    async with ScriptedProvider(status(401), name="a") as a, gateway(config_for(a)) as g:
        check(await g.chat(), 502, "provider_auth", "upstream_error")


async def test_the_last_failure_decides_between_auth_and_the_rest() -> None:
    async with (
        ScriptedProvider(status(401), name="a") as a,
        ScriptedProvider(status(500), name="b") as b,
        gateway(config_for(a, b, failover={"credentials": True})) as g,
    ):
        check(await g.chat(), 502, "upstream_error")
    async with (
        ScriptedProvider(status(500), name="a") as a,
        ScriptedProvider(status(401), name="b") as b,
        gateway(config_for(a, b, failover={"credentials": True})) as g,
    ):
        check(await g.chat(), 502, "provider_auth")


@pytest.mark.parametrize("script", [status(503), hangs_up(), whole(b""), status(302)])
async def test_everything_else_upstream_is_a_502(script: Any) -> None:
    async with ScriptedProvider(script, name="a") as a, gateway(config_for(a)) as g:
        answer = await g.chat()
        check(answer, 502, "upstream_error", "upstream_error")
        assert answer.field("X-Gateway-Provider") == "a"
        assert answer.field("X-Gateway-Attempts") == "1"
        assert answer.field("Location") is None


async def test_no_words_of_a_failed_provider_reach_the_client() -> None:
    page = b"<html>secret-stack-trace at /srv/llm</html>"
    async with ScriptedProvider(status(500, page), name="a") as a, gateway(config_for(a)) as g:
        answer = await g.chat()
        assert "secret" not in answer.text
        assert a.base_url not in answer.text


async def test_no_url_of_a_provider_reaches_the_client() -> None:
    with refusing() as (host, port):
        table = {"name": "a", "base_url": f"http://{host}:{port}/v1"}
        async with gateway(config_for(table)) as g:
            answer = await g.chat()
            check(answer, 502, "upstream_error")
            assert str(port) not in answer.text


# ---- relayd itself


async def test_a_store_that_is_away_denies_where_it_is_told_to() -> None:
    config = config_for(
        {"name": "a", "base_url": "http://127.0.0.1:9/v1"},
        quota={"daily_turns": 5},
        store={"url": "redis://127.0.0.1:1/0", "on_failure": "deny"},
    )
    pytest.importorskip("redis")
    async with gateway(config) as g:
        check(await g.chat(), 503, "store_unavailable", "server_error")


async def test_too_many_exchanges_are_a_503() -> None:
    async with ScriptedProvider(slow(5, ok()), name="a") as a:
        async with gateway(config_for(a, server={"max_exchanges": 1})) as g:
            first = asyncio.create_task(g.chat())
            await asyncio.sleep(1)
            answer = await g.chat()
            check(answer, 503, "overloaded", "server_error")
            assert answer.field("Retry-After") == "1"
            assert (await first).status == 200


async def test_too_many_connections_are_a_503() -> None:
    async with ScriptedProvider(name="a") as a:
        async with gateway(config_for(a, server={"max_connections": 1})) as g:
            async with g.client() as first:
                assert (await first.get("/healthz")).status == 200
                async with g.client() as second:
                    answer = await second.response()
                    assert (answer.status, answer.error["code"]) == (503, "overloaded")
                    assert answer.field("Retry-After") == "1"
                    await second.ended()
                assert (await first.get("/healthz")).status == 200


async def test_a_fault_of_relayd_is_a_500_without_a_word_of_it() -> None:
    async with ScriptedProvider(status(503), name="a") as a:
        async with gateway(config_for(a, failover={"retries": 1})) as g:
            g.app.engine.jitter = lambda: 1 / 0  # a fault of our own, in the middle of an exchange
            answer = await g.chat()
            check(answer, 500, "internal_error", "server_error")
            assert "division" not in answer.text
            assert "division" not in json.dumps(g.log)
            assert any(line.get("event") == "internal_error" for line in g.log)
            assert g.exchange["end_reason"] == "internal_error"


# ---- shapes and fields

FAILURES: dict[str, tuple[Any, int]] = {
    "request fault": (status(422, builders.error_object("bad", code="c")), 422),
    "rate limited": (status(429, None, [("Retry-After", "9")]), 429),
    "auth": (status(401), 502),
    "upstream": (status(500), 502),
}


@pytest.mark.parametrize("case", FAILURES)
@shapes
async def test_every_surface_gets_its_shape(shape: Shape, case: str) -> None:
    script, code = FAILURES[case]
    async with ScriptedProvider(script, name="a", surfaces=EVERY_SURFACE) as a:
        async with gateway(config_for(a)) as g:
            answer = await g.post(shape.path, shape.request())
            assert answer.status == code
            assert answer.field("Content-Type") == "application/json"
            assert answer.field("X-Gateway-Provider") == "a"
            if shape is MESSAGES:
                assert set(answer.json()) == {"type", "error"}
                assert answer.json()["type"] == "error"
                assert set(answer.error) == {"type", "message"}
            else:
                check(answer, code, answer.error["code"])


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, "invalid_request_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (422, "invalid_request_error"),
    ],
)
async def test_anthropic_types_follow_the_status(code: int, kind: str) -> None:
    async with ScriptedProvider(status(code), surfaces=["messages"]) as a:
        async with gateway(config_for(a)) as g:
            answer = await g.post(MESSAGES.path, MESSAGES.request())
            assert (answer.status, answer.error["type"]) == (code, kind)


@pytest.mark.parametrize(
    ("method", "fields", "body", "code"),
    [
        ("POST", {}, b"nonsense", 401),
        ("POST", BEARER, b"nonsense", 400),
        ("GET", {}, b"", 401),
        ("GET", BEARER, b"", 405),
        ("POST", {"Content-Encoding": "gzip"}, b"x", 415),
    ],
)
async def test_relayds_own_refusals_on_messages_have_anthropics_shape(
    method: str, fields: dict[str, str], body: bytes, code: int
) -> None:
    async with ScriptedProvider(ok(), model="m", surfaces=["messages"]) as a:
        async with gateway(config_for(a, client=[CLIENT], route=NAMED)) as g:
            async with g.client() as client:
                await client.request(method, MESSAGES.path, body, fields)
                answer = await client.response(method)
            assert answer.status == code
            assert set(answer.json()) == {"type", "error"}
            assert set(answer.error) == {"type", "message"}


@pytest.mark.parametrize("case", FAILURES)
async def test_the_request_id_of_a_trusted_peer_is_on_error_answers(case: str) -> None:
    async with ScriptedProvider(FAILURES[case][0], name="a") as a, gateway(config_for(a)) as g:
        answer = await g.chat(fields={"X-Request-ID": "abc.DEF:1_2-3"})
        assert answer.field("X-Request-ID") == "abc.DEF:1_2-3"


# ---- where several apply


async def test_the_order_of_the_table_decides() -> None:
    """Each request has one fault less than the one before it."""
    big = {"Content-Length": "99999999"}
    coded = {"Content-Encoding": "gzip"}
    steps = [
        (413, "DELETE", "/nowhere", {**big, **coded}),
        (415, "DELETE", "/v1/nowhere", coded),
        (401, "DELETE", "/v1/nowhere", {}),
        (404, "DELETE", "/v1/nowhere", BEARER),
        (405, "DELETE", CHAT.path, BEARER),
    ]
    async with ScriptedProvider(ok(), name="a", model="m") as a:
        async with gateway(config_for(a, client=[CLIENT], route=NAMED)) as g:
            for code, method, path, fields in steps:
                async with g.client() as client:
                    await client.request(method, path, fields=fields)
                    assert (await client.response(method)).status == code


async def test_a_bad_body_goes_before_an_unknown_model_and_the_quota() -> None:
    async with ScriptedProvider(ok(), name="a", model="m") as a:
        config = config_for(a, route=NAMED, routing={"unknown": "reject"}, quota={"daily_turns": 1})
        async with gateway(config) as g:
            assert (await g.chat(model="smart")).status == 200
            assert (await g.post(CHAT.path, {"model": "x", "messages": []})).status == 400
            assert (await g.chat(model="x")).status == 404
            assert (await g.chat(model="smart")).status == 429


async def test_a_key_is_judged_before_a_100_continue() -> None:
    head = POST + b"Expect: 100-continue\r\nContent-Length: 10\r\n\r\n"
    async with ScriptedProvider(ok(), name="a", model="m") as a:
        async with gateway(config_for(a, client=[CLIENT], route=NAMED)) as g:
            answer, closes = await raw_request(g, head)
            assert (answer.status, answer.informational) == (401, [])
            assert closes, "the body may still come"


async def test_a_client_that_sends_on_gets_the_early_answer() -> None:
    head = POST + b"Content-Length: 9999999\r\n\r\n"
    async with ScriptedProvider(name="a") as a, gateway(config_for(a)) as g:
        async with g.client() as client:
            await client.send(head + b"x" * 300_000)
            answer = await client.response()
            check(answer, 413, "request_too_large")


async def test_a_refused_body_that_came_whole_leaves_the_connection_usable() -> None:
    async with ScriptedProvider(ok(), name="a") as a, gateway(config_for(a)) as g:
        async with g.client() as client:
            assert (await client.post_json(CHAT.path, b"nonsense")).status == 400
            assert (await client.post_json(CHAT.path, CHAT.request())).status == 200
            assert (await client.get("/v1/nothing")).status == 404
            assert (await client.post_json(CHAT.path, CHAT.request())).status == 200


async def test_an_error_before_the_commit_leaves_the_connection_usable() -> None:
    async with ScriptedProvider(status(500), raw(then="fin"), ok(), name="a") as a:
        async with gateway(config_for(a)) as g:
            async with g.client() as client:
                assert (await client.post_json(CHAT.path, CHAT.request())).status == 502
                assert (await client.post_json(CHAT.path, CHAT.request())).status == 200
    assert len(a.requests) >= 2


async def test_draining_within_a_body_is_told_as_its_path_and_id_ask_for() -> None:
    async with ScriptedProvider(ok(), name="a") as a, gateway(config_for(a)) as g:
        async with g.client() as client:
            head = b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nX-Request-ID: id-1\r\n"
            await client.send(head + b"Content-Length: 10\r\n\r\n{")
            await asyncio.sleep(1.0)
            stopping = asyncio.create_task(g.app.stop(2.0))
            answer = await client.response()
            await stopping
        assert answer.status == 503
        assert answer.json()["type"] == "error", "Anthropic's shape"
        assert answer.field("X-Request-ID") == "id-1"
        assert answer.field("Connection") == "close"
        line = g.exchange
        assert (line["path"], line["status"], line["id"]) == ("/v1/messages", 503, "id-1")
        assert line["duration_ms"] >= 1000.0


async def test_draining_ends_an_exchange_before_its_commit_with_a_503() -> None:
    async with ScriptedProvider(silent(), name="a") as a, gateway(config_for(a)) as g:
        asking = asyncio.create_task(g.chat())
        await asyncio.sleep(1)
        with takes(3.0):
            stopping = asyncio.create_task(g.app.stop(3.0))
            answer = await asking
        check(answer, 503, "draining")
        await stopping


async def test_a_stream_that_runs_when_relayd_stops_is_ended_honestly() -> None:
    async with ScriptedProvider(open_stream(CHAT.content), name="a") as a:
        async with gateway(config_for(a)) as g, g.client() as client:
            answer = await client.open_stream(CHAT.path, CHAT.request(stream=True))
            await g.app.stop(3.0)
            await answer.read()
            assert answer.whole
            assert b'"code":"shutting_down"' in answer.body
            assert b"[DONE]" not in answer.body
