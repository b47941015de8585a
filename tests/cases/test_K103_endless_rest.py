"""K103: a cooldown was copied from the provider: locked for 156 hours though the quota was back.

https://github.com/router-for-me/CLIProxyAPI/issues/4724
"""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from time import time

import pytest

from tests.support import breakers
from tests.support.builders import error_object
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok, status
from tests.support.wire import Fields

WEEK = 561635
CAP = 300
"""Seconds that a provider rests at most."""

SAYS: dict[str, Fields] = {
    "seconds": [("Retry-After", str(WEEK))],
    "a date": [("Retry-After", formatdate(time() + WEEK, usegmt=True))],
    "milliseconds": [("retry-after-ms", str(WEEK * 1000))],
    "a longer number": [("Retry-After", "9" * 9)],
}

BODY = {**error_object("limit reached", "usage_limit_reached"), "resets_in_seconds": WEEK}


@pytest.mark.parametrize("how", SAYS)
async def test_a_rest_has_an_end_in_sight(how: str) -> None:
    async with breakers.relay(status(429, BODY, SAYS[how]), ok()) as (g, a):
        first = await g.chat()
        assert first.status == 429
        assert first.field("Retry-After") == str(CAP)
        await asyncio.sleep(CAP - 5)
        assert (await g.chat()).status == 429
        assert len(a.requests) == 1
        await asyncio.sleep(5)
        assert (await g.chat()).status == 200


async def test_what_the_body_says_of_it_is_not_believed() -> None:
    async with breakers.relay(status(429, BODY), ok()) as (g, _):
        assert (await g.chat()).field("Retry-After") == "1"
        await asyncio.sleep(1)
        assert (await g.chat()).status == 200


async def test_a_rest_is_seen_and_the_next_provider_serves_meanwhile() -> None:
    limited = status(429, BODY, SAYS["seconds"])
    async with breakers.relay(limited, ok(), second=ok("from b")) as (g, _):
        assert (await g.chat()).field("X-Gateway-Provider") == "b"
        await asyncio.sleep(2)
        told = await breakers.told(g)
        assert told["state"] == "closed"
        assert told["retry_in"] == pytest.approx(CAP - 2, abs=0.5)


async def test_an_operator_ends_it_without_a_restart() -> None:
    """Take the provider out of the file and put it back: what is not configured has no state."""
    async with (
        ScriptedProvider(status(429, BODY, SAYS["seconds"]), ok("from a"), name="a") as a,
        ScriptedProvider(ok("from b"), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        assert (await g.chat()).field("X-Gateway-Provider") == "b"
        for chain in ([b], [a, b]):
            g.reload(config_for(*chain))
        assert (await g.chat()).field("X-Gateway-Provider") == "a"
