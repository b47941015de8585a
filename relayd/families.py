"""The shapes of figures: sums and gauges, and histograms, each by its label values.

Does not know which figures there are, or how they are spelled on the wire.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Literal

Labels = tuple[str, ...]
"""Label names, or the values of one series in the same order."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: values by label values. `name` is whole, with unit and, if a sum, `_total`."""

    kind: Literal["counter", "gauge"]
    name: str
    help: str
    labels: Labels
    values: dict[Labels, float] = field(default_factory=dict)

    def add(self, labels: Labels, amount: float = 1) -> None:
        """Add to a sum."""
        self.values[labels] = self.values.get(labels, 0) + amount


class Histogram:
    """How often which value was seen. `counts` is per bucket, not cumulated; the last is +Inf."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """One more value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


@dataclass(frozen=True, slots=True)
class Distribution:
    """One histogram metric. `bounds` are upper bounds in seconds, included."""

    name: str
    help: str
    labels: Labels
    bounds: tuple[float, ...]
    values: dict[Labels, Histogram] = field(default_factory=dict)

    def at(self, *labels: str) -> Histogram:
        """The histogram of these label values."""
        found = self.values.get(labels)
        if found is None:
            found = self.values[labels] = Histogram(self.bounds)
        return found
