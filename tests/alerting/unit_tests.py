"""The promtool tests of the rules, and the same tests as a fleet's sidecar would see them."""

import re
from pathlib import Path

import yaml

from tests.alerting.rules import ALERTS

TESTS = ALERTS / "tests"
LOCALHOST = "localhost:8000"


def sidecar_tests() -> list[Path]:
    """Tests of the sidecars' rules, one file an alert and the quiet scenarios."""
    return sorted(TESTS.glob("*.yaml"))


def as_fleet(path: Path, directory: Path, rules: Path = ALERTS) -> Path:
    """A test in which one sidecar shows as its targets what in ``path`` are pods with a sidecar each."""
    document = yaml.safe_load(path.read_text())
    made = directory / path.name
    if any("/fleet/" in name for name in document["rule_files"]):
        document["rule_files"] = [str((rules / "tests" / name).resolve()) for name in document["rule_files"]]
        made.write_text(yaml.safe_dump(document, sort_keys=False))
        return made
    document["rule_files"] = [
        str((rules / "tests" / name).resolve()).replace("/rules/sidecar/", "/rules/fleet/")
        for name in document["rule_files"]
    ]
    for test in document["tests"]:
        for series in test["input_series"]:
            series["series"] = _series(series["series"])
        for check in test.get("alert_rule_test", ()):
            check["exp_alerts"] = [
                {
                    "exp_labels": _labels(alert["exp_labels"]),
                    "exp_annotations": {name: _text(text) for name, text in alert["exp_annotations"].items()},
                }
                if "instance" not in alert["exp_labels"]
                else alert
                for alert in check["exp_alerts"]
            ]
    made.write_text(yaml.safe_dump(document, sort_keys=False))
    return made


def _series(series: str) -> str:
    # What is the sidecar's own, or already a fleet's, has no target.
    if not re.match(r"vllm_sidecar_(?!build_info|config_)", series) or 'pod="fleet"' in series:
        return series
    pod = re.search(r'pod="([^"]*)"', series)
    series = series.replace(f',target="{LOCALHOST}"', "").replace(f'instance="{pod[1]}:', 'instance="fleet:')
    return series.replace(f'pod="{pod[1]}"', f'pod="fleet",target="{pod[1]}"')


def _labels(labels: dict[str, str]) -> dict[str, str]:
    found = {name: value for name, value in labels.items() if name not in ("pod", "target")}
    return found | ({"target": labels["pod"]} if "pod" in labels else {})


def _text(text: str) -> str:
    text = re.sub(rf"{LOCALHOST} in prod/(\w+)", r"\1", text)
    text = re.sub(
        r"2 sidecars of prod/(\w+), or 2 scrapes of one, show \S+\.", r"2 sidecars, or 2 scrapes of one, show \1.", text
    )
    text = re.sub(r"prod/(\w+)", r"\1", text).replace(" in namespace prod", "")
    return re.sub(r"var-namespace=prod&var-pod=(\w+)", r"var-target=\1", text).replace("var-namespace=prod&", "")
