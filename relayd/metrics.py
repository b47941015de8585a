"""The `/metrics` page: families of figures in Prometheus' text format (extra `relayd[metrics]`).

Has a registry of its own, so that an embedding program's figures stay apart. Knows the wire format
by way of prometheus-client; not what the figures mean, nor where they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from .families import Distribution, Family, Histogram

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
"""What every Prometheus since 2015 reads."""

MISSING = 'the metrics need a package that is not installed: pip install "relayd[metrics]"'

Source = Callable[[], Iterable[Family | Distribution]]


class MetricsMissing(Exception):
    """prometheus-client is not installed; the text is the remedy."""


class Metrics:
    """`page()` is what a scrape gets; `source` is asked once for each.

    Raises `MetricsMissing`.
    """

    def __init__(self, source: Source) -> None:
        try:
            from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
        except ImportError as error:
            raise MetricsMissing(MISSING) from error
        self._source = source
        self._registry = CollectorRegistry()
        self._generate = generate_latest
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def page(self) -> bytes:
        """All figures as they are now, as `CONTENT_TYPE`."""
        return self._generate(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: the registry need not ask the source to know names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        for family in self._source():
            yield _histogram(family) if isinstance(family, Distribution) else _simple(family)


def _simple(family: Family) -> Metric:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for labels, value in family.values.items():
        metric.add_metric(labels, value)
    return metric


def _histogram(family: Distribution) -> Metric:
    from prometheus_client.metrics_core import HistogramMetricFamily

    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    bounds = [*(f"{bound:g}" for bound in family.bounds), "+Inf"]
    for labels, found in family.values.items():
        metric.add_metric(labels, _buckets(bounds, found), found.sum)
    return metric


def _buckets(bounds: list[str], found: Histogram) -> list[tuple[str, float]]:
    return list(zip(bounds, accumulate(found.counts), strict=True))
