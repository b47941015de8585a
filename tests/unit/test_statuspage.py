"""A snapshot as HTML: times, states, sparklines, and that nothing from outside is markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from relayd.statuspage import (
    HEIGHT,
    STEP,
    Page,
    clock,
    duration,
    sections,
    sparkline,
    standing,
    wait,
)
from tests.support.snapshots import open_exchange, past, point, provider, snapshot, step, user

EVIL = "<script>alert('x')</script>\"&"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0 s"), (59.9, "59 s"), (60.0, "1 min 0 s"), (3599.0, "59 min 59 s"),
     (3600.0, "1 h 0 min"), (86399.0, "23 h 59 min"), (86400.0 * 3 + 3600 * 4, "3 d 4 h")],
)  # fmt: skip
def test_a_duration_has_two_units_at_most(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "–"), (0.0, "0 ms"), (0.8404, "840 ms"), (1.0, "1.0 s"), (62.04, "62.0 s")],
)
def test_a_wait_is_short(seconds: float | None, words: str) -> None:
    assert wait(seconds) == words


def test_a_clock_is_in_utc() -> None:
    assert clock(1_700_000_000.0) == "22:13:20"


@pytest.mark.parametrize(
    ("members", "kind", "words"),
    [
        ({}, "good", "closed"),
        ({"state": "open", "retry_in": 7.2}, "bad", "open, retry in 8 s"),
        ({"state": "open", "retry_in": 9.0, "resting": True}, "bad", "open, retry in 9 s"),
        ({"state": "half-open"}, "warn", "half-open, one probe"),
        ({"resting": True, "retry_in": 40.0}, "warn", "resting, retry in 40 s"),
    ],
)
def test_a_state_says_how_it_stands(members: dict[str, Any], kind: str, words: str) -> None:
    assert standing(provider(**members)) == (kind, words)


# --- sparklines ---


def svg(*points: Any) -> ET.Element:
    return ET.fromstring(re.sub(r"<div.*", "", sparkline(list(points))))


def line(element: ET.Element) -> str:
    return next(path.get("d", "") for path in element.findall("path") if not path.get("class"))


def test_a_sparkline_is_as_wide_as_its_points() -> None:
    assert svg(point(), point(), point()).get("viewBox") == f"0 0 {3 * STEP} {HEIGHT}"


def test_the_longest_wait_is_at_the_top_and_named() -> None:
    text = sparkline([point(answers=1, wait=1.0), point(answers=1, wait=2.0)])
    assert "top 2.0 s" in text
    assert line(svg(point(answers=1, wait=1.0), point(answers=1, wait=2.0))) == "M2 26.0 L6 4.0"


def test_waits_of_milliseconds_are_no_mountains() -> None:
    assert line(svg(point(answers=1, wait=0.05))).startswith("M2 43.6")


def test_a_gap_interrupts_the_line() -> None:
    one = point(answers=1, wait=1.0)
    assert line(svg(one, one, point(), one)).count("M") == 2


def test_a_point_that_stands_alone_is_seen() -> None:
    assert line(svg(point(), point(answers=1, wait=1.0), point())).endswith("h.1")


def test_a_bar_is_as_high_as_the_failed_share() -> None:
    bars = svg(
        point(), point(failures=1, answers=1, wait=1.0), point(failures=3), point(2000, 1, 1.0)
    ).findall("rect")
    assert [float(bar.get("height", 0)) for bar in bars] == [HEIGHT / 2, HEIGHT, 6.0]
    assert [float(bar.get("x", 0)) for bar in bars] == [4.5, 8.5, 12.5]


def test_without_answers_there_is_no_scale() -> None:
    assert "top" not in sparkline([point(failures=1), point()])


# --- sections ---


def test_what_is_empty_says_so() -> None:
    shown = sections(snapshot(capped=False))
    assert "Nothing is running." in shown["open"]
    assert "No exchange needed a second provider." in shown["failed-over"]
    assert "No daily cap is configured." in shown["users"]
    assert "No turn was charged." in sections(snapshot(capped=True))["users"]


def test_a_quiet_relayd_has_no_notices() -> None:
    assert sections(snapshot())["notices"] == ""


def test_a_drain_a_lost_store_and_a_rejected_reload_are_told() -> None:
    store = {"kind": "sqlite", "available": False, "lost": 1}
    config = {"loaded": 0.0, "problem": "config.toml: x: unknown key"}
    shown = sections(snapshot(draining=True, store=store, config=config))["notices"]
    assert "Draining" in shown
    assert "The last reload was rejected: config.toml: x: unknown key" in shown
    assert "The sqlite store is away." in shown


def test_a_provider_shows_its_places_only_where_there_is_a_limit() -> None:
    assert (
        ">3 of 8<"
        in sections(snapshot(providers=[provider(in_flight=3, max_in_flight=8)]))["providers"]
    )
    assert ">3<" in sections(snapshot(providers=[provider(in_flight=3)]))["providers"]


def test_failures_stand_out_only_where_there_are_some() -> None:
    fine, failing = provider(), provider(failures=2)
    assert 'class="failed"' not in sections(snapshot(providers=[fine]))["providers"]
    assert 'class="failed"' in sections(snapshot(providers=[failing]))["providers"]


@pytest.mark.parametrize(
    ("running", "words"),
    [
        (open_exchange(trail=[step(outcome="", status=None)]), "waiting"),
        (open_exchange(trail=[step()], streaming=True), "streaming"),
        (open_exchange(trail=[step()]), "waiting"),
    ],
)
def test_an_open_exchange_says_what_it_does(running: Any, words: str) -> None:
    assert words in sections(snapshot(open=[running]))["open"]


def test_a_trail_names_outcomes_statuses_and_waits_in_order() -> None:
    trail = [step("a", "server_error", 503, 1.5), step("b", "closed", None, 0.2), step("c")]
    shown = re.sub(
        r"<[^>]+>", "", sections(snapshot(failed_over=[past(trail=trail)]))["failed-over"]
    )
    assert "a server error 503 1.5 sb closed 200 msc ok 250 ms" in shown


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"turns": 3, "cap": 0}, ">3<"),
        ({"turns": 3, "cap": 9}, ">3 of 9<"),
        ({"turns": 300, "error": 12, "cap": 0}, ">≤ 300<"),
    ],
)
def test_turns_are_shown_against_the_cap(members: dict[str, Any], words: str) -> None:
    assert words in sections(snapshot(users=[user(**members)]))["users"]


@pytest.mark.parametrize(("turns", "kind"), [(8, "used"), (9, "full"), (12, "full")])
def test_a_used_up_cap_stands_out(turns: int, kind: str) -> None:
    shown = sections(snapshot(users=[user(turns=turns, cap=9)]))["users"]
    assert f'class="{kind}"' in shown
    assert float(re.findall(r'width="([\d.]+)"', shown)[-1]) <= 100


def test_nothing_from_outside_is_markup() -> None:
    one = snapshot(
        version=EVIL,
        providers=[provider(name=EVIL)],
        open=[open_exchange(id=EVIL, route=EVIL, user=EVIL, trail=[step(EVIL, EVIL)])],
        failed_over=[past(id=EVIL, route=EVIL, user=EVIL, trail=[step(EVIL, EVIL)])],
        users=[user(user=EVIL, client=EVIL)],
        store={"kind": EVIL, "available": False, "lost": 1},
        config={"loaded": 0.0, "problem": EVIL},
    )
    page = Page("".join(f"{{{{{name}}}}}" for name in [*sections(one), "version", "time"]), "")
    shown = page.render(one).decode()
    assert shown.count("&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&quot;&amp;") == 17
    assert "<script" not in shown


def test_a_value_that_looks_like_a_place_is_not_filled_in() -> None:
    one = snapshot(providers=[provider(name="{{version}}")], version="9.9")
    assert "{{version}}" in Page("{{providers}}", "").render(one).decode()


def test_the_page_has_a_place_for_every_section_and_no_other() -> None:
    page = Page.load()
    places = set(re.findall(r"\{\{([a-z-]+)\}\}", page.template))
    assert places == {*sections(snapshot()), "version", "time"}


def test_the_policy_names_the_two_blocks_of_the_page() -> None:
    policy = Page.load().policy
    assert len(re.findall(r"(?:script|style)-src 'sha256-[A-Za-z0-9+/]{43}='", policy)) == 2
