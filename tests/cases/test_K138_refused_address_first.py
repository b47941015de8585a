"""K138: localhost resolved to ::1 first, which refused, and only one address was tried.

https://github.com/aio-libs/aiohttp/issues/2458
"""

from __future__ import annotations

import pytest

from tests.cases.conftest import Names
from tests.support import scripts
from tests.support.gateway import config_for, gateway
from tests.support.loop import takes
from tests.support.provider import Peer, ScriptedProvider


async def test_the_next_address_is_tried_at_once_within_the_same_attempt(names: Names) -> None:
    async with ScriptedProvider(scripts.ok()) as a:
        names["localhost"] = [("::1", a.address[1]), a.address]
        table = {"name": "a", "base_url": f"http://localhost:{a.address[1]}/v1"}
        async with gateway(config_for(table, breaker={"failures": 1})) as g:
            with takes(0):
                answer = await g.chat("hi")
            assert (await g.chat("hi")).status == 200
    assert answer.status == 200
    assert answer.field("X-Gateway-Attempts") == "1"
    assert g.exchanges[0]["attempts"][0]["outcome"] == "ok"


async def test_so_it_is_with_the_machines_own_resolver() -> None:
    async with ScriptedProvider(scripts.ok()) as a:
        table = {"name": "a", "base_url": f"http://localhost:{a.address[1]}/v1"}
        async with gateway(config_for(table)) as g:
            assert (await g.chat("hi")).status == 200


@pytest.mark.parametrize("refused", [1, 2, 5])
async def test_any_number_of_refusals_may_come_first(refused: int, names: Names) -> None:
    with scripts.refusing() as dead:
        async with ScriptedProvider(scripts.ok()) as a:
            names["provider.test"] = [*[(f"127.0.0.{n + 1}", dead[1]) for n in range(refused)]]
            names["provider.test"] = [*names["provider.test"], a.address]
            table = {"name": "a", "base_url": "http://provider.test/v1"}
            async with gateway(config_for(table)) as g:
                assert (await g.chat("hi")).status == 200


async def test_where_all_refuse_it_is_one_failure_of_the_provider(names: Names) -> None:
    with scripts.refusing() as dead:
        names["provider.test"] = [dead, ("::1", dead[1])]
        table = {"name": "a", "base_url": "http://provider.test/v1"}
        async with gateway(config_for(table, breaker={"failures": 2})) as g:
            with takes(0):
                answer = await g.chat("hi")
            health = (await g.get("/health")).json()
    assert answer.status == 502
    assert [t["outcome"] for t in g.exchange["attempts"]] == ["connect_failed"]
    assert "open" not in str(health).replace("half_open", "")


async def test_an_address_that_resets_after_the_connect_is_a_failure_that_moves_on(
    names: Names,
) -> None:
    async def resets(peer: Peer) -> None:
        await peer.rst()

    async with (
        ScriptedProvider(connection=resets) as bad,
        ScriptedProvider(scripts.ok(), name="b") as b,
    ):
        names["provider.test"] = [bad.address]
        table = {"name": "a", "base_url": "http://provider.test/v1"}
        async with gateway(config_for(table, b)) as g:
            answer = await g.chat("hi")
        assert bad.connections == 1
    assert answer.field("X-Gateway-Provider") == "b"
    assert g.exchange["attempts"][0]["outcome"] == "closed"
