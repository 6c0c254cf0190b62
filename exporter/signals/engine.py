"""An engine's own life: since when, how often, awake or not, moving or not."""

from exporter.signals.arrivals import Read
from exporter.signals.view import EngineView, Value
from exporter.signals.window import Window


def started(view: EngineView) -> Value:
    """Unix time at which the engine's process began, or was first seen where vLLM does not say."""
    return view.started_unix_seconds


def restarts(view: EngineView) -> Value:
    """Times the engine began again."""
    return float(view.restarts)


def stalled(view: EngineView) -> Value:
    """1 if requests run or wait and no core series has moved for stall_after_seconds, else 0.

    A hang with nothing running or waiting in the gauges cannot be seen.
    """
    return None if view.stalled is None else float(view.stalled)


def awake(view: EngineView) -> Value:
    """1 if awake, 0 if asleep (from vllm:engine_sleep_state)."""
    return view.now.last("sleep_state", "awake")


def running(view: EngineView) -> Value:
    """Requests scheduled, prefilling ones included, at the last scrape (from vllm:num_requests_running)."""
    return view.now.last("running")


def is_asleep(window: Window) -> bool:
    """Whether an engine says it sleeps."""
    return window.last("sleep_state", "awake") == 0.0


def has_work(window: Window, read: Read = Window.last) -> bool:
    """Whether an engine says it has requests running or waiting."""
    return bool(read(window, "running") or read(window, "waiting"))
