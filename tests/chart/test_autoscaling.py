"""Autoscaling examples: what they ask for is exported, and what they are is what the cluster knows."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from exporter.catalogue import METRICS, Scope
from tests.chart.rendering import VERSIONS, check
from tests.programs import ROOT, system

EXAMPLES = ROOT / "helm/autoscaling"
KEDA = yaml.safe_load((EXAMPLES / "keda.yaml").read_text())
HPA = yaml.safe_load((EXAMPLES / "hpa.yaml").read_text())
ADAPTER = yaml.safe_load((EXAMPLES / "prometheus-adapter-values.yaml").read_text())
(RULE,) = ADAPTER["rules"]["custom"]


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_the_autoscaler(version: str) -> None:
    check(HPA, version)


def test_keda_knows_every_field() -> None:
    """Fields as keda.sh/v1alpha1 of KEDA 2.14 publishes them; what goes to the autoscaler is the autoscaler's own."""
    spec = KEDA["spec"]
    counts = {"minReplicaCount", "maxReplicaCount", "pollingInterval"}
    assert spec.keys() == {"scaleTargetRef", *counts, "fallback", "advanced", "triggers"}
    assert spec["fallback"].keys() == {"failureThreshold", "replicas", "behavior"}
    assert spec["advanced"]["horizontalPodAutoscalerConfig"] == {"behavior": HPA["spec"]["behavior"]}
    (trigger,) = spec["triggers"]
    assert trigger.keys() == {"type", "metricType", "metadata"}
    assert trigger["metadata"].keys() == {"serverAddress", "query", "threshold", "ignoreNullValues"}
    assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_neither_scales_to_zero_nor_on_silence() -> None:
    """Nothing in a pod can bring the first pod back, and a lost Prometheus must not look like no load."""
    assert KEDA["spec"]["minReplicaCount"] >= 1
    assert HPA["spec"]["minReplicas"] >= 1
    assert KEDA["spec"]["triggers"][0]["metadata"]["ignoreNullValues"] == "false"


def test_autoscaler_asks_for_what_the_adapter_offers() -> None:
    (metric,) = HPA["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == RULE["name"]["as"]


def test_queries_are_promql_over_what_is_exported(tmp_path: Path) -> None:
    """Each series is one of the catalogue, each label one that it has, and Prometheus can parse each query."""
    series = RULE["seriesQuery"].partition("{")[0]
    filled = RULE["metricsQuery"]
    for name, value in {"GroupBy": "pod", "Series": series, "LabelMatchers": 'pod="a"'}.items():
        filled = filled.replace(f"<<.{name}>>", value)
    queries = [KEDA["spec"]["triggers"][0]["metadata"]["query"], RULE["seriesQuery"], filled]
    for query in queries:
        (name,) = re.findall(r"vllm_sidecar_(\w+)", query)
        row = METRICS[name]
        assert row.scope is Scope.ENGINE
        groups = re.findall(r"by \(([^)]+)\)", query)
        named = {
            *re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", query),
            *(label for group in groups for label in group.split(", ")),
        }
        assert named
        assert named <= {"namespace", "pod", "job", "instance", "target", "model_name", "engine", *row.labels}
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(
        [system("promtool"), "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
