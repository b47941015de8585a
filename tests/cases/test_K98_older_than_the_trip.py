"""K98: a request from before the trip ended during half-open, and flipped the breaker's state.

https://github.com/dsx-ai-factory/nv-redfish/pull/211
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support import breakers
from tests.support.builders import delta
from tests.support.gateway import Gateway
from tests.support.provider import Peer, Request, Script
from tests.support.scripts import breaks_off, events, hangs_up, ok, slow, status

POLICY = {"failures": 1, "cooldown": 2.0}

ENDS: dict[str, tuple[Script, int]] = {
    "succeeds": (ok(), 200),
    "fails": (status(500), 502),
    "breaks": (hangs_up(), 502),
    "is refused": (status(400), 400),
    "has no answer": (events(), 502),
    "breaks off after its commit": (breaks_off(delta("x"), then="fin"), 200),
}


def by_text(x: Script, probe: Script) -> Script:
    """X takes until 5 s, the one that trips fails at once, the probe until long after X's end."""
    scripts = {"x": slow(5.0, x), "trip": status(500), "probe": slow(7.0, probe)}

    async def script(peer: Peer, request: Request) -> None:
        await scripts[request.json()["messages"][0]["content"]](peer, request)

    return script


async def ask(g: Gateway, text: str, at: float) -> int:
    await asyncio.sleep(at)
    return (await g.chat(text, stream=True)).status


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("probe", "after"), [(ok(), "closed"), (status(500), "open")], ids=["succeeds", "fails"]
)
async def test_its_end_neither_changes_the_state_nor_frees_the_probes_place(
    probe: Script, after: str, end: str
) -> None:
    script, code = ENDS[end]
    async with breakers.relay(by_text(script, probe), breaker=POLICY) as (g, a):
        x = asyncio.create_task(ask(g, "x", 0))
        trip = asyncio.create_task(ask(g, "trip", 1))
        probing = asyncio.create_task(ask(g, "probe", 3))
        await asyncio.sleep(4.5)
        assert await breakers.state(g) == "half-open"
        assert await x == code
        assert await breakers.state(g) == "half-open"
        assert await ask(g, "probe", 0) == 503, "expected the probe's place to be taken still"
        assert (await trip, await probing) == (502, 200 if after == "closed" else 502)
        assert await breakers.state(g) == after
        assert len(a.requests) == 3
        assert breakers.changes(g) == ["open", "half-open", after]


async def test_many_from_before_the_trip_do_not_open_it_again_once_it_is_closed() -> None:
    """Five of them fail after the breaker has closed: they were admitted in another generation."""
    scripts = {"x": slow(5.0, status(500)), "trip": status(500), "probe": ok()}

    async def script(peer: Peer, request: Request) -> None:
        await scripts[request.json()["messages"][0]["content"]](peer, request)

    async with breakers.relay(script, breaker=POLICY) as (g, _):
        early = [asyncio.create_task(ask(g, "x", 0)) for _ in range(5)]
        assert await ask(g, "trip", 1) == 502
        assert await ask(g, "probe", 2.5) == 200
        assert await breakers.state(g) == "closed"
        assert await asyncio.gather(*early) == [502] * 5
        assert await breakers.state(g) == "closed"
