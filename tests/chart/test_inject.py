"""Ways into an engine's pod: nothing of the pod is lost, the sidecar is the chart's own, and a miss is loud."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter.settings import load
from tests.chart.rendering import VERSIONS, Object, case, check, included, one, render
from tests.programs import ROOT, kubernetes

INJECT = ROOT / "helm/inject"
WORKLOADS = Path(__file__).parent / "workloads"


def build(directory: Path) -> tuple[int, str]:
    """`kubectl kustomize` of a directory: exit code, and what it printed on stdout or stderr."""
    done = subprocess.run([kubernetes("kubectl"), "kustomize", directory], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr


@dataclass(frozen=True, slots=True)
class Mark:
    """A workload to put the sidecar into, by a component, and the lists that its pod does not have."""

    component: str
    kind: str
    name: str
    none: tuple[str, ...] = ()


def overlay(directory: Path, workload: str, mark: Mark | None) -> Path:
    """The example's overlay over what another chart rendered, with one workload marked, or none."""
    shape = mark or SHAPES[workload]
    shutil.copytree(INJECT / "kustomize", directory, dirs_exist_ok=True)
    example = directory / "example"
    shutil.copy(WORKLOADS / f"{workload}.yaml", example / "rendered.yaml")
    kustomization = yaml.safe_load((example / "kustomization.yaml").read_text())
    assert kustomization["components"] == ["engines", "../deployment"]
    kustomization["components"] = [*(["engines"] if mark else []), f"../{shape.component}"]
    (example / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    marks = yaml.safe_load((example / "engines/kustomization.yaml").read_text())
    annotations = {"vllm-sidecar/inject": "yes"} | {f"vllm-sidecar/{each}": "none" for each in shape.none}
    version = "leaderworkerset.x-k8s.io/v1" if shape.kind == "LeaderWorkerSet" else "apps/v1"
    patch = {"apiVersion": version, "kind": shape.kind, "metadata": {"name": shape.name, "annotations": annotations}}
    marks["patches"] = [{"patch": yaml.safe_dump(patch)}]
    (example / "engines/kustomization.yaml").write_text(yaml.safe_dump(marks))
    return example


SHAPES = {
    "production-stack": Mark("deployment", "Deployment", "vllm-llama3-deployment-vllm", none=("init-containers",)),
    "llm-d": Mark("deployment", "Deployment", "ms-pd-llm-d-modelservice-decode"),
    "statefulset": Mark("statefulset", "StatefulSet", "vllm", none=("volumes",)),
    "leaderworkerset": Mark("leaderworkerset", "LeaderWorkerSet", "vllm"),
    "leaderworkerset-one-template": Mark(
        "leaderworkerset-one-template", "LeaderWorkerSet", "wide-ep", none=("init-containers",)
    ),
}


def pod_of(thing: Object, component: str) -> dict[str, Any]:
    """The pod template that a component works on."""
    spec = thing["spec"]
    if thing["kind"] == "LeaderWorkerSet":
        template = "workerTemplate" if component.endswith("one-template") else "leaderTemplate"
        found: dict[str, Any] = spec["leaderWorkerTemplate"][template]["spec"]
    else:
        found = spec["template"]["spec"]
    return found


@pytest.mark.parametrize("workload", SHAPES)
def test_component_adds_and_loses_nothing(workload: str, tmp_path: Path) -> None:
    """After taking the sidecar and its volume out again, every object is what the other chart rendered."""
    mark = SHAPES[workload]
    code, text = build(overlay(tmp_path, workload, mark))
    assert code == 0, text
    built = list(yaml.safe_load_all(text))
    before = list(yaml.safe_load_all((WORKLOADS / f"{workload}.yaml").read_text()))
    pod = pod_of(one(built, mark.kind, mark.name), mark.component)
    only_leader = ("sidecar.leaderOnly=true",) if mark.component.endswith("one-template") else ()
    wanted = included(tmp_path / "chart", *only_leader)["spec"]
    sidecar, volume = pod["initContainers"].pop(), pod["volumes"].pop()
    assert [sidecar] == wanted["initContainers"]
    assert [volume] == wanted["volumes"]

    for absent in mark.none:
        key = {"init-containers": "initContainers", "volumes": "volumes"}[absent]
        assert pod.pop(key) == []
    marked = one(built, mark.kind, mark.name)["metadata"]
    assert marked.pop("annotations")["vllm-sidecar/inject"] == "yes"
    assert sorted(built, key=repr) == sorted(_normal(before), key=repr)
    for thing in built:
        for version in VERSIONS if mark.kind != "LeaderWorkerSet" else ():
            check(thing, version)


def _normal(things: list[Object]) -> list[Object]:
    """Objects as kustomize prints them: keys sorted."""
    return list(yaml.safe_load_all(yaml.safe_dump_all(things)))


def test_worker_template_is_left_alone(tmp_path: Path) -> None:
    """Where leaders have a template of their own, only they get the sidecar."""
    _, text = build(overlay(tmp_path, "leaderworkerset", SHAPES["leaderworkerset"]))
    group = one(list(yaml.safe_load_all(text)), "LeaderWorkerSet", "vllm")["spec"]["leaderWorkerTemplate"]
    assert [each["name"] for each in group["leaderTemplate"]["spec"]["initContainers"]] == ["download", "vllm-sidecar"]
    assert "initContainers" not in group["workerTemplate"]["spec"]


def test_unmarked_workload_is_left_alone(tmp_path: Path) -> None:
    """The router is a Deployment of the same chart, and gets no sidecar."""
    _, text = build(overlay(tmp_path, "production-stack", SHAPES["production-stack"]))
    router = one(list(yaml.safe_load_all(text)), "Deployment", "vllm-deployment-router")
    assert "initContainers" not in router["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("workload", "change", "said"),
    [
        ("production-stack", {"name": "renamed"}, "no matches for Id Deployment.v1.apps/renamed"),
        ("production-stack", None, "no matches for Id Marked.v1.vllm-sidecar/engines"),
        ("production-stack", {"none": ()}, 'doc is missing path: \\"/spec/template/spec/initContainers/-'),
        ("llm-d", {"none": ("init-containers",)}, "testing value /spec/template/spec/initContainers failed"),
        ("statefulset", {"none": ()}, 'doc is missing path: \\"/spec/template/spec/volumes/-'),
        ("leaderworkerset-one-template", {"component": "leaderworkerset"}, "missing path"),
    ],
    ids=["renamed", "not marked", "no list to append to", "a list that would be lost", "no volumes", "wrong shape"],
)
def test_miss_is_loud(workload: str, change: dict[str, Any] | None, said: str, tmp_path: Path) -> None:
    """A workload that is not there, or not as it was said to be, fails the build."""
    mark = None if change is None else replace(SHAPES[workload], **change)
    code, error = build(overlay(tmp_path, workload, mark))
    assert code != 0
    assert said in error


def test_image_is_set_in_one_place(tmp_path: Path) -> None:
    """The example's `images` entry reaches the sidecar, also inside a LeaderWorkerSet."""
    example = overlay(tmp_path, "leaderworkerset", SHAPES["leaderworkerset"])
    file = example / "kustomization.yaml"
    file.write_text(re.sub("newTag: .+", "newTag: 9.9.9", file.read_text()))
    code, text = build(example)
    assert code == 0
    assert "ghcr.io/vllm-sidecar/vllm-sidecar:9.9.9" in text


def sidecars(node: object) -> list[dict[str, Any]]:
    """Every container called vllm-sidecar in a document, each with the key of the list that it is in."""
    if isinstance(node, list):
        return [found for each in node for found in sidecars(each)]
    if not isinstance(node, dict):
        return []
    found = [sidecar for value in node.values() for sidecar in sidecars(value)]
    for key, value in node.items():
        if isinstance(value, list):
            found += [
                {"in": key} | each
                for each in value
                if isinstance(each, dict) and "args" in each and each.get("name") == "vllm-sidecar"
            ]
    return found


SNIPPETS = ("vllm-chart-values", "llm-d-values", "kserve-inferenceservice", "kserve-llminferenceservice")


@pytest.mark.parametrize("name", SNIPPETS)
def test_snippet_is_the_chart_s_container(name: str, tmp_path: Path) -> None:
    """A native sidecar without probes, like the chart's but for the environment, and in no list that takes a GPU."""
    found = sidecars(yaml.safe_load((INJECT / f"{name}.yaml").read_text()))
    assert len(found) == (2 if name == "llm-d-values" else 1)
    guaranteed = ("sidecar.guaranteed=true",) if name == "vllm-chart-values" else ()
    (wanted,) = included(tmp_path, *guaranteed)["spec"]["initContainers"]
    for each in found:
        assert each.pop("in") == "initContainers"
        environment = {entry["name"]: entry["value"] for entry in each.pop("env", [])}
        if name == "vllm-chart-values":
            each["args"].insert(1, "--config.file=/etc/vllm-sidecar/settings.yaml")
            each["volumeMounts"] = wanted["volumeMounts"]
        assert each == wanted
        assert accepted(environment)


def accepted(environment: Mapping[str, str]) -> bool:
    """Whether the sidecar takes these variables as settings."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        return bool(load())


def test_llm_d_pools_have_the_settings_of_their_role() -> None:
    """Each pool mounts the ConfigMap of its profile in the example for a pair; a decode pod's engine is on 8200."""
    values = yaml.safe_load((INJECT / "llm-d-values.yaml").read_text())
    objects = render(case("prefill-decode"))
    for role, url in (("prefill", "http://localhost:8000"), ("decode", "http://localhost:8200")):
        assert "containers" not in values[role]
        (volume,) = values[role]["volumes"]
        settings = yaml.safe_load(one(objects, "ConfigMap", volume["configMap"]["name"])["data"]["settings.yaml"])
        assert (settings["role"], settings["url"]) == (role, url)


FIELDS = {
    "InferenceService": (
        "serving.kserve.io/v1beta1",
        {"predictor"},
        "predictor",
        {"model", "initContainers", "volumes"},
    ),
    "LLMInferenceService": (
        "serving.kserve.io/v1alpha1",
        {"model", "replicas", "template"},
        "template",
        {"containers", "initContainers", "volumes"},
    ),
}


@pytest.mark.parametrize("name", SNIPPETS[2:])
def test_kserve_knows_every_field(name: str) -> None:
    """Fields as KServe 0.16 publishes them; what it copies into a pod is one that Kubernetes takes."""
    thing = yaml.safe_load((INJECT / f"{name}.yaml").read_text())
    version, spec, template, fields = FIELDS[thing["kind"]]
    assert thing["apiVersion"] == version
    assert thing["spec"].keys() == spec
    pod = deepcopy(thing["spec"][template])
    assert pod.keys() == fields
    pod["containers"] = [{"name": "main", "image": "vllm"}]
    pod.pop("model", None)
    for each in VERSIONS:
        check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "engine"}, "spec": pod}, each)


def test_admission_policy() -> None:
    """It never blocks a pod, and adds no probe."""
    policy, binding = yaml.safe_load_all((INJECT / "admission-policy.yaml").read_text())
    assert policy["spec"]["failurePolicy"] == "Ignore"
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    (mutation,) = policy["spec"]["mutations"]
    expression = mutation["jsonPatch"]["expression"]
    assert "Probe" not in expression


def test_admission_policy_adds_the_chart_s_container(tmp_path: Path) -> None:
    """Its expression, read as JSON, is the chart's container and volume."""
    policy, _ = yaml.safe_load_all((INJECT / "admission-policy.yaml").read_text())
    expression = policy["spec"]["mutations"][0]["jsonPatch"]["expression"]
    patches = expression[expression.rindex("+ [") + 2 :]
    # Object types of CEL as YAML flow mappings.
    flow = re.sub(r"\b(?:Object[.\w]*|JSONPatch)\{", "{", patches)
    container, volume = (each["value"] for each in yaml.safe_load(flow))
    wanted = included(tmp_path)["spec"]
    assert [container] == wanted["initContainers"]
    assert [volume] == wanted["volumes"]
