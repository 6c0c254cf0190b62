"""Write the page about the alerts, README.md beside this file: `python alerts/reference.py`."""

import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from alerts import build  # noqa: E402

SEVERITIES = {
    "critical": "Pages: somebody is woken, and can do something now",
    "warning": "Tickets: somebody looks within a day",
    "info": "Context: shown, and routed nowhere",
}
PREFACE = """# Alerts

<!-- Made by alerts/reference.py from alerts/source and alerts/thresholds.yaml. -->

How to load these rules, and how they were proven, is in [docs/alerts.md](../docs/alerts.md).
"""


def _alerts(pack: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(question, source, rule as made) of each alert, in order."""
    names = build.thresholds(HERE / "thresholds.yaml", {})
    made = iter(
        rule
        for content in build.render(pack, names).values()
        for group in content["groups"]
        for rule in group["rules"]
        if "alert" in rule
    )
    found = []
    for path in sorted(HERE.glob("source/*.yaml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                if "alert" in rule and pack in rule.get("packs", group["packs"]):
                    body = str({key: value for key, value in rule.items() if key != "each"})
                    found += [(rule["question"], f"{body}{entry}", next(made)) for entry in build.entries(rule)]
    return found


def _waits(rules: list[dict[str, Any]], key: str) -> str:
    return ", ".join(dict.fromkeys(rule.get(key, "-") for rule in rules))


def _settings(sources: list[str]) -> list[str]:
    """Thresholds that these alerts alone, or a few, are made with."""
    names = dict.fromkeys(name for source in sources for name in build.PLACEHOLDER.findall(source))
    known = [name if name in THRESHOLDS else name.removesuffix("_seconds") for name in names]
    return [name for name in dict.fromkeys(known) if name in THRESHOLDS and name not in COMMON]


def _table(severity: str) -> str:
    rows: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for question, source, rule in _alerts("fleet"):
        if rule["labels"]["severity"] == severity:
            rows.setdefault(rule["alert"], []).append((question, source, rule))
    lines = ["| alert | question | when | `for` | `keep_firing_for` | thresholds |", "|---|---|---|---|---|---|"]
    for name, found in rows.items():
        rules = [rule for _, _, rule in found]
        cells = [
            f"[{name}](runbooks/{name}.md)",
            found[0][0],
            rules[0]["annotations"]["summary"],
            _waits(rules, "for"),
            _waits(rules, "keep_firing_for"),
            ", ".join(f"`{setting}`" for setting in _settings([source for _, source, _ in found])) or "-",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


THRESHOLDS = yaml.safe_load((HERE / "thresholds.yaml").read_text())
COMMON = {"lookback_window", "window", "subquery_step", "scrape_interval"}


def page() -> str:
    """The alerts by severity, then every threshold with its reason."""
    parts = [PREFACE, *(f"## {title}\n\n{_table(severity)}" for severity, title in SEVERITIES.items())]
    rows = [f"| `{name}` | `{entry['value']}` | {entry['why']} |" for name, entry in THRESHOLDS.items()]
    parts.append("## Thresholds\n\n| name | value | why |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    (HERE / "README.md").write_text(page())
