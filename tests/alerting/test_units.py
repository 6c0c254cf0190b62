"""Every alert fires at its time and not a step before, recovers, and stays quiet where it should."""

import subprocess
from pathlib import Path

import pytest
import yaml

from alerts import build
from tests.alerting.rules import load
from tests.alerting.unit_tests import TESTS, as_fleet, sidecar_tests
from tests.programs import newer, system

STEPS = {"30s": 30, "1m": 60, "5m": 300}


def run(promtool: str, test: Path) -> None:
    """Let promtool run its unit tests."""
    done = subprocess.run([promtool, "test", "rules", test], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", sidecar_tests(), ids=lambda path: path.stem)
def test_sidecar_rules_on_prometheus_2_42(path: Path) -> None:
    """As committed: `promtool test rules alerts/tests/*.yaml`."""
    run(system("promtool"), path)


@pytest.mark.parametrize("path", sidecar_tests(), ids=lambda path: path.stem)
def test_fleet_rules_on_prometheus_3_5(path: Path, tmp_path: Path) -> None:
    """The same situations with one sidecar for all engines."""
    run(newer("promtool"), as_fleet(path, tmp_path))


@pytest.mark.parametrize("path", sorted((TESTS / "raw").glob("*.yaml")), ids=lambda path: path.stem)
def test_raw_rules_on_prometheus_2_42(path: Path) -> None:
    """The pack on vLLM's own series."""
    run(system("promtool"), path)


def seconds(time: str) -> int:
    """``1h2m30s`` in seconds."""
    total, number = 0, ""
    for letter in time:
        if letter.isdigit():
            number += letter
        else:
            total, number = total + int(number) * {"h": 3600, "m": 60, "s": 1}[letter], ""
    return total


def checks_of(path: Path, alert: str) -> list[tuple[str, int, set[tuple]]]:
    """(test, seconds, label sets that fire) of every check on an alert."""
    return [
        (
            test["name"],
            seconds(check["eval_time"]),
            {tuple(sorted(each["exp_labels"].items())) for each in check["exp_alerts"]},
        )
        for test in yaml.safe_load(path.read_text())["tests"]
        for check in test.get("alert_rule_test", ())
        if check["alertname"] == alert
    ]


@pytest.mark.parametrize("pack", ["sidecar", "raw", "fleet"])
def test_every_alert_has_its_pair_and_its_quiet(pack: str) -> None:
    """A step at which it does not fire yet, the next at which it does, and a test in which it never does."""
    folder = TESTS / "raw" if pack == "raw" else TESTS
    for rule in load(pack):
        if not rule.is_alert or rule.name == "VLLMWatchdog":
            continue
        paths = [folder / f"{rule.name}.yaml", *folder.glob(f"{rule.name}-*.yaml")]
        assert paths[0].is_file(), f"{rule.name} has no test"
        step = STEPS[yaml.safe_load(paths[0].read_text())["evaluation_interval"]]
        checks = [check for path in paths for check in checks_of(path, rule.name)]
        own = set(rule.body["labels"].items())
        fired = {(test, at) for test, at, firing in checks for labels in firing if own <= set(labels)}
        silent = {(test, at) for test, at, firing in checks if not any(own <= set(labels) for labels in firing)}
        assert any((test, at - step) in silent for test, at in fired), f"{rule.name} {own} has no pair"
        assert {test for test, _ in silent} - {test for test, _ in fired}, f"{rule.name} has no quiet test"
        assert any(at < later and test == same for test, at in fired for same, later in silent) or len(own) > 1, (
            rule.name
        )


def test_no_alert_is_without_for() -> None:
    """One scrape raises nothing, save the alert that always fires."""
    for pack in build.PACKS:
        assert {rule.name for rule in load(pack) if rule.is_alert and "for" not in rule.body} <= {"VLLMWatchdog"}
