"""K145: the drain on SIGTERM was shorter than many streams, and each deploy cut them.

https://github.com/PostHog/posthog/pull/73863
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.builders import chat, stream
from tests.support.client import RawClient
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.loop import elapsed
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok_stream
from tests.support.wire import Ended

# With real signals, sockets of systemd and exit codes: tests/process/test_drain.py.


@pytest.mark.parametrize("drain", [30.0, 600.0], ids=["default", "as long as an exchange"])
async def test_a_running_stream_ends_in_its_own_time_and_nothing_new_begins(drain: float) -> None:
    texts = [str(number) for number in range(8)]
    script = ok_stream(*texts, delay=0.5)
    async with ScriptedProvider(script) as a, gateway(config_for(a)) as g, g.client() as idle:
        await idle.get("/healthz")
        async with g.client() as client:
            began = elapsed()
            answer = await client.open_stream(CHAT, chat(stream=True))
            reading = asyncio.create_task(answer.read())
            await asyncio.sleep(1.0 - (elapsed() - began))
            address = g.address
            stopping = asyncio.create_task(g.app.stop(drain))
            await asyncio.sleep(1.0)
            assert not stopping.done()
            with pytest.raises(ConnectionRefusedError):
                await RawClient(address).connect()
            told = await idle.get("/healthz")
            assert (told.status, told.field("Connection")) == (200, "close")
            assert await idle.ended() is Ended.CLOSE
            await reading
            ended = elapsed() - began
            assert answer.body == b"".join(stream(*texts))
            assert answer.whole
            assert 5.0 <= ended < 5.2
            await stopping
            assert elapsed() - began < 5.3


async def test_the_longest_drain_is_as_long_as_an_exchange_may_take() -> None:
    texts = [str(number) for number in range(12)]
    script = ok_stream(*texts, delay=40.0)
    config = config_for(server={"drain_timeout": 600.0})
    async with ScriptedProvider(script) as a:
        config["provider"] = [a.table]
        async with gateway(config) as g, g.client() as client:
            answer = await client.open_stream(CHAT, chat(stream=True))
            stopping = asyncio.create_task(g.app.stop(g.app.config.server.drain_timeout))
            await answer.read()
            assert answer.body == b"".join(stream(*texts))
            await stopping
