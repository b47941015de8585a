"""The list of what is counted: each of it has a name, a description, labels and bounds."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from relayd.figures import DURATIONS, GAPS, METRICS, WAITS, counter, distribution


@pytest.mark.parametrize("name", METRICS)
def test_a_figure_is_named_as_prometheus_asks_and_described(name: str) -> None:
    for made in (counter(name), distribution(name, WAITS)):
        assert re.fullmatch(r"relayd_[a-z_]+_(total|seconds)", made.name)
        assert (made.help, made.labels) == METRICS[name]
        assert made.help.endswith(".")
        assert not made.values, "no series yet"


@pytest.mark.parametrize("bounds", [WAITS, DURATIONS, GAPS])
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert all(low < high for low, high in pairwise(bounds))
