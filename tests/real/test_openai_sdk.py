"""The OpenAI SDK as the client: what it sends, reads, raises and retries against relayd.

Knows the SDK's public surface alone; relayd runs in the same process, on real sockets in real time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.support import builders
from tests.support.gateway import Gateway, config_for, gateway
from tests.support.provider import Peer, Request, Script, ScriptedProvider
from tests.support.scripts import breaks_off, events, ok, silent, status

pytestmark = pytest.mark.each_loop

SURFACES = ["chat", "completions", "embeddings", "responses"]
HI: list[Any] = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def relay(
    *scripts: Script, second: Script | None = None, **sections: Any
) -> AsyncIterator[tuple[Gateway, ScriptedProvider, openai.AsyncOpenAI]]:
    """relayd in front of `a` (and a `b` that follows `second`), and a client of it."""
    async with contextlib.AsyncExitStack() as stack:
        a = ScriptedProvider(*scripts, name="a", surfaces=SURFACES)
        chain = [await stack.enter_async_context(a)]
        if second is not None:
            b = ScriptedProvider(second, name="b", surfaces=SURFACES)
            chain.append(await stack.enter_async_context(b))
        g = await stack.enter_async_context(gateway(config_for(*chain, **sections)))
        client = openai.AsyncOpenAI(base_url=url(g), api_key="sk-client", timeout=10.0)
        yield g, a, await stack.enter_async_context(client)


def url(g: Gateway) -> str:
    host, port = g.address
    return f"http://{host}:{port}/v1"


async def ask(client: openai.AsyncOpenAI, **more: Any) -> Any:
    return await client.chat.completions.create(model="m", messages=HI, **more)


async def texts(stream: Any) -> list[str]:
    return [c.choices[0].delta.content async for c in stream if c.choices[0].delta.content]


# ---- answers


async def test_a_whole_answer() -> None:
    async with relay(ok("hello")) as (_, a, client):
        answer = await ask(client, temperature=0.5)
        assert answer.choices[0].message.content == "hello"
        assert answer.usage.total_tokens == 8
        assert a.requests[0].json()["temperature"] == 0.5


async def test_a_stream() -> None:
    async with relay(ok("he", "llo")) as (_, _a, client):
        stream = await ask(client, stream=True)
        assert await texts(stream) == ["he", "llo"]


async def test_a_stream_arrives_event_by_event() -> None:
    """The provider says the next word only when the client has read the one before."""
    heard = asyncio.Semaphore(0)

    async def in_step(peer: Peer, _: Request) -> None:
        await peer.stream_head()
        for word in ("a", "b", "c"):
            await peer.chunk(builders.delta(word))
            await heard.acquire()
        await peer.chunk(builders.finish() + builders.DONE)
        await peer.last_chunk()

    async with relay(in_step) as (_, _a, client), asyncio.timeout(5):
        words = []
        async for chunk in await ask(client, stream=True):
            if chunk.choices[0].delta.content:
                words.append(chunk.choices[0].delta.content)
                heard.release()
        assert words == ["a", "b", "c"]


async def test_the_sync_client() -> None:
    def talk(base: str) -> tuple[str, list[str]]:
        with openai.OpenAI(base_url=base, api_key="sk-client", timeout=10.0) as client:
            whole = client.chat.completions.create(model="m", messages=HI)
            stream = client.chat.completions.create(model="m", messages=HI, stream=True)
            parts = [c.choices[0].delta.content or "" for c in stream]
            return str(whole.choices[0].message.content), parts

    async with relay(ok("he", "llo")) as (g, a, _):
        whole, parts = await asyncio.to_thread(talk, url(g))
        assert (whole, "".join(parts)) == ("hello", "hello")
        assert len(a.requests) == 2


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}


async def test_tools_in_a_whole_answer() -> None:
    async def calls(peer: Peer, _: Request) -> None:
        answer = builders.completion("")
        answer["choices"][0]["message"] = {
            "role": "assistant",
            "content": None,
            "tool_calls": [CALL],
        }
        answer["choices"][0]["finish_reason"] = "tool_calls"
        await peer.json(200, answer)

    tools: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    async with relay(calls) as (g, a, client):
        answer = await ask(client, tools=tools)
        assert answer.choices[0].message.tool_calls[0].function.arguments == '{"x":1}'
        assert a.requests[0].json()["tools"] == tools
        assert g.exchange["finish_reason"] == "tool_calls"


async def test_tools_in_a_stream() -> None:
    def part(**function: str) -> bytes:
        calls = [{"index": 0, "id": "call_1", "type": "function", "function": function}]
        return builders.chunk([{"index": 0, "delta": {"tool_calls": calls}}])

    script = events(
        builders.role(),
        part(name="f", arguments=""),
        part(arguments='{"x"'),
        part(arguments=":1}"),
        builders.finish("tool_calls"),
        builders.DONE,
    )
    async with relay(script) as (_, _a, client):
        arguments = ""
        async for chunk in await ask(client, stream=True):
            for call in chunk.choices[0].delta.tool_calls or []:
                arguments += call.function.arguments
        assert json.loads(arguments) == {"x": 1}


async def test_the_other_surfaces() -> None:
    async def any_surface(peer: Peer, request: Request) -> None:
        path = request.target.removeprefix("/v1")
        if path == "/embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
            return await peer.json(200, {"object": "list", "data": data, "model": "m"})
        if path == "/completions":
            return await peer.sse(
                builders.text_chunk("hel"), builders.text_chunk("lo", "stop"), builders.DONE
            )
        return await peer.sse(*builders.responses_stream("he", "llo"))

    async with relay(any_surface) as (_, _a, client):
        made = await client.embeddings.create(model="m", input="x", encoding_format="float")
        assert made.data[0].embedding == [0.5, 0.25]
        old = await client.completions.create(model="m", prompt="x", stream=True)
        assert [c.choices[0].text async for c in old] == ["hel", "lo"]
        stream = await client.responses.create(model="m", input="x", stream=True)
        kinds = [event.type async for event in stream]
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        assert kinds.count("response.output_text.delta") == 2


async def test_models_are_the_routes() -> None:
    async with ScriptedProvider(ok(), name="a", model="m") as a:
        routes = [{"name": "smart", "providers": ["a"]}, {"name": "org/fast", "providers": ["a"]}]
        async with gateway(config_for(a, route=routes)) as g:
            async with openai.AsyncOpenAI(base_url=url(g), api_key="x") as client:
                assert [m.id async for m in client.models.list()] == ["smart", "org/fast"]
                assert (await client.models.retrieve("smart")).owned_by == "relayd"
                with pytest.raises(openai.NotFoundError):
                    await client.models.retrieve("absent")


# ---- fields


async def test_the_gateways_fields_can_be_read() -> None:
    async with relay(status(500), second=ok("hello")) as (g, _a, client):
        raw = await client.chat.completions.with_raw_response.create(model="m", messages=HI)
        assert raw.headers["X-Gateway-Provider"] == "b"
        assert raw.headers["X-Gateway-Attempts"] == "2"
        assert raw.headers["X-Request-ID"] == g.exchange["id"]
        assert raw.parse().choices[0].message.content == "hello"


async def test_an_answer_knows_its_request_id() -> None:
    async with relay(ok()) as (g, _a, client):
        answer = await ask(client)
        assert answer._request_id == g.exchange["id"]


async def test_nothing_of_the_sdk_reaches_the_provider() -> None:
    async with relay(ok()) as (_, a, client):
        await ask(client, extra_headers={"X-Secret": "1"})
        head = a.requests[0].head.lower()
        for word in (b"x-stainless", b"sk-client", b"openai/", b"x-secret", b"python"):
            assert word not in head


# ---- errors

ERRORS: dict[str, tuple[Script, type[openai.APIStatusError], str]] = {
    "400": (status(400, builders.error_object("bad", "c")), openai.BadRequestError, "c"),
    "404": (
        status(404, builders.error_object("no", "model_not_found")),
        openai.NotFoundError,
        "model_not_found",
    ),
    "422": (status(422, builders.error_object("no", "c")), openai.UnprocessableEntityError, "c"),
    "401": (status(401), openai.InternalServerError, "provider_auth"),
    "500": (status(500), openai.InternalServerError, "upstream_error"),
    "html": (status(502, b"<html>"), openai.InternalServerError, "upstream_error"),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("case", ERRORS)
async def test_each_failure_is_the_sdks_own_exception(case: str, stream: bool) -> None:
    script, kind, code = ERRORS[case]
    async with relay(script) as (g, _a, client):
        with pytest.raises(kind) as caught:
            await ask(client.with_options(max_retries=0), stream=stream)
        assert caught.value.code == code
        assert caught.value.request_id == g.exchanges[0]["id"]


async def test_a_used_up_quota_is_not_retried() -> None:
    async with relay(ok(), quota={"daily_turns": 1}) as (g, _a, client):
        await ask(client)
        with pytest.raises(openai.RateLimitError) as caught:
            await ask(client.with_options(max_retries=5))
        assert caught.value.code == "rate_limited"
        assert [line["status"] for line in g.exchanges] == [200, 429]


async def test_a_request_fault_is_not_retried() -> None:
    async with relay(status(400)) as (_, a, client):
        with pytest.raises(openai.BadRequestError):
            await ask(client.with_options(max_retries=5))
        assert len(a.requests) == 1


async def test_a_rest_is_waited_for_as_relayd_says() -> None:
    limited = status(429, None, [("Retry-After", "1")])
    async with relay(limited, ok("hello")) as (g, _a, client):
        answer = await ask(client)
        assert answer.choices[0].message.content == "hello"
        assert [line["status"] for line in g.exchanges] == [429, 200]


async def test_a_failover_needs_no_retry_of_the_sdk() -> None:
    async with relay(status(503), second=ok("hello")) as (g, _a, client):
        answer = await ask(client.with_options(max_retries=0))
        assert answer.choices[0].message.content == "hello"
        assert g.exchange["status"] == 200


async def test_a_stream_that_fails_before_content_is_failed_over() -> None:
    script = events(builders.role(), builders.error_event())
    async with relay(script, second=ok("hello")) as (_, _a, client):
        assert await texts(await ask(client, stream=True)) == ["hello"]


@pytest.mark.parametrize("then", ["fin", "rst"])
async def test_a_stream_cut_at_a_boundary_raises_and_does_not_end(then: str) -> None:
    async with relay(breaks_off(builders.delta("one"), then=then)) as (_, _a, client):
        stream = await ask(client, stream=True)
        words = []
        with pytest.raises(openai.APIError) as caught:
            async for chunk in stream:
                words.append(chunk.choices[0].delta.content)  # noqa: PERF401  # until it raises
        assert words == ["one"]
        assert caught.value.code == "upstream_truncated"


async def test_a_stream_cut_inside_an_event_raises_and_does_not_end() -> None:
    script = breaks_off(builders.delta("one"), b'data: {"choices":[', then="fin")
    async with relay(script) as (_, _a, client):
        stream = await ask(client, stream=True)
        with pytest.raises(openai.APIError):
            await texts(stream)


async def test_a_providers_error_event_after_content_raises() -> None:
    script = events(builders.delta("one"), builders.error_event("overloaded", "busy"))
    async with relay(script) as (_, _a, client):
        with pytest.raises(openai.APIError, match="overloaded"):
            await texts(await ask(client, stream=True))


# ---- leaving


async def gone(a: ScriptedProvider) -> None:
    """Wait until relayd has let its first connection to the provider go: within a second."""
    async with asyncio.timeout(1.0):
        await a.seen.peers[0].left.wait()


async def test_closing_a_stream_lets_the_provider_go() -> None:
    async with relay(events(builders.delta("one"), end=False)) as (g, a, client):
        stream = await ask(client, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await gone(a)
        assert g.exchange["end_reason"] == "client_left"


async def test_a_timeout_of_the_sdk_lets_the_provider_go() -> None:
    async with relay(silent()) as (g, a, client):
        with pytest.raises(openai.APITimeoutError):
            await ask(client.with_options(timeout=0.3, max_retries=0))
        await gone(a)
        assert g.exchange["status"] == 499


async def test_a_cancelled_task_lets_the_provider_go() -> None:
    asked = asyncio.Event()

    async def says_nothing(peer: Peer, request: Request) -> None:
        asked.set()
        await silent()(peer, request)

    async with relay(says_nothing) as (g, a, client):
        task = asyncio.create_task(ask(client))
        async with asyncio.timeout(5.0):
            await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone(a)
        assert g.exchange["status"] == 499


# ---- many


async def test_one_client_asks_a_hundred_times_on_few_connections() -> None:
    async with relay(ok("hello")) as (g, a, client):
        for turn in range(100):
            answer = await ask(client, stream=bool(turn % 2))
            if turn % 2:
                assert await texts(answer) == ["hello"]
        assert [line["status"] for line in g.exchanges] == [200] * 100
        assert a.connections <= 2


async def test_a_hundred_at_once() -> None:
    async with relay(ok("he", "llo")) as (g, _a, client):

        async def one() -> str:
            return "".join(await texts(await ask(client, stream=True)))

        assert await asyncio.gather(*[one() for _ in range(100)]) == ["hello"] * 100
        assert g.app.engine.running == 0
