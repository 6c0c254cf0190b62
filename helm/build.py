"""Bring the chart up to date with what it is made from: `python -m helm.build`.

Helm reads nothing outside a chart, so the chart holds copies, and a test holds them equal to their sources:

* `rules/`: the alert rules of `alerts/source` with `%{name}` in place of thresholds, and the thresholds' defaults;
* `dashboards/`: the dashboards of `grafana/dashboards`;
* `values.schema.json`: its definitions, from the sidecar's settings and from the thresholds' names;
* `README.md`: the table of values, from the comments of `values.yaml`.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from alerts import build as alerts
from exporter.schema import Config
from helm.values_table import table

ROOT = Path(__file__).parent.parent
CHART = ROOT / "helm/vllm-sidecar"
BEGIN, END = "<!-- values: begin -->", "<!-- values: end -->"

SET_BY_THE_CHART = {"listen_address", "never_exit", "worker_index"}
"""Settings that the chart gives as flags and variables."""

KINDS: dict[str, dict[str, Any]] = {
    "ratio": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "count": {"type": "integer", "minimum": 1},
    "factor": {"type": "number", "exclusiveMinimum": 0},
    "seconds": {"type": "number", "exclusiveMinimum": 0},
    "rate": {"type": "number", "exclusiveMinimum": 0},
    "url": {"type": "string", "pattern": r"^[^\s<>\"]+$"},
    "regex": {"type": "string", "pattern": r"^[^\s<>\"]+$"},
}
DURATION: dict[str, Any] = {"type": "string", "pattern": "^[1-9][0-9]*[smhd]$"}


def rules() -> Iterator[tuple[Path, str]]:
    """The rules of both packs, each as one file with places for thresholds, and the thresholds."""
    thresholds = yaml.safe_load((alerts.HERE / "thresholds.yaml").read_text())
    places = {name: f"%{{{name}}}" for each in thresholds for name in (each, f"{each}_seconds")}
    for pack in ("sidecar", "fleet"):
        groups = [group for content in alerts.render(pack, places).values() for group in content["groups"]]
        yield CHART / f"rules/{pack}.yaml", _yaml({"groups": groups})
    yield CHART / "rules/thresholds.yaml", _yaml({name: each["value"] for name, each in thresholds.items()})


def _yaml(content: Any) -> str:
    return "# Made by helm/build.py.\n" + yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True)


def dashboards() -> Iterator[tuple[Path, str]]:
    """The dashboards as they are."""
    for path in sorted((ROOT / "grafana/dashboards").glob("*.json")):
        yield CHART / "dashboards" / path.name, path.read_text()


def thresholds_schema() -> dict[str, Any]:
    """Every threshold by name; a name's last word is its kind."""
    given = yaml.safe_load((alerts.HERE / "thresholds.yaml").read_text())
    properties = {
        name: KINDS.get(name.rsplit("_", 1)[-1], DURATION) | {"description": each["why"]}
        for name, each in given.items()
    }
    engines = {
        "namespace": {"type": "string"},
        "model_name": {"type": "string"},
        "engines": {"type": "integer", "minimum": 0},
    }
    entry = {"type": "object", "additionalProperties": False, "required": list(engines), "properties": engines}
    properties["expected_engines"] = {"type": "array", "items": entry, "description": given["expected_engines"]["why"]}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def settings_schema() -> dict[str, Any]:
    """The settings file's schema, as definitions of which `settings` is the whole file."""
    schema = Config.model_json_schema(ref_template="#/definitions/{model}")
    definitions = schema.pop("$defs")
    for name in SET_BY_THE_CHART:
        del schema["properties"][name]
    return {name: _plain(each) for name, each in (definitions | {"settings": schema}).items()}


def _plain(node: Any) -> Any:
    """Without titles, and without the formats that only Python knows."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    named = {"properties", "patternProperties"}
    return {
        key: {name: _plain(each) for name, each in value.items()} if key in named else _plain(value)
        for key, value in node.items()
        if key not in ("title", "format")
    }


def schema() -> tuple[Path, str]:
    """The schema of the values, its definitions filled in."""
    path = CHART / "values.schema.json"
    content = json.loads(path.read_text())
    content["definitions"] |= {**settings_schema(), "thresholds": thresholds_schema()}
    return path, json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def readme() -> tuple[Path, str]:
    """The README with its table of values."""
    path = CHART / "README.md"
    before, rest = path.read_text().split(BEGIN)
    after = rest.split(END)[1]
    return path, f"{before}{BEGIN}\n{table((CHART / 'values.yaml').read_text())}{END}{after}"


def files() -> dict[Path, str]:
    """Every generated file with what it should hold."""
    return dict([*rules(), *dashboards(), schema(), readme()])


def stale() -> list[Path]:
    """Generated files that are not as they should be, or that nothing makes any more."""
    made = files()
    there = {*(CHART / "rules").iterdir(), *(CHART / "dashboards").iterdir()}
    changed = {path for path, text in made.items() if not path.exists() or path.read_text() != text}
    return sorted(changed | (there - made.keys()))


def main() -> int:
    """Write what is stale; returns the exit code."""
    made = files()
    for path in stale():
        if path in made:
            path.parent.mkdir(exist_ok=True)
            path.write_text(made[path])
        else:
            path.unlink()
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
