"""K85: large balances skipped the reservation, and the count went below zero.

https://github.com/songquanpeng/one-api/issues/2440
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import chat
from tests.support.gateway import CHAT, Gateway, gateway
from tests.support.provider import Script, ScriptedProvider
from tests.support.scripts import events, ok, slow, status
from tests.support.turns import capped, left

LIMIT = 1000
USED = 995
AT_ONCE = 50

Rest = Callable[[int], Script]
"""What the provider does with the n-th of those that are asked at once."""


def even(number: int) -> Script:
    return slow(1.0, ok())


def mixed(number: int) -> Script:
    """Every other one fails and is given back while others still run."""
    return slow(0.1 * number, [ok(), status(500), events(), status(400)][number % 4])


async def use_up_to(g: Gateway, count: int) -> None:
    async with g.client() as client:
        for _ in range(count):
            assert (await client.post_json(CHAT, chat())).status == 200


@pytest.mark.parametrize("stored", ["memory:", "sqlite:"])
async def test_no_more_pass_than_are_left(stored: str, tmp_path: Path) -> None:
    place: dict[str, Any] = {"timeout": 5, "url": stored}
    if stored != "memory:":
        place["url"] += str(tmp_path / "state.db")
    async with (
        ScriptedProvider(*[ok()] * USED, even(0)) as a,
        gateway(capped(a, cap=LIMIT, store=place)) as g,
    ):
        await use_up_to(g, USED)
        answers = await asyncio.gather(*[g.chat() for _ in range(AT_ONCE)])
        codes = [answer.status for answer in answers]
        assert codes.count(200) == LIMIT - USED
        assert codes.count(429) == AT_ONCE - (LIMIT - USED)
        assert len(a.requests) == LIMIT
        assert await left(g) == 0


async def test_what_is_given_back_meanwhile_neither_adds_nor_loses_a_turn() -> None:
    cap = 8
    scripts = [ok()] * 3 + [mixed(number) for number in range(AT_ONCE)] + [ok()]
    breaker = {"failures": 1000}
    async with (
        ScriptedProvider(*scripts) as a,
        gateway(capped(a, cap=cap, breaker=breaker)) as g,
    ):
        await use_up_to(g, 3)
        await asyncio.gather(*[later(g, 0.05 * number) for number in range(AT_ONCE)])
        charged = [line["turn"] for line in g.exchanges].count("charged")
        assert 3 < charged <= cap
        assert [line["status"] for line in g.exchanges].count(200) == charged
        a.scripts = [ok()]
        assert await left(g) == cap - charged


async def later(g: Gateway, delay: float) -> None:
    await asyncio.sleep(delay)
    await g.chat()
