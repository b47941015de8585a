"""The endpoints as an ASGI application, under a real uvicorn, alone and mounted in FastAPI."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from relayd import asgi, errors
from relayd.config import Config, build
from tests.support import builders
from tests.support.client import RawClient
from tests.support.gateway import CHAT, config_for
from tests.support.journal import Kept
from tests.support.provider import Peer, Request, ScriptedProvider
from tests.support.scripts import Endless, breaks_off, events, ok, ok_stream, status

README = Path(__file__).parents[2] / "README.md"

KEY = "sk-canary-0123456789abcdef"


def config(*providers: ScriptedProvider, **sections: Any) -> Config:
    def no_file(path: str) -> bytes:
        raise FileNotFoundError(path)

    return build(config_for(*providers, **sections), "test.toml", {"KEY": KEY}, no_file)


class Announced(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, settings: uvicorn.Config) -> None:
        super().__init__(settings)
        self.listens = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.listens.set()


@asynccontextmanager
async def served(app: Any, lifespan: str = "on") -> AsyncIterator[tuple[str, int]]:
    """The application under uvicorn in this loop, on a free port."""
    settings = uvicorn.Config(
        app,
        port=0,
        http="h11",
        ws="none",
        lifespan=lifespan,
        log_config=None,  # type: ignore[arg-type]
    )
    server = Announced(settings)
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(10.0):
        await server.listens.wait()
    try:
        yield server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def application(
    *providers: ScriptedProvider, user: Any = None, **sections: Any
) -> AsyncIterator[tuple[tuple[str, int], Kept]]:
    journal = Kept()
    app = asgi.app(config(*providers, **sections), user=user, journal=journal)
    async with served(app) as address:
        yield address, journal


async def post(address: Any, value: Any, path: str = CHAT, **fields: str) -> Any:
    shown: Mapping[str, str] = {name.replace("_", "-"): value for name, value in fields.items()}
    async with RawClient(address) as client:
        return await client.post_json(path, value, shown)


async def test_a_whole_answer_comes_as_from_the_server() -> None:
    async with ScriptedProvider(ok("hello")) as a, application(a) as (address, journal):
        response = await post(address, builders.chat())
    assert response.status == 200
    assert response.json() == builders.completion("hello")
    assert response.field("x-gateway-provider") == "a"
    assert response.field("content-length") == str(len(response.body))
    assert response.field("content-type") == "application/json"
    assert response.whole
    assert journal.record.end_reason == "complete"
    assert journal.record.peer == "127.0.0.1"


async def test_a_stream_arrives_event_by_event() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer, _: Request) -> None:
        await peer.stream_head()
        await peer.chunk(builders.delta("one"))
        await go_on.wait()
        await peer.chunk(builders.finish() + builders.DONE)
        await peer.last_chunk()

    async with ScriptedProvider(script) as a, application(a) as (address, _):
        async with RawClient(address) as client:
            response = await client.open_stream(CHAT, builders.chat(stream=True))
            first = await response.event()
            go_on.set()
            rest = await response.events()
    assert first is not None
    assert first.raw == builders.delta("one")
    assert [event.raw for event in rest] == [builders.finish(), builders.DONE]
    assert response.whole
    assert response.field("x-accel-buffering") == "no"


async def test_a_failing_provider_is_replaced() -> None:
    async with ScriptedProvider(status(503), name="a") as a, ScriptedProvider(ok(), name="b") as b:
        async with application(a, b) as (address, _):
            response = await post(address, builders.chat())
    assert response.status == 200
    assert response.field("x-gateway-attempts") == "2"


async def test_errors_come_as_from_the_server() -> None:
    async with ScriptedProvider(status(500)) as a:
        async with application(a, server={"max_request_bytes": 2048}) as (address, _):
            failed = await post(address, builders.chat())
            bad = await post(address, {"messages": []})
            large = await post(address, builders.chat("x" * 4096))
            nothing = await post(address, {}, "/v1/nothing")
            async with RawClient(address) as client:
                wrong = await client.get(CHAT)
    codes = [response.error["code"] for response in (failed, bad, large, nothing, wrong)]
    assert codes == [
        "upstream_error",
        "bad_request",
        "request_too_large",
        "not_found",
        "method_not_allowed",
    ]
    assert [r.status for r in (failed, bad, large, nothing, wrong)] == [502, 400, 413, 404, 405]
    assert wrong.field("allow") == "POST"


async def test_a_chunked_body_is_bounded_too() -> None:
    async with ScriptedProvider(ok()) as a:
        async with application(a, server={"max_request_bytes": 2048}) as (address, _):
            async with RawClient(address) as client:
                head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                await client.send(head.encode() + b"1000\r\n" + b"x" * 4096 + b"\r\n0\r\n\r\n")
                response = await client.response("POST")
    assert response.status == 413


async def test_health_and_models_are_there() -> None:
    async with ScriptedProvider(ok()) as a, application(a) as (address, _):
        async with RawClient(address) as client:
            answers = [
                await client.get(p) for p in ("/healthz", "/readyz", "/health", "/v1/models")
            ]
    assert [answer.status for answer in answers] == [200] * 4
    assert answers[0].body == b"ok\n"
    assert answers[2].json()["providers"][0]["name"] == "a"
    assert answers[3].json()["data"][0]["id"] == "default"


async def test_the_small_api_is_there() -> None:
    async with ScriptedProvider(ok_stream("x"), model="m") as a, application(a) as (address, _):
        value = {"messages": [{"role": "user", "content": "hi"}]}
        response = await post(address, value, "/v1/chat")
    assert response.body == b'data: {"delta":"x"}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize("answered", [True, False])
async def test_a_client_that_leaves_closes_the_upstream_connection(answered: bool) -> None:
    asked = asyncio.Event()

    async def script(peer: Peer, _: Request) -> None:
        asked.set()
        if answered:
            await peer.sse(builders.delta("one"), end=False)
        await peer.stall()

    async with ScriptedProvider(script) as a, application(a) as (address, journal):
        async with RawClient(address) as client:
            await client.request("POST", CHAT, builders.encode(builders.chat(stream=True)))
            await asked.wait()
            if answered:
                await (await client.head("POST")).event()
        async with asyncio.timeout(1.0):
            await journal.ended.wait()
            await a.seen.peers[0].left.wait()
    assert journal.record.end_reason == "client_left"


def plain(app: Any) -> Any:
    return app


def behind_a_middleware(app: Any) -> Any:
    """Mounted in FastAPI behind the usual middleware, which ends every body as a complete one."""
    outer = FastAPI()

    @outer.middleware("http")
    async def timing(request: Any, call_next: Any) -> Any:
        answer = await call_next(request)
        answer.headers["X-Time"] = "1"
        return answer

    outer.mount("/", app)
    return outer


@pytest.mark.parametrize("around", [plain, behind_a_middleware])
async def test_a_stream_that_breaks_off_raises_in_the_openai_sdk(around: Any) -> None:
    half = b'data: {"choices":[{"delta":{"content":"tw'
    script = breaks_off(builders.delta("one"), half, then="rst")
    async with ScriptedProvider(script) as a, served(around(asgi.app(config(a))), "off") as address:
        url = f"http://{address[0]}:{address[1]}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            first = await anext(stream)
            with pytest.raises(openai.APIError, match="broke off"):
                await anext(stream)
    assert first.choices[0].delta.content == "one"


async def test_an_answer_that_cannot_say_that_it_broke_off_is_cut() -> None:
    async def script(peer: Peer, _: Request) -> None:
        await peer.head(200, [("Transfer-Encoding", "chunked")])
        await peer.chunk(b'{"choices":')
        await peer.rst()

    async with ScriptedProvider(script) as a:
        async with application(a, routing={"commit": "head"}) as (address, _):
            async with RawClient(address) as client:
                response = await client.open_stream(CHAT, builders.chat())
                await response.read()
    assert response.body == b'{"choices":'
    assert not response.whole


async def test_a_client_that_leaves_is_no_fault_to_a_middleware(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked, journal = asyncio.Event(), Kept()

    async def script(peer: Peer, _: Request) -> None:
        asked.set()
        await peer.stall()

    async with ScriptedProvider(script) as a:
        app = behind_a_middleware(asgi.app(config(a), journal=journal))
        async with served(app, "off") as address:
            async with RawClient(address) as client:
                await client.request("POST", CHAT, builders.encode(builders.chat(stream=True)))
                await asked.wait()
            async with asyncio.timeout(1.0):
                await journal.ended.wait()
    assert "No response returned" not in caplog.text


async def test_a_slow_client_slows_the_provider() -> None:
    endless = Endless(60_000)
    async with ScriptedProvider(endless) as a, application(a) as (address, _):
        async with RawClient(address) as client:
            await client.open_stream(CHAT, builders.chat(stream=True))
            with pytest.raises(TimeoutError):
                while True:
                    endless.more.clear()
                    async with asyncio.timeout(0.25):
                        await endless.more.wait()
            assert endless.sent < 500


async def test_the_user_comes_from_a_trusted_header_or_from_the_programs_own_rule() -> None:
    def derive(fields: list[tuple[bytes, bytes]]) -> str | None:
        session = dict(fields).get(b"x-session")
        if session == b"stolen":
            raise errors.InvalidKey()
        return session.decode() if session else None

    async with ScriptedProvider(ok()) as a:
        async with application(a) as (address, journal):
            await post(address, builders.chat(), X_User_Id="ann")
            assert journal.record.user == "ann"
        async with application(a, user=derive) as (address, journal):
            await post(address, builders.chat(), X_User_Id="ann", X_Session="bob")
            await post(address, builders.chat(), X_User_Id="ann")
            refused = await post(address, builders.chat(), X_Session="stolen")
    assert [record.user for record in journal.records[:2]] == ["bob", "anonymous"]
    assert refused.status == 401


async def test_the_end_of_the_lifespan_ends_what_still_runs() -> None:
    async with ScriptedProvider(events(builders.delta("one"), end=False)) as a:
        journal = Kept()
        app = asgi.app(config(a), journal=journal)
        async with app:
            async with served(app, "off") as address:
                async with RawClient(address) as client:
                    response = await client.open_stream(CHAT, builders.chat(stream=True))
                    await response.event()
                    await app.aclose()
                    rest = await response.read()
    assert b"shutting_down" in rest.body
    assert journal.record.end_reason == "shutting_down"


async def test_it_starts_with_its_first_request_where_nobody_runs_a_lifespan() -> None:
    async with ScriptedProvider(ok()) as a:
        app = asgi.app(config(a))
        async with served(app, "off") as address:
            assert (await post(address, builders.chat())).status == 200
        await app.aclose()


def test_two_test_clients_can_run_one_application_one_after_the_other() -> None:
    sections = {"provider": [{"name": "a", "base_url": "http://127.0.0.1:1/v1"}]}
    app = asgi.app(build(sections, "test.toml", {}, lambda _: b""))
    for _ in range(2):
        with TestClient(app) as client:
            assert client.get("/readyz").text == "ready\n"
            assert client.post(CHAT, json=builders.chat()).status_code == 502


async def test_another_kind_of_scope_is_refused_by_name() -> None:
    async with ScriptedProvider(ok()) as a:
        app = asgi.app(config(a))
        with pytest.raises(ValueError, match="got mqtt"):
            await app({"type": "mqtt"}, None, None)  # type: ignore[arg-type]


async def test_a_websocket_is_refused_without_a_fault() -> None:
    said = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    async with ScriptedProvider(ok()) as a:
        await asgi.app(config(a))({"type": "websocket", "path": "/v1/chat"}, receive, send)
    assert said == [{"type": "websocket.close", "code": 1000}]


async def test_a_client_of_the_openai_sdk_streams_through_it() -> None:
    async with ScriptedProvider(ok("one", "two")) as a, application(a) as ((host, port), _):
        url = f"http://{host}:{port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="any") as client:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            texts = [chunk.choices[0].delta.content async for chunk in stream if chunk.choices]
    assert [text for text in texts if text] == ["one", "two"]


def readme_application() -> str:
    """The example of the README that mounts relayd in FastAPI."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    found = [block for block in blocks if "FastAPI" in block]
    assert len(found) == 1
    return str(found[0])


async def test_the_fastapi_application_of_the_readme_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedProvider(ok("hello")) as a:
        file = tmp_path / "config.toml"
        file.write_text(f'[[provider]]\nname = "a"\nbase_url = "{a.base_url}"\n')
        monkeypatch.chdir(tmp_path)
        module: dict[str, Any] = {}
        exec(readme_application(), module)
        async with served(module["app"]) as address:
            response = await post(address, builders.chat(), "/llm" + CHAT)
            outside = await post(address, builders.chat(), CHAT)
    assert json.loads(response.body) == builders.completion("hello")
    assert outside.status == 404
