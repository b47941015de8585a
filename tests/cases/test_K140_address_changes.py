"""K140: kept connections went to the old address for ever after a change in the DNS.

https://github.com/envoyproxy/envoy/issues/34721
"""

from __future__ import annotations

import asyncio

from tests.cases.conftest import Names
from tests.support import scripts
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

TABLE = {"name": "a", "base_url": "http://provider.test/v1"}
MAX_AGE = 300


async def test_a_connection_in_use_every_second_retires_at_its_greatest_age(names: Names) -> None:
    async with ScriptedProvider(scripts.ok()) as old, ScriptedProvider(scripts.ok()) as new:
        names["provider.test"] = [old.address]
        async with gateway(config_for(TABLE)) as g:
            await g.chat("hi")
            names["provider.test"] = [new.address]
            for _ in range(MAX_AGE - 2):
                await asyncio.sleep(1)
                await g.chat("hi")
            assert (old.connections, new.connections) == (1, 0)
            await asyncio.sleep(3)
            await g.chat("hi")
            assert (old.open, new.connections) == (0, 1)
    assert {line["status"] for line in g.exchanges} == {200}


async def test_an_idle_one_goes_earlier(names: Names) -> None:
    async with ScriptedProvider(scripts.ok()) as old, ScriptedProvider(scripts.ok()) as new:
        names["provider.test"] = [old.address]
        async with gateway(config_for(TABLE)) as g:
            await g.chat("hi")
            names["provider.test"] = [new.address]
            await asyncio.sleep(70)
            assert old.open == 0
            await g.chat("hi")
        assert new.connections == 1


async def test_an_old_address_that_closes_costs_no_attempt_and_no_blame(names: Names) -> None:
    # The old machine takes the next request and leaves without a byte: a stale connection.
    async with (
        ScriptedProvider(scripts.ok(), scripts.hangs_up()) as old,
        ScriptedProvider(scripts.ok()) as new,
    ):
        names["provider.test"] = [old.address]
        async with gateway(config_for(TABLE, breaker={"failures": 1})) as g:
            await g.chat("hi")
            names["provider.test"] = [new.address]
            answer = await g.chat("hi")
            assert (await g.chat("hi")).status == 200
        assert len(new.requests) == 2
    assert answer.status == 200
    assert answer.field("X-Gateway-Attempts") == "1"


async def test_a_new_connection_asks_the_resolver_anew(names: Names) -> None:
    close = scripts.status(200, b'{"choices":[{}]}', [("Connection", "close")])
    async with ScriptedProvider(close) as old, ScriptedProvider(close) as new:
        async with gateway(config_for(TABLE, breaker={"failures": 9})) as g:
            assert (await g.chat("hi")).status == 502
            names["provider.test"] = [old.address]
            assert (await g.chat("hi")).status == 200
            names["provider.test"] = [new.address]
            assert (await g.chat("hi")).status == 200
        assert (len(old.requests), len(new.requests)) == (1, 1)
