"""Preemptions: the capacity fault that shows long before a percentile does."""

from exporter.signals.view import EngineView, Labelled
from exporter.signals.window import divide


def per_arrival(view: EngineView) -> Labelled:
    """Preemptions over arrivals. Events, so it can exceed 1; absent without arrivals."""
    return {
        (name,): divide(window.increase("preemptions"), window.increase("arrivals"))
        for name, window in view.windows.items()
    }
