"""K92: naive and aware times were mixed: the reset came one UTC offset late.

https://github.com/BerriAI/litellm/pull/40978
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from tests.support.gateway import gateway
from tests.support.provider import Peer, Request, ScriptedProvider
from tests.support.scripts import ok
from tests.support.turns import capped, left

CAP = 2

SetClock = Callable[[str], None]


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """The machine's wall clock shows this instant, and stands there."""

    def stand(instant: str) -> None:
        at = datetime.fromisoformat(instant).timestamp()
        monkeypatch.setattr(time, "time", lambda: at)

    return stand


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Shanghai", "Pacific/Kiritimati"])
def process_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process runs in this zone, whatever the quota's is."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


NIGHTS = {
    "Shanghai": ("Asia/Shanghai", "2026-03-01T15:59:59+00:00", "2026-03-01T16:00:01+00:00"),
    "UTC": ("UTC", "2026-03-01T23:59:59+00:00", "2026-03-02T00:00:01+00:00"),
    "west of it": ("America/New_York", "2026-03-02T04:59:59+00:00", "2026-03-02T05:00:01+00:00"),
    "in summer": ("America/New_York", "2026-07-02T03:59:59+00:00", "2026-07-02T04:00:01+00:00"),
    "half an hour": ("Asia/Kolkata", "2026-03-01T18:29:59+00:00", "2026-03-01T18:30:01+00:00"),
}


@pytest.mark.usefixtures("process_zone")
@pytest.mark.parametrize("night", NIGHTS)
async def test_the_new_day_begins_at_midnight_of_the_quotas_zone(
    night: str, set_clock: SetClock
) -> None:
    zone, before, after = NIGHTS[night]
    async with (
        ScriptedProvider(ok()) as a,
        gateway(capped(a, cap=CAP, quota={"timezone": zone})) as g,
    ):
        set_clock(before)
        assert await left(g) == CAP
        refusal = await g.chat()
        assert refusal.field("Retry-After") == "1"
        assert refusal.field("RateLimit") == '"turns";r=0;t=1'
        set_clock(after)
        assert await left(g) == CAP
        assert (await g.chat()).field("Retry-After") == str(24 * 3600 - 1)


@pytest.mark.usefixtures("process_zone")
async def test_midnight_of_another_zone_changes_nothing(set_clock: SetClock) -> None:
    async with (
        ScriptedProvider(ok()) as a,
        gateway(capped(a, cap=CAP, quota={"timezone": "Asia/Shanghai"})) as g,
    ):
        set_clock("2026-03-01T23:59:59+00:00")
        assert await left(g) == CAP
        for instant in ("2026-03-02T00:00:01", "2026-03-02T05:00:01", "2026-03-02T10:00:01"):
            set_clock(f"{instant}+00:00")
            assert (await g.chat()).status == 429


@pytest.mark.usefixtures("process_zone")
async def test_a_clock_that_is_set_back_gives_nothing_back(set_clock: SetClock) -> None:
    async with (
        ScriptedProvider(ok()) as a,
        gateway(capped(a, cap=CAP, quota={"timezone": "Asia/Shanghai"})) as g,
    ):
        set_clock("2026-03-01T15:59:59+00:00")
        assert await left(g) == CAP
        set_clock("2026-03-01T16:00:01+00:00")
        assert await left(g) == CAP
        set_clock("2026-03-01T15:59:59+00:00")
        assert (await g.chat()).status == 429


async def test_an_exchange_belongs_to_the_day_on_which_it_began(set_clock: SetClock) -> None:
    async def over_midnight(peer: Peer, request: Request) -> None:
        set_clock("2026-03-01T16:00:01+00:00")
        await ok()(peer, request)

    async with (
        ScriptedProvider(over_midnight, ok()) as a,
        gateway(capped(a, cap=CAP, quota={"timezone": "Asia/Shanghai"})) as g,
    ):
        set_clock("2026-03-01T15:59:59+00:00")
        assert (await g.chat()).status == 200
        assert await left(g) == CAP, "expected the turn to be yesterday's"
