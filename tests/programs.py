"""Where the programs are that tests run. A missing one fails the test that needs it, and says what to do."""

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOOLS = Path(os.environ.get("TOOLS", ROOT / ".tools"))


def system(name: str) -> str:
    """A program of the system, such as Debian 12's Prometheus 2.42."""
    return _found(name, shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"))


def newer(name: str) -> str:
    """A monitoring program of Debian's next release: prometheus and promtool 3.5, amtool 0.33, vmalert."""
    return _found(name, shutil.which(name, path=str(TOOLS / "monitoring")))


PROMETHEUS_VERSIONS = {"2.42": system, "3.5": newer}
"""Which of the two finds the monitoring programs that come with a version of Prometheus."""


def kubernetes(name: str) -> str:
    """Helm 4 or kubectl 1.37."""
    return _found(name, shutil.which(name, path=str(TOOLS / "kubernetes")))


def _found(name: str, path: str | None) -> str:
    if path is None:
        pytest.fail(f"{name} is missing; run: make tools")
    return path
