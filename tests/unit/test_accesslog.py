"""Lines of the log: what stands in them, what never does, and what a flood leaves."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from relayd import accesslog
from relayd.accesslog import FLOOD_LINES, FLOOD_SECONDS, Log
from relayd.record import Attempt, Record, Usage

FIELDS = [
    "ts",
    "v",
    "id",
    "client",
    "user",
    "peer",
    "method",
    "path",
    "route",
    "model",
    "provider",
    "upstream_model",
    "stream",
    "status",
    "attempts",
    "ttfb_ms",
    "duration_ms",
    "bytes_in",
    "bytes_out",
    "events",
    "usage",
    "finish_reason",
    "commit",
    "ended_by",
    "end_reason",
    "turn",
]

NASTY = ["a\nb", "a\r\nb", "\x1b[31mred", "\x00", "\x7f", "\ud800", "a\u2028b", "a\u202eb", '"\\"']


class Book:
    """A log whose lines are kept and whose clock stands still until it is set."""

    def __init__(self, level: str = "info", format: str = "json", priorities: bool = False) -> None:
        self.written: list[bytes] = []
        self.now = 1_000_000_000.25
        self.mask: Callable[[str], str] = lambda text: text.replace("SEKRET", "[masked]")
        self.log = Log(
            self.written.append,
            level=level,
            format=format,
            priorities=priorities,
            mask=self.mask,
            wall=lambda: self.now,
        )

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.written]

    @property
    def line(self) -> dict[str, Any]:
        (line,) = self.lines
        return line

    @property
    def text(self) -> str:
        return b"".join(self.written).decode()

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line.get("event") == name]


def attempt(**changes: Any) -> Attempt:
    values = {"provider": "groq", "upstream_model": "llama", "url": "http://p/v1"} | changes
    return Attempt(**values)


def record(**changes: Any) -> Record:
    return Record(**({"id": "r1", "began": 0.0} | changes))


def full() -> Record:
    return record(
        method="POST",
        path="/v1/chat/completions",
        surface="chat",
        client="app",
        user="anna",
        peer="10.0.0.1",
        route="smart",
        model="smart",
        provider="openai",
        upstream_model="gpt",
        stream=True,
        status=200,
        attempts=[
            attempt(outcome="status", status=503, duration=0.0123, breaker="open"),
            attempt(provider="openai", outcome="answered", status=200, duration=1.5),
        ],
        ttfb=0.25,
        duration=2.0,
        bytes_in=10,
        bytes_out=20,
        events=3,
        usage=Usage(1, 2, None),
        cost=0.000012,
        finish_reason="stop",
        commit="content",
        ended_by="provider",
        end_reason="complete",
        turn="charged",
    )


# ---- the access line


def test_an_exchange_line_has_exactly_the_documented_fields_in_their_order() -> None:
    book = Book()
    book.log.exchange(record())
    assert list(book.line) == FIELDS


def test_an_exchange_line_tells_the_whole_record() -> None:
    book = Book()
    book.log.exchange(full())
    assert book.line == {
        "ts": "2001-09-09T01:46:40.250Z",
        "v": 1,
        "id": "r1",
        "client": "app",
        "user": "anna",
        "peer": "10.0.0.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "route": "smart",
        "model": "smart",
        "provider": "openai",
        "upstream_model": "gpt",
        "stream": True,
        "status": 200,
        "attempts": [
            {"provider": "groq", "outcome": "status", "status": 503, "breaker": "open", "ms": 12.3},
            {
                "provider": "openai",
                "outcome": "answered",
                "status": 200,
                "breaker": "closed",
                "ms": 1500.0,
            },
        ],
        "ttfb_ms": 250.0,
        "duration_ms": 2000.0,
        "bytes_in": 10,
        "bytes_out": 20,
        "events": 3,
        "usage": {"input": 1, "output": 2, "cached": None},
        "cost": 0.000012,
        "finish_reason": "stop",
        "commit": "content",
        "ended_by": "provider",
        "end_reason": "complete",
        "turn": "charged",
    }


def test_what_is_not_known_is_null_and_an_unknown_cost_is_absent() -> None:
    book = Book()
    book.log.exchange(record(attempts=[attempt()]))
    line = book.line
    unknown = ["client", "route", "model", "provider", "ttfb_ms", "usage", "finish_reason"]
    assert {name: line[name] for name in unknown} == dict.fromkeys(unknown)
    assert line["attempts"][0]["status"] is None
    assert "cost" not in line


def test_a_count_that_the_provider_left_out_is_null() -> None:
    book = Book()
    book.log.exchange(record(usage=Usage(cached=0)))
    assert book.line["usage"] == {"input": None, "output": None, "cached": 0}


def test_each_line_is_one_json_line_in_ascii() -> None:
    book = Book()
    book.log.exchange(record(user="zoë"))
    (line,) = book.written
    assert line.isascii()
    assert line.endswith(b"}\n")
    assert json.loads(line)["user"] == "zoë"


def test_the_time_is_utc_with_milliseconds_and_moves_on() -> None:
    book = Book()
    book.log.exchange(record())
    book.now += 0.5
    book.log.exchange(record())
    book.now += 0.2505
    book.log.exchange(record())
    stamps = [line["ts"] for line in book.lines]
    seconds = ["40.250Z", "40.750Z", "41.000Z"]
    assert stamps == [f"2001-09-09T01:46:{second}" for second in seconds]


def test_access_lines_are_level_info() -> None:
    book = Book(level="warning")
    book.log.exchange(record())
    assert book.written == []


# ---- what never stands in a line


@pytest.mark.parametrize("format", ["json", "text"])
def test_a_query_is_never_shown(format: str) -> None:
    book = Book(format=format)
    book.log.exchange(record(path="/v1/models?api_key=abc"))
    assert "/v1/models" in book.text
    assert "abc" not in book.text


@pytest.mark.parametrize("format", ["json", "text"])
@pytest.mark.parametrize("field", ["user", "model", "path", "method", "finish_reason", "peer"])
def test_keys_are_masked_in_every_field_from_outside(field: str, format: str) -> None:
    book = Book(format=format)
    book.log.exchange(record(**{field: "x-SEKRET-y"}))
    assert "SEKRET" not in book.text


@pytest.mark.parametrize("format", ["json", "text"])
def test_keys_are_masked_in_events(format: str) -> None:
    book = Book(format=format)
    book.log.event("warning", "reload", "bad SEKRET", detail="also SEKRET")
    assert book.text.count("[masked]") == 2
    assert "SEKRET" not in book.text


def test_a_key_at_the_place_of_the_cut_does_not_leave_a_half() -> None:
    book = Book()
    book.log.exchange(record(model="m" * 125 + "SEKRET"))
    assert "SEK" not in book.text


def test_a_detail_that_is_cut_within_a_key_does_not_leave_a_half() -> None:
    book = Book()
    book.log.attempt_failed(record(), attempt(), "m" * (accesslog.PROSE_LIMIT - 3) + "SEKRET")
    assert "SEK" not in book.text


@pytest.mark.parametrize("format", ["json", "text"])
@pytest.mark.parametrize("field", ["id", "user", "model", "path", "method", "peer"])
def test_a_field_has_at_most_128_characters(field: str, format: str) -> None:
    book = Book(format=format)
    book.log.exchange(record(**{field: "w" * 5000}))
    longest = max(map(len, re.findall("w+", book.text)))
    assert 100 < longest <= 128


def test_a_field_of_128_characters_is_whole() -> None:
    book = Book()
    book.log.exchange(record(user="u" * 128))
    assert book.line["user"] == "u" * 128


@pytest.mark.parametrize("format", ["json", "text"])
@pytest.mark.parametrize("text", NASTY)
def test_every_line_is_one_printable_line_whatever_comes_in(text: str, format: str) -> None:
    book = Book(format=format)
    book.log.exchange(record(id=text, user=text, model=text, path=text, peer=text, method=text))
    book.log.attempt_failed(record(id=text), attempt(), text)
    for line in book.written:
        shown = line.decode()
        assert shown.count("\n") == 1
        assert shown.rstrip("\n").isprintable()


@pytest.mark.parametrize("text", NASTY)
def test_what_a_json_reader_prints_is_printable_too(text: str) -> None:
    book = Book()
    book.log.exchange(record(user=text))
    assert book.line["user"].isprintable()


def test_a_detail_has_at_most_2048_bytes() -> None:
    book = Book()
    book.log.attempt_failed(record(), attempt(), "ä" * 100_000)
    assert 2000 < len(book.line["detail"].encode()) <= 2048


def test_a_huge_model_name_is_not_remembered() -> None:
    book = Book()
    huge = "m" * 1_000_000
    book.log.exchange(record(model=huge, upstream_model=huge, finish_reason=huge, user=huge))
    kept = book.log._what.cache_info().currsize
    assert kept == 1
    book.log.exchange(record(model=huge + "x", upstream_model=huge, user=huge))
    assert book.log._what.cache_info().currsize == kept


# ---- events


def test_an_event_names_its_level_and_carries_its_fields() -> None:
    book = Book()
    book.log.event("info", "start", "listening", port=80, tls=False, share=0.5, name=None)
    assert book.line == {
        "ts": "2001-09-09T01:46:40.250Z",
        "v": 1,
        "level": "info",
        "event": "start",
        "message": "listening",
        "port": 80,
        "tls": False,
        "share": 0.5,
        "name": None,
    }


def test_a_number_that_json_does_not_know_is_null() -> None:
    book = Book()
    book.log.event("info", "gauge", "odd", value=float("inf"))
    assert book.line["value"] is None


def test_events_below_the_level_are_not_written() -> None:
    book = Book(level="warning")
    book.log.event("info", "start", "listening")
    book.log.event("warning", "store", "away")
    assert [line["event"] for line in book.lines] == ["store"]


def test_a_failed_attempt_is_a_warning_with_its_trail() -> None:
    book = Book()
    failed = attempt(outcome="status", status=503, duration=0.25, breaker="open")
    book.log.attempt_failed(record(), failed, "overloaded")
    line = book.line
    assert (line["level"], line["event"], line["id"]) == ("warning", "attempt_failed", "r1")
    assert (line["provider"], line["outcome"], line["status"]) == ("groq", "status", 503)
    assert (line["ms"], line["breaker"], line["detail"]) == (250.0, "open", "overloaded")


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_an_error_that_names_the_provider(status: int) -> None:
    book = Book()
    book.log.attempt_failed(record(), attempt(outcome="auth", status=status), "")
    assert book.line["level"] == "error"
    assert book.line["message"] == "provider groq refused the configured key: check it"


def test_priorities_stand_before_each_line_when_the_journal_reads() -> None:
    book = Book(level="debug", priorities=True)
    book.log.exchange(record())
    for level in ("debug", "info", "warning", "error"):
        book.log.event(level, level, "")
    assert [line[:3] for line in book.written] == [b"<6>", b"<7>", b"<6>", b"<4>", b"<3>"]
    assert all(json.loads(line[3:])["v"] == 1 for line in book.written)


# ---- text


def test_text_says_an_exchange_on_one_line() -> None:
    book = Book(format="text")
    book.log.exchange(full())
    assert book.text == (
        "2001-09-09T01:46:40.250Z info 200 POST /v1/chat/completions smart smart: "
        "complete by provider, 2000 ms, first byte 250 ms, 20 bytes, 3 events "
        "[groq status 503 12 ms, openai answered 200 1500 ms] "
        "user=anna peer=10.0.0.1 turn=charged id=r1\n"
    )


def test_text_says_an_exchange_that_asked_nobody() -> None:
    book = Book(format="text")
    book.log.exchange(record(method="GET", path="/v1/models", status=200, attempts=[attempt()]))
    assert " 200 GET /v1/models - -:  by relayd, 0 ms, 0 bytes, 0 events [groq  0 ms] " in book.text


def test_text_says_an_event_without_what_is_not_known() -> None:
    book = Book(format="text")
    book.log.event("warning", "breaker", "groq is open", provider="groq", probe=None, failures=5)
    assert book.text == (
        '2001-09-09T01:46:40.250Z warning breaker: groq is open provider="groq" failures=5\n'
    )


# ---- reload


def test_a_reload_forgets_what_the_old_mask_let_through() -> None:
    book = Book()
    book.log.exchange(record(user="new-key"))
    book.log.configure(level="info", format="json", mask=lambda s: s.replace("new-key", "*"))
    book.log.exchange(record(user="new-key"))
    assert [line["user"] for line in book.lines] == ["new-key", "*"]


def test_a_reload_changes_level_and_format() -> None:
    book = Book()
    book.log.configure(level="error", format="text", mask=book.mask)
    book.log.exchange(record())
    book.log.event("error", "store", "away")
    assert book.text == "2001-09-09T01:46:40.250Z error store: away\n"


# ---- floods


def flood(book: Book, lines: int, **fields: Any) -> None:
    for _ in range(lines):
        book.log.event("warning", "attempt_failed", "again", **fields)


def test_a_repeated_event_is_written_a_few_times_and_then_counted() -> None:
    book = Book()
    flood(book, FLOOD_LINES + 7, provider="groq", outcome="reset")
    assert len(book.written) == FLOOD_LINES
    book.now += FLOOD_SECONDS
    book.log.event("info", "start", "something else")
    (summary,) = book.events("suppressed")
    assert (summary["of"], summary["count"]) == ("attempt_failed", 7)
    assert (summary["provider"], summary["outcome"]) == ("groq", "reset")


def test_an_exchange_after_the_flood_says_what_was_suppressed() -> None:
    book = Book()
    flood(book, FLOOD_LINES + 1)
    book.now += FLOOD_SECONDS
    book.log.exchange(record())
    assert [line["count"] for line in book.events("suppressed")] == [1]
    book.log.exchange(record())
    assert len(book.events("suppressed")) == 1


def test_the_end_says_what_was_suppressed() -> None:
    book = Book()
    flood(book, FLOOD_LINES + 2)
    book.log.close()
    assert [line["count"] for line in book.events("suppressed")] == [2]


def test_nothing_suppressed_is_nothing_said() -> None:
    book = Book()
    flood(book, FLOOD_LINES)
    book.log.close()
    assert len(book.written) == FLOOD_LINES


def test_after_the_window_the_event_is_written_again() -> None:
    book = Book()
    flood(book, FLOOD_LINES + 5)
    book.now += FLOOD_SECONDS
    flood(book, 1)
    assert len(book.events("attempt_failed")) == FLOOD_LINES + 1


def test_a_clock_that_is_set_back_does_not_silence_events() -> None:
    book = Book()
    flood(book, FLOOD_LINES + 5)
    book.now -= 3600
    flood(book, 1)
    assert len(book.events("attempt_failed")) == FLOOD_LINES + 1


def test_providers_and_outcomes_are_counted_apart() -> None:
    book = Book()
    flood(book, FLOOD_LINES, provider="a", outcome="reset")
    flood(book, FLOOD_LINES, provider="a", outcome="silent")
    flood(book, FLOOD_LINES, provider="b", outcome="reset")
    assert len(book.written) == 3 * FLOOD_LINES


def test_access_lines_are_never_suppressed() -> None:
    book = Book()
    for _ in range(10 * FLOOD_LINES):
        book.log.exchange(record())
    assert len(book.written) == 10 * FLOOD_LINES


def test_the_number_of_counted_events_is_bounded() -> None:
    book = Book()
    for number in range(accesslog.FLOOD_KEYS + 3 * FLOOD_LINES):
        flood(book, 1, provider=f"p{number}")
    assert len(book.written) == accesslog.FLOOD_KEYS + FLOOD_LINES
    book.log.close()
    assert book.events("suppressed")[0]["of"] == "other events"


def test_lost_lines_are_reported_whatever_the_level() -> None:
    book = Book(level="error")
    book.log.lost(12)
    assert (book.line["event"], book.line["lines"]) == ("log_lines_lost", 12)
    assert book.line["message"] == "12 log lines lost: a slow reader or a full disk"
