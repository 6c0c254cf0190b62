"""Values to metric families, through the catalogue: the only place where exported series are made."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample

from exporter.catalogue import TABLE, Filled, Metric, Scope, Type
from exporter.signals.histogram import Histogram
from exporter.signals.levels import TimeAtLevel
from exporter.signals.view import EngineView, SelfView, TargetView

TARGET_LABEL = "target"
INFO = "target_info"
BUCKET = "_bucket"


def families(
    sidecar: SelfView,
    targets: Sequence[TargetView],
    disabled_groups: Iterable[str] = (),
    *,
    several: bool | None = None,
) -> Iterator[Family]:
    """Every family that has a series now, in the catalogue's order.

    Args:
        sidecar: the sidecar itself.
        targets: the targets, at least as far as they are known.
        disabled_groups: groups of metrics to leave out.
        several: whether engine-scoped series carry the target's label; by default with more than one target.
    """
    several = len(targets) > 1 if several is None else several
    left_out = frozenset(disabled_groups)
    for row in TABLE:
        if row.group in left_out:
            continue
        family = Family(row.full_name.removesuffix("_total"), row.help, row.type.value)
        for labels, view in owners(row, sidecar, targets, several=several):
            family.samples.extend(_samples(row, labels, row.fill(view)))
        if family.samples:
            yield family


def owners(
    row: Metric, sidecar: SelfView | None, targets: Sequence[TargetView], *, several: bool
) -> Iterator[tuple[dict[str, str], SelfView | TargetView | EngineView]]:
    """Whose values a row holds: their labels, and what its signal reads."""
    if row.scope is Scope.SELF:
        if sidecar is not None:
            yield {}, sidecar
        return
    for target in targets:
        if row.scope is Scope.TARGET:
            passed = target.config.labels if row.name == INFO else {}
            yield {TARGET_LABEL: target.label, **passed}, target
            continue
        for engine in target.engines:
            if row.type is Type.GAUGE and not engine.fresh:
                continue
            labels = {"model_name": engine.engine.model_name, "engine": engine.engine.engine}
            yield ({TARGET_LABEL: target.label, **labels} if several else labels), engine


def _samples(row: Metric, owner: Mapping[str, str], filled: Filled) -> Iterator[Sample]:
    for suffix, labels, value in points(filled):
        names = label_names(row, suffix)
        yield Sample(row.full_name + suffix, {**owner, **dict(zip(names, labels, strict=True))}, value)


def label_names(row: Metric, suffix: str) -> tuple[str, ...]:
    """The labels of a sample that are its own."""
    if suffix:
        return ("le",) if suffix == BUCKET else ()
    return row.labels


def points(filled: Filled) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """What a signal gave as (suffix of the sample's name, values of the labels that are its own, number)."""
    if filled is None:
        return
    if isinstance(filled, Histogram):
        yield from _buckets(filled.edges, filled.counts, filled.total)
    elif isinstance(filled, TimeAtLevel):
        yield from _buckets((*filled.edges, math.inf), filled.counts, filled.total)
    elif not isinstance(filled, Mapping):
        if math.isfinite(filled):
            yield "", (), filled
    else:
        for labels, value in values(filled).items():
            yield "", labels, value


def _buckets(
    edges: Iterable[float], counts: Iterable[float], total: float | None
) -> Iterator[tuple[str, tuple[str, ...], float]]:
    count = 0.0
    for edge, count in zip(edges, counts, strict=True):
        yield BUCKET, (_le(edge),), count
    yield "_count", (), count
    if total is not None:
        yield "_sum", (), total


@lru_cache(maxsize=256)
def _le(edge: float) -> str:
    return "+Inf" if edge == math.inf else repr(float(edge))


def values(filled: Filled) -> dict[tuple[str, ...], float]:
    """The numbers of a signal that are known, by the row's own labels; a plain number has none."""
    if filled is None or isinstance(filled, Histogram | TimeAtLevel):
        return {}
    numbers = filled if isinstance(filled, Mapping) else {(): filled}
    return {labels: value for labels, value in numbers.items() if value is not None and math.isfinite(value)}


def signals(targets: Sequence[TargetView]) -> list[dict[str, Any]]:
    """The same values as JSON objects, one a target with its engines; null is what is not known.

    Keys are the catalogue's names. Where a metric has labels its value is an object by their values, one level a label.
    Histograms are left out.
    """
    return [_target_object(target) for target in targets]


def _target_object(target: TargetView) -> dict[str, Any]:
    found: dict[str, Any] = {"target": target.label, "age_seconds": target.age_seconds}
    found |= _object(Scope.TARGET, target)
    found["engines"] = [
        {"model_name": engine.engine.model_name, "engine": engine.engine.engine, **_object(Scope.ENGINE, engine)}
        for engine in target.engines
    ]
    return found


def _object(scope: Scope, view: TargetView | EngineView) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for row in TABLE:
        if row.scope is not scope or row.type is Type.HISTOGRAM:
            continue
        stale = isinstance(view, EngineView) and row.type is Type.GAUGE and not view.fresh
        numbers = {} if stale else values(row.fill(view))
        if row.labels:
            tree: dict[str, Any] = {}
            for labels, value in numbers.items():
                branch = tree
                for label in labels[:-1]:
                    branch = branch.setdefault(label, {})
                branch[labels[-1]] = value
            found[row.name] = tree or None
        else:
            found[row.name] = numbers.get(())
    return found
