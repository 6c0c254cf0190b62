"""How an engine is used over time: seconds at each level of queue, KV usage and decode batch."""

from exporter.signals.levels import TimeAtLevel
from exporter.signals.view import EngineView


def waiting(view: EngineView) -> TimeAtLevel | None:
    """Whole seconds by number of requests waiting."""
    return view.time_at_level.get("waiting")


def kv_usage(view: EngineView) -> TimeAtLevel | None:
    """Whole seconds by share of KV blocks in use."""
    return view.time_at_level.get("kv_usage")


def decode_batch(view: EngineView) -> TimeAtLevel | None:
    """Whole seconds by size of the decode batch."""
    return view.time_at_level.get("decode_batch")
