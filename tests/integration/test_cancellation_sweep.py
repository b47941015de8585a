"""Cancel a client's task at its 1st, 2nd, … nth await: afterwards everything is given back.

Each scenario is swept until it ends by itself before its nth wait (see `knife`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import builders
from tests.support.certificates import Authority
from tests.support.client import RawClient, post
from tests.support.gateway import Gateway, config_for, gateway
from tests.support.knife import knife
from tests.support.provider import Script, ScriptedProvider
from tests.support.scripts import breaks_off, events, hangs_up, ok, raw, slow, status

from .shapes import CHAT

MOST = 200
"""Waits after which a scenario must have ended by itself."""

FEWEST = 3
"""Waits that every scenario has: the head, the connect, the answer."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way of an exchange. `warm`: answers asked for before the one that is cut."""

    scripts: tuple[Script, ...]
    second: tuple[Script, ...] = (ok(),)
    stream: bool = False
    warm: int = 0
    wait: float = 0.0
    reads: bool = True
    pieces: int = 0
    tls: bool = False
    sqlite: bool = False
    sections: dict[str, Any] = field(default_factory=dict)


FLOOD = [builders.delta("x" * 60_000)] * 150
"""More than two sockets take while nobody reads."""

SCENARIOS = {
    "whole answer": Scenario((slow(1.0, ok()),)),
    "whole answer in pieces": Scenario(
        (
            raw(
                b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"
                % (len(CHAT.answer), CHAT.answer),
                size=40,
                delay=1.0,
            ),
        )
    ),
    "request in pieces": Scenario((ok(),), pieces=20),
    "stream": Scenario((events(*builders.stream("a", "b", "c"), delay=1.0),), stream=True),
    "stream that breaks off": Scenario((breaks_off(CHAT.content, then="fin"),), stream=True),
    "stream held whole": Scenario(
        (events(*builders.stream("a", "b"), delay=1.0),),
        stream=True,
        sections={"routing": {"commit": "answer"}},
    ),
    "commit at the head": Scenario(
        (events(*builders.stream("a"), delay=1.0),),
        stream=True,
        sections={"routing": {"commit": "head"}},
    ),
    "failover": Scenario((slow(1.0, status(500)),), (slow(1.0, ok()),)),
    "failover from a stream": Scenario((events(builders.role(), delay=1.0),), stream=True),
    "backoff": Scenario((status(503), status(503), ok()), sections={"failover": {"retries": 2}}),
    "request fault": Scenario((slow(1.0, status(422)),)),
    "an error answer in pieces": Scenario(
        (raw(b"HTTP/1.1 429 Slow\r\nContent-Length: 20\r\n\r\n", b"{}", delay=1.0, then="stall"),)
    ),
    "reused connection": Scenario((ok(),), warm=1),
    "stale connection": Scenario((ok(), hangs_up(), ok()), warm=1),
    "half-open probe": Scenario(
        (status(500), slow(1.0, ok())),
        warm=1,
        wait=10.0,
        sections={"breaker": {"failures": 1, "cooldown": 10.0}},
    ),
    "half-open probe that streams": Scenario(
        (status(500), events(*builders.stream("a", "b"), delay=1.0)),
        stream=True,
        warm=1,
        wait=10.0,
        sections={"breaker": {"failures": 1, "cooldown": 10.0}},
    ),
    "TLS": Scenario((slow(1.0, ok()),), tls=True),
    "a store in a file": Scenario((slow(1.0, ok()),), sqlite=True),
    "a reader that is behind": Scenario(
        (events(*FLOOD, builders.finish(), builders.DONE),), stream=True, reads=False
    ),
}


async def started(
    scenario: Scenario, stack: AsyncExitStack, folder: Path
) -> tuple[Gateway, ScriptedProvider, ScriptedProvider]:
    settings: dict[str, Any] = {}
    if scenario.tls:
        authority = Authority(folder)
        settings = {"tls": authority.server(), "ca_file": authority.ca_file}
    a = await stack.enter_async_context(
        ScriptedProvider(*scenario.scripts, name="a", max_in_flight=1, **settings)
    )
    b = await stack.enter_async_context(ScriptedProvider(*scenario.second, name="b"))
    sections = {"quota": {"daily_turns": 1}, **scenario.sections}
    if scenario.sqlite:
        sections["store"] = {"url": f"sqlite:{folder / 'state.db'}"}
    g = await stack.enter_async_context(gateway(config_for(a, b, **sections)))
    for _ in range(scenario.warm):
        await g.chat(stream=scenario.stream, fields={"X-User-Id": "warm"})
    await asyncio.sleep(scenario.wait)
    return g, a, b


async def ask(g: Gateway, scenario: Scenario, task: Callable[[], asyncio.Task[Any]]) -> None:
    """Send one request and read until the connection's task has ended."""
    data = post(CHAT.path, CHAT.request(stream=scenario.stream), {"Connection": "close"})
    async with g.client() as client:
        if not scenario.reads:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        try:
            await client.send(data, size=scenario.pieces and len(data) // scenario.pieces)
            await read(client, scenario)
        except (EOFError, OSError):
            pass  # cut before the head
        await asyncio.wait([task()])


async def read(client: RawClient, scenario: Scenario) -> None:
    if scenario.reads:
        await (await client.head("POST")).read()
        await client.reader.read()
    else:
        await asyncio.sleep(5.0)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await client.reader.read()


async def check_given_back(g: Gateway, a: ScriptedProvider, b: ScriptedProvider) -> None:
    """No permit, place, lease or connection is left with the exchange that was cut."""
    await asyncio.sleep(0.1)
    engine = g.app.engine
    assert engine.running == 0
    assert not any(engine.in_flight.values()), dict(engine.in_flight)
    assert g.app.server.connections == 0
    assert a.open + b.open == len(engine.reach.pool), "a connection is neither idle nor closed"
    turns = [line["turn"] for line in g.exchanges if line["user"] == "anonymous"]
    assert len(turns) <= 1
    # The one turn of the day is there again unless it was charged; the probe's place is, always.
    left = (await g.chat()).status != 429
    assert left is ("charged" not in turns), f"the turn is {turns}"
    await g.chat(fields={"X-User-Id": "next"})
    health = (await g.get("/health")).json()
    assert all(p["state"] != "half-open" for p in health["providers"]), "the probe's place is gone"


async def swept(scenario: Scenario, nth: int, folder: Path) -> bool:
    """Run the scenario and cut it at its nth wait; whether it waited that often."""
    with knife(nth) as cut:
        async with AsyncExitStack() as stack:
            g, a, b = await started(scenario, stack, folder)
            g.app.engine.jitter = lambda: 0.5
            cut.armed = True
            await ask(g, scenario, lambda: cut.tasks[0])
            await check_given_back(g, a, b)
    return cut.reached


@pytest.mark.parametrize("name", SCENARIOS)
async def test_whatever_await_is_cancelled_everything_is_given_back(
    name: str, tmp_path: Path
) -> None:
    nth = 1
    while True:
        folder = tmp_path / str(nth)
        folder.mkdir()
        if not await swept(SCENARIOS[name], nth, folder):
            break
        nth += 1
        assert nth < MOST, "expected an end of the scenario"
    assert nth > FEWEST, f"expected more than {FEWEST} awaits, got {nth - 1}"
