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
        if (threshold := threshold_of(view, slo)) is not None
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


def goodput(view: EngineView) -> Labelled:
    """Share of requests that meet the objectives for TTFT and for TPOT, as bounds: which request met which is not in
    the metrics, and a threshold between two bucket edges counts by the lower one for the lower bound and by the upper
    one for the upper. Absent without requests in the window or without either objective.
    """
    found: dict[tuple[str, ...], Value] = {}
    for name, window in view.windows.items():
        shares = [
            _share_met(window, slo, threshold)
            for slo in ("ttft", "tpot")
            if (threshold := threshold_of(view, slo)) is not None
        ]
        known = [share for share in shares if share is not None]
        if known and len(known) == len(shares):
            misses_at_most = sum(1.0 - lower for lower, _ in known)
            found["lower", name] = max(0.0, 1.0 - misses_at_most)
            found["upper", name] = min(upper for _, upper in known)
    return found


def _share_met(window: Window, series: str, threshold: float) -> tuple[float, float] | None:
    """Least and greatest share of a window's observations that can be at or below a threshold."""
    observed = histogram.increases(window, series)
    if observed is None or observed.count <= 0:
        return None
    below = observed.edge_at_or_below(threshold)
    above = next(edge for edge in observed.edges if edge >= threshold * (1 - 1e-9))
    least = 0.0 if below is None else observed.at_most(below)
    return least / observed.count, observed.at_most(above) / observed.count


def _judged(view: EngineView) -> Iterator[tuple[str, float, Histogram]]:
    for slo in OBJECTIVES:
        threshold, observed = threshold_of(view, slo), histogram.totals(view.now, slo)
        edge = None if observed is None or threshold is None else observed.edge_at_or_below(threshold)
        if observed is not None and edge is not None:
            yield slo, edge, observed


def threshold_of(view: EngineView, slo: str) -> float | None:
    """The threshold set for an objective; None where it is switched off."""
    thresholds = view.config.slo
    return {"ttft": thresholds.ttft_seconds, "tpot": thresholds.tpot_seconds, "itl": thresholds.itl_seconds}[slo]
