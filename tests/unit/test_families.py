"""The shapes of figures: sums by label values, histograms whose bounds are included."""

from __future__ import annotations

from relayd.families import Distribution, Family

BOUNDS = (0.1, 1.0)


def test_a_sum_grows_by_label_values() -> None:
    family = Family("counter", "x_total", "help", ("a",))
    family.add(("one",))
    family.add(("one",), 2)
    family.add(("two",), 0)
    assert family.values == {("one",): 3, ("two",): 0}


def test_a_value_on_a_bound_belongs_below_it() -> None:
    histogram = Distribution("x_seconds", "help", ("a",), BOUNDS).at("one")
    for value in (0.0, 0.1, 0.100001, 1.0, 1.5):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert abs(histogram.sum - 2.700001) < 1e-9


def test_the_same_label_values_are_the_same_histogram() -> None:
    distribution = Distribution("x_seconds", "help", ("a",), BOUNDS)
    assert distribution.at("one") is distribution.at("one")
    assert distribution.at("one") is not distribution.at("two")
    assert list(distribution.values) == [("one",), ("two",)]
