"""What Grafana does before it draws: fill in the variables, send each panel's queries."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from grafana.panels import Json

ALL = {
    "job": ".+",
    "namespace": ".*",
    "pod": ".*",
    "instance": ".+",
    "target": ".*",
    "model_name": ".*",
    "engine": ".*",
    "window": "1m",
    "replica": "pod",
}
"""The variables' values with nothing chosen."""

SCRAPE_INTERVAL_SECONDS = 15
"""The interval that a data source has in Grafana unless it is set."""

Ask = Callable[[str, bool], list[dict[str, Any]]]
"""(expression, whether for one moment) -> series as Prometheus answers."""


def filled(text: str, chosen: Mapping[str, str], range_seconds: float) -> str:
    """An expression with its variables' values. ``$__rate_interval`` is four scrapes, as Grafana has it."""
    builtin = {"__rate_interval": f"{4 * SCRAPE_INTERVAL_SECONDS}s", "__range": f"{range_seconds:g}s"}
    values = {**ALL, **chosen, **builtin}
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], text)


def answered(dashboard: Json, ask: Ask, chosen: Mapping[str, str], times: range) -> Json:
    """A dashboard, and the answer to each query of each panel by the panel's id.

    ``times`` are the unix seconds of a chart's points.
    """
    start, end = times[0], times[-1]
    answers = {
        panel["id"]: [
            ask(filled(target["expr"], chosen, end - start), target["instant"]) for target in panel["targets"]
        ]
        for panel in dashboard["panels"]
        if panel["type"] != "row"
    }
    return {
        "dashboard": dashboard,
        "answers": answers,
        "variables": dict(chosen),
        "start": start,
        "end": end,
        "step": times.step,
    }
