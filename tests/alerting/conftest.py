"""What the tests of the rules share."""

from collections.abc import Iterator

import pytest

from tests.alerting.promql import Parser


@pytest.fixture(scope="session")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parser]:
    """Prometheus's own parser."""
    with Parser(tmp_path_factory.mktemp("parser")) as running:
        yield running
