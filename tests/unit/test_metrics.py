"""The figures on the wire: what Prometheus' own parser reads in them, and life without it."""

from __future__ import annotations

import sys
from datetime import UTC

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from relayd.families import Distribution, Family
from relayd.metrics import Metrics, MetricsMissing
from relayd.picture import Picture
from relayd.tally import Tally
from tests.support.records import attempt, exchange


def samples(*families: Family | Distribution) -> list[Sample]:
    page = Metrics(lambda: families).page().decode()
    return [
        sample
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if not sample.name.startswith("process_")
    ]


def figures(found: list[Sample]) -> dict[tuple[str, ...], float]:
    return {(each.name, *each.labels.values()): each.value for each in found}


def test_a_sum_and_a_gauge_are_read_as_they_were() -> None:
    total = Family("counter", "x_total", "Help.", ("a", "b"), {("1", "2"): 3})
    gauge = Family("gauge", "y", "Help.", (), {(): 0.5})
    assert figures(samples(total, gauge)) == {("x_total", "1", "2"): 3, ("y",): 0.5}


def test_a_histogram_is_cumulated_and_ends_with_infinity() -> None:
    waits = Distribution("w_seconds", "Help.", ("p",), (0.1, 2.5))
    for value in (0.05, 1.0, 1.0, 9.0):
        waits.at("a").observe(value)
    assert figures(samples(waits)) == {
        ("w_seconds_bucket", "0.1", "a"): 1,
        ("w_seconds_bucket", "2.5", "a"): 3,
        ("w_seconds_bucket", "+Inf", "a"): 4,
        ("w_seconds_count", "a"): 4,
        ("w_seconds_sum", "a"): 11.05,
    }  # the parser sorts `le` before `p`


def test_a_label_value_may_hold_anything() -> None:
    odd = 'quote " backslash \\ line\nend é'
    (sample,) = samples(Family("gauge", "y", "Help.", ("a",), {(odd,): 1}))
    assert sample.labels == {"a": odd}


def test_the_page_tells_of_this_process_and_not_of_an_embedding_programs_registry() -> None:
    page = Metrics(list).page().decode()
    assert "process_resident_memory_bytes" in page
    assert "python_info" not in page
    assert not [name for name in REGISTRY._names_to_collectors if name.startswith("relayd")]


def test_everything_that_is_counted_can_be_told() -> None:
    tally = Tally()
    tally.keep(["r"], ["a", "b"])
    tally.exchange(exchange(attempt("a", "closed"), attempt("b"), turn="charged"))
    names = {each.name for each in samples(*tally.figures())}
    assert {"relayd_requests_total", "relayd_first_content_seconds_bucket"} <= names


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MetricsMissing, match=r'pip install "relayd\[metrics\]"'):
        Metrics(list)


def test_telling_metrics_and_page_of_an_exchange_is_cheap() -> None:
    # Counted in bytecode lines, not in time: about 5 us where a line takes 70 ns.
    tally, picture = Tally(), Picture()
    tally.keep(["r"], ["a"])
    picture.keep(["a"], UTC)
    record = exchange(events=9, turn="charged")
    lines = 0

    def count(*_: object) -> object:
        nonlocal lines
        lines += 1
        return count

    before = sys.gettrace()
    for _ in range(2):  # the first one makes the series
        lines = 0
        sys.settrace(count)
        try:
            tally.exchange(record)
            picture.exchange(record, 5.0, record.began)
        finally:
            sys.settrace(before)
    assert lines <= 130
