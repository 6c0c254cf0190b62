"""Quantiles, means and shares of a histogram, by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.signals.histogram import Histogram

EDGES = (0.1, 0.5, 1.0, math.inf)


def histogram(*counts, total=None, edges=EDGES):
    return Histogram(edges, tuple(float(count) for count in counts), total)


def test_a_quantile_is_interpolated_inside_its_bucket():
    """10 observations: 2 to 0.1, 6 in (0.1, 0.5]. The 5th is 3 of 6 into that bucket: 0.1 + 0.4 x 0.5 = 0.3."""
    assert histogram(2, 8, 10, 10).quantile(0.5) == (pytest.approx(0.3), False)


def test_a_quantile_below_the_first_edge_is_an_upper_bound():
    """All in the first bucket: interpolated from 0, as PromQL does, and flagged."""
    assert histogram(10, 10, 10, 10).quantile(0.5) == (pytest.approx(0.05), True)


def test_a_quantile_above_the_last_edge_is_a_lower_bound():
    """8 of 10 in +Inf: the last finite edge, flagged."""
    assert histogram(0, 0, 2, 10).quantile(0.5) == (1.0, True)


def test_a_quantile_skips_empty_buckets():
    """2 at most 0.1, none up to 1.0 but 2 in (0.5, 1.0]: the 3rd of 4 is in the middle of that."""
    assert histogram(2, 2, 4, 4).quantile(0.75) == (0.75, False)


def test_a_first_edge_that_is_not_positive_is_itself_the_quantile():
    """PromQL does not interpolate below zero."""
    assert histogram(3, 3, edges=(-1.0, math.inf)).quantile(0.5) == (-1.0, True)
    assert histogram(3, 3, edges=(0.0, math.inf)).quantile(0.5) == (0.0, True)


def test_no_observations_have_no_quantile_and_no_mean():
    """0/0 is not known."""
    assert histogram(0, 0, 0, 0, total=0.0).quantile(0.5) is None
    assert histogram(0, 0, 0, 0, total=0.0).mean is None
    assert histogram(5, edges=(math.inf,)).quantile(0.5) is None


def test_a_mean_is_sum_over_count():
    """4 observations that add up to 1.2 are 0.3 each."""
    assert histogram(1, 4, 4, 4, total=1.2).mean == pytest.approx(0.3)
    assert histogram(1, 4, 4, 4).mean is None


@pytest.mark.parametrize("total", [-1e6, 1e6, 2.1, 0.29])
def test_a_sum_that_its_buckets_cannot_hold_has_no_mean(total):
    """1 to 0.1 and 3 in (0.1, 0.5] add up to between 0.3 and 1.6; an uptime more or less is no latency."""
    assert histogram(1, 4, 4, 4, total=total).mean is None


def test_at_most_and_the_edge_it_needs():
    """The nearest edge that does not exceed a threshold; the exact one in spite of binary fractions."""
    found = histogram(2, 8, 10, 11)

    assert found.edge_at_or_below(0.7) == 0.5
    assert found.edge_at_or_below(0.5) == 0.5
    assert found.edge_at_or_below(0.1 - 1e-12) == 0.1
    assert found.edge_at_or_below(0.05) is None
    assert found.edge_at_or_below(1e9) == 1.0
    assert found.at_most(0.5) == 8


@given(st.lists(st.integers(0, 1000), min_size=4, max_size=4), st.floats(0.001, 0.999))
def test_a_quantile_is_within_its_bucket(increments, q):
    """Never outside the finite edges, and above at least the share of observations that it says."""
    counts = [sum(increments[: n + 1]) for n in range(4)]
    found = histogram(*counts).quantile(q)

    assert (found is None) == (counts[-1] == 0)
    if found:
        assert 0 <= found.value <= 1.0
        assert counts[sum(edge < found.value for edge in EDGES)] >= q * counts[-1] - 1e-6 or found.bounded
