"""A real Prometheus over blocks made from OpenMetrics, on loopback, for one test module."""

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.programs import system

PATIENCE_SECONDS = 60.0


class Prometheus:
    """Its HTTP API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str, at: float) -> dict[tuple[tuple[str, str], ...], float]:
        """An instant query: labels without the name to value."""
        body = urllib.parse.urlencode({"query": expression, "time": f"{at:.3f}"}).encode()
        with urllib.request.urlopen(f"{self.url}/api/v1/query", data=body, timeout=30) as answer:
            result = json.load(answer)["data"]["result"]
        return {
            tuple(sorted((name, value) for name, value in found["metric"].items() if name != "__name__")): float(
                found["value"][1]
            )
            for found in result
        }


@contextmanager
def over(openmetrics: Path, directory: Path) -> Iterator[Prometheus]:
    """Debian's Prometheus serving what an OpenMetrics file with timestamps says, until the end of the block."""
    blocks, settings = directory / "blocks", directory / "prometheus.yml"
    settings.write_text("global: {}\n", encoding="utf-8")
    created = [system("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(openmetrics), str(blocks)]
    subprocess.run(created, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        system("prometheus"),
        f"--config.file={settings}",
        f"--storage.tsdb.path={blocks}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address={address}",
        "--log.level=error",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(f"http://{address}/-/ready", process)
            yield Prometheus(f"http://{address}")
        finally:
            process.terminate()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    pytest.fail("Prometheus did not become ready")
