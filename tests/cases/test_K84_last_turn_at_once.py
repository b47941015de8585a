"""K84: concurrent requests all passed the check of the same balance.

https://github.com/QuantumNous/new-api/issues/6609
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import Response
from tests.support.gateway import Gateway, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok, slow, status
from tests.support.turns import capped

AT_ONCE = 20


def store(kind: str, folder: Path) -> dict[str, Any]:
    return {"url": "memory:" if kind == "memory" else f"sqlite:{folder / 'state.db'}", "timeout": 5}


async def at_once(*gateways: Gateway) -> list[Response]:
    asked = [gateways[number % len(gateways)].chat() for number in range(AT_ONCE)]
    return await asyncio.gather(*asked)


def is_refusal(answer: Response) -> bool:
    """A 429 that tells a client when to come back, and an SDK not to try before."""
    return (
        answer.status == 429
        and answer.error["code"] == "rate_limited"
        and int(answer.field("Retry-After") or 0) > 0
        and answer.field("x-should-retry") == "false"
        and (answer.field("RateLimit") or "").startswith('"turns";r=0;t=')
        and answer.field("RateLimit-Policy") == '"turns";q=3;w=86400'
    )


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_one_turn_is_left_and_one_of_twenty_gets_it(kind: str, tmp_path: Path) -> None:
    async with (
        ScriptedProvider(ok(), ok(), slow(1.0, ok())) as a,
        gateway(capped(a, cap=3, store=store(kind, tmp_path))) as g,
    ):
        await g.chat()
        await g.chat()
        answers = await at_once(g)
        assert len(a.requests) == 3
    assert sorted(answer.status for answer in answers) == [200] + [429] * (AT_ONCE - 1)
    assert sum(is_refusal(answer) for answer in answers) == AT_ONCE - 1


async def test_two_relayds_on_one_file_share_the_last_turn(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(ScriptedProvider(slow(1.0, ok())))
        config = capped(a, cap=1, store=store("sqlite", tmp_path))
        first, second = [await stack.enter_async_context(gateway(config)) for _ in range(2)]
        answers = await at_once(first, second)
        assert len(a.requests) == 1
    assert sorted(answer.status for answer in answers) == [200] + [429] * (AT_ONCE - 1)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_turn_that_was_held_and_given_back_is_there_again(
    kind: str, tmp_path: Path
) -> None:
    async with (
        ScriptedProvider(slow(1.0, status(500)), ok()) as a,
        gateway(capped(a, cap=1, store=store(kind, tmp_path))) as g,
    ):
        answers = await at_once(g)
        assert sorted(answer.status for answer in answers) == [429] * (AT_ONCE - 1) + [502]
        assert [(await g.chat()).status for _ in range(2)] == [200, 429]
