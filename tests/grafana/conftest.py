"""One store of samples for all tests of the dashboards, served by both Prometheus versions."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grafana.prometheus_server import Prometheus, serving
from tests.grafana.stored_fleet import openmetrics
from tests.programs import newer, system


@pytest.fixture(scope="session")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fleet's samples as Prometheus stores them."""
    directory = tmp_path_factory.mktemp("blocks")
    text = directory / "fleet.om"
    text.write_text(openmetrics())
    command = [system("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(text), str(directory / "data")]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return directory / "data"


@pytest.fixture(scope="session", params=["2.42", "3.5"])
def stored(
    request: pytest.FixtureRequest, blocks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A Prometheus over the fleet: Debian 12's, and its next release's."""
    program = {"2.42": system, "3.5": newer}[request.param]("prometheus")
    with serving(program, tmp_path_factory.mktemp("prometheus"), blocks=blocks) as server:
        assert server.version.startswith(request.param)
        yield server


@pytest.fixture(scope="session")
def newest(blocks: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """The newer of the two alone, for what does not depend on the version."""
    with serving(newer("prometheus"), tmp_path_factory.mktemp("newest"), blocks=blocks) as server:
        yield server
