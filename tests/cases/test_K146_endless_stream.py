"""K146: an endless event stream kept the process from ever stopping.

https://github.com/cubeplexai/cubeplex/issues/606
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.builders import chat, delta, role
from tests.support.client import Response
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.loop import takes
from tests.support.provider import Peer, Request, ScriptedProvider

# With real signals and exit codes: tests/process/test_drain.py.


async def endless(peer: Peer, _: Request) -> None:
    """Says something every 100 ms for as long as anybody listens."""
    await peer.stream_head()
    await peer.chunk(role())
    while not peer.left.is_set():
        await peer.chunk(delta("more"))
        await asyncio.sleep(0.1)


def check_end(answer: Response) -> None:
    assert answer.whole
    assert b"[DONE]" not in answer.body
    last = answer.body.strip().rpartition(b"\n")[2].removeprefix(b"data: ")
    assert json.loads(last)["error"]["code"] == "shutting_down"


@pytest.mark.parametrize("second", [None, 1.0], ids=["limit", "second signal"])
async def test_the_drain_ends_an_endless_stream_honestly(second: float | None) -> None:
    async with (
        ScriptedProvider(endless, name="a") as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        answer = await client.open_stream(CHAT, chat(stream=True))
        reading = asyncio.create_task(answer.read())
        await asyncio.sleep(5.0)
        with takes(second or 2.0):
            stopping = asyncio.create_task(g.app.stop(2.0))
            if second:
                await asyncio.sleep(second)
                g.app.limit(0.0)
            await stopping
        check_end(await reading)
        assert a.open == 0
        assert g.exchange["end_reason"] == "shutting_down"
        assert g.exchange["turn"] == "none"


async def test_a_client_that_reads_nothing_does_not_hold_it_either() -> None:
    async def torrent(peer: Peer, _: Request) -> None:
        await peer.stream_head()
        while not peer.left.is_set():
            await peer.chunk(delta("x" * 60_000))

    async with (
        ScriptedProvider(torrent, name="a") as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.request("POST", CHAT, json.dumps(chat(stream=True)).encode())
        await asyncio.sleep(5.0)
        with takes(2.0):
            await g.app.stop(2.0)
        assert a.open == 0


async def test_the_turn_is_in_the_store_when_it_ends(tmp_path: Path) -> None:
    more = {"quota": {"daily_turns": 1}, "store": {"url": f"sqlite:{tmp_path}/state.db"}}
    async with ScriptedProvider(endless, name="a") as a:
        async with gateway(config_for(a, **more)) as g, g.client() as client:
            answer = await client.open_stream(CHAT, chat(stream=True))
            reading = asyncio.create_task(answer.read())
            await g.app.stop(2.0)
            check_end(await reading)
            assert g.exchange["turn"] == "charged"
        async with gateway(config_for(a, **more)) as g:
            assert (await g.chat(stream=True)).status == 429
