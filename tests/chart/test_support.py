"""The Kubernetes versions that docs/support.md names are those that the API's schemas bear out."""

import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.chart.rendering import CASES, CHART, NEWEST, OLDEST, Object, fault, helm, included, refusal, render
from tests.programs import ROOT

PAGE = (ROOT / "docs/support.md").read_text()
KINDS = re.findall(r"^\| (.+) \| `(\S+)` \| (\S+) \| (.+) \|$", PAGE, re.MULTILINE)
"""(kinds, API, Kubernetes since, how it is checked), a row each."""

COMMITTED = [
    *yaml.safe_load_all((ROOT / "helm/inject/admission-policy.yaml").read_text()),
    *(yaml.safe_load(path.read_text()) for path in sorted((ROOT / "helm/inject").glob("kserve-*.yaml"))),
    *(yaml.safe_load((ROOT / f"helm/autoscaling/{name}.yaml").read_text()) for name in ("hpa", "keda")),
]
OBJECTS: dict[tuple[str, str], Object] = {
    (thing["kind"], thing["apiVersion"]): thing
    for thing in [*COMMITTED, *(thing for values in CASES for thing in render(values))]
}


def test_every_kind_has_its_row() -> None:
    """Of whatever the chart renders or the repository holds for a cluster: kind and API, no more and no fewer."""
    named = {(kind, api) for kinds, api, *_ in KINDS for kind in re.findall(r"`(\w+)`", kinds)}
    assert named == set(OBJECTS)


@pytest.mark.parametrize(("kinds", "api", "since", "how"), KINDS)
def test_a_kind_is_there_since_the_version_named(kinds: str, api: str, since: str, how: str) -> None:
    """The schemas of that version take it, and those of the one before, where there are any, do not have it."""
    first = int(since.removeprefix("1.")) if since != "-" else None
    assert ("schemas" in how) == (first is not None)
    for kind in re.findall(r"`(\w+)`", kinds) if first is not None else ():
        thing = OBJECTS[kind, api]
        assert fault(thing, f"1.{max(first, OLDEST)}") == ""
        if first > 25:
            assert fault(thing, f"1.{first - 1}") == f"there is no {kind} in {api}"


def test_native_sidecars_decide_about_the_oldest_version(tmp_path: Path) -> None:
    """The API got the field in 1.28, where it is off unless asked for; the page says that it is on from 1.29."""
    pod = included(tmp_path)
    assert "restartPolicy" in fault(pod, "1.27")
    assert fault(pod, "1.28") == ""
    assert OLDEST == 29
    assert "on by default from 1.29" in PAGE


def test_older_kubernetes_is_refused() -> None:
    """Before it an init container that goes on for ever keeps the engine from starting for ever."""
    older, oldest = f"--kube-version=1.{OLDEST - 1}.9", f"--kube-version=1.{OLDEST}.0"
    assert f"kubeVersion: >=1.{OLDEST}.0-0 which is incompatible" in refusal(options=[older])
    assert "kind: ConfigMap" in helm("template", "engines", str(CHART), oldest)


def test_pages_name_the_same_versions() -> None:
    """The range is that of the schemas that the tests check against; two other pages name its beginning."""
    assert kubernetes_validate.latest_version() == f"1.{NEWEST}.0"
    assert f"| Kubernetes | 1.{OLDEST} to 1.{NEWEST} |" in PAGE
    for page in (CHART / "README.md", ROOT / "docs/kubernetes.md"):
        assert f"Kubernetes 1.{OLDEST} or newer" in page.read_text()
