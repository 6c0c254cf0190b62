"""Latency: quantiles that say when they are only bounds, and which part of it is the queue, the prefill, the batch."""

from exporter.signals import histogram
from exporter.signals.histogram import Histogram, Quantile
from exporter.signals.preemption import PREEMPTED_RATIO, per_arrival_in
from exporter.signals.slo import share_missed
from exporter.signals.view import EngineView, Labelled, Value
from exporter.signals.window import divide
from exporter.upstream import Part

LATENCIES = ("ttft", "itl", "tpot", "e2e")


def ttft_histogram(view: EngineView) -> Histogram | None:
    """Time to first token per request, queue and prefill included (from vllm:time_to_first_token_seconds)."""
    return histogram.totals(view.now, "ttft")


def itl_histogram(view: EngineView) -> Histogram | None:
    """Gap between two outputs of a request, per step (from vllm:inter_token_latency_seconds)."""
    return histogram.totals(view.now, "itl")


def tpot_histogram(view: EngineView) -> Histogram | None:
    """Time per output token, per finished request (from vllm:request_time_per_output_token_seconds)."""
    return histogram.totals(view.now, "tpot")


def e2e_histogram(view: EngineView) -> Histogram | None:
    """Arrival to last token, per finished request (from vllm:e2e_request_latency_seconds)."""
    return histogram.totals(view.now, "e2e")


def quantiles(view: EngineView) -> Labelled:
    """Quantile of a latency over a window, interpolated as PromQL does."""
    return {key: found.value for key, found in _quantiles(view).items()}


def bounded(view: EngineView) -> Labelled:
    """1 where the quantile is only a bound: an upper one in the first bucket, a lower one above the last edge."""
    return {key: 1.0 for key, found in _quantiles(view).items() if found.bounded}


def _quantiles(view: EngineView) -> dict[tuple[str, ...], Quantile]:
    found: dict[tuple[str, ...], Quantile] = {}
    for name, window in view.windows.items():
        for latency in LATENCIES:
            observed = histogram.increases(window, latency)
            for q in view.options.quantiles if observed else ():
                quantile = observed.quantile(q) if observed else None
                if quantile is not None:
                    found[latency, f"{q:g}", name] = quantile
    return found


def queue_seconds(view: EngineView) -> Value:
    """The queue's part of the mean time to first token: mean waiting over first tokens per second."""
    return divide(view.now.mean_level("waiting"), view.now.rate("ttft", part=Part.COUNT))


def mean_prefill_seconds(view: EngineView) -> Value:
    """The rest of the mean time to first token. Absent while those who still wait outweigh those who were served."""
    observed, queue = histogram.increases(view.now, "ttft"), queue_seconds(view)
    if observed is None or observed.mean is None or queue is None:
        return None
    return observed.mean - queue if observed.mean > queue else None


def cause(view: EngineView) -> Labelled:
    """1 for each cause of latency past its objective: queue or prefill (TTFT), batch (ITL), preemption (both)."""
    budget = 1.0 - view.config.slo.objective_ratio
    ttft = share_missed(view.now, "ttft", view.config.slo.ttft_seconds)
    itl = share_missed(view.now, "itl", view.config.slo.itl_seconds)
    late, slow = ttft is not None and ttft > budget, itl is not None and itl > budget
    thrashing = late and slow and (per_arrival_in(view.now) or 0.0) > PREEMPTED_RATIO
    queue, prefill = queue_seconds(view), mean_prefill_seconds(view)
    found: dict[tuple[str, ...], Value] = {}
    if ttft is not None and queue is not None:
        queued = prefill is None or queue >= prefill
        found["queue",] = float(late and queued)
        found["prefill",] = float(late and not queued)
    if itl is not None:
        found["batch",] = float(slow and not thrashing)
    if ttft is not None and itl is not None:
        found["preemption",] = float(thrashing)
    return found
