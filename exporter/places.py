"""Which series keep their places in a target's memory when places run out: those gone longest give theirs up.

A series that is there is never dropped, nor what tells of an engine that is there: only series that its labels tell
apart, of which there may be any number over time, and engines that are gone, each as a whole.
"""

from exporter.snapshot import MAX_ENGINES, Engine, Layout, Slot, Snapshot
from exporter.upstream import SERIES

FILLED_AFTER = 0.75
"""How full places are once some were given up: it costs a copy of the history, and not with every new series."""


class Places:
    """The series of one target that are gone, in the order in which they went.

    Args:
        layout: the target's.
        max_series: how many places there are.
    """

    def __init__(self, layout: Layout, max_series: int) -> None:
        self._layout = layout
        self._max_series = max_series
        self._gone: dict[int, None] = {}

    def observe(self, snapshot: Snapshot) -> set[int]:
        """Take in which series a good scrape has; returns the slots to give up, mostly none."""
        if not snapshot.same_series:
            for slot in range(len(self._layout.slots)):
                if snapshot.value(slot) is None:
                    self._gone.setdefault(slot)
                else:
                    self._gone.pop(slot, None)
        return self._given_up()

    def keep(self, kept: list[int]) -> None:
        """Go on with these slots, renumbered from 0."""
        new = {slot: position for position, slot in enumerate(kept)}
        self._gone = {new[slot]: None for slot in self._gone if slot in new}

    def _given_up(self) -> set[int]:
        places, engines = len(self._layout.slots), len(self._layout.engines)
        if places <= self._max_series and engines <= MAX_ENGINES:
            return set()
        most_places = places if places <= self._max_series else int(FILLED_AFTER * self._max_series)
        most_engines = engines if engines <= MAX_ENGINES else int(FILLED_AFTER * MAX_ENGINES)
        given_up: set[int] = set()
        for unit in self._units():
            if places - len(given_up) <= most_places and (engines <= most_engines or isinstance(unit, int)):
                continue
            if isinstance(unit, int):
                given_up.add(unit)
            else:
                given_up.update(self._layout.engines[unit].values())
                engines -= 1
        return given_up

    def _units(self) -> dict[Engine | int, None]:
        """What can be given up, gone longest first: engines, which went with their last series, and single slots."""
        here = {
            owner
            for owner, columns in self._layout.engines.items()
            if any(slot not in self._gone for slot in columns.values())
        }
        found: dict[Engine | int, None] = {}
        for position in self._gone:
            slot = self._layout.slots[position]
            if slot.owner is None or slot.owner in here:
                if _told_apart_by_labels(slot):
                    found[position] = None
            else:
                found.pop(slot.owner, None)
                found[slot.owner] = None
        return found


def _told_apart_by_labels(slot: Slot) -> bool:
    """Whether an engine may have any number of such series. What we add ourselves is bounded by us."""
    return bool(slot.column.labels) and slot.column.series in SERIES
