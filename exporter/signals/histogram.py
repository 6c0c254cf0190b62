"""Histograms as increases over a window, and what can be said of them: quantiles, means, shares, bounds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from exporter.signals.window import Window
from exporter.upstream import Column, Part


class Quantile(NamedTuple):
    """A quantile, and whether it is only a bound: below the first edge an upper one, above the last a lower one."""

    value: float
    bounded: bool


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative counts of observations at or below ascending edges; the last edge is +Inf.

    ``total`` is the sum of the observations, None where it is not known or cannot be true.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    total: float | None

    @property
    def count(self) -> float:
        """All observations."""
        return self.counts[-1]

    @property
    def mean(self) -> float | None:
        """The mean observation; None without observations or where the sum contradicts the buckets."""
        if self.count <= 0 or self.total is None or not self._possible(self.total):
            return None
        return self.total / self.count

    def _possible(self, total: float) -> bool:
        """Whether observations in these buckets can add up to the sum.

        vLLM moves ``_sum`` by plus or minus the host's uptime for a request that ended before it was scheduled. A
        negative observation lands in the first bucket, an uptime in the last ones.
        """
        least = most = below = 0.0
        edge = 0.0
        for upper, count in zip(self.edges, self.counts, strict=True):
            inside = count - below
            least += inside * edge
            if inside > 0:
                most += inside * upper
            below, edge = count, upper
        slack = 1e-6 * max(1.0, abs(total))
        return least - slack <= total <= most + slack

    def quantile(self, q: float) -> Quantile | None:
        """The q-quantile by linear interpolation inside its bucket, as PromQL's ``histogram_quantile`` has it."""
        if self.count <= 0 or len(self.edges) < 2:
            return None
        rank = q * self.count
        position = next(i for i, count in enumerate(self.counts) if count >= rank)
        if position == len(self.edges) - 1:
            return Quantile(self.edges[-2], bounded=True)
        if position == 0 and self.edges[0] <= 0:
            return Quantile(self.edges[0], bounded=True)
        lower, below = (self.edges[position - 1], self.counts[position - 1]) if position else (0.0, 0.0)
        inside = self.counts[position] - below
        share = (rank - below) / inside if inside > 0 else 0.0
        return Quantile(lower + (self.edges[position] - lower) * share, bounded=position == 0)

    def at_most(self, edge: float) -> float:
        """Observations at or below an edge of this histogram."""
        return self.counts[self.edges.index(edge)]

    def edge_at_or_below(self, threshold: float) -> float | None:
        """The nearest finite edge that does not exceed a threshold; None where the first edge already does."""
        fitting = [edge for edge in self.edges if edge <= threshold * (1 + 1e-9) and edge < math.inf]
        return fitting[-1] if fitting else None


def increases(window: Window, series: str) -> Histogram | None:
    """The observations that came within a window; None where a bucket is not known at both ends."""
    return _read(window, series, "increase", window.increase_at)


def totals(window: Window, series: str) -> Histogram | None:
    """All observations since the first scrape, as of the last one."""
    return _read(window, series, "total", window.last_at)


def _read(window: Window, series: str, what: str, value_at: Callable[[int], float | None]) -> Histogram | None:
    if (series, what) not in window.read:
        window.read[series, what] = _histogram(window, series, value_at)
    found: Histogram | None = window.read[series, what]
    return found


def _histogram(window: Window, series: str, value_at: Callable[[int], float | None]) -> Histogram | None:
    last = window.rows[-1].numbers
    buckets = [(edge, slot) for edge, slot in window.columns.buckets(series) if _stands(last, slot)]
    if len(buckets) < 2 or buckets[-1][0] != math.inf:
        return None
    found = [value_at(slot) for _, slot in buckets]
    if None in found:
        return None
    # Several API processes write one after the other: a bucket may be a moment behind the one below it.
    counts = tuple(accumulate((count for count in found if count is not None), max))
    total = window.columns.get(Column(series, Part.SUM))
    return Histogram(tuple(edge for edge, _ in buckets), counts, None if total is None else value_at(total))


def _stands(numbers: Sequence[float], slot: int) -> bool:
    return slot < len(numbers) and not math.isnan(numbers[slot])
