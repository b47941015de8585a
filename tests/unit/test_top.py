"""A snapshot in the terminal: rows, colours, sparks, and what a narrow terminal cuts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from relayd.events import EventReader
from relayd.top import (
    ENTER,
    FAILED,
    HOME,
    MAX_EVENT,
    NoAnswer,
    Paint,
    paint,
    picture,
    screen,
    snapshots_in,
    spark,
    whole,
)
from tests.support.snapshots import open_exchange, past, point, provider, snapshot, step, user


def shown(**members: Any) -> str:
    return "\n".join(paint(row, 200, False) for row in picture(snapshot(**members), 200))


def test_the_title_says_how_it_is() -> None:
    title = shown(exchanges=3, streams=2, connections=4).splitlines()[0]
    assert title == (
        "relayd 1.2.3   up 1 min 1 s   3 exchanges, 2 streams, 4 connections   "
        "store memory   22:13:20 UTC"
    )


def test_blocks_without_rows_are_left_out() -> None:
    text = shown()
    assert "PROVIDERS" in text
    assert not re.search("OPEN|FAILED OVER|TURNS", text)


def test_every_block_has_its_rows() -> None:
    trail = [step("a", "server_error", 503, 1.5), step("b")]
    text = shown(
        exchanges=1,
        providers=[provider(name="groq", state="open", retry_in=7.0, failures=2, answers=5)],
        open=[open_exchange(trail=[step(outcome="")])],
        failed_over=[past(trail=trail)],
        users=[user(client="app", turns=3, cap=9), user(user="bob", turns=4, error=1)],
    )
    assert re.search(r"groq +open, retry in 7 s +– +5 ok +2 failed +0 now", text)
    assert re.search(r"OPEN  1 exchanges\n +2 s  ann +r +a waiting", text)
    assert re.search(r"22:13:20 200 ann +r +a server error 1\.5 s → b ok 250 ms", text)
    assert re.search(r"app/ann +3 of 9", text)
    assert re.search(r"bob +≤ 4", text)


def test_a_drain_a_lost_store_and_a_rejected_reload_are_told() -> None:
    text = shown(
        draining=True,
        store={"kind": "redis", "available": False, "lost": 1},
        config={"loaded": 0.0, "problem": "config.toml: x: unknown key"},
    )
    assert "the last reload was rejected: config.toml: x: unknown key" in text
    assert "draining: open exchanges may finish" in text
    assert "the redis store is away" in text


def test_sparks_rise_with_the_wait_and_mark_what_only_failed() -> None:
    points = [
        point(),
        point(failures=1),
        point(answers=1, wait=0.1),
        point(answers=1, failures=1, wait=0.8),
    ]
    assert spark(provider(points=points), 4) == f" {FAILED}▂█"
    assert spark(provider(points=points), 2) == "▂█"
    assert spark(provider(points=points), 0) == ""


def test_a_row_is_cut_at_the_width_whatever_its_colours() -> None:
    row = [("abcdef", Paint.BAD), ("ghij", Paint.PLAIN), ("kl", Paint.GOOD)]
    assert paint(row, 8, True) == "\x1b[31mabcdef\x1b[0mgh"
    assert paint(row, 8, False) == "abcdefgh"


def test_a_screen_has_no_more_rows_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "5")
    drawn = screen(snapshot(failed_over=[past()] * 50), colours=False)
    assert drawn.startswith(HOME)
    assert drawn.count("\r\n") == 4
    assert max(len(re.sub(r"\x1b\[\S*?[A-Za-z]", "", row)) for row in drawn.split("\r\n")) <= 40


def test_one_snapshot_is_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    text = whole(snapshot(failed_over=[past()]))
    assert "\x1b" not in text
    assert text.endswith("\n")
    assert "FAILED OVER" in text
    assert ENTER not in text


def test_only_whole_unnamed_events_are_taken() -> None:
    stream = EventReader()
    first = b'data: {"a":1}\n\nevent: page\ndata: {}\n\ndata: {"b"'
    assert list(snapshots_in(stream, first)) == [{"a": 1}]
    assert list(snapshots_in(stream, b":2}\n\n")) == [{"b": 2}]


def test_an_event_without_end_is_refused() -> None:
    with pytest.raises(NoAnswer, match="an event of more than"):
        list(snapshots_in(EventReader(MAX_EVENT), b"data: " + b"x" * MAX_EVENT))
