"""Turns as an exchange sees them, with the store in this process, elsewhere, and away."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator

import pytest

from relayd.config import OnFailure
from relayd.errors import RateLimited, StoreUnavailable
from relayd.quota import KEPT_DAYS
from relayd.stores import StoreAway, Unstorable
from relayd.stores.link import LONGEST_WAIT, Link
from relayd.stores.memory import MemoryStore
from relayd.turns import CLOSE_LIMIT, NO_LEASE, Lease, Turns
from tests.contract.conftest import START
from tests.contract.fakes import Mood, Moody

pytestmark = pytest.mark.virtual_time

LEASE = 660.0
NOON = START + 43_200


class Bench:
    """A store with its link and turns, and a wall clock that the test moves."""

    def __init__(self, store: Moody | MemoryStore, **settings: object) -> None:
        self.store = store
        self.wall = NOON
        self.lost = asyncio.Event()
        self.link = Link(store, timeout=0.25, on_store=self.heard)
        self.dropped: list[tuple[str, type[Exception]]] = []
        self.turns = Turns(
            self.link,
            wall=lambda: self.wall,
            on_dropped=lambda user, error: self.dropped.append((user, type(error))),
            **settings,  # type: ignore[arg-type]
        )

    def heard(self, available: bool, detail: str) -> None:
        if available:
            self.lost.clear()
        else:
            self.lost.set()

    async def reserve(
        self, cap: int = 2, *, continuation: bool = False, user: str = "ann"
    ) -> Lease:
        return await self.turns.reserve(user, cap, continuation, self.wall, LEASE)

    async def spend(self, cap: int = 2, *, continuation: bool = False) -> Lease:
        lease = await self.reserve(cap, continuation=continuation)
        self.turns.settle(lease, True)
        return lease

    async def used(self) -> int:
        """The turns that count where everybody sees them."""
        if isinstance(self.store, Moody):
            assert self.link.available
            await self.turns.flush()
        seen = Turns(Link(getattr(self.store, "inner", self.store)))
        leases = []
        try:
            while True:
                leases.append(await seen.reserve("ann", 100, False, self.wall, LEASE))
        except RateLimited:
            return 100 - len(leases)
        finally:
            for lease in leases:
                seen.settle(lease, False)

    async def close(self) -> None:
        await self.turns.close()
        await self.link.close()


@pytest.fixture
async def here() -> AsyncIterator[Bench]:
    bench = Bench(MemoryStore())
    yield bench
    await bench.close()


@pytest.fixture
async def there() -> AsyncIterator[Bench]:
    bench = Bench(Moody())
    yield bench
    await bench.close()


@pytest.fixture(params=["here", "there"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def moody(bench: Bench) -> Moody:
    assert isinstance(bench.store, Moody)
    return bench.store


async def send_away(bench: Bench, mood: Mood = Mood.AWAY) -> Moody:
    """The store is away, and that is known."""
    store = moody(bench)
    store.mood = mood
    bench.turns.settle(await bench.reserve(10**6), False)
    assert not bench.link.available
    return store


async def come_back(bench: Bench) -> None:
    moody(bench).mood = Mood.WELL
    await bench.link.back()
    await bench.turns.flush()


async def test_what_a_process_made_before_it_forked_counts_apart_in_each(there: Bench) -> None:
    children = [copy.copy(there.turns) for _ in range(3)]
    held = [await turns.reserve("ann", 3, False, NOON, LEASE) for turns in children]
    with pytest.raises(RateLimited):
        await there.reserve(3)
    for turns, lease in zip(children, held, strict=True):
        turns.settle(lease, True)
        await turns.close()
    with pytest.raises(RateLimited):
        await there.reserve(3)


async def test_without_a_cap_the_store_is_never_asked(there: Bench) -> None:
    moody(there).mood = Mood.SILENT
    assert await there.spend(0) is NO_LEASE
    assert moody(there).asked == []


async def test_beyond_the_cap_the_client_is_told_when_to_come_back(bench: Bench) -> None:
    await bench.spend(1)
    with pytest.raises(RateLimited) as caught:
        await bench.reserve(1)
    assert caught.value.retry_after == 43_200
    assert (b"RateLimit-Policy", b'"turns";q=1;w=86400') in caught.value.fields


async def test_a_refusal_uses_nothing(bench: Bench) -> None:
    lease = await bench.reserve(1)
    with pytest.raises(RateLimited):
        await bench.reserve(1)
    bench.turns.settle(lease, False)
    assert await bench.used() == 0


async def test_only_the_first_settlement_counts(bench: Bench) -> None:
    lease = await bench.reserve()
    for charged in (True, False, True):
        bench.turns.settle(lease, charged)
    assert await bench.used() == 1


async def test_a_continuation_is_free_and_says_so(bench: Bench) -> None:
    assert not (await bench.spend(1)).free
    assert (await bench.spend(1, continuation=True)).free
    assert await bench.used() == 1


async def test_a_forged_continuation_does_not_dodge_the_cap(bench: Bench) -> None:
    bench.turns.configure(continuations_per_turn=3, timezone="UTC", on_failure=OnFailure.LOCAL)
    served = 0
    with pytest.raises(RateLimited):
        while served < 100:
            await bench.spend(2, continuation=True)
            served += 1
    assert served == 2 + 2 * 3


async def test_a_new_day_has_new_turns(bench: Bench) -> None:
    await bench.spend(1)
    await bench.turns.flush()
    bench.wall += 43_199
    with pytest.raises(RateLimited) as caught:
        await bench.reserve(1)
    assert caught.value.retry_after == 1
    bench.wall += 1
    await bench.spend(1)


async def test_an_exchange_belongs_to_the_day_it_began(bench: Bench) -> None:
    lease = await bench.reserve(1)
    bench.wall += 43_200
    bench.turns.settle(lease, True)
    assert await bench.used() == 0
    bench.wall -= 43_200
    assert await bench.used() == 1


async def test_midnight_is_where_the_configured_zone_has_it(bench: Bench) -> None:
    bench.turns.configure(
        continuations_per_turn=64, timezone="Asia/Shanghai", on_failure=OnFailure.LOCAL
    )
    bench.wall = START + 57_599  # 15:59:59Z
    await bench.spend(1)
    bench.wall += 2
    await bench.spend(1)


async def test_a_clock_set_back_gives_nothing_back(bench: Bench) -> None:
    await bench.spend(1)
    bench.wall += 86_400
    await bench.spend(1)
    bench.wall -= 86_400
    with pytest.raises(RateLimited):
        await bench.reserve(1)


async def test_settling_does_not_wait_for_the_store(there: Bench) -> None:
    lease = await there.reserve()
    moody(there).mood = Mood.SILENT
    there.turns.settle(lease, True)
    moody(there).mood = Mood.WELL
    assert await there.used() == 1


async def test_a_refund_is_there_at_the_very_next_request(bench: Bench) -> None:
    for _ in range(3):
        lease = await bench.reserve(1)
        bench.turns.settle(lease, False)


async def test_a_settlement_is_told_as_soon_as_the_store_is_back(there: Bench) -> None:
    leases = [await there.reserve(9) for _ in range(3)]
    store = moody(there)
    store.mood = Mood.AWAY
    for lease, charged in zip(leases, (True, False, True), strict=True):
        there.turns.settle(lease, charged)
    await send_away(there)
    await come_back(there)
    assert await there.used() == 2


async def test_a_settlement_whose_answer_got_lost_is_not_counted_twice(there: Bench) -> None:
    lease = await there.reserve()
    moody(there).mood = Mood.MUTE
    there.turns.settle(lease, True)
    await there.lost.wait()
    await come_back(there)
    assert await there.used() == 1


async def test_a_settlement_is_given_up_when_its_lease_has_ended(there: Bench) -> None:
    lease = await there.reserve()
    store = moody(there)
    store.mood = Mood.AWAY
    there.turns.settle(lease, True)
    there.wall += LEASE
    await there.lost.wait()
    await come_back(there)
    assert store.asked.count("settle") == 1


async def test_a_turn_that_was_held_although_nobody_heard_of_it_is_given_back(
    there: Bench,
) -> None:
    moody(there).mood = Mood.MUTE
    there.turns.settle(await there.reserve(), False)
    await come_back(there)
    assert await there.used() == 0


async def test_a_client_that_leaves_while_its_turn_is_asked_for_holds_none(there: Bench) -> None:
    moody(there).mood = Mood.MUTE
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await there.reserve()
    moody(there).mood = Mood.WELL
    assert await there.used() == 0


async def test_away_and_local_the_turns_are_counted_here_and_added_later(there: Bench) -> None:
    await there.spend(3)
    await send_away(there)
    for _ in range(3):
        await there.spend(3)
    with pytest.raises(RateLimited):
        await there.reserve(3)
    await come_back(there)
    assert await there.used() == 4
    with pytest.raises(RateLimited):
        await there.reserve(3)


async def test_a_second_absence_adds_only_what_is_new(there: Bench) -> None:
    for expected in (1, 2, 3):
        await send_away(there)
        await there.spend(9)
        await come_back(there)
        assert await there.used() == expected


async def test_a_turn_begun_away_and_ended_after_the_return_is_added(there: Bench) -> None:
    await send_away(there)
    lease = await there.reserve()
    await come_back(there)
    there.turns.settle(lease, True)
    assert await there.used() == 1


async def test_what_was_counted_here_reaches_the_store_once_though_its_answer_got_lost(
    there: Bench,
) -> None:
    await send_away(there)
    await there.spend()
    moody(there).mood = Mood.WELL
    await there.link.back()
    moody(there).mood = Mood.MUTE
    await there.lost.wait()
    await come_back(there)
    assert await there.used() == 1


async def test_what_was_counted_here_is_told_again_though_nothing_else_is_to_be_told(
    there: Bench,
) -> None:
    store = moody(there)
    store.mood = Mood.AWAY
    with pytest.raises(StoreAway):
        await there.link.ask(store.read, 0.0)  # so no turn of an unknown fate waits
    await there.spend()
    store.mood, store.trip = Mood.WELL, 0.01
    await there.link.back()
    store.mood = Mood.AWAY
    await there.lost.wait()
    assert store.asked[-1] == "add"
    await come_back(there)
    assert await there.used() == 1


async def test_a_user_that_the_store_cannot_hold_is_refused_and_the_store_is_there(
    there: Bench,
) -> None:
    moody(there).refused = {"odd"}
    with pytest.raises(Unstorable):
        await there.reserve(user="odd")
    assert there.link.lost == 0
    assert await there.used() == 0


async def test_what_the_store_cannot_hold_is_told_once_and_costs_nobody_elses_turn(
    there: Bench,
) -> None:
    store = await send_away(there)
    for user in ("bob", "odd", "ann"):
        there.turns.settle(await there.reserve(user=user), True)
    store.refused = {"odd"}
    await come_back(there)
    await asyncio.sleep(10 * LONGEST_WAIT)
    assert there.dropped == [("odd", Unstorable)]
    assert there.link.lost == 1
    assert await there.used() == 1


async def test_a_settlement_that_the_store_cannot_take_costs_no_other(there: Bench) -> None:
    leases = [await there.reserve(user=user) for user in ("bob", "odd", "ann")]
    moody(there).refused = {"odd"}
    for lease in leases:
        there.turns.settle(lease, True)
    assert await there.used() == 1
    assert there.dropped == [("odd", Unstorable)]
    assert there.link.lost == 0


async def test_a_fault_inside_the_store_ends_the_telling_of_one_thing_alone(
    there: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fault(*_: object) -> None:
        raise KeyError

    await send_away(there)
    await there.spend()
    with monkeypatch.context() as faulty:
        faulty.setattr(moody(there).inner, "add", fault)
        await come_back(there)
    assert there.dropped == [("ann", KeyError)]
    there.turns.settle(await there.reserve(), True)
    assert await there.used() == 1


async def test_away_and_deny_the_client_is_refused() -> None:
    bench = Bench(Moody(), on_failure=OnFailure.DENY)
    moody(bench).mood = Mood.AWAY
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await bench.reserve()
    assert bench.turns.without_store == 2
    await come_back(bench)
    assert await bench.used() == 0
    await bench.close()


async def test_away_and_allow_everybody_passes_uncounted() -> None:
    bench = Bench(Moody(), on_failure=OnFailure.ALLOW)
    moody(bench).mood = Mood.AWAY
    leases = [await bench.spend(1) for _ in range(5)]
    assert all(lease.free for lease in leases)
    assert bench.turns.without_store == 5
    await come_back(bench)
    assert await bench.used() == 0
    await bench.close()


async def test_nobody_waits_for_a_store_that_is_known_to_be_away(there: Bench) -> None:
    await send_away(there, Mood.SILENT)
    began = asyncio.get_running_loop().time()
    for _ in range(20):
        await there.spend(100)
    assert asyncio.get_running_loop().time() == began


async def test_closing_tells_what_is_left() -> None:
    bench = Bench(Moody())
    await bench.spend()
    await bench.turns.close()
    bench.turns = Turns(bench.link)
    assert await bench.used() == 1
    await bench.close()


async def test_closing_says_of_how_many_users_the_store_has_not_heard() -> None:
    bench = Bench(Moody())
    await send_away(bench)
    for user in ("ann", "ann", "bob"):
        bench.turns.settle(await bench.reserve(user=user), True)
    bench.turns.settle(await bench.reserve(user="cid"), False)
    assert await bench.turns.close() == 2
    await bench.close()


async def test_a_store_that_is_back_is_told_of_the_days_it_keeps(there: Bench) -> None:
    store = await send_away(there)
    for _ in range(KEPT_DAYS + 2):
        there.wall += 86_400
        await there.spend()
    store.asked.clear()
    store.mood = Mood.WELL
    await there.link.back()
    await there.turns.flush()
    assert len(store.added) == KEPT_DAYS


async def test_closing_does_not_wait_for_ever() -> None:
    bench = Bench(Moody())
    lease = await bench.reserve()
    moody(bench).mood = Mood.SILENT
    bench.turns.settle(lease, True)
    began = asyncio.get_running_loop().time()
    await bench.close()
    assert asyncio.get_running_loop().time() - began <= CLOSE_LIMIT + 0.25


async def test_beyond_the_limit_users_share_an_account() -> None:
    store = MemoryStore(max_users=2)
    turns = Turns(Link(store))
    for user in ("a", "b", "c"):
        turns.settle(await turns.reserve(user, 1, False, NOON, LEASE), True)
    with pytest.raises(RateLimited):
        await turns.reserve("d", 1, False, NOON, LEASE)
    with pytest.raises(RateLimited):
        await turns.reserve("a", 1, False, NOON, LEASE)


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="Mars"):
        Turns(Link(MemoryStore()), timezone="Mars/Olympus")
