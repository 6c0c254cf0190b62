"""Bytes of an exposition to a snapshot: exact names only, the whole label grammar, one bad line costs one line.

Reads Prometheus text 0.0.4 and 1.0.0 and OpenMetrics 1.0. Everything before the value is remembered together with the
slot it fills, so that a steady scrape costs one comparison a line and one split and one look-up a line that changed.
"""

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from itertools import compress
from operator import ne
from typing import NamedTuple

from exporter.sample_line import Line, edge_label, number, numbers, parse_line
from exporter.snapshot import MAX_ENGINES, TARGET, Engine, Layout, Snapshot
from exporter.upstream import PREFIXES, SAMPLES, SERIES, Column, Part, Sample


class Reason(Enum):
    """Why a scrape failed, as it is exported."""

    TIMEOUT = "timeout"
    CONNECT = "connect"
    TLS = "tls"
    AUTH = "auth"
    HTTP_STATUS = "http_status"
    ENCODING = "encoding"
    TOO_LARGE = "too_large"
    PARSE = "parse"
    EMPTY = "empty"
    NO_SERIES = "no_series"


class Failure(NamedTuple):
    """A failed scrape: the reason that is counted and a line for the log."""

    reason: Reason
    detail: str


class Scraped(NamedTuple):
    """A body that arrived whole, decompressed, and how long it took to come."""

    body: bytes
    openmetrics: bool
    seconds: float


MAX_NAME_CHARACTERS = 1_024
LARGE_BYTES, LARGE_LINES = 2**20, 10_000
"""A body with more is condensed first, aside."""
LINES_A_SERIES = 10
"""An engine has more series than we read, but not that many times more."""
LONGEST_LINE_BYTES = 2**16
PIECE_BYTES = 2**16
_OUR_STARTS = tuple(name.encode() for name in (*PREFIXES, *{row.name for row in SERIES.values() if not row.prefixed}))


def is_large(body: bytes) -> bool:
    """Whether reading a body would hold up the event loop."""
    return len(body) > LARGE_BYTES or body.count(b"\n") > LARGE_LINES


def condense(body: bytes, max_series: int) -> bytes | Failure:
    """The lines of a large body that may be ours, and how it ends. An overlong line becomes a malformed one.

    Knows no slots and changes nothing, so it can run beside the event loop.
    """
    if body.count(b"\n") > LINES_A_SERIES * max_series:
        return Failure(Reason.TOO_LARGE, f"more than {LINES_A_SERIES * max_series} lines")
    end = body.rfind(b"\n", 0, max(0, body.rfind(b"\n"))) + 1
    kept: list[bytes] = []
    for piece in _pieces(body, end):
        kept += [line[:LONGEST_LINE_BYTES] for line in piece.split(b"\n") if line.startswith(_OUR_STARTS)]
        if len(kept) > 2 * max_series:
            return Failure(Reason.TOO_LARGE, f"more than {2 * max_series} lines of ours")
    # Without any: some lines, so that the parser can tell what it is instead; always the end, which tells a cut.
    some = kept or body[: min(end, LONGEST_LINE_BYTES)].splitlines()[:10]
    return b"\n".join([*some, *(line[:LONGEST_LINE_BYTES] for line in body[end:].split(b"\n"))])


def _pieces(body: bytes, end: int) -> Iterator[bytes]:
    """What stands before a line's end, some lines at a time: all lines at once, each an object, would take more than
    twice its room and leave it in shreds.
    """
    at = 0
    while at < end:
        after = 1 + (body.rfind(b"\n", at, at + PIECE_BYTES) if end > at + PIECE_BYTES else end - 1)
        after = after or body.index(b"\n", at) + 1  # a line longer than a piece
        yield body[at:after]
        at = after


def _good_heads(lines: list[bytes]) -> Iterator[bytes]:
    """What stands before the numbers of lines that end in one."""
    for line in lines:
        head, space, text = line.rpartition(b" ")
        if number(text) is not None:
            yield head + space


_IGNORED = -1
_COMMENT = -2
_BAD = -3
_OTHERS = -4


class Parser:
    """Reads the bodies of one target, one after the other, into slots of one layout.

    What it remembers is of the last good body. One refused for its size leaves only what is needed to tell it again
    without reading it, and nothing in the layout.

    Args:
        layout: the target's; slots are added as series appear.
        engines: the values of the ``engine`` label to keep, compared whole; empty keeps all.
        max_series: how many series of ours a body may have.
    """

    def __init__(self, layout: Layout, engines: frozenset[str] = frozenset(), max_series: int = 20_000) -> None:
        self._layout = layout
        self._engines = engines
        self._max_series = max_series
        self._known: dict[bytes, int] = {}
        self._rank: dict[int, int] = {}
        self._shadowed = self._displaced = False
        self._too_many: frozenset[bytes] = frozenset()
        self._last_lines: list[bytes] = []
        self._last_heads: list[bytes] = []
        self._last_slots: list[int] = []
        self._last = Snapshot([])

    def parse(self, body: bytes, *, openmetrics: bool = False) -> Snapshot | Failure:
        """A snapshot, or why the body as a whole cannot be used. Never raises.

        A body that does not end where an exposition ends was cut off: all of it is refused, since which series are
        missing cannot be known.
        """
        if not body or body.isspace():
            return Failure(Reason.EMPTY, "the body is empty")
        if openmetrics and not body.rstrip().endswith(b"# EOF"):
            return Failure(Reason.PARSE, "the body is cut off: no # EOF")
        if not openmetrics and not body.endswith(b"\n"):
            return Failure(Reason.PARSE, "the body is cut off inside a line")
        lines = body.split(b"\n")
        return self._changed(lines) or self._whole(lines)

    def keep(self, kept: list[int]) -> Snapshot:
        """The last snapshot in these slots, among them all of its own, renumbered from 0."""
        new = {slot: position for position, slot in enumerate(kept)}
        # The series of a malformed line has no value, so its place may be another's now.
        self._known = {head: new.get(slot, slot) for head, slot in self._known.items() if slot < 0 or slot in new}
        self._rank = {new[slot]: rank for slot, rank in self._rank.items() if slot in new}
        self._last_slots = [new.get(slot, slot) for slot in self._last_slots]
        self._last = replace(self._last, values=[self._last.value(slot) for slot in kept])
        return self._last

    def _changed(self, lines: list[bytes]) -> Snapshot | None:
        """The last snapshot with the changed lines' values, if each line is still the series it was; else None.

        From one scrape to the next most lines do not change a byte, so comparing is cheaper than reading.
        """
        last = self._last_lines
        if len(lines) != len(last) or self._last.bad_lines:
            return None
        changed = list(compress(range(len(lines)), map(ne, last, lines)))
        now = [lines[position] for position in changed]
        heads = [self._last_heads[position] for position in changed]
        if not all(map(bytes.startswith, now, heads)):
            return None
        found = numbers(list(map(bytes.removeprefix, now, heads)))
        if found is None:
            return None
        values = self._last.values.copy()
        for position, value in zip(changed, found, strict=True):
            slot = self._last_slots[position]
            if slot >= 0:
                values[slot] = value
        self._last_lines = lines
        self._last = replace(self._last, values=values, same_series=True)
        return self._last

    def _whole(self, lines: list[bytes]) -> Snapshot | Failure:
        if self._too_many and self._too_many.issubset(_good_heads(lines)):
            return self._too_large()
        slots = len(self._layout.slots)
        before = self._known.copy(), self._rank.copy(), self._shadowed
        last = self._last_lines, self._last_heads, self._last_slots, self._last
        result = self._in_both_orders(lines)
        if isinstance(result, Failure):
            self._known, self._rank, self._shadowed = before
            self._last_lines, self._last_heads, self._last_slots, self._last = last  # read once, refused when again
            if len(self._layout.slots) > slots:
                self._layout.keep(range(slots))
        return result

    def _in_both_orders(self, lines: list[bytes]) -> Snapshot | Failure:
        result = self._settled(lines)
        if self._shadowed and (isinstance(result, Failure) or any(result.values[slot] is None for slot in self._rank)):
            # A newer name went away, perhaps with a restart into an older version: let the older name in again.
            self._known.clear()
            self._rank.clear()
            self._shadowed = False
            result = self._settled(lines)
        return result

    def _settled(self, lines: list[bytes]) -> Snapshot | Failure:
        """Read, and once more where a newer name came after the older one had taken its place."""
        self._displaced = False
        result = self._fill(lines)
        return self._fill(lines) if self._displaced else result

    def _fill(self, lines: list[bytes]) -> Snapshot | Failure:
        known = self._known
        values: list[float | None] = [None] * len(self._layout.slots)
        heads, slots = [], []
        good = bad = series = 0
        for line in lines:
            head, space, text = line.rpartition(b" ")
            head += space
            heads.append(head)
            slot = known.get(head)
            value = None if slot is None or slot == _COMMENT else number(text)
            if slot is None or (value is None and slot != _COMMENT):
                slot, value = self._read(line, head)
            slots.append(slot)
            if slot == _COMMENT:
                continue
            if value is None:
                bad += 1
                continue
            good += 1
            if slot < 0:
                continue
            if slot >= len(values):
                values.extend([None] * (slot + 1 - len(values)))
            if values[slot] is None:
                values[slot] = value
                series += 1
                if series > self._max_series:
                    found = {
                        head: slot for head, slot in zip(heads, slots, strict=True) if known.get(head) == slot >= 0
                    }
                    self._too_many = frozenset(found if len(set(found.values())) == series else ())
                    return self._too_large()
            else:
                bad += 1  # the same series again: the first one stays, neither is summed nor overwritten
        engines = self._engines_in(values)
        if not engines:  # what a frontend says of itself is no engine
            return self._nothing(good, bad)
        if engines > MAX_ENGINES:
            return Failure(Reason.TOO_LARGE, f"more than {MAX_ENGINES} engines")
        self._known = {head: known[head] for head in heads if head in known}
        self._too_many = frozenset()
        self._last_lines, self._last_slots, self._last = lines, slots, Snapshot(values, bad, others=_OTHERS in slots)
        # What is no head, a line with its break, begins no line: such a one is read anew when it changes.
        self._last_heads = [
            head if self._known.get(head, _COMMENT) != _COMMENT else line + b"\n"
            for head, line in zip(heads, lines, strict=True)
        ]
        return self._last

    def _too_large(self) -> Failure:
        return Failure(Reason.TOO_LARGE, f"more than {self._max_series} series of ours")

    def _engines_in(self, values: list[float | None]) -> int:
        """How many engines have a value."""
        seen = len(values)
        return sum(
            any(slot < seen and values[slot] is not None for slot in columns.values())
            for columns in self._layout.engines.values()
        )

    def _nothing(self, good: int, bad: int) -> Failure:
        if bad and not good:
            return Failure(Reason.PARSE, f"not an exposition: {bad} lines, none of them a sample")
        if self._engines:
            return Failure(Reason.NO_SERIES, f"no series match engine={','.join(sorted(self._engines))}")
        return Failure(Reason.NO_SERIES, f"{good} samples, none of them vLLM's")

    def _read(self, line: bytes, head: bytes) -> tuple[int, float | None]:
        """A line not met before: its slot and value; no value if it is malformed."""
        stripped = line.strip()
        if not stripped or stripped[:1] == b"#":
            if head.strip():
                self._known[head] = _COMMENT
            return _COMMENT, None
        try:
            parsed = parse_line(line.decode())
            slot = self._slot(parsed)
        except ValueError:
            return _BAD, None
        if parsed.plain and line[len(head) :].strip():
            self._known[head] = slot
        return slot, parsed.value

    def _slot(self, line: Line) -> int:
        sample = SAMPLES.get(line.name)
        if sample is None:
            return _IGNORED
        series = sample.series
        owner = TARGET
        if series.scope_engine:
            engine = line.labels.get("engine", "")
            if self._engines and engine not in self._engines:
                return _OTHERS
            if sample.v1_only and not engine:
                return _IGNORED
            # Triton's backend labels the model ``model``.
            owner = Engine(line.labels.get("model_name", line.labels.get("model", "")), engine)
            if len(owner.model_name) + len(engine) > MAX_NAME_CHARACTERS:
                raise ValueError("a name that would stand in each of our series is too long")
        labels = tuple(line.labels.get(name, "") for name in series.labels)
        if sample.part is Part.BUCKET:
            labels = (edge_label(line.labels.get("le", "")),)
        slot = self._layout.slot(owner, Column(series.key, sample.part, labels))
        return self._newest(slot, sample)

    def _newest(self, slot: int, sample: Sample) -> int:
        """Where two names of one series are present, the newer fills the slot and the older is read over."""
        if not sample.series.aliases:
            return slot
        rank = self._rank.get(slot, sample.rank)
        self._rank[slot] = min(rank, sample.rank)
        if sample.rank == rank:
            return slot
        self._shadowed = True
        if sample.rank > rank:
            return _IGNORED
        self._displaced = True
        for head, known in self._known.items():
            if known == slot:
                self._known[head] = _IGNORED
        return slot
