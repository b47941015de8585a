"""K87: the release was awaited inside a cancelled task, so it never happened.

https://github.com/BerriAI/litellm/pull/28160

What serves a connection is cancelled at its 1st, 2nd, … wait, again and again on the same relayd.
Places, permits and connections are swept in `integration/test_cancellation_sweep.py`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.builders import chat
from tests.support.client import post
from tests.support.gateway import CHAT, Gateway, gateway
from tests.support.knife import knife
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok, slow, status
from tests.support.turns import capped, left

TIMES = 100
FEWEST = 3
"""Waits that every request has: the head, the answer, the end of the connection."""

CAP = 2

SCRIPTS = {"an answer": slow(1.0, ok()), "a failure": slow(1.0, status(500))}


async def cut(g: Gateway, nth: int, user: str) -> bool:
    """Ask once, cancelled at the nth wait; whether it waited that often."""
    with knife(nth) as found:
        found.armed = True
        async with g.client() as client:
            ask = post(CHAT, chat(stream=True), {"X-User-Id": user, "Connection": "close"})
            await client.send(ask)
            with suppress(ConnectionError):
                await client.reader.read()
        await asyncio.wait(found.tasks)
    return found.reached


async def check_left(g: Gateway, user: str) -> None:
    """The turn is there again, unless the log says that it was charged."""
    turns = [line["turn"] for line in g.exchanges if line["user"] == user]
    assert len(turns) <= 1
    assert await left(g, {"X-User-Id": user}) == CAP - turns.count("charged")


@pytest.mark.parametrize("stored", ["memory:", "sqlite:"])
@pytest.mark.parametrize("script", SCRIPTS)
async def test_whichever_wait_is_cancelled_the_turn_is_charged_or_back(
    script: str, stored: str, tmp_path: Path
) -> None:
    url = stored if stored == "memory:" else f"{stored}{tmp_path / 'state.db'}"
    store = {"url": url, "timeout": 5}
    waits = 0
    async with (
        ScriptedProvider(ok(), name="a", max_in_flight=1) as a,
        gateway(capped(a, cap=CAP, breaker={"failures": 1000}, store=store)) as g,
    ):
        for number in range(TIMES):
            nth = number % waits + 1 if waits else number + 1
            a.scripts = [SCRIPTS[script]]
            reached = await cut(g, nth, f"user-{number}")
            waits = waits or (0 if reached else number)
            a.scripts = [ok()]
            await check_left(g, f"user-{number}")
        assert not any(g.app.engine.in_flight.values())
    assert waits >= FEWEST
