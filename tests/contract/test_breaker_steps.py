"""What every store promises about breakers and rests."""

from __future__ import annotations

import asyncio
import random

import pytest

from relayd.breaker import MOST, Policy, Row, State, Verdict, judge, probe, probing, state
from tests.contract.conftest import Place

POLICY = Policy(failures=3, window=30.0, cooldown=10.0, cooldown_growth=2.0, cooldown_max=300.0)


async def fail(place: Place, generation: int = 0, times: int = 1) -> Row:
    row = Row()
    for _ in range(times):
        row = await place.store.judge("a", generation, Verdict.FAILURE, POLICY, 0.0, place.now)
    return row


async def half_open(place: Place) -> None:
    await fail(place, times=3)
    place.advance(10)


async def test_an_unknown_breaker_is_closed(place: Place) -> None:
    given, row = await place.store.probe("a", 60.0, place.now)
    assert not given
    assert state(row, place.now) is State.CLOSED
    assert (await place.store.read(place.now)).rests == {}


async def test_failures_of_everybody_add_up_and_open_it(place: Place) -> None:
    assert (await fail(place, times=2)).until is None
    row = await fail(place)
    assert row.generation == 1
    assert row.until == pytest.approx(place.now + 10, abs=1)


async def test_failures_at_the_same_moment_are_each_counted(place: Place) -> None:
    rows = await asyncio.gather(*(fail(place) for _ in range(3)))
    assert [row.until is None for row in rows].count(False) == 1


async def test_failures_that_leave_the_window_do_not_count(place: Place) -> None:
    await fail(place, times=2)
    place.advance(30)
    row = await fail(place)
    assert row.until is None
    assert len(row.failures) == 1


async def test_a_policy_that_asks_for_more_than_is_remembered_never_opens_it(place: Place) -> None:
    policy = Policy(failures=MOST + 1)
    row = await place.store.judge("a", 0, Verdict.FAILURE, policy, 0.0, place.now)
    assert (row.until, row.failures) == (None, ()), "nothing is kept that will never be looked at"


async def test_a_verdict_of_another_generation_changes_nothing(place: Place) -> None:
    await fail(place, times=2)
    assert (await fail(place, generation=7)).until is None
    await fail(place)
    place.advance(10)
    row = await place.store.judge("a", 0, Verdict.SUCCESS, POLICY, 0.0, place.now)
    assert state(row, place.now) is State.HALF_OPEN


async def test_a_verdict_counts_from_when_it_fell(place: Place) -> None:
    for age in (29.0, 8.0, 4.0):
        row = await place.store.judge("a", 0, Verdict.FAILURE, POLICY, age, place.now)
    assert state(row, place.now) is State.OPEN
    assert row.since == pytest.approx(place.now - 4, abs=1)
    assert row.until == pytest.approx(place.now + 6, abs=1)


async def test_breakers_are_apart(place: Place) -> None:
    await fail(place, times=3)
    row = await place.store.judge("b", 0, Verdict.FAILURE, POLICY, 0.0, place.now)
    assert row.until is None
    shared = await place.store.read(place.now)
    assert {name: state(row, place.now) for name, row in shared.rows.items()} == {
        "a": State.OPEN,
        "b": State.CLOSED,
    }


async def test_nobody_probes_before_the_cooldown_is_over(place: Place) -> None:
    await fail(place, times=3)
    place.advance(9)
    assert not (await place.store.probe("a", 60.0, place.now)).granted


async def test_of_50_at_once_one_gets_the_probe(place: Place) -> None:
    await half_open(place)
    probes = await asyncio.gather(*(place.store.probe("a", 60.0, place.now) for _ in range(50)))
    assert sum(given for given, _ in probes) == 1
    assert all(probing(row, place.now) for _, row in probes)


async def test_the_place_of_a_probe_ends_with_its_lease(place: Place) -> None:
    await half_open(place)
    first = await place.store.probe("a", 60.0, place.now)
    place.advance(59)
    assert not (await place.store.probe("a", 60.0, place.now)).granted
    place.advance(1)
    second = await place.store.probe("a", 60.0, place.now)
    assert second.granted
    assert second.row.generation == first.row.generation + 1


@pytest.mark.parametrize("verdict", [Verdict.SUCCESS, Verdict.ANSWERED])
async def test_a_probe_that_was_answered_closes_it(place: Place, verdict: Verdict) -> None:
    await half_open(place)
    _, row = await place.store.probe("a", 60.0, place.now)
    row = await place.store.judge("a", row.generation, verdict, POLICY, 0.0, place.now)
    assert row == Row(generation=3, since=row.since)
    assert row.since == pytest.approx(place.now, abs=1)


async def test_a_probe_that_fails_opens_it_for_longer(place: Place) -> None:
    await half_open(place)
    _, row = await place.store.probe("a", 60.0, place.now)
    row = await fail(place, row.generation)
    assert row.until == pytest.approx(place.now + 20, abs=1)
    assert row.trips == 2


async def test_a_neutral_probe_gives_its_place_back(place: Place) -> None:
    await half_open(place)
    _, row = await place.store.probe("a", 60.0, place.now)
    row = await place.store.judge("a", row.generation, Verdict.NEUTRAL, POLICY, 0.0, place.now)
    assert state(row, place.now) is State.HALF_OPEN
    assert (await place.store.probe("a", 60.0, place.now)).granted


async def test_any_course_of_verdicts_goes_as_the_rules_say(place: Place) -> None:
    # Half seconds in the policy: on a real server's clock a few milliseconds pass in between.
    policy = Policy(3, window=5.5, cooldown=2.5, cooldown_growth=2.0, cooldown_max=7.5)
    dice = random.Random(7)
    for course in range(8):
        name, model = f"p{course}", Row()
        for _ in range(30):
            place.advance(dice.choice([0, 0, 1, 2]))
            now = place.now
            if dice.random() < 0.4:
                taken = probe(model, now, now + 3.5)
                answer = await place.store.probe(name, 3.5, now)
                assert answer.granted is (taken is not None)
                model, row = taken or model, answer.row
            else:
                generation = model.generation - dice.choice([0, 0, 0, 1])
                verdict = dice.choice([Verdict.FAILURE, *Verdict])
                model = judge(model, generation, verdict, policy, now)
                row = await place.store.judge(name, generation, verdict, policy, 0.0, now)
            assert (row.generation, row.trips) == (model.generation, model.trips)
            assert len(row.failures) == len(model.failures)
            assert state(row, now) is state(model, now)
            assert probing(row, now) is probing(model, now)


async def test_a_rest_ends_by_itself(place: Place) -> None:
    await place.store.rest("a#key", 20.0, place.now)
    place.advance(5)
    assert (await place.store.read(place.now)).rests == {"a#key": pytest.approx(15, abs=1)}
    place.advance(15)
    assert (await place.store.read(place.now)).rests == {}


async def test_a_shorter_rest_does_not_end_a_longer_one(place: Place) -> None:
    for seconds in (20.0, 100.0, 5.0):
        await place.store.rest("a", seconds, place.now)
    assert (await place.store.read(place.now)).rests == {"a": pytest.approx(100, abs=1)}


# ------------------------------------------------------------------ what something else has written

unreadable = pytest.mark.parametrize(
    "text",
    [
        "junk",
        "",
        "null",
        "7",
        "{}",
        "[]",
        "[1, 2, 3]",
        '[1, "x", 3, 0, 0, []]',
        "[1, 2, null, null, null, 3]",
        "[1e999, 0, 0, 0, 0, []]",
        "[1, 2, 1e999, 0, null, []]",
        "[1, 2, NaN, 0, null, []]",
        "[" * 100_000,
    ],
)


@unreadable
async def test_a_row_that_cannot_be_read_counts_as_none(shared: Place, text: str) -> None:
    row = await fail(shared, times=3)
    shared.write("breakers", "b", text)
    rows = (await shared.store.read(shared.now)).rows
    assert set(rows) == {"a"}
    assert rows["a"].generation == row.generation
    assert not (await shared.store.probe("b", 60.0, shared.now)).granted


@unreadable
async def test_a_row_that_cannot_be_read_is_replaced_by_the_next_failure(
    shared: Place, text: str
) -> None:
    await shared.store.read(shared.now)
    shared.write("breakers", "a", text)
    assert (await fail(shared, times=2)).until is None
    row = await fail(shared)
    assert state(row, shared.now) is State.OPEN
    assert (await shared.store.read(shared.now)).rows["a"].generation == row.generation


@pytest.mark.parametrize("text", ["junk", "", "-", "1e999999999x", "0x7fffffffffffffff"])
async def test_a_rest_that_cannot_be_read_counts_as_none(shared: Place, text: str) -> None:
    await shared.store.rest("a", 20.0, shared.now)
    shared.write("rests", "b", text)
    assert set((await shared.store.read(shared.now)).rests) == {"a"}
    shared.write("rests", "b", text)
    for _ in range(2):  # the first may be lost with what was there
        await shared.store.rest("b", 20.0, shared.now)
        rests = (await shared.store.read(shared.now)).rests
    assert set(rests) == {"a", "b"}
