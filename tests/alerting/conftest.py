"""What the tests of the rules share."""

from collections.abc import Iterator

import pytest

from tests.alerting.promql import Parser
from tests.programs import newer
from tests.prometheus import serving


@pytest.fixture(scope="session")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parser]:
    """Prometheus's own parser, that of 3.5."""
    with serving(tmp_path_factory.getbasetemp(), program=newer("prometheus")) as running:
        yield Parser(running)
