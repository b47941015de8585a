"""K81: a quiet stream has no write, so no write error, so the departure was never seen; and what a
cancelled task awaited in its clean-up was cancelled too.

https://github.com/NVIDIA/OSMO/pull/1317
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support import leaks, scripts
from tests.support.builders import chat, delta
from tests.support.client import RawClient
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider

TIMES = 200

QUIET = scripts.events(delta("hello"), end=False)


@pytest.mark.parametrize("leave", [RawClient.close, RawClient.rst], ids=["FIN", "RST"])
async def test_its_end_is_seen_within_a_second_and_nothing_stays_after_many_of_them(
    leave: Callable[[RawClient], None],
) -> None:
    async with (
        ScriptedProvider(QUIET) as a,
        gateway(config_for(a)) as g,
    ):
        async with leaks.nothing_left():
            for _ in range(TIMES):
                async with g.client() as client:
                    stream = await client.open_stream(CHAT, chat(stream=True))
                    assert await stream.event() is not None
                    await asyncio.sleep(1)
                    leave(client)
                await asyncio.sleep(1)
                assert a.open == 0
                assert g.app.server.connections == 0
    assert [line["end_reason"] for line in g.exchanges] == ["client_left"] * TIMES
    assert {line["status"] for line in g.exchanges} == {200}
    assert {line["turn"] for line in g.exchanges} == {"none"}


async def test_a_client_that_leaves_in_the_middle_of_an_event_ends_it_too() -> None:
    half = scripts.events(delta("hello"), delta("world")[:9], end=False)
    async with (
        ScriptedProvider(half) as a,
        gateway(config_for(a)) as g,
    ):
        async with g.client() as client:
            stream = await client.open_stream(CHAT, chat(stream=True))
            assert await stream.event() is not None
        await asyncio.sleep(1)
        assert a.open == 0
    assert g.exchange["end_reason"] == "client_left"
