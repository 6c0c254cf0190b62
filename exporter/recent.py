"""The last ten minutes of what the page draws, in memory: a fixed list of numbers an engine every few seconds."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from exporter.signals import cost, decode, engine, histogram, kv_cache, preemption, queue, speculation
from exporter.signals.view import EngineView, Labelled, TargetView, Value

STEP_SECONDS = 5.0
KEPT_SECONDS = 600.0
POINTS = int(KEPT_SECONDS / STEP_SECONDS)
"""120 points of 13 numbers: under 100 kB an engine."""
MAX_ENGINES = 5_000

Key = tuple[str, str, str]
"""Target, model name, engine."""


def key_of(target: TargetView, one: EngineView | None) -> Key:
    """How an engine is told from the others; one that has shown none yet has no name."""
    return (target.label, "", "") if one is None else (target.label, one.engine.model_name, one.engine.engine)


def _in_first_window(found: Labelled, *labels: str) -> Value:
    """The value under these labels in the first window listed."""
    return next((value for key, value in found.items() if key[: len(labels)] == labels), None)


def _quantile(name: str) -> Callable[[TargetView, EngineView], Value]:
    def highest(_: TargetView, one: EngineView) -> Value:
        for window in one.windows.values() if one.options.quantiles else ():
            observed = histogram.increases(window, name)
            found = None if observed is None else observed.quantile(max(one.options.quantiles))
            if found is not None:
                return found.value
        return None

    return highest


def _dollars(target: TargetView, _: EngineView) -> Value:
    return _in_first_window(cost.per_million_tokens(target), "output", "output")


def _busy_dollars(target: TargetView, _: EngineView) -> Value:
    return _in_first_window(cost.busy_per_million_tokens(target), "output", "output")


SERIES: dict[str, Callable[[TargetView, EngineView], Value]] = {
    "decode_batch_size": lambda _, one: decode.batch_size(one),
    "running_requests": lambda _, one: engine.running(one),
    "prefilling_requests": lambda _, one: decode.prefilling(one),
    "waiting_requests": lambda _, one: one.now.last("waiting"),
    "kv_usage_ratio": lambda _, one: kv_cache.usage(one),
    "preemptions_per_arrival": lambda _, one: _in_first_window(preemption.per_arrival(one)),
    "predicted_ttft_seconds": lambda _, one: queue.predicted_ttft(one),
    "ttft_seconds": _quantile("ttft"),
    "itl_seconds": _quantile("itl"),
    "cost_dollars_per_million_tokens": _dollars,
    "busy_cost_dollars_per_million_tokens": _busy_dollars,
    "warmness_ratio": lambda _, one: kv_cache.warmness(one),
    "speculation_advised": lambda _, one: speculation.advised(one),
}
"""What is kept. Latencies are of the highest quantile set, over the first window."""


@dataclass(frozen=True, slots=True)
class Point:
    """One instant: unix seconds, and the numbers in the order of ``SERIES``."""

    unix_seconds: float
    numbers: tuple[Value, ...]


class Recent:
    """The points of every engine, the oldest dropped first."""

    def __init__(self) -> None:
        self._points: dict[Key, deque[Point]] = {}

    def add(self, target: TargetView, unix_seconds: float) -> None:
        """Keep what a target's engines show now. One that is silent or asleep shows nothing: a gap."""
        for one in target.engines:
            points = self._points.setdefault(key_of(target, one), deque(maxlen=POINTS))
            if points and points[-1].unix_seconds > unix_seconds:  # the clock was set back: those are of no time now
                points.clear()
            known = one.fresh and bool(target.up)
            numbers = tuple(read(target, one) if known else None for read in SERIES.values())
            points.append(Point(unix_seconds, numbers))

    def forget(self, unix_seconds: float) -> None:
        """Drop what is too old, and engines of which nothing is left; bounded whatever names come."""
        for key, points in list(self._points.items()):
            while points and points[0].unix_seconds < unix_seconds - KEPT_SECONDS:
                points.popleft()
            if not points:
                del self._points[key]
        for key in list(self._points)[: max(0, len(self._points) - MAX_ENGINES)]:
            del self._points[key]

    def of(self, key: Key, since: float = 0.0) -> list[Point]:
        """An engine's points after a time, oldest first."""
        return [point for point in self._points.get(key, ()) if point.unix_seconds > since]


def columns(points: Iterable[Point]) -> dict[str, list[Value]]:
    """Points as one list a series."""
    rows = list(points)
    found: dict[str, list[Value]] = {"unix_seconds": [point.unix_seconds for point in rows]}
    for position, name in enumerate(SERIES):
        found[name] = [point.numbers[position] for point in rows]
    return found
