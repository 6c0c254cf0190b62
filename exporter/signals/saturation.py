"""How near each of an engine's resources is to its limit; what an autoscaler takes the maximum of."""

from exporter.signals import kv_cache, queue, roofline
from exporter.signals.step import steps_in
from exporter.signals.view import EngineView, Labelled, Value
from exporter.signals.window import divide

CAP = 2.0
"""Past twice the limit more says nothing to an autoscaler, and infinity breaks it."""


def saturation(view: EngineView) -> Labelled:
    """Use of a resource over its limit, capped at 2: kv (usage), compute (positions per second over capacity),
    bandwidth (weights and KV read per second over the bandwidth at its ceiling), queue (predicted TTFT over its
    objective), seats (running over max_num_seqs). Each is absent while its own inputs are not known.
    """
    found = {
        "kv": kv_cache.usage(view),
        "compute": divide(roofline.positions_per_second(view), roofline.capacity(view)),
        "bandwidth": _bandwidth(view),
        "queue": divide(queue.predicted_ttft(view), view.config.slo.ttft_seconds),
        "seats": divide(view.now.last("running"), view.config.max_num_seqs),
    }
    return {(resource,): None if value is None else min(CAP, value) for resource, value in found.items()}


def _bandwidth(view: EngineView) -> Value:
    """Bytes read over what can be: as vLLM counts them, else weights and resident KV once a step."""
    limits, kv_bytes = view.roofline, roofline.kv_read_bytes(view)
    if limits is None:
        return None
    counted = roofline.bandwidth_utilization(view.now, limits)
    if counted is not None:
        return counted / limits.mbu
    if kv_bytes is None or view.several_api_servers:
        return None
    steps = divide(steps_in(view.now), view.now.seconds)
    read = limits.model.weight_bytes + kv_bytes
    return None if steps is None else steps * read / (limits.peak_bandwidth * limits.mbu)
