"""Preemptions: the capacity fault that shows long before a percentile does."""

from exporter.signals.view import EngineView, Labelled, Value
from exporter.signals.window import Window, divide

PREEMPTED_RATIO = 0.01
"""Preemptions per arrival from which capacity is the matter."""


def per_arrival(view: EngineView) -> Labelled:
    """Preemptions over arrivals. Events, so it can exceed 1; absent without arrivals."""
    return {(name,): per_arrival_in(window) for name, window in view.windows.items()}


def per_arrival_in(window: Window) -> Value:
    """The same over one window."""
    return divide(window.increase("preemptions"), window.increase("arrivals"))
