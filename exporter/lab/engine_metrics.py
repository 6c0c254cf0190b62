"""Render engines exactly as vLLM 0.32 exposes them: a collector for prometheus_client over the table of series."""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from exporter.lab.engine import Engine
from exporter.lab.engine_series import ENGINE_SERIES, SPECULATION_SERIES, Series
from exporter.lab.observations import Histogram


def go_float(value: float) -> str:
    """A float as Go prints it, which is how the Python client writes `le`."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def add_histogram(metric: Metric, histogram: Histogram, labels: dict[str, str], created: float | None) -> None:
    """Add the samples of one histogram, cumulative, in the order of the Python client."""
    total = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        total += count
        metric.add_sample(f"{metric.name}_bucket", labels | {"le": go_float(bound)}, total)
    metric.add_sample(f"{metric.name}_count", labels, histogram.count)
    metric.add_sample(f"{metric.name}_sum", labels, histogram.sum)
    if created is not None:
        metric.add_sample(f"{metric.name}_created", labels, created)


class EngineCollector(Collector):
    """The `vllm:` series of the engines behind one port.

    Args:
        engines: of one model or several.
        created: unix seconds for the `_created` series.
        multiprocess: several API servers: no `_created`, no gauges before the first step.
    """

    def __init__(self, engines: Sequence[Engine], *, created: float, multiprocess: bool = False) -> None:
        self.engines = engines
        self.created = created
        self.multiprocess = multiprocess
        self.lost: set[str] = set()
        """Families that are not exposed (a fault), by base name or with a counter's `_total`."""
        self._frozen: dict[str, Metric] | None = None
        speculating = any(engine.profile.speculation for engine in engines)
        self._series = SPECULATION_SERIES + ENGINE_SERIES if speculating else ENGINE_SERIES

    def freeze_gauges(self) -> None:
        """Expose every gauge as it is now (a fault)."""
        self._frozen = None
        self._frozen = {metric.name: metric for metric in self.collect() if metric.type == "gauge"}

    def thaw_gauges(self) -> None:
        """End `freeze_gauges`."""
        self._frozen = None

    def describe(self) -> list[Metric]:
        """Names, so that a filter finds them; vLLM's multiprocess collector gives none, and the filter gets nothing."""
        return [] if self.multiprocess else [Metric(series.name, series.help, series.kind) for series in self._series]

    def collect(self) -> Iterator[Metric]:
        """Every family with a sample, in vLLM's order."""
        for series in self._series:
            if series.name in self.lost or f"{series.name}_total" in self.lost:
                continue
            metric = self._frozen.get(series.name) if self._frozen is not None else None
            yield metric or self._family(series)

    def _family(self, series: Series) -> Metric:
        metric = Metric(series.name, series.help, series.kind)
        created = None if self.multiprocess else self.created
        seen = set()
        for engine in self.engines:
            if series.stepped_only and self.multiprocess and not engine.observations.stepped:
                continue
            labels: dict[str, str] = {}
            if series.engine_label:
                labels["engine"] = str(engine.index)
            if series.model_label:
                labels["model_name"] = engine.model_name
            identity = tuple(labels.values())
            if identity in seen:
                continue
            seen.add(identity)
            self._add(metric, series, engine, labels, created)
        return metric

    @staticmethod
    def _add(metric: Metric, series: Series, engine: Engine, labels: dict[str, str], created: float | None) -> None:
        values = series.read(engine)
        if isinstance(values, Histogram):
            add_histogram(metric, values, labels, created)
            return
        if series.kind == "gauge":
            for further, value in values:
                metric.add_sample(series.name, labels | dict(further), value)
            return
        values = list(values)
        for further, value in values:
            metric.add_sample(f"{series.name}_total", labels | dict(further), value)
        if created is not None:
            for further, _value in values:
                metric.add_sample(f"{series.name}_created", labels | dict(further), created)


class ProcessSamples(Collector):
    """The `process_*` series of this process, started when the simulated server was."""

    def __init__(self, started: float) -> None:
        self.started = started
        """Unix seconds."""
        self._real = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        """The real values but for the start."""
        for metric in self._real.collect():
            if metric.name != "process_start_time_seconds":
                yield metric
                continue
            start = Metric(metric.name, metric.documentation, metric.type)
            start.add_sample(metric.name, {}, self.started)
            yield start

    def describe(self) -> Iterator[Metric]:
        """Names for the filter."""
        return self.collect()


def registry(engines: EngineCollector, http: Collector, started: float) -> CollectorRegistry:
    """What one server exposes, in vLLM's order; several API servers expose neither `process_*` nor `python_*`."""
    found = CollectorRegistry()
    if not engines.multiprocess:
        GCCollector(registry=found)
        PlatformCollector(registry=found)
        found.register(ProcessSamples(started))
    found.register(engines)
    found.register(http)
    return found
