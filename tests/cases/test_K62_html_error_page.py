"""K62: a CDN's HTML page for a 502 reached the client, whose SDK failed to parse it as JSON.

https://github.com/Significant-Gravitas/AutoGPT/issues/944
"""

from __future__ import annotations

import json

import pytest

from tests.support import scripts
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

PAGE = (b"<!DOCTYPE html><html><title>502 Bad gateway</title>" + b"<p>ray id</p>" * 700)[:8192]
HTML = [("Content-Type", "text/html; charset=UTF-8")]

each_status = pytest.mark.parametrize("status", [502, 503, 520, 408, 200])


def page(status: int) -> scripts.Script:
    return scripts.status(status, PAGE, HTML)


@each_status
async def test_the_client_gets_a_json_error_and_nothing_of_the_page(status: int) -> None:
    async with ScriptedProvider(page(status)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert answer.status == 502
    assert answer.field("Content-Type") == "application/json"
    assert answer.error["code"] == "upstream_error"
    assert answer.error["type"] == "upstream_error"
    assert answer.error["param"] is None
    assert "<" not in answer.text


@each_status
async def test_the_log_holds_nothing_of_the_page(status: int) -> None:
    async with ScriptedProvider(page(status)) as a, gateway(config_for(a)) as g:
        await g.chat("hi")
    assert "ray id" not in json.dumps(g.log)
    assert "<" not in json.dumps(g.log)


@each_status
@pytest.mark.parametrize("stream", [True, False])
async def test_another_provider_takes_over(status: int, stream: bool) -> None:
    async with (
        ScriptedProvider(page(status), name="a") as a,
        ScriptedProvider(scripts.ok("hello"), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi", stream=stream)
    assert answer.field("X-Gateway-Provider") == "b"
    assert "hello" in answer.text


@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_a_page_with_a_request_fault_keeps_its_status_and_gets_plain_words(
    status: int,
) -> None:
    async with ScriptedProvider(page(status)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert answer.status == status
    assert answer.error["message"] == f"the provider refused the request with status {status}"
    assert "<" not in answer.text
