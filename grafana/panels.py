"""Panels: what is asked, of which series, in which unit, and where it lies on the page."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grafana.alerts import runbook
from grafana.queries import NotInCatalogueError, used

Json = dict[str, Any]

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
GREEN, ORANGE, RED, BLUE, PURPLE, GREY, CLEAR = "green", "orange", "red", "blue", "purple", "text", "transparent"

Steps = Sequence[tuple[float, str]]
"""Thresholds: (from this value on, colour)."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query and the name of its series; in a table, the name of its column."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """How a table shows a column: its unit, colours by value, words for values, a link's title and address."""

    unit: str = "short"
    steps: Steps = ()
    words: Mapping[int, tuple[str, str]] | None = None
    link: tuple[str, str] | None = None
    width: int = 0
    decimals: int | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel.

    Attributes:
        kind: Grafana's type: stat, timeseries, table.
        title: what it shows.
        asks: what it answers, and how to read it. The help of the metrics it draws is appended.
        queries: at least one.
        unit: Grafana's name of a unit.
        width: in columns of 24.
        height: in rows of the grid.
        steps: thresholds.
        alerts: names of alerts that watch this; each becomes a link to its runbook.
        stacked: draw series on top of each other.
        ceiling: a value the axis never passes, such as 1 of a share.
        colors: fixed colours by series.
        columns: of a table, by name.
        sort: a table's columns to sort by, largest first.
        empty: what to say when there is no data.
        decimals: digits after the point, if not Grafana's choice.
    """

    kind: str
    title: str
    asks: str
    queries: Sequence[Query]
    unit: str = "short"
    width: int = 8
    height: int = 8
    steps: Steps = ()
    alerts: Sequence[str] = ()
    stacked: bool = False
    ceiling: float | None = None
    colors: Mapping[str, str] | None = None
    columns: Mapping[str, Column] | None = None
    sort: Sequence[str] = ()
    empty: str = ""
    decimals: int | None = None

    def json(self, x: int, y: int) -> Json:
        """As Grafana reads it, at a place on the grid."""
        found: Json = {
            "id": zlib.crc32(self.title.encode()) % 1_000_000 + 1,
            "type": self.kind,
            "title": self.title,
            "description": self.description(),
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "fieldConfig": {"defaults": self._defaults(), "overrides": self._overrides()},
            "options": self._options(),
            "targets": [self._target(number, query) for number, query in enumerate(self.queries)],
            "links": [
                {"title": f"Runbook: {alert}", "url": runbook(alert), "targetBlank": True} for alert in self.alerts
            ],
        }
        if self.kind == "table":
            found["transformations"] = self._transformations()
        return found

    def description(self) -> str:
        """What it answers, then the help of each metric it draws."""
        if not self.asks:
            raise NotInCatalogueError(f"the panel {self.title!r} does not say what it answers")
        rows = used(" ".join(query.expr for query in self.queries))
        drawn = [row for row in rows if row.name != "target_info"]
        return "\n\n".join([self.asks, *(f"`{row.full_name}`: {row.help}" for row in drawn)])

    def _target(self, number: int, query: Query) -> Json:
        moment = self.kind != "timeseries"
        return {
            "refId": chr(ord("A") + number),
            "datasource": DATASOURCE,
            "expr": query.expr,
            "legendFormat": query.legend,
            "editorMode": "code",
            "instant": moment,
            "range": not moment,
            **({"format": "table"} if self.kind == "table" else {}),
        }

    def _defaults(self) -> Json:
        found: Json = {"unit": self.unit, "thresholds": _thresholds(self.steps)}
        if self.kind == "timeseries":
            found |= {"color": {"mode": "palette-classic"}, "custom": self._lines()}
            found |= {"min": 0} if self.unit != "none" else {}
        else:
            found["color"] = {"mode": "thresholds"}
        if self.kind == "table":
            found["custom"] = {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True}
        if self.ceiling is not None:
            found["max"] = self.ceiling
        if self.empty:
            found["noValue"] = self.empty
        if self.decimals is not None:
            found["decimals"] = self.decimals
        return found

    def _lines(self) -> Json:
        return {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if self.stacked else 0,
            "showPoints": "auto",
            "pointSize": 4,
            "spanNulls": False,
            "stacking": {"group": "A", "mode": "normal" if self.stacked else "none"},
            "thresholdsStyle": {"mode": "line" if self.steps else "off"},
        }

    def _overrides(self) -> list[Json]:
        colors = [
            _override(name, {"color": {"mode": "fixed", "fixedColor": color}})
            for name, color in (self.colors or {}).items()
        ]
        return colors + [_override(name, _column(column)) for name, column in (self.columns or {}).items()]

    def _options(self) -> Json:
        if self.kind == "stat":
            return {
                "colorMode": "background" if self.steps else "value" if self.colors else "none",
                "graphMode": "none",
                "justifyMode": "auto",
                "orientation": "auto",
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                "textMode": "value_and_name" if len(self.queries) > 1 or "{{" in self.queries[0].legend else "value",
            }
        if self.kind == "table":
            return {
                "showHeader": True,
                "cellHeight": "sm",
                "footer": {"show": False},
                "sortBy": [{"displayName": name, "desc": True} for name in self.sort],
            }
        return {
            "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }

    def _transformations(self) -> list[Json]:
        """One row of all queries that agree in their labels; the column of a query is called as it is."""
        refs = [chr(ord("A") + number) for number in range(len(self.queries))]
        values = ["Value"] if len(refs) == 1 else [f"Value #{ref}" for ref in refs]
        names = dict(zip(values, (query.legend for query in self.queries), strict=True))
        return [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": {"Time": True, "__name__": True}, "renameByName": names}},
        ]


def _thresholds(steps: Steps, below: str = GREEN) -> Json:
    base = {"color": below if steps else GREY, "value": None}
    return {"mode": "absolute", "steps": [base, *({"color": color, "value": value} for value, color in steps)]}


def _override(name: str, properties: Mapping[str, Any]) -> Json:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties.items()],
    }


def _column(column: Column) -> Json:
    found: Json = {"unit": column.unit}
    if column.decimals is not None:
        found["decimals"] = column.decimals
    if column.width:
        found["custom.width"] = column.width
    if column.steps or column.words:
        found["custom.cellOptions"] = {"type": "color-background", "mode": "basic"}
        found["thresholds"] = _thresholds(column.steps, below=CLEAR)
    if column.words:
        texts = {str(value): {"text": text, "color": color} for value, (text, color) in column.words.items()}
        found["mappings"] = [{"type": "value", "options": texts}]
    if column.link:
        title, url = column.link
        found["links"] = [{"title": title, "url": url}]
    return found


def stat(title: str, asks: str, *queries: Query, **options: Any) -> Panel:
    """The last value, large."""
    return Panel("stat", title, asks, queries, **{"width": 4, "height": 4} | options)


def chart(title: str, asks: str, *queries: Query, **options: Any) -> Panel:
    """Lines over time."""
    return Panel("timeseries", title, asks, queries, **options)


def table(title: str, asks: str, *queries: Query, **options: Any) -> Panel:
    """The values of now, one row for each combination of the labels that the queries keep."""
    return Panel("table", title, asks, queries, **{"width": 24} | options)


@dataclass(frozen=True, slots=True)
class Row:
    """A question, and the panels that answer it."""

    title: str
    panels: Sequence[Panel]
    collapsed: bool = False


def placed(rows: Sequence[Row]) -> list[Json]:
    """All panels on the grid, from left to right, a new line where the next does not fit."""
    found: list[Json] = []
    y = 0
    for row in rows:
        inside, below = _lines_of(row.panels, y + 1)
        head: Json = {
            "id": zlib.crc32(f"row {row.title}".encode()) % 1_000_000 + 1,
            "type": "row",
            "title": row.title,
            "collapsed": row.collapsed,
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
            "panels": inside if row.collapsed else [],
        }
        found += [head] if row.collapsed else [head, *inside]
        y = y + 1 if row.collapsed else below
    return found


def _lines_of(panels: Sequence[Panel], y: int) -> tuple[list[Json], int]:
    """Panels from a line on, and the line below them; those of one line are as high as its highest."""
    found: list[Json] = []
    line: list[Panel] = []
    for panel in [*panels, None]:
        if panel is None or sum(one.width for one in line) + panel.width > COLUMNS:
            height = max((one.height for one in line), default=0)
            x = 0
            for one in line:
                found.append(replace(one, height=height).json(x, y))
                x += one.width
            line, y = [], y + height
        if panel is not None:
            line.append(panel)
    return found, y
