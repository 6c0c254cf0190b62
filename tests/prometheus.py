"""A real Prometheus on loopback, over stored samples or over what it scrapes."""

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.programs import system

READY_WITHIN_SECONDS = 60.0


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    url: str
    version: str

    def range(self, expr: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """Series of a range query, each with ``metric`` and ``values``."""
        found = self.answer("query_range", query=expr, start=start, end=end, step=step)
        return list(found["result"])

    def instant(self, expr: str, at: float | None = None) -> list[dict[str, Any]]:
        """Series of an instant query, each with ``metric`` and ``value``."""
        found = self.answer("query", query=expr, **({} if at is None else {"time": at}))
        return list(found["result"])

    def answer(self, path: str, **parameters: Any) -> Any:
        """The ``data`` of an answer of its API, which must come without an error or a warning."""
        found = json.loads(_body(f"{self.url}/api/v1/{path}", parameters))
        assert found["status"] == "success", f"{self.version}: {found.get('error')}\n{parameters}"
        assert not found.get("warnings"), f"{self.version}: {found['warnings']}\n{parameters}"
        return found["data"]


def blocks_of(openmetrics: Path, blocks: Path) -> Path:
    """Make a store of an OpenMetrics file with timestamps."""
    command = [system("promtool"), "tsdb", "create-blocks-from", "openmetrics", openmetrics, blocks]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return blocks


@contextlib.contextmanager
def serving(
    directory: Path,
    config: str = "{}",
    *,
    program: str | None = None,
    blocks: Path | None = None,
    flags: Sequence[str] = (),
) -> Iterator[Prometheus]:
    """A server until the block ends, on a port that the system chooses.

    Args:
        directory: for its data and log, in a folder of their own there.
        config: its configuration.
        program: Prometheus itself; the system's, if none is named.
        blocks: a store to begin with; it is copied.
        flags: further arguments.
    """
    own = Path(tempfile.mkdtemp(prefix="prometheus-", dir=directory))
    if blocks is not None:
        shutil.copytree(blocks, own / "data")
    (own / "prometheus.yml").write_text(config)
    command = [
        program or system("prometheus"),
        f"--config.file={own}/prometheus.yml",
        f"--storage.tsdb.path={own}/data",
        "--storage.tsdb.retention.time=100y",
        "--web.listen-address=127.0.0.1:0",
        *flags,
    ]
    log = own / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield _ready(process, log)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _body(url: str, parameters: dict[str, Any] | None = None) -> bytes:
    """What is answered to a form, or to a plain request; without the proxy that the environment may name."""
    form = urllib.parse.urlencode(parameters).encode() if parameters else None
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, form, timeout=60) as answer:
        return bytes(answer.read())


def _ready(process: subprocess.Popen[bytes], log: Path) -> Prometheus:
    ends = time.monotonic() + READY_WITHIN_SECONDS
    while time.monotonic() < ends and process.poll() is None:
        if listening := re.search(r"Listening on.*address=(127\.0\.0\.1:\d+)", log.read_text()):
            url = f"http://{listening[1]}"
            with contextlib.suppress(OSError):
                _body(f"{url}/-/ready")
                return Prometheus(url, json.loads(_body(f"{url}/api/v1/status/buildinfo"))["data"]["version"])
        time.sleep(0.05)
    raise AssertionError(f"Prometheus did not start:\n{log.read_text()}")
