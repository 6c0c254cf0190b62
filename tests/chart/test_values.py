"""Values: each feature renders to what Kubernetes takes, and what makes no sense is refused with the reason."""

import json
import re
from pathlib import Path

import pytest
import yaml

from exporter import DEFAULT_PORT, __version__
from exporter.schema import Config
from helm import build
from helm.values_table import table
from tests.chart.rendering import CASES, CHART, VERSIONS, case, check, helm, included, one, refusal, render

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.mark.parametrize("values", CASES, ids=lambda path: path.stem)
def test_lints(values: Path) -> None:
    """`helm lint --strict` has nothing to say."""
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), f"--values={values}")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", CASES, ids=lambda path: path.stem)
def test_kubernetes_takes_every_object(values: Path, version: str) -> None:
    """No field is unknown, missing or of a wrong type in any Kubernetes that the chart supports."""
    for thing in render(values):
        if not thing["apiVersion"].startswith("monitoring.coreos.com/"):
            check(thing, version)


def test_generated_parts_are_current() -> None:
    """Rules, dashboards, schema and README are what their sources make; else run `make chart`."""
    assert build.stale() == []


def test_every_value_is_described() -> None:
    """The table refuses a value without a comment, and takes in what a comment says over several lines."""
    with pytest.raises(ValueError, match=r"below\.two"):
        table("# -- One.\none: 1\nbelow:\n  two: 2\n")
    assert "| `one` | `[]` | One, and more. |" in table("# -- One,\n# and more.\none: []\n")


def test_chart_is_of_the_package_s_version() -> None:
    """The image that the chart runs is the release it is part of."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    assert chart["name"] == CHART.name


def test_port_is_the_package_s() -> None:
    """One port in values, probes and flags; another one is another one everywhere."""
    assert VALUES["port"] == DEFAULT_PORT
    for sets, port in (((), DEFAULT_PORT), (("port=20077",), 20077)):
        objects = render(case("fleet"), sets=sets)
        container = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
        assert [each["containerPort"] for each in container["ports"]] == [port]
        assert f"--web.listen-address=:{port}" in container["args"]
        assert one(objects, "Service")["spec"]["ports"][0]["port"] == port


OPEN = {"extraFields", "extraManifests", "global"}
KUBERNETES = {"securityContext", "livenessProbe", "affinity", "tlsConfig", "selector", "namespaceSelector", "objects"}
"""Passed on as they are: Kubernetes, or the Prometheus operator, knows their fields."""


def closed(name: str, schema: object) -> list[str]:
    """Objects in a schema that take any key."""
    if not isinstance(schema, dict):
        return []
    below = [*schema.get("properties", {}).items(), *((name, schema[key]) for key in ("items",) if key in schema)]
    found = [each for key, value in below for each in closed(key, value)]
    if schema.get("type") == "object" and "additionalProperties" not in schema and name not in OPEN | KUBERNETES:
        found.append(name)
    return found


def test_schema_is_closed() -> None:
    """Everywhere but under `extra…`, `global` and what Kubernetes itself checks, an unknown key is refused."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert closed("", schema) == []
    assert [name for name, each in schema["definitions"].items() if closed(name, each)] == []
    assert schema["properties"].keys() == VALUES.keys()


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["replicas=2"], "additional properties 'replicas' not allowed"),
        (["podMonitor.selectr.a=b"], "at '/podMonitor': additional properties 'selectr' not allowed"),
        (["port=metrics"], "at '/port': got string, want integer"),
        (["port=70000"], "at '/port': maximum: got 70,000, want 65,535"),
        (["portName=far-too-long-a-name"], "at '/portName': maxLength: got 19, want 15"),
        (["mode=daemonset"], "at '/mode': value must be one of 'sidecar', 'fleet'"),
        (["settings.gpu_hour_dollars=-1"], "at '/settings/gpu_hour_dollars': minimum: got -1, want 0"),
        (["settings.gpu_price=1"], "at '/settings': additional properties 'gpu_price' not allowed"),
        (["settings.slo.ttft_seconds=0"], "at '/settings/slo/ttft_seconds': exclusiveMinimum: got 0, want 0"),
        (["settings.listen_address=:1"], "at '/settings': additional properties 'listen_address' not allowed"),
        (["profiles.decode.rolle=decode"], "at '/profiles/decode': additional properties 'rolle' not allowed"),
        (["prometheusRule.thresholds.kv_pinned_ratio=90"], "kv_pinned_ratio': exclusiveMaximum: got 90, want 1"),
        (["prometheusRule.thresholds.stalled_for=5 minutes"], "stalled_for': '5 minutes' does not match pattern"),
        (["prometheusRule.thresholds.kv_pined_ratio=0.9"], "additional properties 'kv_pined_ratio' not allowed"),
        (
            ["sidecar.readinessProbe.periodSeconds=5"],
            "at '/sidecar': additional properties 'readinessProbe' not allowed",
        ),
        (["image.digest=latest"], "at '/image/digest': 'latest' does not match pattern"),
        (["fleet.replicas=2"], "at '/fleet': additional properties 'replicas' not allowed"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_schema_refuses(sets: list[str], said: str) -> None:
    """A wrong value is refused before anything is rendered, by its path."""
    assert said in refusal(sets=sets)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["serviceMonitor.enabled=true"], "choose one, or everything is scraped twice; podMonitor.enabled=false"),
        (["networkPolicy.enabled=true"], "would cut the ports they serve on; set it to false"),
        (["fleet.shards=2"], "only in mode fleet"),
        (
            ["podMonitor.enabled=false", "serviceMonitor.enabled=true"],
            "needs service.selector, the labels of the engines",
        ),
        (["mode=fleet"], "needs settings.targets, a list of engines' URLs, or settings.discovery"),
        (
            ["mode=fleet", "settings.targets[0].url=http://a", "profiles.a.role=decode"],
            "give each of settings.targets its own",
        ),
        (["mode=fleet", "settings.targets[0].url=http://a", "fleet.shards=2"], "more shards than settings.targets"),
        (["mode=fleet", "settings.discovery.expected_targets=2", "fleet.shards=2"], "cannot divide settings.discovery"),
        (["sidecar.extraFields.readinessProbe.httpGet.port=1"], "sidecar.extraFields.readinessProbe: remove it"),
        (["sidecar.extraFields.startupProbe.httpGet.port=1"], "sidecar.extraFields.startupProbe: remove it"),
        (
            ["sidecar.extraFields.restartPolicy=Never"],
            "sidecar.extraFields.restartPolicy: the container has that field",
        ),
        (["sidecar.livenessProbe.periodSeconds=5"], "periodSeconds times failureThreshold must be 60 or more"),
        (["sidecar.guaranteed=true", "sidecar.resources.limits.cpu=1"], "must have requests equal to limits"),
        (["prometheusRule.thresholds.window=1m"], "thresholds.window: 1m is shorter than four scrape intervals of 30s"),
        (["prometheusRule.thresholds.burn_2_long=30m"], "burn_2_long: 30m is not longer than burn_2_short, 30m"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_template_refuses_and_says_what_to_do(sets: list[str], said: str) -> None:
    """What a schema cannot see stops the render with one sentence."""
    assert said in refusal(sets=sets)


@pytest.mark.parametrize("values", CASES, ids=lambda path: path.stem)
def test_settings_are_the_sidecar_s_own(values: Path) -> None:
    """Each settings file that a values file makes is one that the sidecar accepts; a file it names is there."""
    files = [each["data"]["settings.yaml"] for each in render(values) if "settings.yaml" in each.get("data", {})]
    assert files
    for each in files:
        settings = yaml.safe_load(re.sub("(ca_file|web_config_file): .*", r"\1: /etc/hosts", each))
        assert Config.model_validate(settings)


def test_profile_lies_over_the_settings() -> None:
    """2.5 dollars from `settings`, 0.05 s in place of 0.2, and the role that only the profile has."""
    objects = render(case("profiles"))
    decode = yaml.safe_load(one(objects, "ConfigMap", "vllm-sidecar-settings-decode")["data"]["settings.yaml"])
    assert decode == {"gpu_hour_dollars": 2.5, "role": "decode", "slo": {"itl_seconds": 0.05}}
    common = yaml.safe_load(one(objects, "ConfigMap", "vllm-sidecar-settings")["data"]["settings.yaml"])
    assert common == {"gpu_hour_dollars": 2.5, "slo": {"itl_seconds": 0.2}}


def test_shards_watch_each_target_once() -> None:
    """Three targets on two shards by index: 0 and 2, and 1; each shard is a Deployment that selects its own pods."""
    objects = render(case("shards"))
    seen = []
    for shard in ("0", "1"):
        deployment = one(objects, "Deployment", f"vllm-sidecar-{shard}")["spec"]
        assert deployment["selector"]["matchLabels"]["vllm-sidecar/shard"] == shard
        volume = deployment["template"]["spec"]["volumes"][0]["configMap"]["name"]
        settings = yaml.safe_load(one(objects, "ConfigMap", volume)["data"]["settings.yaml"])
        seen.append([each["url"] for each in settings["targets"]])
    assert seen == [["http://a:8000", "http://c:8000"], ["http://b:8000"]]


@pytest.mark.parametrize(
    "values", [path for path in CASES if "mode: fleet" in path.read_text()], ids=lambda path: path.stem
)
def test_deployment_is_one_and_restricted(values: Path) -> None:
    """Never two pods that see the same engines, no token, no writable root, no right to gain one."""
    objects = render(values)
    assert not [each for each in objects if each["kind"] in ("PodDisruptionBudget", "HorizontalPodAutoscaler")]
    for deployment in (each["spec"] for each in objects if each["kind"] == "Deployment"):
        assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
        pod = deployment["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        container = pod["containers"][0]
        assert {"--never-exit", "--config.file=/etc/vllm-sidecar/settings.yaml"} <= set(container["args"])
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is security["runAsNonRoot"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security["runAsUser"] == 65532
        assert "memory" in container["resources"]["limits"]
        assert "cpu" not in container["resources"]["limits"]
    accounts = [each for each in objects if each["kind"] == "ServiceAccount"]
    assert all(each["automountServiceAccountToken"] is False for each in accounts)


def test_probes_follow_the_scheme() -> None:
    """With TLS on the port the kubelet asks by it; the test pod, which lacks the authority, is left out."""
    for name, scheme, tests in (("fleet", "HTTP", {"settings", "metrics"}), ("tls", "HTTPS", {"settings"})):
        objects = render(case(name))
        container = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
        assert {container[probe]["httpGet"]["scheme"] for probe in ("readinessProbe", "livenessProbe")} == {scheme}
        pods = {each["metadata"]["name"] for each in objects if each["kind"] == "Pod"}
        assert pods == {f"vllm-sidecar-test-{test}" for test in tests}


def test_network_policy_selects_our_own_pods_alone() -> None:
    """It covers the Deployment, and no pod that lacks this release's labels; only the port is let through."""
    objects = render(case("network-policy"))
    policy = one(objects, "NetworkPolicy")["spec"]
    labels = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selector = policy["podSelector"]["matchLabels"]
    assert selector.items() <= labels.items()
    assert selector["app.kubernetes.io/instance"] == "vllm-sidecar"
    (rule,) = policy["ingress"]
    assert [each["port"] for each in rule["ports"]] == ["sidecar-metrics"]
    test = one(objects, "Pod", "vllm-sidecar-test-metrics")["metadata"]["labels"]
    assert any(each.get("podSelector", {}).get("matchLabels", {"": 0}).items() <= test.items() for each in rule["from"])


def test_container_for_other_charts(tmp_path: Path) -> None:
    """A chart that depends on this one gets a native sidecar that cannot decide about the engine."""
    pod = included(tmp_path / "plain")
    (container,) = pod["spec"]["initContainers"]
    assert container["restartPolicy"] == "Always"
    assert not {"readinessProbe", "startupProbe", "livenessProbe"} & container.keys()
    assert container["resources"] == {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "128Mi"}}
    for version in VERSIONS:
        check(pod, version)


def test_container_keeps_a_pod_guaranteed(tmp_path: Path) -> None:
    """Requests equal to limits, with the 200m of CPU that a limit must not be below."""
    (container,) = included(tmp_path / "guaranteed", "sidecar.guaranteed=true")["spec"]["initContainers"]
    wanted = {"cpu": "200m", "memory": "128Mi"}
    assert container["resources"] == {"requests": wanted, "limits": wanted}


def test_pod_starts_without_its_settings(tmp_path: Path) -> None:
    """A ConfigMap that is not there keeps no engine from starting; it is mounted as a folder, which follows changes."""
    pod = included(tmp_path / "profile", profile="decode")["spec"]
    (volume,) = pod["volumes"]
    assert volume["configMap"] == {"name": "vllm-sidecar-settings-decode", "optional": True}
    (mount,) = pod["initContainers"][0]["volumeMounts"]
    assert mount == {"name": volume["name"], "mountPath": "/etc/vllm-sidecar", "readOnly": True}


def test_notes_say_what_to_check() -> None:
    """After an install without the operator's kinds: that nothing is scraped, and how to see a target."""
    said = helm("install", "vllm-sidecar", str(CHART), "--dry-run=client", f"--values={case('fleet')}")
    assert "WARNING: no PodMonitor was made" in said
    assert f"port-forward deploy/vllm-sidecar {DEFAULT_PORT}" in said
    assert "helm test vllm-sidecar" in said
    assert "Alerts link to https://grafana.example.com" in said
    known = "--set=prometheusRule.thresholds.grafana_url=https://grafana.internal"
    assert "Alerts link" not in helm("install", "vllm-sidecar", str(CHART), "--dry-run=client", known)
