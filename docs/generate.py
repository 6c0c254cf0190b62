"""Write the pages that are made from the code: docs/metrics.md from the catalogue, docs/settings.md from the schema."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from exporter.catalogue import TABLE, Metric, Scope
from exporter.schema import Config
from exporter.settings import ENV_PREFIX

DOCS = Path(__file__).parent
MADE = "<!-- Made by `make docs`; edit the code instead. -->"
GROUPS = {
    "self": "The sidecar",
    "target": "Targets",
    "cost": "Cost",
    "engine": "Engines",
    "traffic": "Traffic",
    "scheduler": "Scheduler",
    "latency": "Latency",
    "roofline": "Steps and roofline",
    "speculation": "Speculative decoding",
    "kv": "KV and prefix cache",
    "use": "Saturation, and time at level",
}
"""Headings by group; a group without one is a KeyError here, and so a failed build."""
METRICS_PREFACE = f"""# Metrics

{MADE}

Every name begins with `vllm_sidecar_`. Units are base units, ratios lie between 0 and 1. Counters start at 0 with the
sidecar's first good scrape of an engine, go on over its restarts, and never go down; a histogram begins anew where the
engine comes back with other buckets. What is not known is absent: no series, rather than 0 or NaN. Gauges of an engine
go when the last good scrape is older than 10 s, its counters after an hour.

Series of engines carry `target` too where targets are listed or found, be it one. `window` is one of the setting
`windows`. Signals of now, those without `window`, look at the last 15 s, or at 5 scrape intervals where that is longer.

"""
SETTINGS_PREFACE = f"""# Settings

{MADE}

From the lowest to the highest: the default, the YAML file of `--config.file`, the environment, a flag. A dot in a name
is one level down in the file; in the environment it is `__`. Lists and objects are JSON in the environment. The file is
read again when it changes and on SIGHUP; one that has become invalid leaves the last good settings in force. Only
`listen_address`, `page_address` and `never_exit` need a restart, as do flags and the environment. An unknown setting
is an error.

Settings of a target stand at the top for every target, and within `targets` for one.

"""
OWNERS = {Scope.SELF: (), Scope.TARGET: ("target",), Scope.ENGINE: ("model_name", "engine")}


def metrics_page() -> str:
    """A table a group, in the catalogue's order of groups."""
    rows = sorted(TABLE, key=lambda row: list(GROUPS).index(row.group))
    sections = [
        f"## {GROUPS[group]}\n\n{_group_note(group)}| metric | type | labels | what it says |\n|---|---|---|---|\n"
        + "".join(_metric(row) for row in found)
        for group, found in groupby(rows, key=lambda row: row.group)
    ]
    return METRICS_PREFACE + "\n".join(sections)


def _group_note(group: str) -> str:
    return "" if group in ("self", "target", "engine") else f"Switched off with `disabled_groups: [{group}]`.\n\n"


def _metric(row: Metric) -> str:
    labels = " ".join(f"`{label}`" for label in (*OWNERS[row.scope], *row.labels))
    return f"| `{row.full_name}` | {row.type.value} | {labels} | {_cell(row.help)} |\n"


def settings_page() -> str:
    """Every setting with its variable, its default and what it means, nested ones by their path."""
    table = "| setting | environment | default | what it does |\n|---|---|---|---|\n"
    rows = "".join(
        f"| `{'.'.join(path)}` | `{ENV_PREFIX}{'__'.join(path).upper()}` | {_default(field)} "
        f"| {_cell(field.description or '')} |\n"
        for path, field in _fields(Config)
    )
    return SETTINGS_PREFACE + table + rows


def _fields(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    for name, field in model.model_fields.items():
        below = field.annotation
        if isinstance(below, type) and issubclass(below, BaseModel):
            yield from _fields(below, (*above, name))
        else:
            yield (*above, name), field


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if value is None or value is PydanticUndefined or value in ("", ()):
        return ""
    value = getattr(value, "value", value)
    if isinstance(value, tuple):
        return " ".join(f"`{each}`" for each in value)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


PAGES = {"metrics.md": metrics_page, "settings.md": settings_page}


def main() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
