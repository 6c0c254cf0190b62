"""The queue: how deep, why, growing how fast, and what a request that joins it now will wait."""

from exporter.signals.arrivals import Read
from exporter.signals.latency import mean_prefill_seconds
from exporter.signals.view import EngineView, Labelled, Value
from exporter.signals.window import Window, divide

CAPACITY = "capacity"


def waiting_by_reason(view: EngineView) -> Labelled:
    """Requests waiting by reason: capacity, deferred, or unknown before vLLM 0.20 (from
    vllm:num_requests_waiting_by_reason).
    """
    reasons = {labels: view.now.last("waiting_by_reason", *labels) for labels in view.now.labelled("waiting_by_reason")}
    if any(value is not None for value in reasons.values()):
        return reasons
    return {("unknown",): view.now.last("waiting")}


def capacity_waiting(window: Window, read: Read = Window.last) -> Value:
    """Requests that wait for capacity: not those deferred for an adapter, a transfer or a grammar."""
    by_reason = read(window, "waiting_by_reason", CAPACITY)
    return read(window, "waiting") if by_reason is None else by_reason


def growth(view: EngineView) -> Value:
    """Slope of the waiting requests over the last scrapes."""
    return slope(view.now.levels("waiting"))


def slope(points: list[tuple[float, float]]) -> Value:
    """Change per second of a least-squares line through (seconds, value); None for fewer than two instants."""
    if not points:
        return None
    mean_at = sum(at for at, _ in points) / len(points)
    mean_value = sum(value for _, value in points) / len(points)
    spread = sum((at - mean_at) ** 2 for at, _ in points)
    return divide(sum((at - mean_at) * (value - mean_value) for at, value in points), spread)


def service_rate(view: EngineView) -> Value:
    """First tokens per second over the seconds with a queue in the last 60 s; None without a queue in them."""
    return divide(view.minute.increase("queued_first_tokens"), view.minute.increase("queued_seconds"))


def predicted_ttft(view: EngineView) -> Value:
    """Time to first token for a request that joins now: waiting for capacity over the service rate, plus prefill.

    Close at a queue's onset, 15-35 % off later as the rate changes. Absent with a queue that nothing leaves.
    """
    waiting = capacity_waiting(view.now)
    prefill = mean_prefill_seconds(view)
    if waiting == 0:
        return prefill
    queue = divide(waiting, service_rate(view))
    return None if queue is None else queue + (prefill or 0.0)
