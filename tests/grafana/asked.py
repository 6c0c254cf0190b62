"""What the dashboards' files ask: their panels and queries."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from grafana.build import DIRECTORY
from grafana.render.ask import filled

NAMES = ("on-call", "economics", "roofline", "fleet")


@dataclass(frozen=True)
class Asked:
    """One query, and the panel it is on."""

    dashboard: str
    panel: Mapping[str, Any]
    target: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.dashboard} / {self.panel['title']} / {self.target['refId']}"

    @property
    def title(self) -> str:
        return str(self.panel["title"])

    @property
    def unit(self) -> str:
        """The unit of its values: the panel's, or in a table its column's."""
        config = self.panel["fieldConfig"]
        for override in config["overrides"]:
            if self.panel["type"] == "table" and override["matcher"]["options"] == self.target["legendFormat"]:
                return str(next(one["value"] for one in override["properties"] if one["id"] == "unit"))
        return str(config["defaults"]["unit"])

    def expr(self, range_seconds: float = 3600, **chosen: str) -> str:
        """As it reaches Prometheus."""
        return filled(str(self.target["expr"]), chosen, range_seconds)


def dashboard(name: str) -> dict[str, Any]:
    """A file as it stands in the project."""
    return dict(json.loads((DIRECTORY / f"{name}.json").read_text()))


def panels(name: str) -> Iterator[dict[str, Any]]:
    """All panels of a dashboard, those in collapsed rows too, the rows themselves left out."""
    for panel in dashboard(name)["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def queries(*names: str) -> list[Asked]:
    """All queries of some dashboards, or of all."""
    return [
        Asked(name, panel, target) for name in names or NAMES for panel in panels(name) for target in panel["targets"]
    ]
