"""What the project's files say of each other is true."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from exporter import DEFAULT_PORT, __version__
from exporter.signals import firing
from tests.programs import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def locked(name: str) -> dict[str, list[str]]:
    """Versions in a lock file by package; there are two where Python versions need different ones."""
    versions: dict[str, list[str]] = {}
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        if found := re.match(r"([a-z0-9-]+)==([^ ]+)", line):
            versions.setdefault(found[1], []).append(found[2])
    return versions


def named_in_project(*extras: str) -> list[Requirement]:
    """The project's dependencies with those of ``extras``."""
    optional = PROJECT["project"]["optional-dependencies"]
    lines = [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in optional[extra])]
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize(
    ("lock", "requirements"),
    [
        ("runtime.txt", named_in_project()),
        ("dev.txt", named_in_project("lab", "dev")),
        ("build.txt", [Requirement(line) for line in PROJECT["build-system"]["requires"]]),
    ],
    ids=["runtime", "dev", "build"],
)
def test_lock_holds_what_the_project_names(lock: str, requirements: list[Requirement]) -> None:
    """Each dependency is in the lock, at a version that pyproject.toml admits; else run `make lock`."""
    versions = locked(lock)
    for requirement in requirements:
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        assert versions.get(name), f"{name} is not in {lock}; run: make lock"
        assert all(requirement.specifier.contains(version) for version in versions[name])


def test_locks_agree() -> None:
    """What runs in the image is what is tested: the development lock holds the runtime lock as it is."""
    assert locked("runtime.txt").items() <= locked("dev.txt").items()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_locked_package_has_hashes(lock: Path) -> None:
    """A lock pins content, not only versions, and says nothing of the machine that made it."""
    text = lock.read_text()
    packages = re.split(r"^(?=[a-z0-9-]+==)", text, flags=re.MULTILINE)[1:]
    assert packages
    assert all("--hash=sha256:" in package for package in packages)
    assert not re.search(r"https?://|file:|--(extra-)?index-url|--find-links", text)


def test_port_is_one() -> None:
    """Dockerfile, README, chart, snippets and compose file name the default port, and it is not one of others."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert re.findall(r"^EXPOSE (\d+)$", dockerfile, re.MULTILINE) == [str(DEFAULT_PORT)]
    assert re.findall(r"--web\.listen-address=[^\s\"]*:(\d+)", dockerfile) == [str(DEFAULT_PORT)]
    assert f":{DEFAULT_PORT}" in (ROOT / "README.md").read_text()
    assert yaml.safe_load((ROOT / "helm/vllm-sidecar/values.yaml").read_text())["port"] == DEFAULT_PORT
    manifests = [*(ROOT / "helm/inject").rglob("*.yaml"), *(ROOT / "compose").glob("*.yml"), ROOT / "compose.yaml"]
    named = [port for path in manifests for port in re.findall(r":(1\d{4})\b", path.read_text())]
    assert set(named) == {str(DEFAULT_PORT), str(DEFAULT_PORT + 1)}  # and the page
    assert DEFAULT_PORT != 8000
    assert DEFAULT_PORT not in range(9100, 10_000)


def test_version_is_in_one_place() -> None:
    """The package's own constant is the version, and pyproject.toml reads it."""
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"] == {"path": "exporter/__init__.py"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


def test_pages_and_manifests_name_this_version() -> None:
    """Of the image, of the files of a release, of the overlay's tag."""
    paths = [*(ROOT / "docs").glob("*.md"), *(path for path in (ROOT / "helm/inject").rglob("*") if path.is_file())]
    named = [
        version
        for path in paths
        for version in re.findall(r"(?:vllm-sidecar[:-]|VERSION=|newTag: )(\d+\.\d+\.\d+)", path.read_text())
    ]
    assert len(named) > 8
    assert set(named) == {__version__}


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))


def workflow(name: str) -> dict[str, Any]:
    """A hosted workflow."""
    found: dict[str, Any] = yaml.safe_load((ROOT / f".github/workflows/{name}.yaml").read_text())
    return found


def test_the_repository_has_one_address() -> None:
    """Who moves it changes pyproject.toml, and is told here where else it stands; the image is named after it."""
    repository = PROJECT["project"]["urls"]["Repository"]
    chart = yaml.safe_load((ROOT / "helm/vllm-sidecar/Chart.yaml").read_text())
    image = yaml.safe_load((ROOT / "helm/vllm-sidecar/values.yaml").read_text())["image"]
    thresholds = yaml.safe_load((ROOT / "alerts/thresholds.yaml").read_text())
    assert {chart["home"], *chart["sources"], *(each["url"] for each in chart["maintainers"])} == {repository}
    assert thresholds["runbook_url"]["value"] == firing.RUNBOOKS == f"{repository}/blob/main/alerts/runbooks"
    assert f"({repository})" in (ROOT / "helm/vllm-sidecar/README.md").read_text()
    assert repository == f"https://github.com/{image['repository']}"
    pages = [ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "helm/inject").rglob("*.yaml")]
    named = {name for page in pages for name in re.findall(r"(?:ghcr\.io/|--repo )([\w-]+/[\w-]+)", page.read_text())}
    assert named == {image["repository"]}


def test_ci_runs_the_project_s_own_commands() -> None:
    """The hosted workflow calls `.ci/run`, which calls what a contributor calls."""
    assert workflow("ci")["jobs"]["test"]["steps"][-1]["run"] == "bash .ci/run"
    lines = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("phase ")]
    assert [line.split()[-1] for line in lines] == ["tools", "check", "test"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_read_and_its_actions_are_pinned(path: Path) -> None:
    """An action is what its commit is, with the version beside it for people; rights are given by the job."""
    text = path.read_text()
    used = re.findall(r"uses: (?!\./)(.+)", text)
    assert used
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", each) for each in used)
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}


def test_release_is_tested_audited_and_signed() -> None:
    """A tag runs all of CI, then builds without a right to write; the job that has it runs nothing of ours."""
    jobs = workflow("release")["jobs"]
    test, build, publish = jobs["test"], jobs["build"], jobs["publish"]
    assert test["uses"] == "./.github/workflows/ci.yaml"
    assert (build["needs"], publish["needs"]) == ("test", "build")
    assert not {"permissions"} & {*test, *build}
    assert publish["permissions"] == {"contents": "write", "id-token": "write", "attestations": "write"}
    commands = [step["run"].split()[-1] for step in build["steps"] if step.get("run", "").startswith("make ")]
    assert commands == ["audit", "dist"]
    download, sign, release = publish["steps"]
    assert download["with"]["name"] == build["steps"][-1]["with"]["name"]
    assert sign["uses"].startswith("actions/attest-build-provenance@")
    assert sign["with"]["subject-path"] == "dist/*"
    assert release["run"].startswith("gh release create ")


def test_every_package_of_the_image_has_its_licence_named() -> None:
    """Else run `make licences`."""
    named = re.findall(r"^\| ([a-z0-9-]+) \| \S", (ROOT / "docs/licences.md").read_text(), re.MULTILINE)
    assert set(named) - {"package"} == set(locked("runtime.txt"))


def test_make_help_says_what_each_target_does() -> None:
    """All that a person may ask for, and nothing else."""
    listed = subprocess.run(["make", "-C", ROOT, "help"], capture_output=True, text=True, check=True).stdout
    (phony,) = re.findall(r"^\.PHONY: ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"^([a-z-]+) +\S", listed, re.MULTILINE)) == set(phony.replace("\\", " ").split())


def build_wheel(source: Path, directory: Path) -> Path:
    """Build the wheel of a tree; the back end is the locked one."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", directory, source], check=True, timeout=120)
    return next(directory.glob("*.whl"))


def test_wheel_is_the_package_alone_and_reproducible(tmp_path: Path) -> None:
    """From files of another place, time and mode come the same bytes: the package, its type marker, its licence."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "exporter", tmp_path / "exporter", ignore=shutil.ignore_patterns("__pycache__"))
    for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
        path.chmod(0o600)
        os.utime(path, (1_000_000_000, 1_000_000_000))
    wheel, again = build_wheel(ROOT, tmp_path / "one"), build_wheel(tmp_path, tmp_path / "two")
    assert hashlib.sha256(wheel.read_bytes()).digest() == hashlib.sha256(again.read_bytes()).digest()
    names = zipfile.ZipFile(wheel).namelist()
    metadata = f"vllm_sidecar-{__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"exporter", metadata}
    assert {"exporter/py.typed", f"{metadata}/licenses/LICENSE"} <= set(names)
    assert not [name for name in names if re.search(r"(^|/)(tests?|test_[^/]*|conftest\.py|__pycache__)(/|$)", name)]


def test_runtime_lock_installs_on_arm64(tmp_path: Path) -> None:
    """Each locked package has a wheel for Linux on arm64, so that one Dockerfile without a compiler serves both."""
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (17, 28)] + ["--platform=manylinux2014_aarch64"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--only-binary=:all:", "--no-deps"]
    command += [*platforms, "--python-version=3.13", "--target", tmp_path, "--require-hashes"]
    done = subprocess.run(
        [*command, "--requirement", ROOT / "requirements/runtime.txt"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
