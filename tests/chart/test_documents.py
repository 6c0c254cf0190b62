"""The documents about Kubernetes say what is so."""

import re
from pathlib import Path

import pytest
import yaml

from exporter.catalogue import METRICS
from exporter.schema import Config
from tests.chart.rendering import CHART, case, one, render, text
from tests.programs import ROOT

DOCUMENTS = [ROOT / "docs/kubernetes.md", ROOT / "helm/inject/README.md", CHART / "README.md"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_values_are_values(document: Path) -> None:
    """Each value that prose names in full, or a command sets, is one of the chart."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    del values["settings"]  # theirs is another test
    prose = document.read_text().partition("## Values")[0]
    for first, second in re.findall(rf"(?:--set |`)({'|'.join(values)})\.([A-Za-z]+)", prose):
        assert second in values[first], (first, second)


def test_metrics_and_alerts_are_there() -> None:
    """Each metric is one of the catalogue, each alert one of the rules."""
    document = DOCUMENTS[0].read_text()
    named = set(re.findall(r"vllm_sidecar_(\w+)", document)) | {"target_up"}
    assert named <= METRICS.keys()
    alerts = set(re.findall(r"\bVLLM[A-Z]\w+", document))
    assert alerts
    rules = text(case("default"))
    assert [alert for alert in alerts if f"alert: {alert}\n" not in rules] == []


def test_test_alert_fires(tmp_path: Path) -> None:
    """What the walk-through sets the chart lets through and the sidecar refuses; the alert waits five minutes."""
    broken, mended = re.findall(r"--reuse-values --set-json settings.engines='(.+)'", DOCUMENTS[0].read_text())
    settings = []
    for change in (broken, mended):
        values = tmp_path / f"{len(settings)}.yaml"
        values.write_text(f"settings: {{engines: {change}}}")
        objects = render(case("1xh100"), values)
        settings.append(yaml.safe_load(one(objects, "ConfigMap", "vllm-sidecar-settings")["data"]["settings.yaml"]))
    with pytest.raises(ValueError, match="engines lists an engine twice"):
        Config.model_validate(settings[0])
    assert settings[1] == yaml.safe_load(case("1xh100").read_text())["settings"] | {"engines": []}
    assert yaml.safe_load((CHART / "rules/thresholds.yaml").read_text())["config_invalid_for"] == "5m"


def test_drain_takes_as_long_as_the_document_says() -> None:
    """Tokens times seconds a token: 2,000 x 0.03 s = 60 s, 8,000 x 0.05 s = 400 s; the grace is above the sum."""
    document = DOCUMENTS[0].read_text()
    found = re.findall(r"([\d,]+) (?:tokens )?at (\d+) ms\s+(?:that\s+)?(?:is\s+)?(\d+) s", document)
    assert [(tokens, itl, seconds) for tokens, itl, seconds in found] == [("2,000", "30", "60"), ("8,000", "50", "400")]
    for tokens, itl, seconds in found:
        assert int(tokens.replace(",", "")) * int(itl) / 1000 == int(seconds)
    rows = dict(re.findall(r"^\| `?([\w -]+)`?(?: sleep, if any)?[^|]*\| .*?(\d+) s \|", document, re.MULTILINE))
    assert int(rows["terminationGracePeriodSeconds"]) > int(rows["preStop"]) + 90 + 2
