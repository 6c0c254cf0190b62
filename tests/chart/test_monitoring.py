"""Monitors, rules and dashboards: they meet what they are for, and reach Prometheus as they were written."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CASES, CHART, OPERATOR, Object, case, included, one, render, selects, text
from tests.programs import PROMETHEUS_VERSIONS, ROOT, newer

MONITOR_FIELDS = {"selector", "namespaceSelector"}
ENDPOINT_FIELDS = {
    "port",
    "path",
    "scheme",
    "honorLabels",
    "interval",
    "scrapeTimeout",
    "tlsConfig",
    "relabelings",
    "metricRelabelings",
}
RULE_FIELDS = {"record", "alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
FIELDS: dict[str, set[str]] = {
    "PodMonitor": MONITOR_FIELDS | {"podMetricsEndpoints"},
    "ServiceMonitor": MONITOR_FIELDS | {"endpoints"},
    "PrometheusRule": {"groups"},
}
"""What of monitoring.coreos.com/v1 (prometheus-operator 0.65 to 0.85) we use, by the names it publishes."""


def endpoints(monitor: Object) -> list[dict[str, Any]]:
    spec = monitor["spec"]
    return list(spec.get("podMetricsEndpoints") or spec["endpoints"])


@pytest.mark.parametrize("values", CASES, ids=lambda path: path.stem)
def test_operator_knows_every_field(values: Path) -> None:
    """A field that a custom resource does not have is dropped without a word by the API server: there is none."""
    for thing in render(values):
        if thing["kind"] not in FIELDS:
            continue
        assert thing["apiVersion"] == "monitoring.coreos.com/v1"
        assert thing["spec"].keys() <= FIELDS[thing["kind"]]
        if thing["kind"] == "PrometheusRule":
            groups = thing["spec"]["groups"]
            assert all(group.keys() <= {"name", "rules", "interval"} for group in groups)
            assert all(rule.keys() <= RULE_FIELDS for group in groups for rule in group["rules"])
            assert all(
                isinstance(value, str) for group in groups for rule in group["rules"] for value in _strings(rule)
            )
        else:
            assert all(endpoint.keys() <= ENDPOINT_FIELDS for endpoint in endpoints(thing))


def _strings(rule: dict[str, Any]) -> list[Any]:
    return [value for each in rule.values() for value in (each.values() if isinstance(each, dict) else [each])]


def test_kinds_are_left_out_where_the_cluster_lacks_them() -> None:
    """Without the operator the rest still installs."""
    for name in ("default", "service-monitor", "everything"):
        kinds = {each["kind"] for each in render(case(name), kinds=())}
        assert not kinds & FIELDS.keys()
        assert "ConfigMap" in kinds
    some = {each["kind"] for each in render(case("default"), kinds=OPERATOR[:1])}
    assert some & FIELDS.keys() == {"PodMonitor"}


def test_pod_monitor_finds_the_sidecar_in_any_engine_s_pod(tmp_path: Path) -> None:
    """By the port's name, in the namespaces asked for, and not a Deployment of ours, which has its own monitor."""
    values = case("pod-monitor")
    monitor = one(render(values), "PodMonitor")
    (endpoint,) = endpoints(monitor)
    (container,) = included(tmp_path, "port=20077", "portName=vllm-signals")["spec"]["initContainers"]
    assert {(each["name"], each["containerPort"]) for each in container["ports"]} == {("vllm-signals", 20077)}
    assert endpoint["port"] == "vllm-signals"
    assert selects(monitor["spec"]["selector"], {"app": "vllm", "role": "leader"})
    fleet = one(render(case("fleet")), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert not selects(monitor["spec"]["selector"], fleet)
    assert monitor["spec"]["namespaceSelector"] == {"any": True}
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert endpoint["metricRelabelings"][0]["action"] == "drop"


@pytest.mark.parametrize("name", ["fleet", "shards", "network-policy", "everything"])
def test_pod_monitor_finds_the_deployment(name: str) -> None:
    """Its selector is the pods', its port theirs, and it selects neither the tests' pods nor anybody else's."""
    objects = render(case(name))
    (monitor,) = (each for each in objects if each["kind"] == "PodMonitor")
    (endpoint,) = endpoints(monitor)
    for deployment in (each for each in objects if each["kind"] == "Deployment"):
        template = deployment["spec"]["template"]
        assert selects(monitor["spec"]["selector"], template["metadata"]["labels"])
        assert selects(deployment["spec"]["selector"], template["metadata"]["labels"])
        assert endpoint["port"] in {each["name"] for each in template["spec"]["containers"][0]["ports"]}
    for pod in (each for each in objects if each["kind"] == "Pod"):
        assert not selects(monitor["spec"]["selector"], pod["metadata"]["labels"])


@pytest.mark.parametrize("name", ["service-monitor", "fleet-service-monitor"])
def test_service_monitor_service_and_pods_meet(name: str, tmp_path: Path) -> None:
    """Monitor to Service by labels and port name, Service to pods by labels and target port."""
    objects = render(case(name))
    monitor, service = one(objects, "ServiceMonitor"), one(objects, "Service")
    assert selects(monitor["spec"]["selector"], service["metadata"]["labels"])
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = endpoints(monitor)
    (port,) = service["spec"]["ports"]
    assert endpoint["port"] == port["name"]
    if name == "service-monitor":
        (container,) = included(tmp_path)["spec"]["initContainers"]
        labels = {"environment": "test", "release": "test"}
    else:
        template = one(objects, "Deployment")["spec"]["template"]
        container, labels = template["spec"]["containers"][0], template["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert port["targetPort"] in {each["name"] for each in container["ports"]}
    assert service["spec"]["publishNotReadyAddresses"] is True


def rules(objects: list[Object], name: str = "vllm-sidecar") -> dict[str, Any]:
    found: dict[str, Any] = one(objects, "PrometheusRule", name)["spec"]
    return found


@pytest.mark.parametrize("version", PROMETHEUS_VERSIONS)
@pytest.mark.parametrize("name", ["default", "fleet", "thresholds", "everything"])
def test_promtool_takes_the_rules(version: str, name: str, tmp_path: Path) -> None:
    """As they are, and after a threshold was changed; with either Prometheus."""
    file = tmp_path / "rules.yaml"
    (thing,) = (each for each in render(case(name)) if each["kind"] == "PrometheusRule")
    file.write_text(yaml.safe_dump(thing["spec"]))
    promtool = PROMETHEUS_VERSIONS[version]("promtool")
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


@pytest.mark.parametrize(("mode", "values"), [("sidecar", "default"), ("fleet", "fleet")])
def test_rules_are_those_of_the_repository(mode: str, values: str) -> None:
    """Without changes the chart's rules are the rendered files of alerts/rules, in their order, to the letter."""
    files = sorted((ROOT / "alerts/rules" / mode).glob("*.yaml"))
    expected = [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
    assert rules(render(case(values)))["groups"] == expected


def test_alert_templates_survive_helm() -> None:
    """Prometheus's own braces reach Prometheus, in every alert that had them; none of ours is left over."""
    rendered = text(case("default"))
    assert not re.search(r"%\{\w+\}", rendered)
    alerts = {
        rule["alert"]: rule
        for group in rules(render(case("default")))["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    assert "{{ $labels.model_name }}" in alerts["VLLMPredictedTTFTTooLong"]["annotations"]["description"]
    assert "{{ $value | humanizePercentage }}" in alerts["VLLMPreemptions"]["annotations"]["description"]


def test_threshold_reaches_every_place_it_is_used_in() -> None:
    """5 % for 1 %, over 20 minutes for 10: in the expression, in the names of what it records, in the text."""
    groups = rules(render(case("thresholds")))["groups"]
    flat = [rule for group in groups for rule in group["rules"]]
    (alert,) = (rule for rule in flat if rule.get("alert") == "VLLMPreemptions")
    assert "> 0.05" in alert["expr"]
    assert "increase20m" in alert["expr"]
    assert "in 20m" in alert["annotations"]["description"]
    assert alert["annotations"]["dashboard_url"].startswith("https://grafana.internal/d/")
    recorded = {rule["record"] for rule in flat if "record" in rule}
    used = set(re.findall(r"\b(?:engine|replica|target|model):\w+:\w+", "\n".join(rule["expr"] for rule in flat)))
    assert used <= recorded
    (expected,) = (rule for rule in flat if rule.get("record") == "model:vllm_sidecar_expected_engines:sum")
    assert expected["expr"] == "vector(4)"
    assert expected["labels"] == {"namespace": "models", "model_name": "llama"}
    assert groups[-1]["name"] == "ours"


def test_rules_know_the_monitor_s_job() -> None:
    """The job label is the monitor's namespace and name, so a renamed release is still seen to be down."""
    for name, release in (("default", "vllm-sidecar"), ("everything", "signals")):
        groups = rules(render(case(name)), release)["groups"]
        (down,) = (rule for group in groups for rule in group["rules"] if rule.get("alert") == "VLLMSidecarDown")
        found = re.search(r'job=~"([^"]+)"', down["expr"])
        assert found
        assert re.fullmatch(found[1], f"models/{release}")


def test_dashboards_are_grafana_s_to_find() -> None:
    """Each dashboard of the repository, byte for byte, under the label that Grafana's sidecar looks for."""
    sources = {path.name: path.read_text() for path in (ROOT / "grafana/dashboards").glob("*.json")}
    assert sources
    found = [each for each in render(case("dashboards")) if each["metadata"]["labels"].get("grafana_dashboard") == "1"]
    held = {name.removeprefix("vllm-sidecar-"): data for each in found for name, data in each["data"].items()}
    assert held == sources
    assert all(json.loads(data)["uid"] for data in held.values())
    assert {each["metadata"]["namespace"] for each in found} == {"monitoring"}
    assert all(len(json.dumps(each)) < 1_000_000 for each in found)


def test_chart_fits_into_a_release() -> None:
    """Helm keeps the chart in a Secret of at most 1 MiB, compressed; it is a fraction of that."""
    files = [path for path in CHART.rglob("*") if path.is_file()]
    packed = subprocess.run(["tar", "cz", *files], capture_output=True, check=True).stdout
    assert len(packed) < 300_000


def unit_test(directory: Path, spec: dict[str, Any], tests: str) -> str:
    """What `promtool test rules` says of the groups that unit tests are about; the tests must pass."""
    document = yaml.safe_load(tests) | {"rule_files": [str(directory / "rules.yaml")]}
    groups = [group for group in spec["groups"] if group["name"] in document["group_eval_order"]]
    (directory / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    (directory / "test.yaml").write_text(yaml.safe_dump(document))
    command = [newer("promtool"), "test", "rules", directory / "test.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("alert", ["VLLMPreemptions", "VLLMModelDown", "VLLMSidecarDown"])
def test_alert_s_own_unit_tests_pass_after_a_change(alert: str, tmp_path: Path) -> None:
    """Thresholds of other alerts, and where the links lead, are changed; the alert is the same but for its links."""
    changed = {"runbook_url": "https://wiki.internal/vllm", "grafana_url": "https://grafana.internal"}
    defaults = yaml.safe_load((CHART / "rules/thresholds.yaml").read_text())
    sets = [f"prometheusRule.thresholds.{name}={value}" for name, value in (changed | {"cost_factor": 3}).items()]
    tests = (ROOT / f"alerts/tests/{alert}.yaml").read_text()
    for name, value in changed.items():
        tests = tests.replace(defaults[name], value)
    assert "SUCCESS" in unit_test(tmp_path, rules(render(case("default"), sets=sets)), tests)


def test_changed_threshold_decides(tmp_path: Path) -> None:
    """At 5 % over 20 minutes an engine that preempts 3 % of its arrivals is quiet, and one at 10 % is not."""
    labels = 'namespace="prod",pod="a",model_name="llama",engine='
    series = [
        {"series": f'vllm_sidecar_{name}_total{{{labels}"{engine}"}}', "values": f"0+{step}x240"}
        for engine, name, step in (
            ("3", "preemptions", 3),
            ("3", "arrivals", 100),
            ("10", "preemptions", 10),
            ("10", "arrivals", 100),
        )
    ]
    spec = rules(render(case("thresholds")))
    flat = [rule for group in spec["groups"] for rule in group["rules"]]
    annotations = next(dict(rule["annotations"]) for rule in flat if rule.get("alert") == "VLLMPreemptions")
    expected = {
        "summary": annotations["summary"],
        "description": "Engine 10 of prod/a, model llama: 10% preemptions per arrival in 20m. "
        + annotations["description"].partition("in 20m. ")[2],
        "runbook_url": annotations["runbook_url"],
        "dashboard_url": "https://grafana.internal/d/vllm-sidecar-on-call"
        "?var-namespace=prod&var-pod=a&var-model_name=llama&var-engine=10",
    }
    alert = {
        "exp_labels": {"namespace": "prod", "pod": "a", "model_name": "llama", "engine": "10", "severity": "warning"},
        "exp_annotations": expected,
    }
    check = {"eval_time": "1h30m", "alertname": "VLLMPreemptions", "exp_alerts": [alert]}
    order = ["vllm-sidecar-capacity.rules", "vllm-sidecar-capacity"]
    tests = [{"interval": "30s", "input_series": series, "alert_rule_test": [check]}]
    document = {"evaluation_interval": "30s", "group_eval_order": order, "tests": tests}
    assert "SUCCESS" in unit_test(tmp_path, spec, yaml.safe_dump(document))
