"""K77: a call without streaming that was silent for minutes was cut by a gateway on the way.

https://github.com/VectifyAI/OpenKB/pull/236
"""

from __future__ import annotations

import asyncio
import json

from tests.support import scripts
from tests.support.builders import completion, embeddings
from tests.support.gateway import config_for, gateway
from tests.support.loop import takes
from tests.support.provider import Peer, Request, ScriptedProvider

CLOCKS = {"first_content": 30, "idle": 5}
LARGE = completion("x" * 2 * 1024 * 1024)


async def test_the_idle_clock_does_not_hold_before_the_first_byte() -> None:
    async with (
        ScriptedProvider(scripts.slow(20, scripts.status(200, LARGE))) as a,
        gateway(config_for(a, clocks=CLOCKS)) as g,
    ):
        with takes(20):
            answer = await g.chat("hi")
    assert answer.status == 200
    assert answer.json() == LARGE


async def test_nor_does_the_clock_of_a_streams_first_content() -> None:
    async with (
        ScriptedProvider(scripts.slow(200, scripts.status(200, LARGE))) as a,
        gateway(config_for(a, clocks=CLOCKS)) as g,
    ):
        with takes(200):
            answer = await g.chat("hi")
    assert answer.json() == LARGE


async def test_nor_does_the_idle_clock_hold_between_two_pieces() -> None:
    whole = json.dumps(completion("hello")).encode()

    async def in_two(peer: Peer, _: Request) -> None:
        length = ("Content-Length", str(len(whole)))
        await peer.head(200, [("Content-Type", "application/json"), length])
        await peer.send(whole[:20])
        await asyncio.sleep(20)
        await peer.send(whole[20:])

    async with ScriptedProvider(in_two) as a, gateway(config_for(a, clocks=CLOCKS)) as g:
        answer = await g.chat("hi")
    assert answer.body == whole


async def test_embeddings_have_the_same_time() -> None:
    vectors = {"object": "list", "data": [{"embedding": [0.1] * 3}]}
    async with (
        ScriptedProvider(
            scripts.slow(200, scripts.status(200, vectors)), surfaces=["embeddings"]
        ) as a,
        gateway(config_for(a, clocks=CLOCKS)) as g,
    ):
        answer = await g.post("/v1/embeddings", embeddings())
    assert answer.json() == vectors
