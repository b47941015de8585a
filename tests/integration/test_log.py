"""The access line of an exchange: one per exchange, its fields, and what stands in them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from typing import Any

import pytest

from tests.support import builders
from tests.support.client import post
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import breaks_off, events, ok, silent, slow, status

from .shapes import ALL, CHAT, EVERY_SURFACE, MESSAGES, RESPONSES, STREAMED, Shape, whole

FIELDS = [
    *["ts", "v", "id", "client", "user", "peer", "method", "path", "route", "model", "provider"],
    *["upstream_model", "stream", "status", "attempts", "ttfb_ms", "duration_ms", "bytes_in"],
    *["bytes_out", "events", "usage", "finish_reason", "commit", "ended_by", "end_reason", "turn"],
]

END_REASONS = {
    *["complete", "refused", "request_fault", "failed", "upstream_error_event"],
    *["upstream_truncated", "upstream_stalled", "response_too_large", "deadline_exceeded"],
    *["shutting_down", "client_left", "client_stalled", "internal_error"],
}


async def test_the_line_of_a_stream() -> None:
    stream = [builders.role(), builders.delta("hello"), builders.finish("stop"), builders.usage()]
    script = slow(2.0, events(*stream, builders.DONE, delay=1.0))
    async with ScriptedProvider(script, name="a", model="m-a") as a:
        route = [{"name": "smart", "providers": ["a"]}]
        async with gateway(config_for(a, route=route, quota={"daily_turns": 9})) as g:
            request = builders.chat(model="smart", stream=True)
            answer = await g.post(
                CHAT.path + "?key=SEKRET", request, {"X-Request-ID": "id-1", "X-User-Id": "ann"}
            )
            line = g.exchange
    assert list(line) == FIELDS
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("ts"))
    assert line.pop("attempts") == [
        {"provider": "a", "outcome": "ok", "status": 200, "breaker": "closed", "ms": 3000.0}
    ]
    assert line == {
        "v": 1,
        "id": "id-1",
        "client": None,
        "user": "ann",
        "peer": "127.0.0.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "route": "smart",
        "model": "smart",
        "provider": "a",
        "upstream_model": "m-a",
        "stream": True,
        "status": 200,
        "ttfb_ms": 3000.0,
        "duration_ms": 6000.0,
        "bytes_in": len(json.dumps(request).encode()),
        "bytes_out": len(answer.body),
        "events": 5,
        "usage": {"input": 3, "output": 5, "cached": 0},
        "finish_reason": "stop",
        "commit": "content",
        "ended_by": "provider",
        "end_reason": "complete",
        "turn": "charged",
    }


async def test_the_line_of_a_whole_answer() -> None:
    async with ScriptedProvider(slow(1.5, ok()), name="a") as a, gateway(config_for(a)) as g:
        answer = await g.chat()
        line = g.exchange
        assert (line["stream"], line["events"]) == (False, 0)
        assert (line["ttfb_ms"], line["duration_ms"]) == (1500.0, 1500.0)
        assert line["bytes_out"] == len(answer.body)
        assert line["usage"] == {"input": 3, "output": 5, "cached": None}
        assert line["finish_reason"] == "stop"
        assert (line["route"], line["model"], line["upstream_model"]) == ("default", "m", "m")
        assert (line["commit"], line["ended_by"]) == ("answer", "provider")


async def test_a_finish_reason_does_not_need_a_usage() -> None:
    body = {**builders.completion(), "usage": None}
    del body["usage"]
    async with ScriptedProvider(whole(builders.encode(body)), name="a") as a:
        async with gateway(config_for(a)) as g:
            await g.chat()
            assert g.exchange["finish_reason"] == "stop"
            assert g.exchange["usage"] is None


@pytest.mark.parametrize("shape", ALL, ids=str)
async def test_every_surface_is_logged_by_its_path(shape: Shape) -> None:
    async with ScriptedProvider(whole(shape.answer), name="a", surfaces=EVERY_SURFACE) as a:
        async with gateway(config_for(a)) as g:
            await g.post(shape.path, shape.request())
            assert g.exchange["path"] == shape.path
            assert g.exchange["end_reason"] == "complete"


REASONS = {"chat": "stop", "completions": "stop", "responses": "completed", "messages": "end_turn"}
USAGE = {
    RESPONSES: {"input": 3, "output": 5, "cached": None},
    MESSAGES: {"input": 3, "output": 5, "cached": None},
}


@pytest.mark.parametrize("shape", STREAMED, ids=str)
async def test_a_streams_finish_and_usage_are_read_on_every_surface(shape: Shape) -> None:
    async with ScriptedProvider(events(*shape.stream), name="a", surfaces=EVERY_SURFACE) as a:
        async with gateway(config_for(a)) as g:
            await g.post(shape.path, shape.request(stream=True))
            assert g.exchange["finish_reason"] == REASONS[shape.name]
            assert g.exchange["usage"] == USAGE.get(shape)


async def test_failed_attempts_have_lines_of_their_own_and_stand_in_the_exchanges() -> None:
    async with (
        ScriptedProvider(slow(2.0, status(503)), name="a") as a,
        ScriptedProvider(silent(), name="b") as b,
        ScriptedProvider(ok(), name="c") as c,
        gateway(config_for(a, b, c)) as g,
    ):
        await g.chat(stream=True, fields={"X-Request-ID": "id-1"})
        told = [(t["provider"], t["outcome"], t["status"]) for t in g.exchange["attempts"]]
        assert told == [
            ("a", "server_error", 503),
            ("b", "first_content_timeout", None),
            ("c", "ok", 200),
        ]
        assert [t["ms"] for t in g.exchange["attempts"]] == [2000.0, 60000.0, 0.0]
        lines = [line for line in g.log if line.get("event") == "attempt_failed"]
        assert [(line["provider"], line["level"], line["id"]) for line in lines] == [
            ("a", "warning", "id-1"),
            ("b", "warning", "id-1"),
        ]


ENDS: dict[str, tuple[Any, int, str, str]] = {
    "complete": (ok(), 200, "complete", "provider"),
    "request fault": (status(422), 422, "request_fault", "provider"),
    "all failed": (status(500), 502, "failed", "provider"),
    "cut": (breaks_off(CHAT.content, then="fin"), 200, "upstream_truncated", "provider"),
    "error event": (
        events(CHAT.content, builders.error_event()),
        200,
        "upstream_error_event",
        "provider",
    ),
    "deadline": (silent(), 504, "deadline_exceeded", "relayd"),
}


@pytest.mark.parametrize("case", ENDS)
async def test_how_it_ended_is_told_in_words_of_a_closed_list(case: str) -> None:
    script, code, reason, by = ENDS[case]
    async with ScriptedProvider(script, name="a") as a:
        async with gateway(config_for(a, clocks={"deadline": 20.0})) as g:
            await g.chat(stream=True)
            line = g.exchange
            assert (line["status"], line["end_reason"], line["ended_by"]) == (code, reason, by)
            assert reason in END_REASONS
            assert list(line) == FIELDS


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        (CHAT.path, b"nonsense", 400),
        ("/v1/nothing", b"{}", 404),
        ("/healthz", b"{}", 405),
        (CHAT.path, b"{}", 400),
    ],
)
async def test_what_relayd_refuses_is_logged_too(path: str, body: bytes, code: int) -> None:
    async with ScriptedProvider(ok(), name="a") as a, gateway(config_for(a)) as g:
        await g.post(path, body)
        line = g.exchange
        assert list(line) == FIELDS
        assert (line["status"], line["end_reason"], line["ended_by"]) == (code, "refused", "relayd")
        assert (line["attempts"], line["turn"]) == ([], "none")


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nExpect: foo\r\n\r\n", 417),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"\x16\x03\x01\x02\x00", 400),
    ],
)
async def test_a_head_that_cannot_be_read_is_logged_by_its_id(head: bytes, code: int) -> None:
    async with ScriptedProvider(ok(), name="a") as a, gateway(config_for(a)) as g:
        async with g.client() as client:
            await client.send(head)
            answer = await client.response()
        line = g.exchange
        assert list(line) == FIELDS
        assert (answer.status, line["status"]) == (code, code)
        assert line["id"] == answer.field("x-request-id")
        assert (line["end_reason"], line["ended_by"]) == ("refused", "relayd")
        assert (line["method"], line["path"], line["peer"]) == ("", "", "127.0.0.1")


async def test_the_client_and_its_user_are_named() -> None:
    key = "sk-client-key-0123456789"
    client = {"name": "app", "key_sha256": hashlib.sha256(key.encode()).hexdigest()}
    async with ScriptedProvider(ok(), name="a") as a:
        async with gateway(config_for(a, client=[client])) as g:
            await g.chat(fields={"Authorization": f"Bearer {key}", "X-User-Id": "ann"})
            await g.chat(fields={"Authorization": "Bearer sk-wrong"})
            assert [line["client"] for line in g.exchanges] == ["app", None]
            assert g.exchanges[0]["user"] == "ann"
            assert key not in json.dumps(g.log)
            assert "sk-wrong" not in json.dumps(g.log)


REFUSED: dict[str, tuple[str, dict[str, Any], tuple[str | None, str | None]]] = {
    "an unknown model": (CHAT.path, {"model": "zzz"}, (None, "zzz")),
    "a route that it may not use": (CHAT.path, {"model": "spare"}, (None, "spare")),
    "a surface that nobody serves": ("/v1/embeddings", {"model": "smart"}, ("smart", "smart")),
    "a body without messages": (CHAT.path, {"model": "smart", "messages": []}, (None, None)),
    "a member of another API": ("/v1/chat", {"temperature": 1}, (None, None)),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize(("fields", "user"), [({}, "app"), ({"X-User-Id": "ann"}, "ann")])
async def test_a_refused_request_is_logged_with_all_that_is_known_of_it(
    case: str, fields: dict[str, str], user: str
) -> None:
    path, members, (route, model) = REFUSED[case]
    async with ScriptedProvider(ok(), name="a", model="m") as a, gateway(named(a)) as g:
        await g.post(path, {**CHAT.request(), "input": "hi", **members}, {**BEARER, **fields})
        line = g.exchange
        assert (line["client"], line["user"], line["end_reason"]) == ("app", user, "refused")
        assert (line["route"], line["model"]) == (route, model)


async def test_who_asks_for_the_models_is_logged() -> None:
    async with ScriptedProvider(ok(), name="a", model="m") as a, gateway(named(a)) as g:
        await g.get("/v1/models", BEARER)
        await g.get("/v1/nothing", BEARER)
        assert [(line["client"], line["user"]) for line in g.exchanges] == [("app", "app")] * 2


KEY = "sk-client-key-0123456789"
BEARER = {"Authorization": f"Bearer {KEY}"}


def named(provider: ScriptedProvider) -> Any:
    """A client that may use one of two routes, and nothing else."""
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    return config_for(
        provider,
        client=[{"name": "app", "key_sha256": digest, "routes": ["smart"]}],
        route=[{"name": name, "providers": ["a"]} for name in ("smart", "spare")],
        routing={"unknown": "reject"},
    )


async def test_the_peer_is_whom_a_trusted_proxy_names() -> None:
    async with ScriptedProvider(ok(), name="a") as a:
        async with gateway(config_for(a)) as g:
            await g.chat(fields={"X-Forwarded-For": "10.9.9.9, 192.0.2.7"})
            assert g.exchange["peer"] == "192.0.2.7"
        async with gateway(config_for(a, server={"trusted_proxies": []})) as g:
            await g.chat(fields={"X-Forwarded-For": "192.0.2.7"})
            assert g.exchange["peer"] == "127.0.0.1"


async def test_the_last_line_about_the_peer_is_the_proxys_own() -> None:
    lines = "10.9.9.9\r\nX-Forwarded-For: 192.0.2.7"
    async with ScriptedProvider(ok(), name="a") as a, gateway(config_for(a)) as g:
        await g.chat(fields={"X-Forwarded-For": lines})
        await g.chat(fields={"X-Forwarded-For": "192.0.2.7, "})
        assert [line["peer"] for line in g.exchanges] == ["192.0.2.7", "127.0.0.1"]


async def test_strange_text_from_outside_is_printable_and_short() -> None:
    nasty = "a\x1b[31m\u2028" + "x" * 500
    async with ScriptedProvider(ok(), name="a") as a, gateway(config_for(a)) as g:
        await g.chat(model=nasty)
        line = g.exchange
        assert len(line["model"]) <= 128
        assert line["model"].isprintable()


async def test_no_body_is_in_the_log() -> None:
    async with ScriptedProvider(ok("PROVIDERTEXT"), name="a") as a, gateway(config_for(a)) as g:
        for stream in (True, False):
            await g.chat("CLIENTTEXT", stream=stream)
        assert "CLIENTTEXT" not in json.dumps(g.log)
        assert "PROVIDERTEXT" not in json.dumps(g.log)


async def test_each_exchange_has_one_line_whatever_becomes_of_it() -> None:
    scripts = [ok(), status(500), status(400), breaks_off(CHAT.content, then="rst"), events()]
    async with ScriptedProvider(*scripts, name="a") as a:
        async with gateway(config_for(a, breaker={"failures": 100})) as g:
            for _ in scripts:
                await g.chat(stream=True)
            assert len(g.exchanges) == len(scripts)
            assert len({line["id"] for line in g.exchanges}) == len(scripts)


async def test_two_requests_on_one_connection_are_two_lines() -> None:
    async with ScriptedProvider(ok(), name="a") as a, gateway(config_for(a)) as g:
        async with g.client() as client:
            await client.send(post(CHAT.path, CHAT.request()) * 2)
            await client.response("POST")
            await client.response("POST")
        assert len(g.exchanges) == 2


async def test_successful_probes_are_not_logged() -> None:
    async with ScriptedProvider(ok(), name="a") as a, gateway(config_for(a)) as g:
        for path in ("/healthz", "/readyz", "/health"):
            await g.get(path)
        await asyncio.sleep(1)
        assert g.exchanges == []


async def test_a_breakers_changes_are_logged() -> None:
    async with ScriptedProvider(status(500), ok(), name="a") as a:
        async with gateway(config_for(a, breaker={"failures": 1})) as g:
            await g.chat()
            await asyncio.sleep(10)
            await g.chat()
            lines = [line for line in g.log if line.get("event") == "breaker"]
            assert [line["state"] for line in lines] == ["open", "half-open", "closed"]
            assert {line["provider"] for line in lines} == {"a"}
            assert [line["level"] for line in lines] == ["warning", "info", "info"]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_cost_follows_the_providers_price(stream: bool) -> None:
    script_stream = [CHAT.content, builders.finish(), builders.usage(1000, 500), builders.DONE]
    body = {
        **builders.completion(),
        "usage": {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500},
    }
    script = events(*script_stream) if stream else whole(builders.encode(body))
    price = {"input": 0.5, "output": 2.0}
    async with ScriptedProvider(script, name="a", price=price) as a:
        async with gateway(config_for(a)) as g:
            await g.chat(stream=stream)
            assert g.exchange["cost"] == pytest.approx(0.0015)


async def test_without_a_price_there_is_no_cost() -> None:
    async with ScriptedProvider(ok(), name="a") as a, gateway(config_for(a)) as g:
        await g.chat()
        assert "cost" not in g.exchange


OLD = b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b"


async def test_a_proxy_that_speaks_http_1_0_is_told_of_once() -> None:
    body = builders.encode(CHAT.request())
    async with ScriptedProvider(ok(), name="a") as a, gateway(config_for(a)) as g:
        await g.chat()
        assert not [line for line in g.log if line.get("event") == "old_proxy"]
        for _ in range(3):
            async with g.client() as client:
                await client.send(OLD % (len(body), body))
                assert (await client.response()).status == 200
        lines = [line for line in g.log if line.get("event") == "old_proxy"]
        assert [line["level"] for line in lines] == ["warning"]
        assert "nginx speaks HTTP/1.0" in lines[0]["message"]
        assert "proxy_http_version 1.1" in lines[0]["message"]


async def test_a_stranger_that_speaks_http_1_0_is_no_proxy() -> None:
    body = builders.encode(CHAT.request())
    async with ScriptedProvider(ok(), name="a") as a:
        async with (
            gateway(config_for(a, server={"trusted_proxies": []})) as g,
            g.client() as client,
        ):
            await client.send(OLD % (len(body), body))
            assert (await client.response()).status == 200
            assert not [line for line in g.log if line.get("event") == "old_proxy"]


async def test_a_user_that_is_not_believed_is_told_of_once() -> None:
    async with ScriptedProvider(ok(), name="a") as a:
        async with gateway(config_for(a, server={"trusted_proxies": []})) as g:
            await g.chat()
            assert not [line for line in g.log if line.get("event") == "unheard_user"]
            for name in ("ann", "bob"):
                async with g.client() as client:
                    await client.post_json(CHAT.path, CHAT.request(), {"X-User-Id": name})
            lines = [line for line in g.log if line.get("event") == "unheard_user"]
    assert [(line["level"], line["peer"]) for line in lines] == [("warning", "127.0.0.1")]
    assert "X-User-Id" in lines[0]["message"]
    assert "--no-proxy-headers" in lines[0]["message"]
    assert "ann" not in lines[0]["message"]
