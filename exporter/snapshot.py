"""What one good scrape says, as columns: who owns a number, where it stands, and the numbers themselves."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from exporter.upstream import Column, Part


class Engine(NamedTuple):
    """An engine behind a target, by the labels vLLM gives it. ``engine`` is empty where there is none (V0)."""

    model_name: str
    engine: str


MAX_ENGINES = 256
"""Behind one port. Each has hundreds of series with us, whatever it has there."""

TARGET: Engine | None = None
"""The owner of series without an engine: the target itself."""

ABSENT = math.nan
"""Inside arrays of numbers, what is not known. It never leaves them."""


class Slot(NamedTuple):
    """The place of a column: its owner and which column."""

    owner: Engine | None
    column: Column


class Columns(dict[Column, int]):
    """Where each column of one owner stands. Columns are only ever added."""

    def __init__(self, *given: Mapping[Column, int]) -> None:
        super().__init__(*given)
        self._buckets: dict[str, list[tuple[float, int]]] = {}
        self._labelled: dict[str, list[tuple[tuple[str, ...], int]]] = {}
        self._sorted_out = 0

    def buckets(self, series: str) -> list[tuple[float, int]]:
        """(upper edge, slot) of a histogram's buckets, edges ascending."""
        self._sort_out()
        return self._buckets.get(series, [])

    def labelled(self, series: str) -> list[tuple[tuple[str, ...], int]]:
        """(label values, slot) under which a series without parts is known."""
        self._sort_out()
        return self._labelled.get(series, [])

    def _sort_out(self) -> None:
        if self._sorted_out == len(self):
            return
        self._buckets, self._labelled = {}, {}
        for column, slot in self.items():
            if column.part is Part.BUCKET:
                self._buckets.setdefault(column.series, []).append((float(column.labels[0]), slot))
            elif column.part is Part.VALUE:
                self._labelled.setdefault(column.series, []).append((column.labels, slot))
        for found in self._buckets.values():
            found.sort()
        self._sorted_out = len(self)


@dataclass(slots=True)
class Layout:
    """Which slot holds what. A new slot comes last, so that an older, shorter row of numbers keeps its meaning."""

    slots: list[Slot] = field(default_factory=list)
    engines: dict[Engine, Columns] = field(default_factory=dict)
    target: Columns = field(default_factory=Columns)

    def slot(self, owner: Engine | None, column: Column) -> int:
        """The index of a column, adding it (and its engine) where it is new."""
        columns = self.columns(owner)
        known = columns.get(column)
        if known is not None:
            return known
        position = columns[column] = len(self.slots)
        self.slots.append(Slot(owner, column))
        if owner is not None:
            self.engines[owner] = columns
        return position

    def keep(self, kept: Iterable[int]) -> None:
        """Go on with these slots, ascending, renumbered from 0. Columns handed out before keep the old numbers."""
        slots = [self.slots[position] for position in kept]
        self.slots, self.engines, self.target = [], {}, Columns()
        for slot in slots:
            self.slot(*slot)

    def columns(self, owner: Engine | None) -> Columns:
        """The columns of an owner; empty for an engine never seen."""
        found = self.target if owner is None else self.engines.get(owner)
        return Columns() if found is None else found


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One good scrape. ``values[i]`` belongs to ``layout.slots[i]``; ``None`` is absent.

    ``same_series`` says that it has exactly the series of the good scrape before it, ``others`` that engines behind the
    port are left out.
    """

    values: list[float | None]
    bad_lines: int = 0
    same_series: bool = False
    others: bool = False

    def value(self, slot: int) -> float | None:
        """What stands in a slot; a slot added later is absent."""
        return self.values[slot] if slot < len(self.values) else None
