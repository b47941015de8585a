"""K121: the text of an exception held the full upstream URL with `?key=SECRET`.

https://github.com/BerriAI/litellm/issues/15799
"""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from relayd.config import ConfigError
from tests.support import scripts
from tests.support.client import RawClient
from tests.support.gateway import Gateway, config_for, gateway
from tests.support.provider import Peer, Request, ScriptedProvider

SECRET = "SEKRET-5f3a"
ECHO = {
    "error": {"message": f"no such thing: https://host/v1?key={SECRET} ({SECRET})", "code": SECRET}
}


async def everything_told(g: Gateway, answer_text: str) -> str:
    """All that a client or an operator can read."""
    shown = [(await g.get(path)).text for path in ("/health", "/healthz", "/v1/models")]
    (listen,) = g.app.config.admin.listen
    for path in ("/metrics", "/status"):
        async with RawClient(str(listen).removeprefix("unix:")) as client:
            answer = await client.get(path)
            assert answer.status == 200
            shown.append(answer.text)
    return "\n".join([answer_text, json.dumps(g.log), *shown])


@pytest.fixture
def admin(tmp_path: Path) -> dict[str, str]:
    """An `[admin]` section."""
    return {"listen": f"unix:{tmp_path}/admin.sock"}


@pytest.mark.parametrize(
    "url",
    [
        f"http://127.0.0.1:9/v1?key={SECRET}",
        f"http://user:{SECRET}@127.0.0.1:9/v1",
        f"http://{SECRET}@127.0.0.1:9/v1",
        f"http://127.0.0.1:9/v1#{SECRET}",
        f"http://user:{SECRET}@127.0.0.1:9/v1?key={SECRET}",
        f"http://user:{SECRET}@[::1/v1",
    ],
)
async def test_such_a_url_is_refused_at_start_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        async with gateway(config_for({"name": "a", "base_url": url})):
            pass
    assert SECRET not in str(refused.value)
    assert "base_url" in str(refused.value)


FAILING = {
    "404": scripts.status(404, ECHO),
    "400": scripts.status(400, ECHO),
    "401": scripts.status(401, ECHO),
    "429": scripts.status(429, ECHO),
    "500": scripts.status(500, ECHO),
    "301": scripts.status(301, b"", [("Location", f"http://127.0.0.1:9/?key={SECRET}")]),
    "200 with an error": scripts.status(200, ECHO),
    "closed": scripts.hangs_up(),
    "silent": scripts.silent(),
    "not HTTP": scripts.raw(f"SSH-2.0-{SECRET}\r\n".encode(), then="fin"),
    "a field of its own": scripts.raw(f"HTTP/1.1 500 X\r\n{SECRET}: x \x01\r\n\r\n".encode()),
    "a bad length": scripts.raw(f"HTTP/1.1 200 X\r\nContent-Length: {SECRET}\r\n\r\n".encode()),
    "an error event": scripts.events(f"data: {json.dumps(ECHO)}\n\n".encode()),
}


@pytest.mark.parametrize("script", FAILING.values(), ids=FAILING)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("expose", ["request", "none"])
async def test_a_key_in_the_query_is_told_to_nobody(
    script: scripts.Script, stream: bool, expose: str, admin: dict[str, str]
) -> None:
    sections = {"log": {"level": "debug"}, "breaker": {"failures": 1}, "errors": {"expose": expose}}
    async with (
        ScriptedProvider(script, query={"key": SECRET}) as a,
        gateway(config_for(a, admin=admin, **sections)) as g,
    ):
        answer = await g.chat("hi", stream=stream)
        assert a.requests[0].target.endswith(f"?key={SECRET}")
        told = await everything_told(g, str(answer.fields) + answer.text)
    assert answer.status >= 400
    assert SECRET not in told


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_the_client_is_not_told_where_a_provider_is_asked(status: int) -> None:
    async def tells(peer: Peer, request: Request) -> None:
        host = request.field("Host")
        words = f"no route http://{host}/v1/chat/completions at {host} (http://{host}/v1)"
        await peer.json(status, {"error": {"message": words, "param": host, "code": host}})

    async with ScriptedProvider(tells) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
        assert str(a.address[1]) not in answer.text
    assert answer.status == status
    assert answer.error["message"].startswith("no route ")


async def test_nor_when_the_name_cannot_be_resolved(
    monkeypatch: pytest.MonkeyPatch, admin: dict[str, str]
) -> None:
    async def unknown(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    table = {"name": "a", "base_url": "http://provider.test/v1", "query": {"key": SECRET}}
    async with gateway(config_for(table, admin=admin)) as g:
        answer = await g.chat("hi")
        told = await everything_told(g, answer.text)
    assert answer.status == 502
    assert g.exchanges[0]["attempts"][0]["outcome"] == "dns_failed"
    assert SECRET not in told


async def test_nor_when_nobody_listens(admin: dict[str, str]) -> None:
    with scripts.refusing() as (host, port):
        table = {"name": "a", "base_url": f"http://{host}:{port}/v1", "query": {"key": SECRET}}
        async with gateway(config_for(table, admin=admin)) as g:
            answer = await g.chat("hi")
            told = await everything_told(g, answer.text)
    assert answer.status == 502
    assert SECRET not in told
