"""`POST /v1/chat`: the same chain behind a smaller request, in each provider's own format."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest

from relayd.adapters import UNSAID
from relayd.adapters.interface import NOTHING
from relayd.adapters.openai import OpenAI
from relayd.outbound import Ask, Form
from tests.support import builders
from tests.support.client import Response
from tests.support.gateway import Gateway, config_for, gateway
from tests.support.provider import Script, ScriptedProvider
from tests.support.scripts import (
    breaks_off,
    events,
    hangs_up,
    ok,
    ok_stream,
    raw,
    silent,
    status,
)

PATH = "/v1/chat"
DONE = "[DONE]"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
KEY = "sk-canary-0123456789abcdef"


def asked(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def provider(*scripts: Any, **settings: Any) -> ScriptedProvider:
    return ScriptedProvider(*scripts, **{"name": "a", "model": "m1", **settings})


async def said(g: Gateway, value: object) -> list[Any]:
    """The data of each event of an answer, JSON where it is JSON."""
    async with g.client() as client:
        response = await client.open_stream(PATH, value)
        return await heard(response)


async def heard(response: Response) -> list[Any]:
    assert response.status == 200
    found = [event.data for event in await response.events()]
    assert response.whole, "expected a clean end"
    assert response.unfinished == b""
    return [text if text == DONE else json.loads(text) for text in found]


async def test_the_text_comes_in_deltas_and_ends_with_done() -> None:
    async with provider(ok("one", "two")) as a, gateway(config_for(a)) as g:
        assert await said(g, asked()) == [{"delta": "one"}, {"delta": "two"}, DONE]
    assert g.exchange["path"] == PATH
    assert g.exchange["stream"] is True
    assert g.exchange["finish_reason"] == "stop"
    assert g.exchange["end_reason"] == "complete"


async def test_each_delta_arrives_when_the_provider_sends_it() -> None:
    async with provider(ok_stream("one", "two", delay=1.0)) as a, gateway(config_for(a)) as g:
        async with g.client() as client:
            response = await client.open_stream(PATH, asked())
            first, second = await response.event(), await response.event()
            assert first is not None
            assert second is not None
            assert 0.9 < second.at - first.at < 1.1
            await response.read()


async def test_the_provider_is_asked_for_a_stream_and_nothing_it_does_not_know() -> None:
    async with provider(ok()) as a, gateway(config_for(a)) as g:
        await said(g, asked("é", model_hint="fast"))
    request = a.requests[0]
    assert request.target == "/v1/chat/completions"
    assert request.json() == {"model": "m1", "stream": True, **asked("é")}


@pytest.mark.parametrize("nothing", [status(200, b"<html>"), status(204, b""), raw(PLAIN)])
async def test_what_is_no_answer_is_none_here_whatever_commits(nothing: Script) -> None:
    """relayd writes these events itself: it may not end with [DONE] what said nothing."""
    async with (
        provider(nothing) as a,
        ScriptedProvider(ok("yes"), name="b", model="m2") as b,
        gateway(config_for(a, b, routing={"commit": "head"})) as g,
    ):
        assert await said(g, asked()) == [{"delta": "yes"}, DONE]
    assert g.exchange["provider"] == "b"


async def test_another_status_of_success_is_a_200() -> None:
    async with provider(status(201, builders.completion("x"))) as a, gateway(config_for(a)) as g:
        assert await said(g, asked()) == [{"delta": "x"}, DONE]
    assert g.exchange["status"] == 200


async def test_of_the_clients_fields_only_a_trace_crosses() -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    given = {"OpenAI-Beta": "x", "anthropic-beta": "y", "anthropic-version": "z"}
    async with provider(ok()) as a, gateway(config_for(a)) as g:
        await g.post(PATH, asked(), {**given, "traceparent": trace})
    request = a.requests[0]
    assert request.field("traceparent") == trace
    assert [request.field(name) for name in given] == [None, None, None]


async def test_a_running_stream_holds_nothing_of_its_request() -> None:
    text = "x" * 100_000
    script = events(builders.delta("a"), end=False)
    async with provider(script) as a, gateway(config_for(a)) as g, g.client() as client:
        response = await client.open_stream(PATH, asked(text))
        await response.event()
        a.requests.clear()
        gc.collect()
        large = [thing for thing in gc.get_objects() if isinstance(thing, Ask | Form)]
        assert [ask for ask in large if len(ask.body) > 1000] == []


async def test_the_answer_is_an_event_stream_with_the_gateways_fields() -> None:
    script = ok_stream("x")
    async with provider(script) as a, gateway(config_for(a)) as g:
        response = await g.post(PATH, asked())
    assert response.field("content-type") == "text/event-stream"
    assert response.field("cache-control") == "no-cache"
    assert response.field("x-accel-buffering") == "no"
    assert response.field("x-gateway-provider") == "a"
    assert response.field("content-length") is None


@pytest.mark.parametrize(
    ("hint", "model"), [("fast", "f"), ("capable", "c"), ("cheap", "m1"), (None, "m1")]
)
async def test_the_hint_picks_the_providers_model(hint: str | None, model: str) -> None:
    models = {"fast": "f", "capable": "c"}
    async with provider(ok(), models=models) as a, gateway(config_for(a)) as g:
        await said(g, asked(model_hint=hint) if hint else asked())
    assert a.requests[0].json()["model"] == model
    assert g.exchange["upstream_model"] == model


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (asked(model_hint="best"), "model_hint"),
        (asked(model_hint=None), "model_hint"),
        (asked(model_hint=["fast"]), "model_hint"),
        (asked(temperature=1), "temperature"),
        (asked(model="m"), "model"),
        (asked(stream=True), "stream"),
        ({"messages": []}, "messages"),
        ({}, "messages"),
        ([], None),
    ],
)
async def test_any_other_request_is_refused_by_name(body: Any, param: str | None) -> None:
    async with provider(ok()) as a, gateway(config_for(a)) as g:
        response = await g.post(PATH, body)
    assert response.status == 400
    assert response.error["code"] == "bad_request"
    assert response.error["param"] == param
    assert not a.requests


async def test_a_repeated_hint_is_refused() -> None:
    body = b'{"messages":[{}],"model_hint":"fast","model_hint":"cheap"}'
    async with provider(ok()) as a, gateway(config_for(a)) as g:
        async with g.client() as client:
            head = b"POST /v1/chat HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            await client.send(head + body)
            response = await client.response("POST")
    assert response.error["param"] == "model_hint"


async def test_a_failing_provider_is_replaced_before_the_first_byte() -> None:
    async with provider(status(503)) as a, provider(ok("b"), name="b") as b:
        async with gateway(config_for(a, b)) as g:
            assert await said(g, asked()) == [{"delta": "b"}, DONE]
    assert [tried["provider"] for tried in g.exchange["attempts"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("script", "expected", "code"),
    [
        (status(500), 502, "upstream_error"),
        (status(429), 429, "upstream_rate_limited"),
        (status(401), 502, "provider_auth"),
        (hangs_up(), 502, "upstream_error"),
        (events(builders.error_event()), 502, "upstream_error"),
    ],
)
async def test_before_the_answer_a_failure_is_a_status_and_a_json_error(
    script: Any, expected: int, code: str
) -> None:
    async with provider(script) as a, gateway(config_for(a)) as g:
        response = await g.post(PATH, asked())
    assert response.status == expected
    assert response.error["code"] == code
    assert response.field("content-type") == "application/json"


async def test_every_breaker_open_is_503_before_anything_is_sent() -> None:
    async with provider(status(500)) as a:
        async with gateway(config_for(a, breaker={"failures": 1})) as g:
            await g.post(PATH, asked())
            response = await g.post(PATH, asked())
    assert response.status == 503
    assert response.error["code"] == "no_provider_available"
    assert response.field("retry-after") is not None
    assert len(a.requests) == 1


async def test_a_stream_that_breaks_off_between_events_ends_with_an_error_and_done() -> None:
    script = breaks_off(builders.delta("one"), then="fin")
    async with provider(script) as a, gateway(config_for(a)) as g:
        assert await said(g, asked()) == [
            {"delta": "one"},
            {"error": "the provider's stream broke off"},
            DONE,
        ]
    assert g.exchange["end_reason"] == "upstream_truncated"


async def test_a_stream_that_breaks_off_inside_an_event_ends_with_an_error_and_done() -> None:
    script = breaks_off(builders.delta("one"), b'data: {"choi', then="rst")
    async with provider(script) as a, gateway(config_for(a)) as g:
        assert await said(g, asked()) == [
            {"delta": "one"},
            {"error": "the answer broke off"},
            DONE,
        ]


async def test_a_silent_stream_ends_with_an_error_and_done() -> None:
    script = events(builders.delta("one"), end=False)
    async with provider(script) as a, gateway(config_for(a, clocks={"idle": 5.0})) as g:
        found = await said(g, asked())
    assert found[1:] == [{"error": "the provider's stream stopped"}, DONE]
    assert g.exchange["end_reason"] == "upstream_stalled"


async def test_an_error_event_of_the_provider_is_told_once_without_its_secrets() -> None:
    error = builders.error_event(f"key {KEY} is broken")
    script = events(builders.delta("one"), error, builders.delta("two"), builders.DONE)
    async with provider(script, key_env="KEY") as a:
        async with gateway(config_for(a), environ={"KEY": KEY}) as g:
            found = await said(g, asked())
    assert [list(each) for each in found[:-1]] == [["delta"], ["error"]]
    assert "is broken" in found[1]["error"]
    assert KEY not in found[1]["error"]
    assert found[-1] == DONE


ERRORS = {
    "by its name alone": b'event: error\ndata: {"message":"boom"}\n\n',
    "vLLM": b'data: {"object":"error","message":"boom","code":400}\n\n',
    "a text": b'data: {"error":"boom"}\n\n',
    "a tab in its text": b'data: {"error":{"message":"boo\tm"}}\n\n',
    "no UTF-8": b'data: {"error":{"message":"boom \xe9"}}\n\n',
    "empty": b'data: {"error":{}}\n\n',
    "named, and no JSON": b"event: error\ndata: boom\n\n",
    "OpenRouter's finish": builders.finish("error"),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
async def test_an_error_of_any_form_is_told(error: bytes) -> None:
    script = events(builders.delta("one"), error, builders.DONE)
    async with provider(script) as a, gateway(config_for(a)) as g:
        found = await said(g, asked())
    assert [list(each) for each in found[:-1]] == [["delta"], ["error"]]
    assert found[-1] == DONE
    assert g.exchange["end_reason"] == "upstream_error_event"


async def test_text_beside_an_error_is_told_before_it() -> None:
    broken = {"choices": [{"message": {"content": "half"}, "finish_reason": "error"}]}
    async with provider(status(200, builders.encode(broken))) as a, gateway(config_for(a)) as g:
        assert await said(g, asked()) == [{"delta": "half"}, {"error": UNSAID}, DONE]


@pytest.mark.parametrize(
    "error",
    [b'event: error\ndata: {"message":"boom"}\n\n', b'data: {"error":{"message":"boom"}}\n\n'],
)
async def test_an_error_of_any_form_is_told_in_the_other_format_too(error: bytes) -> None:
    script = events(*builders.messages_stream("one")[:4], error)
    async with claude(script) as a, gateway(config_for(a), environ={"KEY": KEY}) as g:
        assert await said(g, asked()) == [{"delta": "one"}, {"error": "boom"}, DONE]


async def test_an_error_that_the_format_does_not_know_is_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OpenAI, "event", lambda *_: NOTHING)
    script = events(builders.delta("one"), builders.error_event("boom"))
    async with provider(script) as a, gateway(config_for(a)) as g:
        assert await said(g, asked()) == [{"error": UNSAID}, DONE]


@pytest.mark.parametrize("late", [builders.error_event("late"), builders.delta("late")])
async def test_what_stands_behind_the_final_marker_is_not_told(late: bytes) -> None:
    script = events(builders.delta("one") + builders.finish() + builders.DONE + late)
    async with provider(script) as a, gateway(config_for(a)) as g:
        assert await said(g, asked()) == [{"delta": "one"}, DONE]


ODD = {
    "a tab": (b'{"choices":[{"delta":{"content":"a\tb"}}]}', "a\tb"),
    "no UTF-8": (b'{"choices":[{"delta":{"content":"caf\xe9"}}]}', "caf\ufffd"),
}


@pytest.mark.parametrize(("data", "text"), ODD.values(), ids=ODD)
async def test_no_text_is_lost_for_an_odd_byte_in_it(data: bytes, text: str) -> None:
    odd = b"data: %b\n\n" % data
    script = events(builders.delta("one"), odd, builders.finish(), builders.DONE)
    async with provider(script) as a, gateway(config_for(a)) as g:
        assert await said(g, asked()) == [{"delta": "one"}, {"delta": text}, DONE]
    whole = data.replace(b'"delta"', b'"message"')
    async with provider(status(200, b"\xef\xbb\xbf" + whole)) as a, gateway(config_for(a)) as g:
        assert await said(g, asked()) == [{"delta": text}, DONE]


async def test_the_type_of_a_message_event_may_stand_in_its_name_alone() -> None:
    delta = b'event: content_block_delta\ndata: {"delta":{"type":"text_delta","text":"two"}}\n\n'
    head, tail = builders.messages_stream("one")[:4], builders.messages_stream("one")[4:]
    async with claude(events(*head, delta, *tail)) as a:
        async with gateway(config_for(a), environ={"KEY": KEY}) as g:
            assert await said(g, asked()) == [{"delta": "one"}, {"delta": "two"}, DONE]


async def test_an_answer_that_comes_whole_is_translated_too() -> None:
    script = status(200, builders.completion("hello"))
    async with provider(script) as a, gateway(config_for(a)) as g:
        assert await said(g, asked()) == [{"delta": "hello"}, DONE]
    assert g.exchange["usage"] == {"input": 3, "output": 5, "cached": None}


async def test_an_event_that_is_too_large_ends_the_answer() -> None:
    big = builders.delta("x" * (1 << 20))
    script = events(builders.delta("one"), big, builders.delta("two"), builders.finish())
    async with provider(script) as a, gateway(config_for(a)) as g:
        found = await said(g, asked())
    assert found[0] == {"delta": "one"}
    assert "larger" in found[1]["error"]
    assert found[2:] == [DONE]


async def test_the_client_that_leaves_closes_the_upstream_connection() -> None:
    script = events(builders.delta("one"), end=False)
    async with provider(script) as a, gateway(config_for(a)) as g:
        async with g.client() as client:
            response = await client.open_stream(PATH, asked())
            await response.event()
        await asyncio.sleep(0.5)
        assert a.open == 0
    assert g.exchange["end_reason"] == "client_left"


async def test_a_drain_ends_the_answer_with_an_error_and_done() -> None:
    script = events(builders.delta("one"), end=False)
    async with provider(script) as a:
        async with gateway(config_for(a)) as g:
            async with g.client() as client:
                response = await client.open_stream(PATH, asked())
                await response.event()
                stopping = asyncio.create_task(g.app.stop(0.0))
                rest = await response.events()
                await stopping
    assert [event.data for event in rest] == ['{"error":"this gateway is stopping"}', DONE]


async def test_a_turn_is_charged_and_the_cap_holds() -> None:
    async with provider(ok()) as a, gateway(config_for(a, quota={"daily_turns": 1})) as g:
        await said(g, asked())
        response = await g.post(PATH, asked())
    assert response.status == 429
    assert response.error["code"] == "rate_limited"
    assert [line["turn"] for line in g.exchanges] == ["charged", "none"]


async def test_a_client_gets_the_first_route_it_may_use() -> None:
    import hashlib

    client = {
        "name": "app",
        "key_sha256": hashlib.sha256(KEY.encode()).hexdigest(),
        "routes": ["second"],
    }
    routes = [{"name": "first", "providers": ["a"]}, {"name": "second", "providers": ["b"]}]
    async with provider(ok("a")) as a, provider(ok("b"), name="b") as b:
        table = config_for(a, b, client=[client], route=routes, routing={"unknown": "reject"})
        async with gateway(table) as g:
            assert (await g.post(PATH, asked())).status == 401
            fields = {"Authorization": f"Bearer {KEY}"}
            response = await g.post(PATH, asked(), fields)
    assert response.field("x-gateway-provider") == "b"
    assert not a.requests


async def test_a_provider_without_a_model_takes_no_part() -> None:
    async with ScriptedProvider(ok(), name="a") as a, provider(ok("b"), name="b") as b:
        async with gateway(config_for(a, b)) as g:
            await said(g, asked())
        async with gateway(config_for(a)) as g:
            response = await g.post(PATH, asked())
    assert not a.requests
    assert response.status == 404
    assert response.error["code"] == "model_not_found"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
async def test_only_post_works(method: str) -> None:
    async with provider(ok()) as a, gateway(config_for(a)) as g:
        async with g.client() as client:
            await client.send(f"{method} {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            response = await client.response(method)
    assert response.status == 405
    assert response.field("allow") == "POST"


# ---- another wire format


def claude(*scripts: Any, **settings: Any) -> ScriptedProvider:
    fixed = {"name": "claude", "kind": "anthropic", "surfaces": ["messages"], "key_env": "KEY"}
    return provider(*scripts, **{**fixed, **settings})


async def test_extra_body_takes_the_place_of_what_the_wire_format_asks_for() -> None:
    script = events(*builders.messages_stream("one"))
    async with claude(script, extra_body={"max_tokens": 9}) as a:
        async with gateway(config_for(a), environ={"KEY": KEY}) as g:
            await said(g, asked())
    assert a.requests[0].json()["max_tokens"] == 9
    assert a.requests[0].body.count(b"max_tokens") == 1


async def test_messages_are_spoken_where_nothing_else_is_served() -> None:
    script = events(*builders.messages_stream("one", "two"))
    async with claude(script, price={"input": 3.0, "output": 15.0}) as a:
        async with gateway(config_for(a), environ={"KEY": KEY}) as g:
            assert await said(g, asked()) == [{"delta": "one"}, {"delta": "two"}, DONE]
    request = a.requests[0]
    assert request.target == "/v1/messages"
    assert request.field("x-api-key") == KEY
    assert request.field("anthropic-version") == "2023-06-01"
    assert request.json() == {
        "model": "m1",
        "max_tokens": 4096,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "stream": True,
    }
    assert g.exchange["usage"] == {"input": 3, "output": 5, "cached": None}
    assert g.exchange["cost"] == pytest.approx((3 * 3.0 + 5 * 15.0) / 1e6)
    assert g.exchange["finish_reason"] == "end_turn"


async def test_one_chain_may_hold_both_formats() -> None:
    chat = builders.stream("chat")
    async with claude(status(529)) as a, provider(events(*chat), name="b") as b:
        async with gateway(config_for(a, b), environ={"KEY": KEY}) as g:
            assert await said(g, asked()) == [{"delta": "chat"}, DONE]
    async with provider(status(500)) as a, claude(events(*builders.messages_stream("x"))) as b:
        async with gateway(config_for(a, b), environ={"KEY": KEY}) as g:
            assert await said(g, asked()) == [{"delta": "x"}, DONE]
    urls = [tried["provider"] for tried in g.exchange["attempts"]]
    assert urls == ["a", "claude"]


async def test_an_error_event_in_the_other_format_is_told() -> None:
    error = builders.messages_event("error", error={"type": "overloaded_error", "message": "Busy"})
    script = events(*builders.messages_stream("one")[:4], error)
    async with claude(script) as a, gateway(config_for(a), environ={"KEY": KEY}) as g:
        assert await said(g, asked()) == [{"delta": "one"}, {"error": "Busy"}, DONE]


async def test_a_cut_stream_in_the_other_format_ends_with_an_error_and_done() -> None:
    script = breaks_off(*builders.messages_stream("one")[:4], then="fin")
    async with claude(script) as a, gateway(config_for(a), environ={"KEY": KEY}) as g:
        found = await said(g, asked())
    assert found == [{"delta": "one"}, {"error": "the provider's stream broke off"}, DONE]


async def test_a_refusal_in_the_other_format_comes_in_ours() -> None:
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}}
    async with claude(status(400, body)) as a, gateway(config_for(a), environ={"KEY": KEY}) as g:
        response = await g.post(PATH, asked())
    assert response.status == 400
    assert response.error["message"] == "too long"


async def test_messages_that_the_format_cannot_say_go_to_a_provider_that_takes_them() -> None:
    body = {"messages": builders.tool_result()["messages"]}
    async with claude(silent()) as a, provider(ok("b"), name="b") as b:
        async with gateway(config_for(a, b), environ={"KEY": KEY}) as g:
            assert await said(g, body) == [{"delta": "b"}, DONE]
        async with gateway(config_for(a), environ={"KEY": KEY}) as g:
            response = await g.post(PATH, body)
    assert not a.requests
    assert response.status == 400
    assert "tool calls" in response.error["message"]
    assert response.error["param"] == "messages"


# ---- the cost of every exchange


async def test_an_exchange_with_usage_and_a_price_has_a_cost() -> None:
    price = {"input": 0.5, "output": 2.0}
    counted = [*builders.stream("x")[:-1], builders.usage(1000, 200), builders.DONE]
    async with provider(events(*counted), price=price) as a:
        async with gateway(config_for(a)) as g:
            await g.chat(stream=True)
    assert g.exchange["cost"] == pytest.approx((1000 * 0.5 + 200 * 2.0) / 1e6)


@pytest.mark.parametrize("settings", [{}, {"price": {"input": 1.0, "output": 1.0}}])
async def test_without_a_price_or_without_usage_there_is_no_cost(settings: Any) -> None:
    script = ok() if not settings else ok_stream()
    async with provider(script, **settings) as a, gateway(config_for(a)) as g:
        await g.chat(stream=bool(settings))
    assert "cost" not in g.exchange
