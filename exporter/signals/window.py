"""What signals read: increases and levels of one owner's columns between two scrapes. Time is a value."""

import math
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from exporter.snapshot import Columns
from exporter.upstream import Column, Part


class Row(NamedTuple):
    """One good scrape as kept: counters as running totals of their increases, gauges as they were, NaN for absent.

    ``at`` is monotonic seconds.
    """

    at: float
    numbers: MutableSequence[float]


@dataclass(frozen=True, slots=True)
class Window:
    """The columns of one owner over the rows from a baseline to the last scrape.

    Attributes:
        rows: at least one, oldest first; the first is the baseline.
        columns: the owner's columns and where they stand in a row.
        born: monotonic seconds at which a slot was first filled; a counter born within the window began at zero.
        read: histograms already read from this window: several signals look at the same one.
    """

    rows: Sequence[Row]
    columns: Columns
    born: Sequence[float]
    read: dict[tuple[str, str], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def seconds(self) -> float:
        """The time really covered."""
        return self.rows[-1].at - self.rows[0].at

    def increase(self, series: str, *labels: str, part: Part = Part.VALUE) -> float | None:
        """The reset-proof increase of a counter; None where either end is not known."""
        return self.increase_of(Column(series, part, labels))

    def increase_of(self, column: Column) -> float | None:
        """The same for a column."""
        slot = self.columns.get(column)
        return None if slot is None else self.increase_at(slot)

    def increase_at(self, slot: int) -> float | None:
        """The same for a slot."""
        now = _known(self.rows[-1].numbers, slot)
        then = _known(self.rows[0].numbers, slot)
        if now is None:
            return None
        if then is None:
            return now if self.born[slot] > self.rows[0].at else None
        return now - then

    def rate(self, series: str, *labels: str, part: Part = Part.VALUE) -> float | None:
        """The increase per second."""
        return divide(self.increase(series, *labels, part=part), self.seconds)

    def last(self, series: str, *labels: str, part: Part = Part.VALUE) -> float | None:
        """As of the last scrape: a gauge's level, a counter's running total since the first scrape."""
        return self.last_of(Column(series, part, labels))

    def last_of(self, column: Column) -> float | None:
        """The same for a column."""
        slot = self.columns.get(column)
        return None if slot is None else self.last_at(slot)

    def last_at(self, slot: int) -> float | None:
        """The same for a slot."""
        return _known(self.rows[-1].numbers, slot)

    def first(self, series: str, *labels: str, part: Part = Part.VALUE) -> float | None:
        """As of the baseline."""
        slot = self.columns.get(Column(series, part, labels))
        return None if slot is None else _known(self.rows[0].numbers, slot)

    def labelled(self, series: str) -> Sequence[tuple[str, ...]]:
        """The label values under which a series without parts is known."""
        return [labels for labels, _ in self.columns.labelled(series)]

    def levels(self, series: str, *labels: str) -> list[tuple[float, float]]:
        """(monotonic seconds, value) of a gauge at each scrape that knew it."""
        slot = self.columns.get(Column(series, Part.VALUE, labels))
        if slot is None:
            return []
        found = ((row.at, _known(row.numbers, slot)) for row in self.rows)
        return [(at, value) for at, value in found if value is not None]

    def mean_level(self, series: str, *labels: str) -> float | None:
        """The mean of a gauge over the scrapes in the window, the baseline left out."""
        values = [value for at, value in self.levels(series, *labels) if at > self.rows[0].at]
        return sum(values) / len(values) if values else None


def _known(numbers: Sequence[float], slot: int) -> float | None:
    number = numbers[slot] if slot < len(numbers) else math.nan
    return number if number == number else None  # noqa: PLR0124 - NaN alone differs from itself; asked very often


def divide(numerator: float | None, denominator: float | None) -> float | None:
    """A ratio, or None where a part is not known, nothing stands below the line, or so little that it is no number."""
    if numerator is None or denominator is None or denominator <= 0:
        return None
    ratio = numerator / denominator
    return ratio if -math.inf < ratio < math.inf else None


def plus(*terms: float | None) -> float | None:
    """A sum, or None where a term is not known."""
    known = [term for term in terms if term is not None]
    return sum(known) if len(known) == len(terms) else None
