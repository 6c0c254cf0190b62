"""The decode batch, which ``num_requests_running`` is not: that counts prefills too, and only at the scrape."""

from exporter.schema import TargetConfig
from exporter.signals import histogram
from exporter.signals.histogram import Histogram
from exporter.signals.step import steps_in
from exporter.signals.view import EngineView, Labelled, Value
from exporter.signals.window import Window, divide
from exporter.upstream import Part

PER_STEP, PER_SECOND = "per_step", "per_second"
FEW = 10
"""Fewer finished requests than these do not make a mean."""


def estimator(config: TargetConfig, *, several_api_servers: bool) -> str:
    """Which estimator holds. Several API servers each count a step, a pipeline one a micro-batch: then Little's law."""
    return PER_SECOND if several_api_servers or config.pipeline_parallel_size > 1 else PER_STEP


def batch_in(window: Window, by: str) -> Value:
    """The decode batch over a window by an estimator; None without time, or steps, in it."""
    if by == PER_SECOND:
        return window.rate("itl", part=Part.SUM) if steps_in(window) else None
    return divide(window.increase("itl", part=Part.COUNT), steps_in(window))


def batch_size(view: EngineView) -> Value:
    """Sequences in decode per output-producing step; where decode_batch_estimator_info says per_second, their
    mean over time. Absent where nothing decodes.
    """
    if not view.now.last("itl", part=Part.COUNT) and not view.now.increase("itl", part=Part.COUNT):
        return None
    return batch_in(view.now, _estimator(view))


def estimator_info(view: EngineView) -> Labelled:
    """Estimator behind decode_batch_size: per_step, or per_second with several API servers or a pipeline."""
    return {(_estimator(view),): 1.0 if batch_size(view) is not None else None}


def occupancy(view: EngineView) -> Value:
    """Requests between first and last token, preempted ones included: Little's law on inter-token latency."""
    return view.now.rate("itl", part=Part.SUM)


def prefilling(view: EngineView) -> Value:
    """Requests in prefill: mean prefill time x first tokens per second. The mean is that of requests which finished
    lately, or in 5 minutes where those are few. Preempted requests that compute their prompt again are not in it.
    """
    rate = view.now.rate("ttft", part=Part.COUNT)
    if rate == 0:
        return 0.0
    times = histogram.increases(view.now, "prefill_time")
    if times is None or times.count < FEW:
        times = histogram.increases(view.long, "prefill_time")
    first_tokens = histogram.totals(view.now, "ttft")
    if times is None or times.mean is None or rate is None or first_tokens is None:
        return None
    return times.mean * rate if _can_be(times, first_tokens) else None


def _can_be(prefills: Histogram, first_tokens: Histogram) -> bool:
    """Whether no prefill took longer than the longest time to a first token, nor past the last finite edge: vLLM can
    report the host's uptime as a prefill time.
    """
    buckets = zip(first_tokens.edges, first_tokens.counts, strict=True)
    longest = next(edge for edge, count in buckets if count >= first_tokens.count)
    edge = next(edge for edge in prefills.edges if edge >= min(longest, prefills.edges[-2]))
    return prefills.at_most(edge) >= prefills.count


def _estimator(view: EngineView) -> str:
    return estimator(view.config, several_api_servers=view.several_api_servers)
