"""K124: the access log printed the request target with the key in its query.

https://github.com/BerriAI/litellm/pull/39293
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from relayd.app import App
from relayd.config import build
from tests.support import scripts
from tests.support.builders import chat
from tests.support.client import Address, RawClient, Response, post, request
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider

SECRET = "SEKRET"
QUERIES = [
    "?api_key=SEKRET&x=%53EKRET",
    "?SEKRET",
    "?a=b?SEKRET",
    "?key=SEKRET%0d%0aX:%20y",
    "?" + "SEKRET" * 100,
]


@asynccontextmanager
async def logging_to(lines: list[str], config: dict[str, Any]) -> AsyncIterator[Address]:
    """relayd with this configuration, whose log lines are kept as they are."""
    app = App(
        build(config, "test.toml", {}, lambda _: b""),
        write=lambda line: lines.append(line.decode()),
    )
    await app.start()
    try:
        yield app.addresses[0]
    finally:
        await app.stop(0)


async def answer_to(ask: bytes, address: Address) -> Response:
    async with RawClient(address) as client:
        await client.send(ask)
        return await client.response()


@pytest.mark.parametrize("format", ["json", "text"])
@pytest.mark.parametrize("query", QUERIES)
async def test_no_query_is_logged_shown_or_forwarded(query: str, format: str) -> None:
    lines: list[str] = []
    asks = [
        post(CHAT + query, chat()),
        post("/v1/nothing" + query, chat()),
        request("GET", "/v1/models" + query),
        request("GET", "/health" + query),
    ]
    async with ScriptedProvider(scripts.ok()) as a:
        config = config_for(a, log={"level": "debug", "format": format})
        async with logging_to(lines, config) as address:
            answers = [await answer_to(ask, address) for ask in asks]
        assert a.requests[0].target == CHAT
    told = "".join([*lines, *(answer.text for answer in answers)])
    assert [answer.status for answer in answers] == [200, 404, 200, 200]
    assert len(lines) == 3
    assert SECRET not in told
    assert "%53" not in told


@pytest.mark.parametrize("where", ["absolute", "origin"])
async def test_nor_is_the_query_of_an_absolute_target(where: str) -> None:
    target = CHAT if where == "origin" else "http://user:SEKRET@relayd.test" + CHAT
    async with ScriptedProvider(scripts.ok()) as a:
        async with gateway(config_for(a)) as g, RawClient(g.address) as client:
            await client.send(post(target + "?key=SEKRET", chat()))
            await client.response("POST")
    assert SECRET not in json.dumps(g.log)


@pytest.mark.parametrize("escaped", ["%0d%0a", "%1b[31m", "%00", "%e2%80%ae", "%0A{%22level%22:1}"])
async def test_encoded_control_bytes_stay_encoded_in_the_log(escaped: str) -> None:
    async with ScriptedProvider(scripts.ok()) as a, gateway(config_for(a)) as g:
        answer = await g.get(f"/v1/models/x{escaped}y")
    assert answer.status == 404
    assert g.exchange["path"] == f"/v1/models/x{escaped}y"


@pytest.mark.parametrize("raw", [b"\x1b[31m", b"\x00", b"\x0b", b"\r", b"\xe2\x80\xae", b"\x7f"])
async def test_raw_control_bytes_in_a_target_are_refused(raw: bytes) -> None:
    async with ScriptedProvider(scripts.ok()) as a:
        async with gateway(config_for(a)) as g, RawClient(g.address) as client:
            await client.send(b"GET /v1/models/" + raw + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await client.response()
    assert answer.status == 400
    assert all(" " <= char <= "~" for line in g.log for char in json.dumps(line))
