"""The example configuration of Alertmanager: read by old and new, and muting what it should and nothing else."""

import json
import subprocess
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.alerting.rules import ALERTS, load
from tests.alerting.stack import alertmanager, wait_for
from tests.programs import PROMETHEUS_VERSIONS

CONFIG = ALERTS / "alertmanager" / "alertmanager.yaml"


@pytest.mark.parametrize("version", PROMETHEUS_VERSIONS)
def test_amtool_accepts_it(version: str) -> None:
    """Alertmanager 0.25 and 0.33 read it."""
    done = subprocess.run(
        [PROMETHEUS_VERSIONS[version]("amtool"), "check-config", CONFIG], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ("alertname=VLLMModelDown severity=critical", "pager"),
        ("alertname=VLLMPreemptions severity=warning", "tickets"),
        ("alertname=VLLMEngineCold severity=info", "nobody"),
        ("alertname=VLLMWatchdog severity=info", "watchdog"),
    ],
)
def test_routes(labels: str, receiver: str) -> None:
    """A page pages, a ticket is a ticket, context goes nowhere, and the watchdog has its own way."""
    command = [
        PROMETHEUS_VERSIONS["3.5"]("amtool"),
        "config",
        "routes",
        "test",
        f"--config.file={CONFIG}",
        *labels.split(),
    ]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == [receiver]


def test_labels_compared_are_asked_for() -> None:
    """What is missing on both sides counts as equal, so each label compared must be asked for on both."""
    rules = [rule for pack in ("sidecar", "fleet") for rule in load(pack) if rule.is_alert]
    names = {rule.name for rule in rules}
    for rule in yaml.safe_load(CONFIG.read_text())["inhibit_rules"]:
        assert set(rule["equal"]) <= {"alertname", "namespace", "model_name", "pod", "target", "engine"}
        for side in ("source_matchers", "target_matchers"):
            present = {matcher.split()[0] for matcher in rule[side] if matcher.endswith('!= ""')}
            assert set(rule["equal"]) - {"alertname", "namespace"} <= present
        for matcher in rule["source_matchers"]:
            if matcher.startswith("alertname = "):
                assert matcher.removeprefix("alertname = ") in names


def alert(name: str, severity: str, **labels: str) -> dict:
    """An alert as Prometheus sends it."""
    return {"labels": {"alertname": name, "severity": severity, **labels}, "annotations": {}}


@pytest.mark.parametrize("version", PROMETHEUS_VERSIONS)
def test_one_pod_s_alert_does_not_mute_another_s(version: str, tmp_path: Path) -> None:
    """Two pods, two targets of a fleet, and alerts that lack the labels altogether."""
    a, b = {"namespace": "prod", "pod": "a"}, {"namespace": "prod", "pod": "b"}
    x, y = {"namespace": "prod", "target": "x"}, {"namespace": "prod", "target": "y"}
    model = {"model_name": "llama"}
    alerts = [
        alert("VLLMEngineLost", "warning", **a, target="localhost:8000", **model),
        alert("VLLMPreemptions", "warning", **a, **model, engine="0"),
        alert("VLLMPreemptions", "warning", **b, **model, engine="0"),
        alert("VLLMEngineLost", "warning", **x, **model),
        alert("VLLMPreemptions", "warning", **x, **model, engine="0"),
        alert("VLLMPreemptions", "warning", **y, **model, engine="0"),
        alert("VLLMEngineStalled", "critical", **b, **model, engine="1"),
        alert("VLLMKVCachePinned", "warning", **b, **model, engine="1"),
        alert("VLLMKVCachePinned", "warning", **b, **model, engine="0"),
        alert("VLLMModelDown", "critical", namespace="prod", model_name="qwen"),
        alert("VLLMEngineLost", "warning", namespace="prod", pod="d", target="localhost:8000", model_name="qwen"),
        alert("VLLMSettingsDiffer", "warning", namespace="prod", **model),
        alert("VLLMSidecarDown", "warning", job="vllm-sidecar", instance="c:10077"),
        alert("VLLMTTFTBudgetBurn", "critical", namespace="prod", **model, long="1h"),
        alert("VLLMTTFTBudgetBurn", "warning", namespace="prod", **model, long="1d"),
        alert("VLLMTTFTBudgetBurn", "warning", namespace="dev", **model, long="1d"),
    ]
    with alertmanager(version, tmp_path, "http://127.0.0.1:9") as url:
        body = json.dumps(alerts).encode()
        request = urllib.request.Request(f"{url}/api/v2/alerts", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200

        def states() -> list[dict]:
            with urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=10) as answer:
                return json.load(answer)

        wait_for(lambda: all(each["status"]["state"] != "unprocessed" for each in states()), 30, states)
        muted = {
            tuple(
                each["labels"].get(label, "") for label in ("alertname", "namespace", "pod", "target", "engine", "long")
            )
            for each in states()
            if each["status"]["inhibitedBy"]
        }
        assert len(states()) == len(alerts)
    # Of pod b only what the stalled engine 1 explains; of the model that is down, the engine that is lost.
    assert muted == {
        ("VLLMPreemptions", "prod", "a", "", "0", ""),
        ("VLLMPreemptions", "prod", "", "x", "0", ""),
        ("VLLMKVCachePinned", "prod", "b", "", "1", ""),
        ("VLLMEngineLost", "prod", "d", "localhost:8000", "", ""),
        ("VLLMTTFTBudgetBurn", "prod", "", "", "", "1d"),
    }
