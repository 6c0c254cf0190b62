"""The `http_*` series that vLLM's instrumentation adds: counted when a response ends, not when a request comes."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from exporter.lab.engine_metrics import add_histogram
from exporter.lab.observations import Histogram

EXCLUDED = frozenset({"/metrics", "/metrics/", "/health", "/load", "/ping", "/version", "/server_info"})
HIGH_RESOLUTION_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0),
    60.0,
)
BUCKETS = (0.1, 0.5, 1.0)
_HELP_SIZE = "Only value of header is respected. Otherwise ignored. No percentile calculated. "
_HELP_SLOW = "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. "
_HELP_FAST = "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. "


class HttpMetrics(Collector):
    """Responses so far. Series of a handler appear with its first response."""

    def __init__(self, *, created: float, multiprocess: bool = False) -> None:
        self._created = None if multiprocess else created
        self._multiprocess = multiprocess
        self._requests: dict[tuple[str, str, str], int] = {}
        self._request_bytes: dict[str, tuple[int, float]] = {}
        self._response_bytes: dict[str, tuple[int, float]] = {}
        self._slow = Histogram(HIGH_RESOLUTION_BUCKETS)
        self._fast: dict[tuple[str, str], Histogram] = {}

    def response_ended(
        self, handler: str, method: str, status: int, *, seconds: float, request_bytes: int, response_bytes: int
    ) -> None:
        """Count one response; sizes are the Content-Length headers, 0 without."""
        if handler in EXCLUDED:
            return
        key = (handler, method, f"{status // 100}xx")
        self._requests[key] = self._requests.get(key, 0) + 1
        for sizes, size in ((self._request_bytes, request_bytes), (self._response_bytes, response_bytes)):
            count, total = sizes.get(handler, (0, 0.0))
            sizes[handler] = (count + 1, total + size)
        self._slow.observe(seconds)
        self._fast.setdefault((handler, method), Histogram(BUCKETS)).observe(seconds)

    def describe(self) -> list[Metric]:
        """Names for the filter."""
        return [] if self._multiprocess else self._families()

    def collect(self) -> Iterator[Metric]:
        """The families; with several API servers only those that have samples."""
        for metric in self._families():
            if metric.samples or not self._multiprocess:
                yield metric

    def _families(self) -> list[Metric]:
        created = self._created
        requests = Metric("http_requests", "Total number of requests by method, status and handler.", "counter")
        for (handler, method, status), count in self._requests.items():
            labels = {"handler": handler, "method": method, "status": status}
            requests.add_sample("http_requests_total", labels, count)
            if created is not None:
                requests.add_sample("http_requests_created", labels, created)
        sizes = []
        for way, name, found in (
            ("incoming requests", "http_request_size_bytes", self._request_bytes),
            ("outgoing responses", "http_response_size_bytes", self._response_bytes),
        ):
            metric = Metric(name, f"Content length of {way} by handler. {_HELP_SIZE}", "summary")
            for handler, (count, total) in found.items():
                metric.add_sample(f"{name}_count", {"handler": handler}, count)
                metric.add_sample(f"{name}_sum", {"handler": handler}, total)
                if created is not None:
                    metric.add_sample(f"{name}_created", {"handler": handler}, created)
            sizes.append(metric)
        slow = Metric("http_request_duration_highr_seconds", _HELP_SLOW, "histogram")
        add_histogram(slow, self._slow, {}, created)
        fast = Metric("http_request_duration_seconds", _HELP_FAST, "histogram")
        for (handler, method), histogram in self._fast.items():
            add_histogram(fast, histogram, {"handler": handler, "method": method}, created)
        return [requests, *sizes, slow, fast]
