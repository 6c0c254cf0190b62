"""Which side of the roofline the steps are on: positions against the crossover, utilisation against the peaks."""

from exporter.hardware import Roofline
from exporter.signals.kv_cache import resident_tokens
from exporter.signals.step import positions_in, steps_in
from exporter.signals.view import EngineView, Labelled, Value
from exporter.signals.window import Window, divide


def positions_per_second(view: EngineView) -> Value:
    """Positions computed per second: prompt tokens, decode sequences and drafted tokens. Absent before a window is
    covered.
    """
    return divide(positions_in(view.now), view.now.seconds)


def capacity(view: EngineView) -> Value:
    """Positions per second at the compute ceiling: GPUs x peak x MFU / (2 x active parameters). Absent without
    hardware and model in the settings.
    """
    return None if view.roofline is None else view.roofline.positions_per_second


def ceilings(view: EngineView) -> Labelled:
    """Share of the peak that the engine reaches at best, by resource (compute, bandwidth) and source: configured,
    calibrated (best seen: bandwidth on small steps, compute on large ones; needs --enable-mfu-metrics) or default.
    Absent without hardware and model in the settings.
    """
    return {(resource, source): value for resource, (value, source) in view.ceilings.items()}


def crossover_positions(view: EngineView) -> Value:
    """Positions of a step whose compute takes as long as reading the weights: fewer are memory-bound. From ceilings,
    never from the moment's utilisation. Absent without hardware and model in the settings.
    """
    return None if view.roofline is None else view.roofline.crossover_positions


def crossover_ratio(view: EngineView) -> Value:
    """Positions per step over crossover_positions: below 1 the steps are memory-bound. Absent without hardware and
    model in the settings, without steps, and with several API servers.
    """
    return None if view.several_api_servers else divide(positions_per_step(view.now), crossover_positions(view))


def positions_per_step(window: Window) -> Value:
    """All positions over all steps; wrong with several API servers, which count a step each."""
    return divide(positions_in(window), steps_in(window))


def flops_utilization(window: Window, roofline: Roofline) -> Value:
    """Estimated FLOPs per second and GPU over the peak; None where vLLM does not count them."""
    return _utilization(window, roofline.peak_flops / roofline.gpus, "flops_per_gpu")


def bandwidth_utilization(window: Window, roofline: Roofline) -> Value:
    """Estimated bytes read and written per second and GPU over the peak; None where vLLM does not count them."""
    bandwidth = roofline.hardware.bandwidth_bytes_per_second
    return _utilization(window, bandwidth, "read_bytes_per_gpu", "write_bytes_per_gpu")


def _utilization(window: Window, peak: float, *counters: str) -> Value:
    if not any(window.last(counter) for counter in counters):
        return None  # never moved: vLLM runs without --enable-mfu-metrics
    increases = [window.increase(counter) for counter in counters]
    known = [increase for increase in increases if increase is not None]
    return divide(sum(known), window.seconds * peak) if len(known) == len(increases) else None


def model_flops_utilization(view: EngineView) -> Value:
    """Estimated FLOPs per second over the peak, now: a utilisation, not a ceiling (from
    vllm:estimated_flops_per_gpu). Absent without --enable-mfu-metrics or without hardware and model in the settings.
    """
    return None if view.roofline is None else flops_utilization(view.now, view.roofline)


def memory_bandwidth_utilization(view: EngineView) -> Value:
    """Estimated bytes read and written per second over the peak, now: a utilisation, not a ceiling (from
    vllm:estimated_read_bytes_per_gpu and write). Absent without --enable-mfu-metrics or without hardware and model in
    the settings.
    """
    return None if view.roofline is None else bandwidth_utilization(view.now, view.roofline)


def kv_read_bytes(view: EngineView) -> Value:
    """KV bytes that a step reads on all GPUs: tokens in use x bytes per token, a block shared by sequences once.
    Absent without a known KV capacity or without the model in the settings.
    """
    tokens = resident_tokens(view)
    if view.roofline is None or tokens is None:
        return None
    model = view.roofline.model
    return tokens * model.kv_bytes_per_token * model.kv_copies(view.roofline.gpus)


def chunk_gap_seconds(view: EngineView) -> Value:
    """Duration of a step with a full chunk of max_num_batched_tokens, which every decode in it waits for; KV reads
    left out. Absent without that setting or without hardware and model.
    """
    budget = view.config.max_num_batched_tokens
    return None if view.roofline is None or budget is None else view.roofline.step_seconds(budget)
