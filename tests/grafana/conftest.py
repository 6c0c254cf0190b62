"""One store of samples for all tests of the dashboards, served by both Prometheus versions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grafana.stored_fleet import LOOKBACK, openmetrics
from tests.programs import PROMETHEUS_VERSIONS, newer
from tests.prometheus import Prometheus, blocks_of, serving


@pytest.fixture(scope="session")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fleet's samples as Prometheus stores them."""
    directory = tmp_path_factory.mktemp("blocks")
    text = directory / "fleet.om"
    text.write_text(openmetrics())
    return blocks_of(text, directory / "data")


@pytest.fixture(scope="session", params=PROMETHEUS_VERSIONS)
def stored(
    request: pytest.FixtureRequest, blocks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A Prometheus over the fleet: Debian 12's, and its next release's."""
    program = PROMETHEUS_VERSIONS[request.param]("prometheus")
    with serving(tmp_path_factory.getbasetemp(), program=program, blocks=blocks, flags=LOOKBACK) as server:
        assert server.version.startswith(request.param)
        yield server


@pytest.fixture(scope="session")
def newest(blocks: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """The newer of the two alone, for what does not depend on the version."""
    program = newer("prometheus")
    with serving(tmp_path_factory.getbasetemp(), program=program, blocks=blocks, flags=LOOKBACK) as server:
        yield server
