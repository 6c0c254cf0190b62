"""The exposition as text, a target at a time, so that rendering a whole fleet never holds up its scrapes.

What stands before a value hardly changes from one rendering to the next and is kept; prometheus_client writes the head
of each family, and its encoder writes the same bytes for the same samples.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from prometheus_client.core import Metric as Family
from prometheus_client.utils import floatToGoString

from exporter.catalogue import TABLE, Filled, Metric, Scope
from exporter.collect import label_names, owners, points, values
from exporter.signals.histogram import Histogram
from exporter.signals.levels import TimeAtLevel
from exporter.signals.view import SelfView, TargetView

HEADS_A_LINE, SPARE_HEADS = 2, 16
"""Heads kept of one row of one owner, for each of its lines, and on top. Beyond it they are made anew."""

Encode = Callable[[Any], bytes]
"""One of prometheus_client's encoders: a registry to an exposition."""

END = b"# EOF\n"

_number: Callable[[float], str] = floatToGoString


class Lines:
    """The sample lines of one target, or of the sidecar itself, by row of the catalogue.

    Heads are kept from one rendering to the next, of the owners that were in it.
    """

    def __init__(self) -> None:
        self._heads: dict[tuple[str, ...], dict[tuple[object, ...], Any]] = {}
        self._several: bool | None = None

    def of(
        self, sidecar: SelfView | None, targets: Sequence[TargetView], left_out: Collection[str], *, several: bool
    ) -> list[str]:
        """Text by position in the catalogue; empty where there is nothing to say.

        Args:
            sidecar: the sidecar, for its own rows.
            targets: at most one, for a target's rows.
            left_out: groups of metrics to leave out.
            several: whether engine-scoped series carry the target's label.
        """
        before = self._heads if several == self._several else {}
        self._heads, self._several = {}, several
        found = []
        for row in TABLE:
            texts: list[str] = []
            if row.group not in left_out and (row.scope is Scope.SELF) is (sidecar is not None):
                for owner, view in owners(row, sidecar, targets, several=several):
                    key = (row.name, *owner, *owner.values())
                    heads = self._heads[key] = before.get(key, {})
                    texts.extend(_lines(heads, row, owner, row.fill(view)))
            found.append("".join(texts))
        return found


def _lines(heads: dict[tuple[object, ...], Any], row: Metric, owner: dict[str, str], filled: Filled) -> Iterator[str]:
    if isinstance(filled, Histogram | TimeAtLevel):
        yield from _histogram_lines(heads, row, owner, filled)
        return
    numbers = values(filled)
    if len(heads) > HEADS_A_LINE * len(numbers) + SPARE_HEADS:
        heads.clear()
    for labels, value in numbers.items():
        head = heads.get(labels)
        if head is None:
            head = heads[labels] = _head(row.full_name, {**owner, **dict(zip(row.labels, labels, strict=True))})
        yield f"{head} {_number(value)}\n"


def _histogram_lines(
    heads: dict[tuple[object, ...], Any], row: Metric, owner: dict[str, str], filled: Histogram | TimeAtLevel
) -> Iterator[str]:
    counts, total = filled.counts, filled.total
    known = heads.get(filled.edges)
    if known is None:
        heads.clear()
        known = heads[filled.edges] = [
            _head(row.full_name + suffix, {**owner, **dict(zip(label_names(row, suffix), labels, strict=True))})
            for suffix, labels, _ in points(replace(filled, total=0.0))
        ]
    numbers = (*counts, counts[-1]) if total is None else (*counts, counts[-1], total)
    for head, value in zip(known, numbers, strict=False):
        yield f"{head} {_number(value)}\n"


def _head(name: str, labels: dict[str, str]) -> str:
    pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels.items()))
    return f"{name}{{{pairs}}}" if pairs else name


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class _Registry:
    """What an encoder reads."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def exposition(found: Sequence[Sequence[str]], others: Iterable[Family], encode: Encode) -> bytes:
    """A whole exposition.

    Args:
        found: the lines of the sidecar and of each target, by row.
        others: families to put last, such as those of the process.
        encode: the format.
    """
    body = []
    for position, row in enumerate(TABLE):
        texts = [lines[position] for lines in found if lines[position]]
        if texts:
            head = Family(row.full_name.removesuffix("_total"), row.help, row.type.value)
            body.append(encode(_Registry([head])).removesuffix(END).decode())
            body.extend(texts)
    return "".join(body).encode() + encode(_Registry(others))
