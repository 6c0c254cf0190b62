"""Service level objectives as counters: events and misses, at a threshold that is a bucket's edge."""

from collections.abc import Iterator

from exporter.signals import histogram
from exporter.signals.histogram import Histogram
from exporter.signals.view import EngineView, Labelled, Value
from exporter.signals.window import Window

OBJECTIVES = ("ttft", "tpot", "itl")


def events(view: EngineView) -> Labelled:
    """Requests (ttft, tpot) or gaps (itl) judged against an objective, at the threshold in force: the nearest
    bucket edge at or below the one set.
    """
    return {(slo, f"{edge:g}"): observed.count for slo, edge, observed in _judged(view)}


def misses(view: EngineView) -> Labelled:
    """Those of slo_events_total that took longer than the threshold."""
    return {(slo, f"{edge:g}"): observed.count - observed.at_most(edge) for slo, edge, observed in _judged(view)}


def objective(view: EngineView) -> Labelled:
    """Share that must meet the threshold."""
    return {(slo,): view.config.slo.objective_ratio for slo, _, _ in _judged(view)}


def unfit(view: EngineView) -> list[str]:
    """Objectives whose threshold lies below the first bucket's edge, so that nothing can be counted."""
    return [
        slo
        for slo in OBJECTIVES
        if (threshold := _threshold(view, slo)) is not None
        and (observed := histogram.totals(view.now, slo)) is not None
        and observed.edge_at_or_below(threshold) is None
    ]


def share_missed(window: Window, series: str, threshold: float | None) -> Value:
    """The share of a window's observations above a threshold, at the edge it snaps to; None without observations."""
    observed = histogram.increases(window, series)
    edge = None if observed is None or threshold is None else observed.edge_at_or_below(threshold)
    if observed is None or edge is None or observed.count <= 0:
        return None
    return 1.0 - observed.at_most(edge) / observed.count


def _judged(view: EngineView) -> Iterator[tuple[str, float, Histogram]]:
    for slo in OBJECTIVES:
        threshold, observed = _threshold(view, slo), histogram.totals(view.now, slo)
        edge = None if observed is None or threshold is None else observed.edge_at_or_below(threshold)
        if observed is not None and edge is not None:
            yield slo, edge, observed


def _threshold(view: EngineView, slo: str) -> float | None:
    thresholds = view.config.slo
    return {"ttft": thresholds.ttft_seconds, "tpot": thresholds.tpot_seconds, "itl": thresholds.itl_seconds}[slo]
