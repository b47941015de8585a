"""Turns, days and leases."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from relayd.quota import Account, Day, Grant, Turn, day_of, decide, is_over, zone

BERLIN = zone("Europe/Berlin")


def wall(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def a_turn(
    id: str = "1", *, cap: int = 2, budget: int = 0, at: float = 0.0, lease: float = 10.0
) -> Turn:
    return Turn(id, "2026-03-01", "ann", cap, budget, at, lease)


def test_a_day_is_the_utc_calendar_day() -> None:
    day = day_of(wall("2026-02-28T23:59:59.999+00:00"), UTC)
    assert day == Day("2026-02-28", wall("2026-02-28T00:00+00:00"), wall("2026-03-01T00:00+00:00"))


def test_a_day_begins_at_its_first_instant() -> None:
    assert day_of(wall("2026-03-01T00:00:00+00:00"), UTC).name == "2026-03-01"


@pytest.mark.parametrize(
    ("at", "name"),
    [("2026-05-01T15:59:59+00:00", "2026-05-01"), ("2026-05-01T16:00:01+00:00", "2026-05-02")],
)
@pytest.mark.parametrize("process_zone", ["UTC", "America/New_York"])
def test_the_zone_of_the_process_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, process_zone: str, at: str, name: str
) -> None:
    import time

    monkeypatch.setenv("TZ", process_zone)
    time.tzset()
    try:
        assert day_of(wall(at), zone("Asia/Shanghai")).name == name
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("name", "at", "hours"),
    [
        ("Europe/Berlin", "2026-03-29T12:00+02:00", 23),
        ("Europe/Berlin", "2026-10-25T12:00+01:00", 25),
        ("America/Havana", "2026-03-08T12:00-04:00", 23),  # 0:00 itself is skipped
        ("America/Havana", "2026-11-01T12:00-05:00", 25),  # 0:00 comes twice
        ("Australia/Lord_Howe", "2026-04-05T12:00+10:30", 24.5),
    ],
)
def test_a_day_is_as_long_as_daylight_saving_makes_it(name: str, at: str, hours: float) -> None:
    day = day_of(wall(at), zone(name))
    assert (day.ends - day.begins) / 3600 == hours


def test_a_new_day_stays_begun_where_the_clock_goes_back_across_midnight() -> None:
    # Newfoundland, 2006-10-29: 0:01 became 23:01 of the 28th.
    where = zone("America/St_Johns")
    at = wall("2006-10-29T03:00:00+00:00")
    assert datetime.fromtimestamp(at, where).date().isoformat() == "2006-10-28"
    assert day_of(at, where).name == "2006-10-29"


@pytest.mark.parametrize(
    ("at", "left"),
    [
        ("2026-03-01T00:00:00+00:00", 86400),
        ("2026-03-01T23:59:58.2+00:00", 2),
        ("2026-03-02T00:00:00+00:00", 1),
    ],
)
def test_the_seconds_to_midnight_are_rounded_up_and_never_zero(at: str, left: int) -> None:
    assert day_of(wall("2026-03-01T12:00+00:00"), UTC).left(wall(at)) == left


@pytest.mark.parametrize("name", ["Mars/Olympus", "../etc/passwd", "Europe"])
def test_an_unknown_zone_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"expected an IANA time zone .*, got {name}"):
        zone(name)


def test_utc_needs_no_zone_data() -> None:
    assert zone("UTC") is UTC


def test_a_fresh_turn_is_granted_up_to_the_cap() -> None:
    assert decide(a_turn(cap=2), used=1, free=0) == Grant(True, False, 2)
    assert decide(a_turn(cap=2), used=2, free=0) == Grant(False, False, 2)


def test_a_continuation_is_free_within_the_budget_of_the_turns_used() -> None:
    turn = a_turn(cap=2, budget=3)
    assert decide(turn, used=2, free=5) == Grant(True, True, 2)


def test_a_continuation_beyond_the_budget_is_a_turn() -> None:
    turn = a_turn(cap=2, budget=3)
    assert decide(turn, used=1, free=3) == Grant(True, False, 2)
    assert decide(turn, used=2, free=6) == Grant(False, False, 2)


def test_a_continuation_without_any_turn_is_a_turn() -> None:
    assert decide(a_turn(cap=1, budget=64), used=0, free=0) == Grant(True, False, 1)


def test_a_day_that_is_not_kept_is_over_if_a_later_one_is_kept() -> None:
    kept = ["2026-03-05", "2026-03-02"]
    over = [day for day in range(1, 7) if is_over(f"2026-03-0{day}", kept)]
    assert over == [1, 3, 4]
    assert not is_over("2026-03-01", [])


def test_a_held_turn_counts() -> None:
    account = Account()
    assert account.reserve(a_turn("1", cap=1)).granted
    assert not account.reserve(a_turn("2", cap=1)).granted


def test_a_charged_turn_stays_counted_after_its_lease() -> None:
    account = Account()
    account.reserve(a_turn("1", cap=1))
    assert account.settle("1", charged=True)
    assert account.turns == 1
    assert not account.reserve(a_turn("2", cap=1, at=1e6)).granted


def test_a_refund_gives_the_turn_back() -> None:
    account = Account()
    account.reserve(a_turn("1", cap=1))
    assert account.settle("1", charged=False)
    assert account.empty
    assert account.reserve(a_turn("2", cap=1)).granted


def test_settling_twice_changes_nothing() -> None:
    account = Account()
    account.reserve(a_turn("1"))
    account.settle("1", charged=True)
    assert not account.settle("1", charged=True)
    assert account.turns == 1


def test_a_continuation_is_charged_as_one_and_refunded_as_one() -> None:
    account = Account()
    account.reserve(a_turn("1"))
    for id, charged in (("2", True), ("3", False)):
        assert account.reserve(a_turn(id, budget=2)).free
        account.settle(id, charged)
    assert (account.turns, account.free, account.held_free) == (0, 1, 0)
    assert account.settle("1", charged=True)
    assert (account.turns, account.free) == (1, 1)


def test_a_clock_set_forward_frees_nothing_that_is_held() -> None:
    account = Account()
    account.reserve(a_turn("1", cap=1, at=0, lease=10))
    assert not account.reserve(a_turn("2", cap=1, at=14_400)).granted
    assert account.settle("1", charged=True)


def test_a_lease_ends_its_time_after_the_exchange_began() -> None:
    assert a_turn(at=100.0, lease=660.0).ends == 760.0
