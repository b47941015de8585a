"""K83: a departure before the first token stayed hidden, and one blocking call stalled all others.

https://github.com/1rgs/claude-code-proxy/pull/114
"""

from __future__ import annotations

import asyncio
import time

from tests.support import scripts
from tests.support.builders import chat
from tests.support.client import post
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.loop import takes
from tests.support.provider import ScriptedProvider

STAY = 10
LEAVE = 10

HEALTH_CAP = 0.05
"""Seconds, real and virtual, that `/health` may take while all this goes on."""


async def test_only_those_who_left_are_cancelled_and_health_answers_at_once() -> None:
    async with (
        ScriptedProvider(scripts.slow(10, scripts.ok("hello"))) as a,
        gateway(config_for(a)) as g,
    ):
        clients = [g.client() for _ in range(STAY + LEAVE)]
        for client in clients:
            await client.connect()
            await client.send(post(CHAT, chat(stream=True)))
        waits = []
        for number, client in enumerate(clients):
            await asyncio.sleep(0.2)
            if number % 2:
                client.rst()
            began = time.perf_counter()
            with takes(0, within=HEALTH_CAP):
                assert (await g.get("/health")).status == 200
            waits.append(time.perf_counter() - began)
        stayed = [await client.response("POST") for client in clients[::2]]
        for client in clients:
            await client.__aexit__()
        assert len(a.requests) == STAY + LEAVE
    assert all(answer.whole and b"hello" in answer.body for answer in stayed)
    ends = [line["end_reason"] for line in g.exchanges]
    assert sorted(ends) == ["client_left"] * LEAVE + ["complete"] * STAY
    # The middle one: a busy machine may hold up one of them.
    assert sorted(waits)[len(waits) // 2] < HEALTH_CAP
