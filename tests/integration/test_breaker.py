"""Breakers as exchanges use them: what opens one, one probe at a time, and whose verdict counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support import builders
from tests.support.gateway import Gateway, config_for, gateway
from tests.support.provider import Peer, Request, Script, ScriptedProvider
from tests.support.scripts import breaks_off, events, ok, silent, slow, status

from .shapes import CHAT, open_stream

TOUCHY = {"failures": 1, "cooldown": 10.0}


@asynccontextmanager
async def relay(
    *scripts: Script, breaker: dict[str, Any] = TOUCHY, **sections: Any
) -> AsyncIterator[tuple[Gateway, ScriptedProvider]]:
    async with (
        ScriptedProvider(*scripts, name="a") as a,
        gateway(config_for(a, breaker=breaker, **sections)) as g,
    ):
        yield g, a


async def state(g: Gateway) -> str:
    word: str = (await g.get("/health")).json()["providers"][0]["state"]
    return word


async def code(g: Gateway, **members: Any) -> int:
    return (await g.chat(**members)).status


def changes(g: Gateway) -> list[str]:
    """The states that the log has announced, in order."""
    return [line["state"] for line in g.log if line.get("event") == "breaker"]


async def test_the_fifth_failure_in_thirty_seconds_opens() -> None:
    async with relay(status(500), breaker={}) as (g, a):
        for _ in range(4):
            assert await code(g) == 502
        assert await state(g) == "closed"
        assert await code(g) == 502
        assert await state(g) == "open"
        assert await code(g) == 503
        assert len(a.requests) == 5


async def test_failures_outside_the_window_do_not_add_up() -> None:
    async with relay(status(500), breaker={}) as (g, _):
        for _ in range(8):
            await code(g)
            await asyncio.sleep(10)
        assert await state(g) == "closed"


async def test_a_success_in_between_does_not_excuse_failures() -> None:
    scripts = [status(500), ok()] * 5
    async with relay(*scripts, breaker={}) as (g, _):
        for _ in range(9):
            await code(g)
        assert await state(g) == "open"


async def test_a_probe_that_succeeds_closes() -> None:
    async with relay(status(500), ok()) as (g, _):
        await code(g)
        await asyncio.sleep(10)
        assert await state(g) == "half-open"
        assert await code(g) == 200
        assert await state(g) == "closed"
        assert changes(g) == ["open", "half-open", "closed"]


async def test_a_probe_that_fails_opens_again() -> None:
    async with relay(status(500)) as (g, a):
        await code(g)
        await asyncio.sleep(10)
        assert await code(g) == 502
        assert await state(g) == "open"
        assert await code(g) == 503
        assert len(a.requests) == 2


async def test_the_cooldown_grows_up_to_its_maximum() -> None:
    policy = {**TOUCHY, "cooldown_growth": 3.0, "cooldown_max": 50.0}
    async with relay(status(500), breaker=policy) as (g, a):
        for wait in (10, 30, 50, 50):
            assert await code(g) == 502
            await asyncio.sleep(wait - 0.5)
            assert await code(g) == 503
            await asyncio.sleep(0.5)
        assert len(a.requests) == 4


@pytest.mark.parametrize("script", [status(400), status(401), status(422)])
async def test_a_probe_that_blames_the_request_or_the_key_closes(script: Script) -> None:
    async with relay(status(500), script) as (g, _):
        await code(g)
        await asyncio.sleep(10)
        await code(g)
        assert await state(g) == "closed"


async def test_a_probe_that_is_rate_limited_says_nothing() -> None:
    async with relay(status(500), status(429), ok()) as (g, _):
        await code(g)
        await asyncio.sleep(10)
        assert await code(g) == 429
        assert await state(g) == "half-open"
        await asyncio.sleep(1.5)
        assert await code(g) == 200
        assert await state(g) == "closed"


async def test_exactly_one_of_fifty_is_the_probe() -> None:
    async with relay(status(500), slow(5.0, ok())) as (g, a):
        await code(g)
        await asyncio.sleep(10)
        codes = await asyncio.gather(*[code(g) for _ in range(50)])
        assert sorted(codes) == [200] + [503] * 49
        assert len(a.requests) == 2
        assert await state(g) == "closed"


async def test_while_a_probe_runs_others_go_to_the_next_provider() -> None:
    async with (
        ScriptedProvider(status(500), slow(5.0, ok()), name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b, breaker=TOUCHY)) as g,
    ):
        await g.chat()
        await asyncio.sleep(10)
        answers = await asyncio.gather(*[g.chat() for _ in range(20)])
        by = sorted(str(answer.field("X-Gateway-Provider")) for answer in answers)
        assert by == ["a"] + ["b"] * 19
        assert {answer.field("X-Gateway-Attempts") for answer in answers} == {"1"}
        assert len(b.requests) == 20


async def test_a_probe_whose_client_leaves_gives_its_place_back() -> None:
    async with relay(status(500), silent(), ok()) as (g, _):
        await code(g)
        await asyncio.sleep(10)
        async with g.client() as client:
            await client.request("POST", CHAT.path, builders.encode(CHAT.request()))
            await asyncio.sleep(1)
            assert await code(g) == 503
            client.close()
            await asyncio.sleep(0.5)
        assert await state(g) == "half-open"
        assert await code(g) == 200
        assert await state(g) == "closed"


async def test_a_probe_that_meets_its_deadline_gives_its_place_back() -> None:
    async with relay(status(500), silent(), ok(), clocks={"deadline": 20.0}) as (g, _):
        await code(g)
        await asyncio.sleep(10)
        assert await code(g) == 504
        assert await state(g) == "half-open"
        assert await code(g) == 200


async def test_a_probe_closes_at_its_commit_not_at_its_end() -> None:
    async with relay(status(500), open_stream(CHAT.content), ok()) as (g, _):
        await code(g)
        await asyncio.sleep(10)
        async with g.client() as client:
            await client.open_stream(CHAT.path, CHAT.request(stream=True))
            assert await state(g) == "closed"
            assert await code(g) == 200


async def test_a_break_after_the_commit_of_a_probe_is_a_new_failure() -> None:
    async with relay(status(500), breaks_off(CHAT.content, then="fin")) as (g, _):
        await code(g)
        await asyncio.sleep(10)
        await g.chat(stream=True)
        assert changes(g) == ["open", "half-open", "closed", "open"]


async def test_a_probe_whose_client_leaves_after_the_commit_has_succeeded() -> None:
    async with relay(status(500), open_stream(CHAT.content)) as (g, _):
        await code(g)
        await asyncio.sleep(10)
        async with g.client() as client:
            await client.open_stream(CHAT.path, CHAT.request(stream=True))
        await asyncio.sleep(1)
        assert await state(g) == "closed"


async def test_a_verdict_from_before_the_trip_changes_nothing() -> None:
    """A slow success that began while closed does not close what opened meanwhile."""

    async def by_text(peer: Peer, request: Request) -> None:
        slowly = request.json()["messages"][0]["content"] == "slow"
        await (slow(5.0, ok()) if slowly else status(500))(peer, request)

    async with relay(by_text) as (g, _):
        early = asyncio.create_task(g.chat("slow"))
        await asyncio.sleep(1)
        await code(g)
        assert await state(g) == "open"
        assert (await early).status == 200
        assert await state(g) == "open"


async def test_a_failure_from_before_the_trip_does_not_restart_the_cooldown() -> None:
    async def by_text(peer: Peer, request: Request) -> None:
        slowly = request.json()["messages"][0]["content"] == "slow"
        await (slow(8.0, status(500)) if slowly else status(500))(peer, request)

    async with relay(by_text) as (g, _):
        early = asyncio.create_task(g.chat("slow"))
        await asyncio.sleep(1)
        await code(g)
        await early
        await asyncio.sleep(3)
        assert await state(g) == "half-open"


async def test_a_providers_error_event_after_the_commit_counts() -> None:
    async with relay(events(CHAT.content, builders.error_event())) as (g, _):
        await g.chat(stream=True)
        assert await state(g) == "open"


async def test_breakers_are_each_providers_own() -> None:
    async with (
        ScriptedProvider(status(500), name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b, breaker=TOUCHY)) as g,
    ):
        await g.chat()
        found = {p["name"]: p["state"] for p in (await g.get("/health")).json()["providers"]}
        assert found == {"a": "open", "b": "closed"}


async def test_the_log_tells_the_breakers_state_of_each_attempt() -> None:
    async with relay(status(500), ok()) as (g, _):
        await code(g)
        await asyncio.sleep(10)
        await code(g)
        states = [line["attempts"][0]["breaker"] for line in g.exchanges]
        assert states == ["closed", "half-open"]


async def test_health_tells_since_when_and_how_long() -> None:
    async with relay(status(500)) as (g, _):
        await code(g)
        await asyncio.sleep(4)
        told = (await g.get("/health")).json()["providers"][0]
        assert told == {"name": "a", "state": "open", "since": 4.0, "retry_in": 6.0}
