"""The chart as Helm renders it."""

import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.programs import ROOT, kubernetes

CHART = ROOT / "helm/vllm-sidecar"
CASES = sorted([*CHART.glob("ci/*-values.yaml"), *CHART.glob("examples/*.yaml")])
OLDEST, NEWEST = 29, 37
"""Minor versions of Kubernetes: the oldest that the chart admits, the newest whose schemas the lock holds."""

VERSIONS = tuple(f"1.{minor}" for minor in range(OLDEST, NEWEST + 1))
RELEASE = "vllm-sidecar"

OPERATOR = tuple(f"monitoring.coreos.com/v1/{kind}" for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule"))

Object = dict[str, Any]


def case(name: str) -> Path:
    """The values file of a feature, by its name without the ending."""
    found = [path for path in CASES if path.stem.removesuffix("-values") == name]
    assert len(found) == 1
    return found[0]


@cache
def _helm(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [kubernetes("helm"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr


def helm(*arguments: str) -> str:
    """What Helm prints where it ends well."""
    code, text = _helm(*arguments)
    assert code == 0, text
    return text


def _template(values: Sequence[Path], sets: Sequence[str], kinds: Sequence[str], chart: Path) -> tuple[str, ...]:
    files = [f"--values={path}" for path in values]
    changes = [f"--set={change}" for change in sets]
    return (
        "template",
        RELEASE,
        str(chart),
        "--namespace=models",
        *files,
        *changes,
        *(f"--api-versions={each}" for each in kinds),
    )


def text(*values: Path, sets: Sequence[str] = (), kinds: Sequence[str] = OPERATOR, chart: Path = CHART) -> str:
    """The rendered manifests."""
    return helm(*_template(values, sets, kinds, chart))


@cache
def _objects(rendered: str) -> tuple[Object, ...]:
    return tuple(each for each in yaml.load_all(rendered, Loader=yaml.CSafeLoader) if each)


def render(
    *values: Path, sets: Sequence[str] = (), kinds: Sequence[str] = OPERATOR, chart: Path = CHART
) -> list[Object]:
    """The rendered objects. They are shared: do not change them."""
    return list(_objects(text(*values, sets=sets, kinds=kinds, chart=chart)))


def refusal(*, sets: Sequence[str] = (), options: Sequence[str] = ()) -> str:
    """What Helm says where it must not render."""
    code, said = _helm(*_template((), sets, OPERATOR, CHART), *options)
    assert code != 0, "this was rendered"
    return said


def one(objects: Sequence[Object], kind: str, name: str = RELEASE) -> Object:
    """The one object of a kind and name."""
    found = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, [(each["kind"], each["metadata"]["name"]) for each in objects]
    return found[0]


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector with matchLabels, or matchExpressions of NotIn, selects an object with these labels."""
    wanted = selector.get("matchLabels", {})
    refused = {each["key"]: each["values"] for each in selector.get("matchExpressions", [])}
    assert {each["operator"] for each in selector.get("matchExpressions", [])} <= {"NotIn"}
    return wanted.items() <= labels.items() and not any(labels.get(key) in values for key, values in refused.items())


def fault(thing: Object, version: str) -> str:
    """Why a Kubernetes version would refuse an object, or would drop a field of it; empty if neither."""
    try:
        kubernetes_validate.validate(thing, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{error.message} at {list(error.path)}"
    except kubernetes_validate.SchemaNotFoundError:
        return f"there is no {thing['kind']} in {thing['apiVersion']}"
    return ""


def check(thing: Object, version: str) -> None:
    """Fail on an object that has a fault."""
    found = fault(thing, version)
    if found:
        pytest.fail(f"{thing['kind']} {thing['metadata']['name']}, Kubernetes {version}: {found}")


@cache
def _container(parent: Path, sets: tuple[str, ...], profile: str) -> Object:
    (parent / "templates").mkdir(parents=True, exist_ok=True)
    (parent / "charts").mkdir(exist_ok=True)
    link = parent / "charts" / CHART.name
    if not link.exists():
        link.symlink_to(CHART)
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    dependency = {"name": CHART.name, "version": version, "condition": f"{CHART.name}.enabled"}
    chart = {"apiVersion": "v2", "name": "engines", "version": "0.0.1", "dependencies": [dependency]}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(chart))
    subchart = f'(index .Subcharts "{CHART.name}")'
    (parent / "templates/engine.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: engine}\nspec:\n  initContainers:\n"
        f'    - {{{{- include "vllm-sidecar.container" (dict "context" {subchart}) | nindent 6 }}}}\n'
        "  containers: [{name: vllm, image: vllm}]\n  volumes:\n"
        f'    {{{{- include "vllm-sidecar.volumes" (dict "context" {subchart} "profile" "{profile}") | nindent 4 }}}}\n'
    )
    below = [f"{CHART.name}.{change}" for change in ("enabled=true", *sets)]
    return one(render(sets=below, chart=parent), "Pod", "engine")


def included(parent: Path, *sets: str, profile: str = "") -> Object:
    """A pod of another chart that takes the sidecar from this one's library templates."""
    return _container(parent, sets, profile)
