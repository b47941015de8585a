"""K151: labels with user ids made the memory grow with every user and each scrape.

https://github.com/BerriAI/litellm/issues/12159
"""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

from relayd.admin import Told
from relayd.picture import FAILED_OVER, TOP
from tests.support.gateway import config_for, gateway
from tests.support.metrics import series
from tests.support.provider import ScriptedProvider
from tests.support.records import attempt, exchange
from tests.support.scripts import ok, status

USERS = 10_000
GROWTH = 200_000
"""Bytes that memories with a bound may still move by; ten thousand users of one would be more."""


class Silent:
    """A log that keeps nothing."""

    def exchange(self, record: object) -> None: ...

    def attempt_failed(self, *_: object) -> None: ...

    def event(self, *_: object, **__: object) -> None: ...


async def test_users_are_no_series_and_the_heaviest_are_shown(tmp_path: Path) -> None:
    admin = str(tmp_path / "admin.sock")
    config = {"admin": {"listen": f"unix:{admin}"}, "quota": {"daily_turns": 5}}
    async with (
        ScriptedProvider(status(503), name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b, **config)) as g,
    ):
        await g.chat(fields={"X-User-Id": "user-0"})
        for number in range(1, 200):
            await g.chat(fields={"X-User-Id": f"user-{number}"})
            if number == 50:
                before = await series(admin)  # the breaker of a is open by now
        after = await series(admin)
    assert set(after) == set(before)
    assert not [name for name in after if "user-" in name]


def test_memory_stays_while_users_come_and_go() -> None:
    told = Told(Silent(), now=lambda: 5.0)
    told.tally.keep(["r"], ["a", "b"])
    told.picture.keep(["a", "b"], told.picture.zone)

    def exchanges(numbers: range) -> None:
        for number in numbers:
            steps = (attempt("a", "closed"), attempt("b"))
            record = exchange(*steps, user=f"user-{number:0100}", turn="charged")
            told.exchange(record)

    exchanges(range(1000))
    gc.collect()
    tracemalloc.start()
    try:
        exchanges(range(1000, 1000 + USERS))
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < GROWTH
    assert len(told.picture.failed_over) == FAILED_OVER
    assert len(told.picture.users.top(1_700_000_000.0, told.picture.zone)) == TOP


async def test_a_hundred_scrapes_are_all_alike(tmp_path: Path) -> None:
    admin = str(tmp_path / "admin.sock")
    config = {"admin": {"listen": f"unix:{admin}"}}
    async with ScriptedProvider(ok()) as a, gateway(config_for(a, **config)) as g:
        await g.chat()
        first = set(await series(admin))
        for _ in range(99):
            assert set(await series(admin)) == first
