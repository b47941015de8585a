"""Whether a shared store is there, and how long anybody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from relayd.stores import Shared, StoreAway
from relayd.stores.link import LONGEST_WAIT, Link
from relayd.stores.memory import MemoryStore
from tests.contract.fakes import Mood, Moody

pytestmark = pytest.mark.virtual_time

TIMEOUT = 0.25


@pytest.fixture
def store() -> Moody:
    return Moody()


@pytest.fixture
def said() -> list[tuple[bool, str]]:
    return []


@pytest.fixture
async def link(store: Moody, said: list[tuple[bool, str]]) -> AsyncIterator[Link]:
    link = Link(store, timeout=TIMEOUT, on_store=lambda *words: said.append(words))
    yield link
    await link.close()


def now() -> float:
    return asyncio.get_running_loop().time()


async def lose(link: Link, store: Moody, mood: Mood = Mood.AWAY) -> None:
    store.mood = mood
    with pytest.raises(StoreAway):
        await link.ask(store.read, 0.0)


async def test_a_step_gives_its_result(link: Link, store: Moody) -> None:
    assert (await link.ask(store.read, 0.0)).rows == {}
    assert link.available


async def test_nobody_waits_longer_than_the_timeout(link: Link, store: Moody) -> None:
    began = now()
    await lose(link, store, Mood.SILENT)
    assert now() - began == pytest.approx(TIMEOUT)


async def test_once_it_is_closed_nothing_is_told_and_nobody_looks_for_it(
    link: Link, store: Moody, said: list[tuple[bool, str]]
) -> None:
    await link.close()
    await lose(link, store)
    asked = len(store.asked)
    await asyncio.sleep(10 * LONGEST_WAIT)
    assert (len(store.asked), said) == (asked, [])


async def test_while_it_is_away_nobody_waits_and_nothing_is_asked(link: Link, store: Moody) -> None:
    await lose(link, store)
    began, asked = now(), len(store.asked)
    with pytest.raises(StoreAway) as caught:
        await link.ask(store.read, 0.0)
    assert not caught.value.asked
    assert (now(), len(store.asked)) == (began, asked)


async def test_it_is_found_again_by_itself_and_each_change_is_told_once(
    link: Link, store: Moody, said: list[tuple[bool, str]]
) -> None:
    store.mood = Mood.SILENT
    steps = [link.ask(store.read, 0.0) for _ in range(20)]
    results = await asyncio.gather(*steps, return_exceptions=True)
    assert all(isinstance(result, StoreAway) for result in results)
    store.mood = Mood.WELL
    await link.back()
    away = "no answer within store.timeout, 0.25 s"
    assert said == [(False, away), (True, "the store answers again")]
    assert link.lost == 1
    assert (await link.ask(store.read, 0.0)).rows == {}


async def test_a_fault_inside_the_store_does_not_end_the_search_for_it(
    link: Link, store: Moody, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fault(now: float) -> Shared:
        raise KeyError(now)

    await lose(link, store)
    store.mood = Mood.WELL
    with monkeypatch.context() as faulty:
        faulty.setattr(store.inner, "read", fault)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await link.back()
    await link.back()
    assert link.available


async def test_it_is_asked_ever_more_seldom_up_to_a_limit(link: Link, store: Moody) -> None:
    await lose(link, store)
    asked = len(store.asked)
    async with asyncio.timeout(60) as cap:
        cap.reschedule(now() + 60)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(50):
                await link.back()
    assert 50 / LONGEST_WAIT <= len(store.asked) - asked <= 50 / LONGEST_WAIT + 6


async def test_one_that_only_comes_back_to_fail_again_is_not_asked_more_often(
    link: Link, store: Moody, said: list[tuple[bool, str]]
) -> None:
    began = now()
    for _ in range(10):
        await lose(link, store)
        store.mood = Mood.WELL
        await link.back()
    assert now() - began > 5 * LONGEST_WAIT


async def test_a_callers_own_cancellation_is_no_failure_of_the_store(
    link: Link, store: Moody
) -> None:
    store.mood = Mood.SILENT
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(TIMEOUT / 2):
            await link.ask(store.read, 0.0)
    assert link.available


async def test_a_store_in_this_process_is_known_as_such() -> None:
    store = MemoryStore()
    assert Link(store).local is store
    assert Link(Moody()).local is None


@pytest.mark.parametrize("mood", list(Mood))
async def test_closing_ends_whatever_mood_the_store_is_in(store: Moody, mood: Mood) -> None:
    link = Link(store, timeout=TIMEOUT)
    await lose(link, store)
    store.mood = mood
    await link.close()
    assert store.asked[-1] == "close"
