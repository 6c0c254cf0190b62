"""The ring of snapshots of one target, and the counters the sidecar integrates from them. Time is a value.

Counters are integrated from the first successful scrape: one base for all, never dipping, going on over an engine's
restart. A row of the ring holds that running total, so an increase over any window is a subtraction.
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from exporter.signals.window import Row, Window
from exporter.snapshot import ABSENT, TARGET, Engine, Layout, Snapshot
from exporter.upstream import SERIES, Column, Kind, Part

PROCESS_START = Column("process_start")
LARGEST = 1e100
"""More is no count and no level of anything; sums and products of what is less stay finite."""


class Restarts(NamedTuple):
    """What a snapshot revealed: owners whose counters began again, and whether the process itself did.

    ``process`` is None where the engine does not say when it started.
    """

    owners: frozenset[Engine | None]
    process: bool | None


@dataclass(slots=True)
class _Slots:
    """How each slot is read, worked out once a slot."""

    counters: list[int] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)
    gauges: list[tuple[int, float]] = field(default_factory=list)
    core: dict[Engine | None, list[int]] = field(default_factory=dict)
    buckets: dict[tuple[Engine | None, str], list[int]] = field(default_factory=dict)
    sorted_out: int = 0

    def extend(self, layout: Layout) -> None:
        """Sort new slots in."""
        for position in range(self.sorted_out, len(layout.slots)):
            slot = layout.slots[position]
            row = SERIES.get(slot.column.series)
            if row is None:
                continue  # ours, put in by the owner of this history
            if slot.column.part is Part.SUM:
                self.sums.append(position)
            elif row.kind is Kind.GAUGE:
                self.gauges.append((position, min(row.most, LARGEST)))
            else:
                self.counters.append(position)
                if slot.column.part is Part.BUCKET:
                    self.buckets.setdefault((slot.owner, slot.column.series), []).append(position)
                elif row.core:
                    self.core.setdefault(slot.owner, []).append(position)
        self.sorted_out = len(layout.slots)


class History:
    """Snapshots of one target, newest last, and the totals of its counters.

    Args:
        layout: shared with the parser that fills the snapshots.
        keep_seconds: the longest window that will be asked for; may be changed.
    """

    def __init__(self, layout: Layout, keep_seconds: float) -> None:
        self._layout = layout
        self.keep_seconds = keep_seconds
        self._slots = _Slots()
        self._raw: list[float] = []
        self._totals = array("d")
        self._born: list[float] = []
        self._known: set[Engine | None] = set()
        self._forgetful: set[Engine | None] = set()
        self._edges: dict[tuple[Engine | None, str], frozenset[int]] = {}
        self._began_again: set[tuple[Engine | None, str]] = set()
        self._rows: list[Row] = []
        self._last_two: dict[Engine | None, Window] = {}
        self._now = array("d")
        self._at = -math.inf

    def observe(self, snapshot: Snapshot, at: float) -> Restarts:
        """Take a snapshot in as a new row: counters grow by their reset-proof increases."""
        self._at = at
        self._grow()
        self._slots.extend(self._layout)
        values = snapshot.values + [None] * (len(self._totals) - len(snapshot.values))
        process = self._process_began_again(values)
        reset = frozenset(owner for owner in self._slots.core if process or self._fell(owner, values))
        if process:
            reset |= self._known
        self._forgetful -= reset
        if reset or not snapshot.same_series:
            self._compare_edges(values, reset)
        self._now = array("d", [ABSENT]) * len(self._totals)
        self._forget(reset, values)
        self._take_gauges(values)
        self._count(values, reset)
        self._sum_up(values, reset)
        self._known = {TARGET, *self._layout.engines}
        self._rows.append(Row(at, self._now))
        self._last_two = {}
        while len(self._rows) > 2 and self._rows[1].at <= at - self.keep_seconds:
            del self._rows[0]
        return Restarts(reset, process)

    def _forget(self, reset: frozenset[Engine | None], values: list[float | None]) -> None:
        """A series that is missing where its owner began again will begin at zero when it comes."""
        for position in (*self._slots.counters, *self._slots.sums) if reset else ():
            known = not math.isnan(self._raw[position])
            if known and values[position] is None and self._layout.slots[position].owner in reset:
                self._raw[position] = 0.0

    def _take_gauges(self, values: list[float | None]) -> None:
        for position, most in self._slots.gauges:
            value = values[position]
            if value is not None and 0 <= value <= most:
                self._now[position] = self._raw[position] = value

    def _count(self, values: list[float | None], reset: frozenset[Engine | None]) -> None:
        """Counters, and the counts of histograms. What is new on a known engine began at zero after the last scrape.

        Unless series of that engine were dropped: then it may be one of them, and counts from where it stands.
        """
        raw, totals, now, slots, known = self._raw, self._totals, self._now, self._layout.slots, self._known
        known = known - self._forgetful
        for position in self._slots.counters:
            value = values[position]
            if value is None or not 0 <= value < LARGEST:
                continue
            last = raw[position]
            if reset and slots[position].owner in reset:
                totals[position] += value
                raw[position] = value
            elif value > last:
                totals[position] += value - last
                raw[position] = value
            elif math.isnan(last):
                totals[position] += value if slots[position].owner in known else 0.0
                raw[position] = value
            now[position] = totals[position]

    def _sum_up(self, values: list[float | None], reset: frozenset[Engine | None]) -> None:
        """Sums of observations. A fall without a reset is vLLM's poisoned sum: go on from the lower value."""
        raw, totals, slots = self._raw, self._totals, self._layout.slots
        for position in self._slots.sums:
            value = values[position]
            if value is None or not -LARGEST < value < LARGEST:
                continue
            owner = slots[position].owner
            base = 0.0 if owner in reset else raw[position]
            if math.isnan(base):
                base = 0.0 if owner in self._known - self._forgetful else value
            totals[position] += max(0.0, value - base)
            raw[position] = value
            self._now[position] = totals[position]

    def _process_began_again(self, values: list[float | None]) -> bool | None:
        position = self._layout.target.get(PROCESS_START)
        started = None if position is None else values[position]
        if position is None or started is None or not 0 <= started < LARGEST:
            return None
        last = self._raw[position]
        return not math.isnan(last) and started != last

    def _fell(self, owner: Engine | None, values: list[float | None]) -> bool:
        """Two core counters fell together, or one below half. A smaller dip is held until it is passed."""
        fell = 0
        for position in self._slots.core[owner]:
            value, last = values[position], self._raw[position]
            if value is not None and 0 <= value < last:
                fell += 1
                if value < last / 2:
                    return True
        return fell >= 2

    def put(self, owner: Engine | None, column: Column, value: float) -> None:
        """A column of our own in the last row, such as arrivals."""
        position = self._layout.slot(owner, column)
        if position >= len(self._now):
            self._grow()
            self._now.extend([ABSENT] * (len(self._totals) - len(self._now)))
        self._now[position] = self._totals[position] = value

    def standing(self, owner: Engine | None, series: str) -> Iterator[tuple[tuple[str, ...], float, bool]]:
        """A labelled counter: labels, running total also of what is not there now, and whether it is there."""
        for labels, slot in self._layout.columns(owner).labelled(series):
            if slot < len(self._totals):
                yield labels, self._totals[slot], slot < len(self._now) and not math.isnan(self._now[slot])

    def total(self, owner: Engine | None, column: Column) -> float | None:
        """A counter's running total, also when it is not there now; None before it was."""
        slot = self._layout.columns(owner).get(column)
        return None if slot is None or slot >= len(self._totals) or math.isnan(self._raw[slot]) else self._totals[slot]

    def last_two(self, owner: Engine | None) -> Window:
        """From the scrape before to the last one; only the last one after the first. There must have been one."""
        if owner not in self._last_two:
            self._last_two[owner] = Window(self._rows[-2:], self._layout.columns(owner), self._born)
        return self._last_two[owner]

    def window(self, owner: Engine | None, seconds: float, at: float) -> Window | None:
        """The last so many seconds before a time, as near as scrapes allow; None before the first scrape."""
        rows = self._rows
        if not rows:
            return None
        aim = at - seconds
        after = min(bisect_left(rows, aim, key=lambda row: row.at), len(rows) - 1)
        baseline = after - 1 if after and aim - rows[after - 1].at < rows[after].at - aim else after
        return Window(rows[baseline:], self._layout.columns(owner), self._born)

    def _compare_edges(self, values: list[float | None], reset: frozenset[Engine | None]) -> None:
        """Begin a histogram anew where its edges changed, as they may at a restart.

        A bucket that is missing changes nothing as long as the process lives: its line was lost.
        """
        for key, buckets in self._slots.buckets.items():
            if key[0] in reset:
                self._began_again.add(key)
            here = frozenset(slot for slot in buckets if (value := values[slot]) is not None and 0 <= value < LARGEST)
            if not here:
                continue
            edges = self._edges.setdefault(key, here)
            if not here <= edges or (key in self._began_again and here != edges):
                self._begin_anew(buckets)
                self._edges[key] = here
                if key[0] not in reset:
                    for slot in here:
                        self._raw[slot] = values[slot] or 0.0
            self._began_again.discard(key)

    def _begin_anew(self, buckets: Iterable[int]) -> None:
        """What was counted at other edges cannot be compared with what comes now: no window reaches back over this."""
        for slot in buckets:
            self._totals[slot], self._raw[slot], self._born[slot] = 0.0, ABSENT, -math.inf
            for row in self._rows:
                if slot < len(row.numbers):
                    row.numbers[slot] = ABSENT

    def keep(self, kept: list[int]) -> None:
        """Go on with these slots, renumbered from 0, before the layout does so. What was handed out stays as it was."""
        new = {slot: position for position, slot in enumerate(kept)}
        for key, edges in list(self._edges.items()):
            if not edges <= new.keys():
                self._begin_anew(edges)
                del self._edges[key]
            else:
                self._edges[key] = frozenset(new[slot] for slot in edges)
        owners = {self._layout.slots[slot].owner for slot in kept}
        dropped = {slot.owner for position, slot in enumerate(self._layout.slots) if position not in new}
        self._forgetful = (self._forgetful | dropped) & owners
        self._began_again = {key for key in self._began_again if key in self._edges}
        runs = _runs(kept)
        self._raw, self._born = list(_of_runs(self._raw, runs)), list(_of_runs(self._born, runs))
        self._totals, self._now = _of_runs(self._totals, runs), _of_runs(self._now, runs)
        self._rows = [Row(row.at, _of_runs(row.numbers, runs)) for row in self._rows]
        self._slots, self._last_two = _Slots(), {}

    def _grow(self) -> None:
        more = len(self._layout.slots) - len(self._totals)
        if more:
            self._raw.extend([ABSENT] * more)
            self._totals.extend([0.0] * more)
            self._born.extend([self._at] * more)


def _runs(kept: list[int]) -> list[slice]:
    """Ascending slots as runs without a gap."""
    ends = [position for position in range(1, len(kept)) if kept[position] != kept[position - 1] + 1]
    bounds = zip([0, *ends], [*ends, len(kept)], strict=True)
    return [slice(kept[start], kept[end - 1] + 1) for start, end in bounds]


def _of_runs(numbers: Sequence[float], runs: list[slice]) -> "array[float]":
    """The numbers in those slots; a row may end before."""
    found = array("d")
    for run in runs:
        found.extend(numbers[run])
    return found
