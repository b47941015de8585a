"""The in-process relayd of the other tests: it answers, logs, and is gone after its block."""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.client import RawClient
from tests.support.gateway import config_for, gateway
from tests.support.loop import takes
from tests.support.provider import ScriptedProvider

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("leaves_no_task_or_socket")]


async def test_a_request_goes_through_to_the_provider_and_into_the_log() -> None:
    async with ScriptedProvider(scripts.ok("hello"), model="theirs") as a:
        async with gateway(config_for(a)) as g:
            answer = await g.chat("hi")
        assert answer.json()["choices"][0]["message"]["content"] == "hello"
        assert a.requests[0].json()["model"] == "theirs"
    assert g.exchange["status"] == 200


async def test_production_clocks_cost_no_real_time() -> None:
    async with (
        ScriptedProvider(scripts.silent(), name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
    ):
        async with gateway(config_for(a, b)) as g:
            with takes(60):
                answer = await g.chat("hi", stream=True)
    assert answer.field("X-Gateway-Provider") == "b"
    assert answer.whole


async def test_sections_and_toml_text_configure_it() -> None:
    async with ScriptedProvider(scripts.ok()) as a:
        async with gateway(config_for(a, quota={"daily_turns": 1})) as g:
            assert [(await g.chat()).status for _ in range(2)] == [200, 429]
        text = f'server.listen = "127.0.0.1:0"\n[[provider]]\nname = "x"\nbase_url = "{a.base_url}"'
        async with gateway(text) as g:
            assert (await g.get("/healthz")).status == 200


async def test_nobody_listens_after_the_block() -> None:
    async with ScriptedProvider(scripts.ok()) as a, gateway(config_for(a)) as g:
        address = g.address
    with pytest.raises(ConnectionRefusedError):
        await RawClient(address).connect()
