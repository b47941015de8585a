"""What every store promises about turns."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from relayd.quota import Grant, Tally, Turn
from relayd.stores import Settlement, Store, Unstorable
from relayd.stores.memory import MemoryStore
from tests.contract.conftest import Place

ids = (f"lease{n}" for n in count())


def a_turn(
    place: Place, cap: int = 2, *, budget: int = 0, user: str = "ann", day: str = "2026-03-01"
) -> Turn:
    return Turn(next(ids), day, user, cap, budget, place.wall, 600.0)


async def used(place: Place, user: str = "ann", day: str = "2026-03-01") -> int:
    """The turns that count at present, found out without leaving a trace."""
    turn = a_turn(place, 10**6, user=user, day=day)
    grant = await place.store.reserve(turn)
    await place.store.settle([Settlement(turn, False)])
    return grant.used - 1


async def held(place: Place, cap: int = 2, *, budget: int = 0) -> Turn:
    turn = a_turn(place, cap, budget=budget)
    assert (await place.store.reserve(turn)).granted
    return turn


async def spend(place: Place, cap: int = 2, *, budget: int = 0) -> None:
    await place.store.settle([Settlement(await held(place, cap, budget=budget), True)])


async def test_turns_are_granted_up_to_the_cap(place: Place) -> None:
    grants = [await place.store.reserve(a_turn(place, 2)) for _ in range(3)]
    assert grants == [Grant(True, False, 1), Grant(True, False, 2), Grant(False, False, 2)]


async def test_of_200_at_once_exactly_the_cap_pass(place: Place) -> None:
    grants = await asyncio.gather(*(place.store.reserve(a_turn(place, 50)) for _ in range(200)))
    assert sum(grant.granted for grant in grants) == 50
    assert sorted(grant.used for grant in grants if grant.granted) == list(range(1, 51))


async def test_one_of_twenty_gets_the_last_turn(place: Place) -> None:
    await spend(place, 2)
    grants = await asyncio.gather(*(place.store.reserve(a_turn(place, 2)) for _ in range(20)))
    assert sum(grant.granted for grant in grants) == 1


async def test_a_charged_turn_stays(place: Place) -> None:
    await spend(place)
    place.advance(3600)
    assert await used(place) == 1


async def test_a_refund_gives_the_turn_back(place: Place) -> None:
    turn = await held(place, 1)
    await place.store.settle([Settlement(turn, False)])
    assert await used(place) == 0


async def test_settling_twice_counts_once(place: Place) -> None:
    turn = await held(place)
    await place.store.settle([Settlement(turn, True), Settlement(turn, True)])
    await place.store.settle([Settlement(turn, True), Settlement(turn, False)])
    assert await used(place) == 1


async def test_settling_what_was_never_held_changes_nothing(place: Place) -> None:
    await place.store.settle([Settlement(a_turn(place), True)])
    assert await used(place) == 0


async def test_several_settlements_at_once_are_each_applied(place: Place) -> None:
    turns = [await held(place, 4) for _ in range(4)]
    charged = [True, False, True, True]
    await place.store.settle([Settlement(*each) for each in zip(turns, charged, strict=True)])
    assert await used(place) == 3


async def test_settling_nothing_is_allowed(store: Store) -> None:
    await store.settle([])


async def test_a_turn_is_free_again_when_its_lease_ends(shared: Place) -> None:
    await held(shared, 1)
    shared.advance(599)
    assert not (await shared.store.reserve(a_turn(shared, 1))).granted
    shared.advance(1)
    assert (await shared.store.reserve(a_turn(shared, 1))).granted


async def test_a_clock_set_forward_frees_nothing_where_no_lease_outlives_its_process() -> None:
    place = Place(MemoryStore(), "memory:", "", None)
    running = await held(place, 1)
    place.advance(4 * 3600)
    assert not (await place.store.reserve(a_turn(place, 1))).granted
    await place.store.settle([Settlement(running, True)])
    assert await used(place) == 1


async def test_a_settlement_after_the_turn_was_given_to_another_changes_nothing(
    shared: Place,
) -> None:
    late = await held(shared, 1)
    shared.advance(600)
    await held(shared, 1)
    await shared.store.settle([Settlement(late, True)])
    assert await used(shared) == 1


async def test_a_continuation_is_free_within_the_budget(place: Place) -> None:
    await spend(place, 1)
    grants = [await place.store.reserve(a_turn(place, 1, budget=2)) for _ in range(3)]
    assert grants == [Grant(True, True, 1), Grant(True, True, 1), Grant(False, False, 1)]


async def test_a_continuation_beyond_the_budget_is_a_turn(place: Place) -> None:
    await spend(place, 2)
    await spend(place, 2, budget=1)
    assert await place.store.reserve(a_turn(place, 2, budget=1)) == Grant(True, False, 2)


async def test_a_continuation_of_a_turn_that_is_still_held_is_free(place: Place) -> None:
    await held(place, 1)
    assert await place.store.reserve(a_turn(place, 1, budget=1)) == Grant(True, True, 1)


async def test_a_refunded_continuation_can_be_used_again(place: Place) -> None:
    await spend(place, 1)
    for _ in range(3):
        turn = await held(place, 1, budget=1)
        await place.store.settle([Settlement(turn, False)])
    assert (await place.store.reserve(a_turn(place, 1, budget=1))).free


async def test_a_continuation_is_free_again_when_its_lease_ends(shared: Place) -> None:
    await spend(shared, 1)
    await held(shared, 1, budget=1)
    shared.advance(600)
    assert (await shared.store.reserve(a_turn(shared, 1, budget=1))).free


async def test_users_and_days_are_counted_apart(place: Place) -> None:
    await spend(place)
    assert await used(place) == 1
    assert await used(place, user="bob") == 0
    assert await used(place, day="2026-03-02") == 0


async def test_a_clock_set_forward_and_back_gives_nothing_back(place: Place) -> None:
    await spend(place)
    assert await used(place, day="2031-01-01") == 0
    assert await used(place) == 1


async def test_a_user_may_have_any_name(place: Place) -> None:
    for name in ("app:ann", "{a}:*?[x]", "O'Brien; --", "ä" * 128, "per cent %s"):
        turn = a_turn(place, 1, user=name)
        assert (await place.store.reserve(turn)).granted
        await place.store.settle([Settlement(turn, True)])
        assert await used(place, user=name) == 1


async def test_what_was_counted_elsewhere_is_added(place: Place) -> None:
    await spend(place, 9)
    await place.store.add("ledger", [Tally("2026-03-01", "ann", 3, 2)])
    assert await used(place) == 4
    grants = [await place.store.reserve(a_turn(place, 4, budget=1)) for _ in range(3)]
    assert [grant.granted for grant in grants] == [True, True, False]


async def test_a_tally_told_again_adds_only_the_difference(place: Place) -> None:
    for turns in (3, 3, 5):
        await place.store.add("ledger", [Tally("2026-03-01", "ann", turns, 0)])
    assert await used(place) == 5


async def test_ledgers_add_up(place: Place) -> None:
    for ledger in ("one", "two"):
        tallies = [Tally("2026-03-01", user, 2, 0) for user in ("ann", "bob")]
        await place.store.add(ledger, tallies)
    assert await used(place) == 4
    assert await used(place, user="bob") == 4


async def test_a_tally_of_a_day_that_is_over_costs_no_day_that_is_not(place: Place) -> None:
    """A relayd that could not reach the store for days tells of all of them when it can."""
    days = ["2026-03-05", "2026-03-06", "2026-03-07"]
    for day in days:
        turn = a_turn(place, day=day)
        await place.store.reserve(turn)
        await place.store.settle([Settlement(turn, True)])
    for over in ("2026-03-02", "2026-03-03", "2026-03-04"):
        await place.store.add("ledger", [Tally(over, "ann", 1, 0)])
    assert [await used(place, day=day) for day in days] == [1, 1, 1]


async def test_a_tally_may_begin_a_day(place: Place) -> None:
    await spend(place)
    await place.store.add("ledger", [Tally("2026-03-02", "ann", 1, 0)])
    assert await used(place, day="2026-03-02") == 1


async def test_an_addition_beyond_the_cap_is_kept(place: Place) -> None:
    await place.store.add("ledger", [Tally("2026-03-01", "ann", 7, 0)])
    assert await place.store.reserve(a_turn(place, 2)) == Grant(False, False, 7)


async def test_a_caller_that_leaves_does_not_disturb_the_others(place: Place) -> None:
    steps = [place.store.reserve(a_turn(place, 9)) for _ in range(10)]
    first, leaving, *others = (asyncio.ensure_future(step) for step in steps)
    assert (await first).granted
    leaving.cancel()
    assert [grant.granted for grant in await asyncio.gather(*others)].count(True) >= 7


@pytest.mark.parametrize("user", ["\ud800", UUID(int=1), ("t", 1), 2**70])
async def test_a_user_that_cannot_be_stored_costs_nobody_elses_step(
    shared: Place, user: Any
) -> None:
    store, turn = shared.store, a_turn(shared, user=user)
    steps = [
        store.reserve(a_turn(shared)),
        store.reserve(turn),
        store.settle([Settlement(turn, True)]),
        store.add("elsewhere", [Tally(turn.day, "bob", 1, 0), Tally(turn.day, user, 1, 0)]),
        store.reserve(a_turn(shared)),
    ]
    first, *odd, last = await asyncio.gather(*steps, return_exceptions=True)
    assert [type(error) for error in odd] == [Unstorable] * 3
    assert (first, last) == (Grant(True, False, 1), Grant(True, False, 2))
    assert await used(shared, "bob") == 0
