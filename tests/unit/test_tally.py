"""What is counted of an exchange, under which labels, and that traffic adds no series."""

from __future__ import annotations

import re

import pytest

from relayd.families import Distribution, Family, Histogram
from relayd.figures import METRICS
from relayd.outcomes import End
from relayd.record import Record, Usage
from relayd.tally import KINDS, Tally, first_content, status_class
from tests.support.records import attempt, exchange, failed

Values = dict[tuple[str, ...], float]


def tally_of(*records: Record, routes: tuple[str, ...] = ("r", "s")) -> Tally:
    tally = Tally()
    tally.keep(routes, ["a", "b"])
    for record in records:
        tally.exchange(record)
    return tally


def figure(tally: Tally, name: str) -> Family | Distribution:
    return next(each for each in tally.figures() if each.name == f"relayd_{name}")


def sums(tally: Tally, name: str) -> Values:
    """The values of a sum that are not zero."""
    family = figure(tally, name)
    assert isinstance(family, Family)
    return {labels: value for labels, value in family.values.items() if value}


def histogram(tally: Tally, name: str, label: str) -> Histogram:
    distribution = figure(tally, name)
    assert isinstance(distribution, Distribution)
    return distribution.values[(label,)]


def test_a_request_counts_by_route_surface_and_class_of_status() -> None:
    tally = tally_of(exchange(), exchange(), exchange(status=201), failed(route="s"))
    assert sums(tally, "requests_total") == {("r", "chat", "2xx"): 3, ("s", "chat", "5xx"): 1}


def test_an_end_counts_with_the_provider_that_answered_or_none() -> None:
    ends = [exchange(), exchange(end_reason="upstream_truncated"), failed()]
    assert sums(tally_of(*ends), "exchange_ends_total") == {
        ("r", "a", "complete"): 1,
        ("r", "a", "upstream_truncated"): 1,
        ("r", "", "failed"): 1,
    }


@pytest.mark.parametrize("end", End)
def test_every_end_has_a_series_of_its_own(end: End) -> None:
    tally = tally_of(exchange(end_reason=end.value))
    assert sums(tally, "exchange_ends_total") == {("r", "a", end.value): 1}


def test_what_is_not_relayed_is_a_request_and_nothing_else() -> None:
    tally = tally_of(Record("id", 1.0, status=404, duration=3.0, bytes_out=5))
    assert sums(tally, "requests_total") == {("other", "other", "4xx"): 1}
    for figure in tally.figures():
        if figure.name != "relayd_requests_total":
            assert not any(isinstance(v, Histogram) or v for v in figure.values.values())


def test_attempts_count_by_provider_and_outcome() -> None:
    tally = tally_of(exchange(attempt("a", "server_error"), attempt("b")), exchange())
    assert sums(tally, "attempts_total") == {
        ("a", "server_error"): 1,
        ("b", "ok"): 1,
        ("a", "ok"): 1,
    }


def test_a_move_counts_for_the_provider_that_was_left() -> None:
    bad = [attempt("a", "closed"), attempt("a", "closed"), attempt("b", "closed")]
    assert sums(tally_of(failed(*bad)), "failovers_total") == {("a",): 1}


def test_a_request_is_rescued_when_another_provider_answers_it() -> None:
    again = exchange(attempt("a", "closed"), attempt("a"))
    rescued = exchange(attempt("a", "closed"), attempt("b"))
    lost = failed(attempt("a", "closed"), attempt("b", "closed"))
    assert sums(tally_of(again, rescued, lost), "rescued_requests_total") == {("r",): 1}


def test_bytes_tokens_cost_and_turns_are_summed() -> None:
    one = exchange(bytes_in=3, bytes_out=5, usage=Usage(7, 11, None), cost=0.5, turn="charged")
    two = exchange(bytes_in=1, bytes_out=1, usage=Usage(1, None, 2), cost=0.25, turn="refunded")
    tally = tally_of(one, two, exchange(turn="none"))
    assert sums(tally, "request_bytes_total") == {("r",): 4}
    assert sums(tally, "response_bytes_total") == {("r",): 6}
    assert sums(tally, "tokens_total") == {
        ("a", "input"): 8,
        ("a", "output"): 11,
        ("a", "cached"): 2,
    }
    assert sums(tally, "cost_dollars_total") == {("a",): 0.75}
    assert sums(tally, "turns_total") == {("charged",): 1, ("refunded",): 1}


def test_waits_go_into_the_histograms_of_route_and_provider() -> None:
    tally = tally_of(exchange(duration=2.0, events=9, max_gap=0.3, ttfb=0.5))
    assert histogram(tally, "request_duration_seconds", "r").sum == 2.0
    assert histogram(tally, "commit_wait_seconds", "r").sum == 0.5
    assert histogram(tally, "first_content_seconds", "a").sum == 0.25
    assert histogram(tally, "stream_longest_gap_seconds", "a").sum == 0.3


def test_one_event_alone_has_no_gap() -> None:
    tally = tally_of(exchange(events=1))
    assert sum(histogram(tally, "stream_longest_gap_seconds", "a").counts) == 0


def test_a_request_that_nobody_answered_has_a_duration_and_no_waits() -> None:
    tally = tally_of(failed(duration=4.0), failed(attempts=[], end_reason="refused"))
    assert sum(histogram(tally, "request_duration_seconds", "r").counts) == 2
    assert sum(histogram(tally, "commit_wait_seconds", "r").counts) == 0
    contents = figure(tally, "first_content_seconds")
    assert not contents.values


def test_first_content_counts_from_the_beginning_of_the_providers_own_attempt() -> None:
    # a failed for 4 s; b took 1 s to the commit and 2 s more to its first content.
    record = exchange(attempt("a", "closed", 4.0), attempt("b", duration=1.0))
    record.ttfb, record.first_content = 5.0, 7.0
    assert first_content(record) == 3.0


def test_an_answer_that_was_whole_has_its_content_at_the_commit() -> None:
    assert first_content(exchange(first_content=None)) == 0.25


def test_first_content_is_never_negative() -> None:
    assert first_content(exchange(attempt(duration=0.0), ttfb=0.5, first_content=0.2)) == 0.0
    assert first_content(exchange(ttfb=None, first_content=None)) == 0.25


def test_changes_of_breakers_are_counted_and_trips_start_at_zero() -> None:
    tally = tally_of()
    changes = figure(tally, "breaker_changes_total")
    assert changes.values == {("a", "open"): 0, ("b", "open"): 0}
    tally.breaker("a", "open")
    tally.breaker("a", "half-open")
    tally.breaker("stranger", "melted")
    assert sums(tally, "breaker_changes_total") == {
        ("a", "open"): 1,
        ("a", "half-open"): 1,
        ("other", "other"): 1,
    }


@pytest.mark.parametrize(
    ("status", "word"),
    [(200, "2xx"), (302, "3xx"), (404, "4xx"), (599, "5xx"), (0, "other"), (101, "other"),
     (777, "other")],
)  # fmt: skip
def test_a_status_becomes_its_class(status: int, word: str) -> None:
    assert status_class(status, "complete") == word


@pytest.mark.parametrize(
    ("end", "word"),
    [("client_left", "499"), ("client_stalled", "499"), ("request_fault", "4xx")],
)
def test_499_is_the_clients_departure_and_no_providers_word(end: str, word: str) -> None:
    assert sums(tally_of(failed(status=499, end_reason=end)), "requests_total") == {
        ("r", "chat", word): 1
    }


def test_what_is_on_no_list_is_other() -> None:
    odd = exchange(
        attempt("x", "odd"), route="x", surface="x", provider="x", end_reason="x", turn="x"
    )
    tally = tally_of(odd)
    assert sums(tally, "requests_total") == {("other", "other", "2xx"): 1}
    assert sums(tally, "exchange_ends_total") == {("other", "other", "other"): 1}
    assert sums(tally, "attempts_total") == {("other", "other"): 1}
    assert not sums(tally, "turns_total")


def test_series_and_memory_stay_bounded_whatever_comes() -> None:
    tally = tally_of()
    for number in range(3 * KINDS):
        tally.exchange(exchange(attempt(f"p{number}"), route=f"r{number}", status=number))
    assert sum(sums(tally, "requests_total").values()) == 3 * KINDS
    assert len(tally._spelled) <= KINDS
    assert sum(len(each.values) for each in tally.figures()) < 50


def test_a_reload_drops_what_is_no_longer_configured_and_keeps_the_rest() -> None:
    tally = tally_of(exchange(), exchange(attempt("b"), route="s"), failed())
    tally.exchange(Record("id", 1.0, status=404))
    tally.keep(["r"], ["a"])
    assert sums(tally, "requests_total") == {
        ("r", "chat", "2xx"): 1,
        ("r", "chat", "5xx"): 1,
        ("other", "other", "4xx"): 1,
    }
    assert sums(tally, "attempts_total") == {("a", "ok"): 2}
    assert sums(tally, "exchange_ends_total") == {
        ("r", "a", "complete"): 1,
        ("r", "", "failed"): 1,
    }
    contents = figure(tally, "first_content_seconds")
    assert list(contents.values) == [("a",)]
    tally.exchange(exchange(attempt("b"), route="s"))  # it began before the reload
    assert sums(tally, "requests_total")[("other", "chat", "2xx")] == 1


def test_no_counter_falls_by_a_reload() -> None:
    gone = exchange(attempt("b"), route="s", bytes_in=7, turn="charged")
    stays = exchange(attempt("b"), bytes_in=5, turn="charged")
    tally = tally_of(exchange(), stays, gone, gone)
    before = {name: sums(tally, name) for name in ("turns_total", "request_bytes_total")}
    assert before["turns_total"] == {("charged",): 3}
    for routes, providers in ((["r"], ["a"]), (["r"], ["a"]), (["r", "s"], ["a", "b"])):
        tally.keep(routes, providers)
        assert sums(tally, "turns_total") == before["turns_total"]
        kept = sums(tally, "request_bytes_total")
        assert kept == {("r",): before["request_bytes_total"]["r",]}
    tally.exchange(gone)
    assert sums(tally, "requests_total")["s", "chat", "2xx"] == 1, "it began anew"


def test_what_is_gone_is_summed_in_one_place() -> None:
    charged = {"turn": "charged"}
    told = [exchange(attempt("b"), route=route, **charged) for route in ("s", "t", "s")]
    tally = tally_of(exchange(**charged), *told, routes=("r", "s", "t"))
    for _ in range(2):
        tally.keep(["r"], ["a"])
        assert sums(tally, "turns_total") == {("charged",): 4}
        assert sums(tally, "requests_total") == {("r", "chat", "2xx"): 1}


def test_every_figure_is_described_and_named_as_prometheus_asks() -> None:
    figures = tally_of().figures()
    assert len(figures) == len(METRICS)
    for each in figures:
        suffix = "_seconds" if isinstance(each, Distribution) else "_total"
        assert re.fullmatch(rf"relayd_[a-z_]+{suffix}", each.name)
        assert each.help.endswith(".")
        assert set(each.labels) <= {
            "route", "surface", "status", "provider", "outcome", "end_reason", "turn", "kind",
            "state",
        }  # fmt: skip
