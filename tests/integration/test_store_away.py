"""A shared store that is away, as clients and operators see it: `store.on_failure`, and its return.

The store is a file in a folder that is not there yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import Gateway, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok
from tests.support.turns import capped, left

CAP = 4

LOOKS = 3.0
"""Seconds within which a store that is there again is asked (it is, every two)."""

MOST_LOOKS = 20
"""The store's thread works in real time: a slow disk may make virtual time run ahead of it."""


@asynccontextmanager
async def relay(folder: Path, on_failure: str) -> AsyncIterator[Gateway]:
    """relayd with a store in `folder`, asked once already."""
    place = {"url": f"sqlite:{folder / 'state.db'}", "on_failure": on_failure, "timeout": 5}
    async with (
        ScriptedProvider(ok(), name="a") as a,
        gateway(capped(a, cap=CAP, store=place)) as g,
    ):
        await asyncio.sleep(0.1)
        yield g


async def store(g: Gateway) -> dict[str, Any]:
    return dict((await g.get("/health")).json()["store"])


async def found_again(g: Gateway) -> None:
    for _ in range(MOST_LOOKS):
        await asyncio.sleep(LOOKS)
        if (await store(g))["available"]:
            return
    pytest.fail("the store is not found again")


def told(g: Gateway) -> list[tuple[str, str]]:
    """What the log says of the store: level and event."""
    return [
        (line["level"], line["event"])
        for line in g.log
        if line.get("event") in ("store_away", "store_back")
    ]


async def test_a_store_that_is_there_is_no_news(tmp_path: Path) -> None:
    async with relay(tmp_path, "deny") as g:
        assert await store(g) == {"available": True, "lost": 0}
        assert await left(g) == CAP
        assert told(g) == []


async def test_memory_is_always_there() -> None:
    async with ScriptedProvider(ok()) as a, gateway(capped(a, cap=CAP)) as g:
        assert await store(g) == {"available": True, "lost": 0}


@pytest.mark.parametrize("on_failure", ["local", "deny", "allow"])
async def test_a_loss_is_told_once_and_seen_in_health(on_failure: str, tmp_path: Path) -> None:
    async with relay(tmp_path / "gone", on_failure) as g:
        for _ in range(5):
            await g.chat()
            await asyncio.sleep(3)
        assert await store(g) == {"available": False, "lost": 1}
        assert told(g) == [("error", "store_away")]
        line = next(line for line in g.log if line.get("event") == "store_away")
        place = f"sqlite:{tmp_path}/gone/"
        assert line["message"].startswith(f"the store {place}")
        assert line["message"].endswith(f" is away: on_failure = {on_failure} holds")


async def test_local_counts_here(tmp_path: Path) -> None:
    async with relay(tmp_path / "gone", "local") as g:
        assert await left(g) == CAP


async def test_deny_refuses(tmp_path: Path) -> None:
    async with relay(tmp_path / "gone", "deny") as g:
        answer = await g.chat()
        assert (answer.status, answer.error["code"]) == (503, "store_unavailable")
        assert g.exchange["turn"] == "none"


async def test_allow_counts_nothing(tmp_path: Path) -> None:
    async with relay(tmp_path / "gone", "allow") as g:
        answers = [await g.chat() for _ in range(2 * CAP)]
        assert {answer.status for answer in answers} == {200}
        assert {line["turn"] for line in g.exchanges} == {"none"}


async def test_counts_that_the_store_never_heard_of_are_told_at_the_end(tmp_path: Path) -> None:
    async with relay(tmp_path / "gone", "local") as g:
        await g.chat()
    line = next(line for line in g.log if line.get("event") == "turns_untold")
    assert (line["level"], line["users"]) == ("warning", 1)


async def test_once_it_is_back_what_was_counted_here_counts_there(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    async with relay(folder, "local") as g:
        for _ in range(CAP - 1):
            assert (await g.chat()).status == 200
        folder.mkdir()
        await found_again(g)
        assert await store(g) == {"available": True, "lost": 1}
        assert told(g) == [("error", "store_away"), ("info", "store_back")]
    async with relay(folder, "deny") as another:
        assert await left(another) == 1
