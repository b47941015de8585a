"""K129: every reload of the configuration refilled all rate limits.

https://github.com/nuetzliches/hookaido/pull/239
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok_json, slow, status


def capped(*providers: ScriptedProvider, turns: int, **sections: Any) -> dict[str, Any]:
    return config_for(*providers, quota={"daily_turns": turns}, **sections)


@pytest.mark.parametrize("url", ["memory:", "sqlite:"])
@pytest.mark.parametrize("added", [False, True], ids=["same", "provider added"])
async def test_a_user_that_used_up_its_turns_stays_refused(
    url: str, added: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = url if url == "memory:" else f"{url}{tmp_path_factory.mktemp('state')}/state.db"
    async with ScriptedProvider(ok_json(), name="a") as a, ScriptedProvider(name="b") as b:
        more = {"store": {"url": place}}
        async with gateway(capped(a, turns=2, **more)) as g:
            assert [(await g.chat()).status for _ in range(3)] == [200, 200, 429]
            g.reload(capped(a, b, turns=2, **more) if added else capped(a, turns=2, **more))
            assert (await g.chat()).status == 429
    assert len(a.requests) == 2


@pytest.mark.parametrize(
    ("limit", "then"), [(2, [429]), (3, [429]), (5, [200, 200, 429])], ids=["lower", "same", "more"]
)
async def test_a_new_limit_counts_what_was_used_before(limit: int, then: list[int]) -> None:
    async with ScriptedProvider(ok_json(), name="a") as a, gateway(capped(a, turns=3)) as g:
        assert [(await g.chat()).status for _ in range(3)] == [200] * 3
        g.reload(capped(a, turns=limit))
        assert [(await g.chat()).status for _ in then] == then


async def test_an_open_breaker_stays_open_and_its_provider_unasked() -> None:
    async with (
        ScriptedProvider(status(500), name="a") as a,
        ScriptedProvider(ok_json(), name="b") as b,
        ScriptedProvider(ok_json(), name="c") as c,
        gateway(config_for(a, b)) as g,
    ):
        for _ in range(6):
            assert (await g.chat()).status == 200
        assert len(a.requests) == 5
        g.reload(config_for(c, a, b, clocks={"idle": 5}))
        g.reload(config_for(a, b, c))
        assert (await g.chat()).status == 200
        assert len(a.requests) == 5


async def test_requests_in_flight_still_take_their_places() -> None:
    async with (
        ScriptedProvider(slow(10.0, ok_json()), name="a", max_in_flight=1) as a,
        ScriptedProvider(ok_json(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        first = asyncio.create_task(g.chat())
        await asyncio.sleep(1.0)
        g.reload(config_for(a, b))
        assert (await g.chat()).field("X-Gateway-Provider") == "b"
        assert (await first).field("X-Gateway-Provider") == "a"
        assert len(a.requests) == 1
        # And the place is given back.
        assert (await g.chat()).field("X-Gateway-Provider") == "a"


async def test_pooled_connections_of_unchanged_providers_are_used_again() -> None:
    async with (
        ScriptedProvider(ok_json(), name="a") as a,
        ScriptedProvider(ok_json(), name="b") as b,
        gateway(config_for(a)) as g,
    ):
        await g.chat()
        g.reload(config_for(a, b, clocks={"idle": 5}))
        await g.chat()
        assert a.connections == 1
        g.reload(config_for(b))
        await asyncio.sleep(0.1)
        assert a.open == 0
