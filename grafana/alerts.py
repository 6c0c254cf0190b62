"""What the dashboards take from the alerts: runbooks, and thresholds, so that a line on a chart is where one fires."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

THRESHOLDS = Path(__file__).parents[1] / "alerts" / "thresholds.yaml"


class NotAThresholdError(LookupError):
    """A name that the alerts' thresholds do not have."""


@cache
def _values() -> dict[str, Any]:
    return {name: entry["value"] for name, entry in yaml.safe_load(THRESHOLDS.read_text(encoding="utf-8")).items()}


def threshold(name: str) -> float:
    """A threshold of the alerts.

    Raises:
        NotAThresholdError: there is none of this name.
    """
    if name not in _values():
        raise NotAThresholdError(f"{name} is not in alerts/thresholds.yaml")
    return float(_values()[name])


def runbook(alert: str) -> str:
    """Where an alert's runbook is."""
    return f"{_values()['runbook_url']}/{alert}.md"
