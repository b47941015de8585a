"""A relayd whose first provider has just tripped its breaker, and what it tells of breakers.

Knows `/health`, the log lines of breakers and the `[breaker]` keys; not how a breaker decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from .gateway import Gateway, config_for, gateway
from .provider import Script, ScriptedProvider
from .scripts import status

COOLDOWN = 10.0
"""Seconds between the trip and half-open."""

TOUCHY = {"failures": 1, "cooldown": COOLDOWN}


@asynccontextmanager
async def relay(
    *scripts: Script,
    second: Script | None = None,
    breaker: dict[str, Any] = TOUCHY,
    **sections: Any,
) -> AsyncIterator[tuple[Gateway, ScriptedProvider]]:
    """relayd in front of `a` (and a `b` that follows `second`); one failure opens."""
    async with AsyncExitStack() as stack:
        chain = [await stack.enter_async_context(ScriptedProvider(*scripts, name="a"))]
        if second is not None:
            chain.append(await stack.enter_async_context(ScriptedProvider(second, name="b")))
        config = config_for(*chain, breaker=breaker, **sections)
        yield await stack.enter_async_context(gateway(config)), chain[0]


@asynccontextmanager
async def tripped(
    *scripts: Script, half_open: bool = True, **options: Any
) -> AsyncIterator[tuple[Gateway, ScriptedProvider]]:
    """`relay` after a first request that failed, and with `half_open` after the cooldown too.

    `scripts` are for what comes then.
    """
    async with relay(status(500), *scripts, **options) as (g, a):
        await g.chat("the one that trips")
        assert await state(g) == "open"
        if half_open:
            await asyncio.sleep(COOLDOWN)
            assert await state(g) == "half-open"
        yield g, a


async def told(g: Gateway, name: str = "a") -> dict[str, Any]:
    """What `/health` says of a provider."""
    providers = (await g.get("/health")).json()["providers"]
    return next(dict(provider) for provider in providers if provider["name"] == name)


async def state(g: Gateway, name: str = "a") -> str:
    """closed, open or half-open, as `/health` says."""
    return str((await told(g, name))["state"])


def changes(g: Gateway) -> list[str]:
    """The states that the log has announced, in order."""
    return [line["state"] for line in g.log if line.get("event") == "breaker"]
