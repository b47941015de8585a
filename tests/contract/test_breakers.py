"""Breakers as an exchange sees them: from memory, and in step with a shared store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise

import pytest

from relayd.breaker import MOST, Policy, State, Verdict
from relayd.breakers import CLEAR, PROBE_WAIT, Breakers, Look, Permit
from relayd.stores import StoreAway
from relayd.stores.link import Link
from relayd.stores.memory import MemoryStore
from tests.contract.fakes import Mood, Moody

pytestmark = pytest.mark.virtual_time

POLICY = Policy(failures=3, window=30.0, cooldown=10.0)
Change = tuple[str, State, State]


def now() -> float:
    return asyncio.get_running_loop().time()


class Relayd:
    """The breakers of one process; `changes` is what its log would say."""

    def __init__(self, store: MemoryStore | Moody) -> None:
        self.link = Link(store, timeout=0.25)
        self.changes: list[Change] = []
        self.reasons: list[str] = []
        self.breakers = Breakers(self.link, POLICY, began=now(), on_change=self.changed)
        self.breakers.keep(["a", "b"])

    def changed(self, name: str, old: State, new: State, reason: str) -> None:
        self.changes.append((name, old, new))
        self.reasons.append(reason)

    async def admitted(self, name: str = "a", lease: float = 600.0) -> Permit:
        permit = await self.breakers.admit(name, now(), now() + lease)
        assert permit is not None
        return permit

    async def ask(self, verdict: Verdict, name: str = "a") -> None:
        (await self.admitted(name)).settle(verdict, now())

    async def trip(self, name: str = "a") -> None:
        for _ in range(3):
            await self.ask(Verdict.FAILURE, name)

    def state(self, name: str = "a") -> State:
        return self.breakers.look(name, now()).state

    async def agree(self) -> None:
        await self.breakers.synchronise(now)


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def store() -> Moody:
    return Moody()


@pytest.fixture
async def one(store: Moody) -> AsyncIterator[Relayd]:
    relayd = Relayd(store)
    yield relayd
    await relayd.link.close()


@pytest.fixture
async def two(store: Moody) -> AsyncIterator[Relayd]:
    relayd = Relayd(store)
    yield relayd
    await relayd.link.close()


@pytest.fixture
async def alone(memory: MemoryStore) -> Relayd:
    return Relayd(memory)


@pytest.fixture(params=["alone", "one"])
def relayd(request: pytest.FixtureRequest) -> Relayd:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


async def later(seconds: float) -> None:
    """Let virtual time pass."""
    try:
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()
    except TimeoutError:
        pass


async def test_a_closed_breaker_admits_without_asking_the_store(one: Relayd, store: Moody) -> None:
    store.mood = Mood.SILENT
    for _ in range(10):
        await one.ask(Verdict.SUCCESS)
    assert one.breakers.look("a", now()) == CLEAR
    assert store.asked == []


async def test_failures_open_it_and_nobody_is_admitted(relayd: Relayd) -> None:
    await relayd.trip()
    assert relayd.breakers.look("a", now()) == Look(State.OPEN, 10.0, False)
    assert await relayd.breakers.admit("a", now(), now() + 600) is None
    assert relayd.state("b") is State.CLOSED


async def test_after_the_cooldown_one_of_50_is_admitted(relayd: Relayd) -> None:
    await relayd.trip()
    await later(10)
    assert relayd.breakers.look("a", now()) == Look(State.HALF_OPEN, 0.0, False)
    asked = (relayd.breakers.admit("a", now(), now() + 600) for _ in range(50))
    permits = [permit for permit in await asyncio.gather(*asked) if permit is not None]
    assert [permit.state for permit in permits] == [State.HALF_OPEN]
    assert relayd.breakers.look("a", now()).retry_in == PROBE_WAIT


@pytest.mark.parametrize(
    ("verdict", "state"),
    [
        (Verdict.SUCCESS, State.CLOSED),
        (Verdict.ANSWERED, State.CLOSED),
        (Verdict.FAILURE, State.OPEN),
        (Verdict.NEUTRAL, State.HALF_OPEN),
    ],
)
async def test_the_probe_decides(relayd: Relayd, verdict: Verdict, state: State) -> None:
    await relayd.trip()
    await later(10)
    await relayd.ask(verdict)
    assert relayd.state() is state


async def test_a_probe_whose_client_left_makes_room_for_the_next(relayd: Relayd) -> None:
    await relayd.trip()
    await later(10)
    await relayd.ask(Verdict.NEUTRAL)
    await relayd.ask(Verdict.SUCCESS)
    assert relayd.state() is State.CLOSED


async def test_a_probe_that_hangs_loses_its_place_at_the_deadline(relayd: Relayd) -> None:
    await relayd.trip()
    await later(10)
    hanging = await relayd.admitted(lease=60.0)
    await later(59)
    assert await relayd.breakers.admit("a", now(), now() + 60) is None
    await later(2)
    await relayd.ask(Verdict.SUCCESS)
    hanging.settle(Verdict.FAILURE, now())
    assert relayd.state() is State.CLOSED


@pytest.mark.parametrize("verdict", list(Verdict))
async def test_what_began_before_the_trip_changes_nothing(relayd: Relayd, verdict: Verdict) -> None:
    old = await relayd.admitted()
    await relayd.trip()
    await later(10)
    probe = await relayd.admitted()
    old.settle(verdict, now())
    assert await relayd.breakers.admit("a", now(), now() + 600) is None
    probe.settle(Verdict.SUCCESS, now())
    assert relayd.state() is State.CLOSED


async def test_a_permit_is_settled_once(relayd: Relayd) -> None:
    permit = await relayd.admitted()
    for _ in range(5):
        permit.settle(Verdict.FAILURE, now())
    assert relayd.state() is State.CLOSED


async def test_departures_neither_open_nor_excuse(relayd: Relayd) -> None:
    for _ in range(20):
        await relayd.ask(Verdict.NEUTRAL)
    assert relayd.breakers.look("a", now()) == CLEAR


async def test_answers_that_break_off_after_the_commit_open_it(relayd: Relayd) -> None:
    for _ in range(3):
        permit = await relayd.admitted()
        permit.settle(Verdict.SUCCESS, now())
        for _ in range(2):
            permit.broke(now())
    assert relayd.state() is State.OPEN


async def test_only_a_success_can_break_off(relayd: Relayd) -> None:
    for verdict in (Verdict.NEUTRAL, Verdict.FAILURE, Verdict.ANSWERED):
        permit = await relayd.admitted()
        permit.settle(verdict, now())
        permit.broke(now())
    assert relayd.state() is State.CLOSED


async def test_a_probe_that_breaks_off_after_its_commit_is_one_new_failure(
    relayd: Relayd,
) -> None:
    await relayd.trip()
    await later(10)
    probe = await relayd.admitted()
    probe.settle(Verdict.SUCCESS, now())
    await relayd.ask(Verdict.FAILURE)
    probe.broke(now())
    assert relayd.state() is State.CLOSED
    await relayd.ask(Verdict.FAILURE)
    assert relayd.state() is State.OPEN


async def test_a_stream_from_before_the_trip_that_breaks_off_changes_nothing(
    relayd: Relayd,
) -> None:
    old = [await relayd.admitted() for _ in range(3)]
    for permit in old:
        permit.settle(Verdict.SUCCESS, now())
    await relayd.trip()
    await later(10)
    await relayd.ask(Verdict.SUCCESS)
    for permit in old:
        permit.broke(now())
    assert relayd.state() is State.CLOSED


async def test_each_change_of_state_is_told_once(relayd: Relayd) -> None:
    await relayd.trip()
    await later(10)
    await relayd.ask(Verdict.FAILURE)
    await later(10)
    for _ in range(3):
        relayd.breakers.look("a", now())
    await relayd.ask(Verdict.SUCCESS)
    states = [State.CLOSED, State.OPEN, State.HALF_OPEN, State.OPEN, State.HALF_OPEN, State.CLOSED]
    assert relayd.changes == [("a", old, new) for old, new in pairwise(states)]
    assert relayd.reasons == [
        "3 failures within 30 s",
        "the cooldown is over",
        "the probe's verdict was failure",
        "the cooldown is over",
        "the probe's verdict was success",
    ]


async def test_a_rest_is_seen_and_ends(relayd: Relayd) -> None:
    relayd.breakers.rest("a", now() + 5)
    relayd.breakers.rest("a", now() + 1)
    assert relayd.breakers.look("a", now()) == Look(State.CLOSED, 5.0, True)
    await later(5)
    assert relayd.breakers.look("a", now()) == CLEAR


async def test_a_key_rests_alone(relayd: Relayd) -> None:
    relayd.breakers.rest("a#k1", now() + 5)
    assert relayd.breakers.resting("a#k1", now()) == 5.0
    assert relayd.breakers.resting("a#k2", now()) == 0.0
    assert relayd.breakers.look("a", now()) == CLEAR


async def test_an_open_breaker_that_also_rests_waits_for_the_longer(relayd: Relayd) -> None:
    await relayd.trip()
    relayd.breakers.rest("a", now() + 60)
    assert relayd.breakers.look("a", now()) == Look(State.OPEN, 60.0, True)


async def test_health_shows_each_provider(relayd: Relayd) -> None:
    await relayd.trip("b")
    await later(4)
    closed, opened = relayd.breakers.snapshot(now())
    assert closed == {"name": "a", "state": "closed", "since": 4.0, "retry_in": 0.0}
    assert opened == {"name": "b", "state": "open", "since": 4.0, "retry_in": 6.0}
    await later(8)
    assert relayd.breakers.snapshot(now())[1] == {
        "name": "b",
        "state": "half-open",
        "since": 2.0,
        "retry_in": 0.0,
    }


async def test_a_reload_keeps_who_stays_and_forgets_who_goes(relayd: Relayd) -> None:
    await relayd.trip("a")
    await relayd.trip("b")
    for name in ("a#k", "b#k"):
        relayd.breakers.rest(name, now() + 60)
    relayd.breakers.keep(["a"])
    relayd.breakers.keep(["a", "b"])
    assert (relayd.state("a"), relayd.state("b")) == (State.OPEN, State.CLOSED)
    assert relayd.breakers.resting("a#k", now()) == 60
    assert relayd.breakers.resting("b#k", now()) == 0


async def test_what_another_keeps_in_the_same_memory_stays(
    alone: Relayd, memory: MemoryStore
) -> None:
    await alone.trip("a")
    alone.breakers.rest("b#k", now() + 60)
    other = Breakers(Link(memory), POLICY)
    other.keep(["c"])
    other.keep(["d"])
    assert alone.state("a") is State.OPEN
    assert alone.breakers.resting("b#k", now()) == 60


async def test_a_reload_changes_the_policy(relayd: Relayd) -> None:
    relayd.breakers.configure(Policy(failures=1))
    await relayd.ask(Verdict.FAILURE)
    assert relayd.state() is State.OPEN


async def test_an_exchange_may_ask_a_provider_that_a_reload_took_away(relayd: Relayd) -> None:
    relayd.breakers.keep(["b"])
    await relayd.ask(Verdict.FAILURE, "a")
    assert [each["name"] for each in relayd.breakers.snapshot(now())] == ["b"]


async def test_with_a_store_in_this_process_there_is_nothing_to_run(alone: Relayd) -> None:
    await alone.breakers.run()


# two processes, one store


async def test_failures_of_two_processes_open_it_for_both(one: Relayd, two: Relayd) -> None:
    await one.ask(Verdict.FAILURE)
    await two.ask(Verdict.FAILURE)
    for each in (one, two, one):
        await each.agree()
    await one.ask(Verdict.FAILURE)
    assert (one.state(), two.state()) == (State.OPEN, State.CLOSED)
    await one.agree()
    await two.agree()
    assert two.state() is State.OPEN
    assert two.changes == [("a", State.CLOSED, State.OPEN)]
    assert two.reasons == ["seen by another relayd"]


async def test_one_of_two_processes_probes_and_both_close(one: Relayd, two: Relayd) -> None:
    await one.trip()
    await one.agree()
    await two.agree()
    await later(10)
    probe = await one.admitted()
    assert await two.breakers.admit("a", now(), now() + 600) is None
    probe.settle(Verdict.SUCCESS, now())
    await one.agree()
    await two.agree()
    assert (one.state(), two.state()) == (State.CLOSED, State.CLOSED)


async def test_a_probe_may_find_that_another_process_has_closed_it(
    one: Relayd, two: Relayd
) -> None:
    await one.trip()
    await one.agree()
    await two.agree()
    await later(10)
    await one.ask(Verdict.SUCCESS)
    await one.agree()
    permit = await two.admitted()
    assert permit.state is State.CLOSED
    assert two.state() is State.CLOSED


async def test_the_first_verdict_after_a_close_seen_here_first_still_counts(one: Relayd) -> None:
    await one.trip()
    await later(10)
    probe = await one.admitted()
    probe.settle(Verdict.SUCCESS, now())
    early = await one.admitted()
    await one.agree()
    early.settle(Verdict.FAILURE, now())
    probe.broke(now())
    await one.agree()
    await one.ask(Verdict.FAILURE)
    assert one.state() is State.OPEN


async def test_what_is_not_told_yet_is_not_undone_by_what_the_store_knew(
    one: Relayd, two: Relayd, store: Moody
) -> None:
    await two.ask(Verdict.FAILURE)
    await two.agree()
    store.mood = Mood.AWAY
    await one.trip()
    with pytest.raises(StoreAway):
        await one.agree()
    assert one.state() is State.OPEN


async def test_rests_are_shared(one: Relayd, two: Relayd) -> None:
    one.breakers.rest("a#k", now() + 60)
    one.breakers.rest("b", now() + 1e6)
    await one.agree()
    await two.agree()
    assert two.breakers.resting("a#k", now()) == pytest.approx(60)
    assert two.breakers.resting("b", now()) == pytest.approx(300)


async def test_providers_of_other_configurations_do_not_matter(one: Relayd, two: Relayd) -> None:
    one.breakers.keep(["c"])
    await one.trip("c")
    one.breakers.rest("c#k", now() + 60)
    await one.agree()
    await two.agree()
    assert two.breakers.resting("c#k", now()) == 0
    assert two.state("c") is State.CLOSED


async def test_a_client_that_leaves_while_the_place_is_asked_for_gives_it_back(
    one: Relayd, store: Moody
) -> None:
    await one.trip()
    await one.agree()
    await later(10)
    leaving = asyncio.create_task(one.breakers.admit("a", now(), now() + 600))
    # Cancelled at its first wait, with the question already on its way.
    asyncio.get_running_loop().call_soon(leaving.cancel)
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await one.agree()
    await one.ask(Verdict.SUCCESS)
    assert one.state() is State.CLOSED


async def test_away_breakers_go_on_alone(one: Relayd, store: Moody) -> None:
    store.mood = Mood.AWAY
    await one.trip()
    with pytest.raises(StoreAway):
        await one.agree()
    await later(10)
    asked = (one.breakers.admit("a", now(), now() + 600) for _ in range(50))
    permits = [permit for permit in await asyncio.gather(*asked) if permit is not None]
    assert len(permits) == 1
    permits[0].settle(Verdict.SUCCESS, now())
    assert one.state() is State.CLOSED


async def test_a_silent_store_delays_the_probe_by_its_timeout_at_most(
    one: Relayd, store: Moody
) -> None:
    await one.trip()
    await one.agree()
    await later(10)
    store.mood = Mood.SILENT
    began = now()
    asked = (one.breakers.admit("a", now(), now() + 600) for _ in range(50))
    permits = [permit for permit in await asyncio.gather(*asked) if permit is not None]
    assert len(permits) == 1
    assert now() - began == pytest.approx(0.25)


async def test_when_the_store_is_back_it_is_told_what_happened_meanwhile(
    one: Relayd, two: Relayd, store: Moody
) -> None:
    running = [asyncio.create_task(each.breakers.run()) for each in (one, two)]
    store.mood = Mood.AWAY
    await one.trip()
    await later(5)
    assert two.state() is State.CLOSED
    store.mood = Mood.WELL
    await later(5)
    assert two.state() is not State.CLOSED
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def away(one: Relayd, store: Moody) -> None:
    store.mood = Mood.AWAY
    with pytest.raises(StoreAway):
        await one.agree()


async def back(one: Relayd, store: Moody) -> None:
    store.mood = Mood.WELL
    await one.link.back()
    await one.agree()


async def test_failures_that_are_old_news_and_opened_nothing_are_not_told(
    one: Relayd, store: Moody
) -> None:
    await away(one, store)
    for _ in range(2):
        await one.ask(Verdict.FAILURE)
    await later(31)
    await back(one, store)
    assert "judge" not in store.asked


async def test_an_absence_longer_than_the_window_closes_no_breaker(
    one: Relayd, two: Relayd, store: Moody
) -> None:
    await away(one, store)
    await one.trip()
    await later(11)
    await one.ask(Verdict.FAILURE)
    await later(31)
    await one.ask(Verdict.FAILURE)
    await back(one, store)
    await two.agree()
    assert (one.state(), two.state()) == (State.OPEN, State.OPEN)
    assert store.inner.rows["a"].trips == 3, "every failed probe counts there, too"
    assert "seen by another relayd" not in one.reasons


async def test_a_store_that_began_anew_takes_back_no_trip(one: Relayd, store: Moody) -> None:
    await one.trip()
    await later(11)
    await one.ask(Verdict.SUCCESS)
    await one.agree()
    store.inner.rows.clear()
    await one.agree()
    await one.trip()
    await one.agree()
    assert one.state() is State.OPEN


async def test_a_breaker_that_a_new_store_does_not_know_is_closed_since_now(
    one: Relayd, store: Moody
) -> None:
    await one.trip()
    await one.agree()
    await later(11)
    store.inner.rows.clear()
    (await one.admitted()).settle(Verdict.SUCCESS, now())
    told = one.breakers.snapshot(now())[0]
    assert (told["state"], told["since"]) == ("closed", 0.0)


async def test_news_are_told_at_once_and_others_seen_within_a_second(
    one: Relayd, two: Relayd
) -> None:
    running = [asyncio.create_task(each.breakers.run()) for each in (one, two)]
    await later(0.5)
    await one.trip()
    await later(1.1)
    assert two.state() is State.OPEN
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_news_beyond_the_limit_are_forgotten_oldest_first(one: Relayd, store: Moody) -> None:
    one.breakers.configure(Policy(failures=MOST))
    for name in ("a", "b"):
        for _ in range(750):
            await one.ask(Verdict.FAILURE, name)
    await one.agree()
    assert store.asked.count("judge") == 1024


# ------------------------------------------------------------------ what needs nobody's word


async def test_a_closed_breaker_admits_at_once_and_another_does_not(relayd: Relayd) -> None:
    for name in ("a", "nobody's"):
        permit = relayd.breakers.closed(name)
        assert permit is not None
        assert (permit.name, permit.state) == (name, State.CLOSED)
    await relayd.trip()
    assert relayd.breakers.closed("a") is None
    await asyncio.sleep(POLICY.cooldown)
    assert relayd.breakers.closed("a") is None, "half-open: one probe at a time"
    await relayd.ask(Verdict.SUCCESS)
    assert relayd.breakers.closed("a") is not None


# ------------------------------------------------------------------ a store that is far away


@dataclass
class Asked:
    """What became of one who asked for a permit, and how long that took."""

    permit: Permit | None
    took: float


async def ask_at_once(relayd: Relayd, number: int, lease: float = 600.0) -> list[Asked]:
    """So many exchanges ask for `a` at the same moment."""

    async def ask() -> Asked:
        began = now()
        permit = await relayd.breakers.admit("a", began, began + lease)
        return Asked(permit, now() - began)

    return await asyncio.gather(*(ask() for _ in range(number)))


async def half_open(relayd: Relayd, store: Moody, trip: float) -> None:
    """The cooldown of `a` is over, the store knows it, and is `trip` seconds away from now on."""
    await relayd.trip()
    await relayd.agree()
    await later(10)
    store.trip = trip


async def keep_busy(relayd: Relayd) -> asyncio.Task[None]:
    """A synchronisation is on its way and will be for long: 100 failures of `b` are to be told."""
    relayd.breakers.configure(Policy(failures=MOST))
    for _ in range(100):
        await relayd.ask(Verdict.FAILURE, "b")
    busy = asyncio.create_task(relayd.agree())
    await asyncio.sleep(0)
    return busy


async def test_a_verdict_that_changes_nothing_is_no_news(one: Relayd, store: Moody) -> None:
    permits = [await one.admitted() for _ in range(600)]
    for permit in permits:
        permit.settle(Verdict.FAILURE, now())
    await one.agree()
    assert store.asked.count("judge") == POLICY.failures
    assert store.inner.rows["a"].until is not None


async def test_one_asks_a_far_store_for_the_place_and_the_others_do_not_wait(
    one: Relayd, store: Moody
) -> None:
    await half_open(one, store, 0.02)
    first, *others = await ask_at_once(one, 200)
    assert first.permit is not None
    assert first.took == pytest.approx(0.02)
    assert {(each.permit, each.took) for each in others} == {(None, 0.0)}
    assert store.asked.count("probe") == 1


@pytest.mark.parametrize(("lease", "most"), [(600.0, 0.5), (0.1, 0.1)])
async def test_who_asks_waits_for_twice_the_stores_timeout_or_the_deadline_at_most(
    one: Relayd, store: Moody, lease: float, most: float
) -> None:
    await half_open(one, store, 0.2)
    busy = await keep_busy(one)
    (asked,) = await ask_at_once(one, 1, lease)
    assert asked.permit is None
    assert asked.took == pytest.approx(most)
    await busy
    await later(1)
    assert (await one.admitted()).state is State.HALF_OPEN, "the place that came late is free again"


async def test_a_close_that_is_seen_while_the_place_is_waited_for_admits_without_asking(
    one: Relayd, two: Relayd, store: Moody
) -> None:
    await half_open(one, store, 0.0)
    await two.agree()
    await two.ask(Verdict.SUCCESS)
    await two.agree()
    store.trip = 0.02
    looking = asyncio.create_task(one.agree())
    await asyncio.sleep(0)
    asked = store.asked.count("probe")
    assert (await one.admitted()).state is State.CLOSED
    await looking
    assert store.asked.count("probe") == asked
