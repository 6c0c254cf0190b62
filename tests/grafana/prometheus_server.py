"""A real Prometheus over stored samples, or over what it scrapes, on a port that the system chooses."""

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READY_WITHIN_SECONDS = 30.0


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    url: str
    version: str

    def range(self, expr: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """Series of a range query, each with ``metric`` and ``values``."""
        return self._query("query_range", query=expr, start=start, end=end, step=step)

    def instant(self, expr: str, at: float | None = None) -> list[dict[str, Any]]:
        """Series of an instant query, each with ``metric`` and ``value``."""
        return self._query("query", query=expr, **({} if at is None else {"time": at}))

    def _query(self, path: str, **parameters: Any) -> list[dict[str, Any]]:
        found = json.loads(_answer(f"{self.url}/api/v1/{path}", parameters))
        assert found["status"] == "success", f"{self.version}: {found.get('error')}\n{parameters['query']}"
        assert not found.get("warnings"), f"{self.version}: {found['warnings']}\n{parameters['query']}"
        return list(found["data"]["result"])


@contextlib.contextmanager
def serving(program: str, directory: Path, config: str = "{}", blocks: Path | None = None) -> Iterator[Prometheus]:
    """A server until the block ends.

    Args:
        program: Prometheus itself.
        directory: empty, for its data and log.
        config: its configuration.
        blocks: a store to copy, as promtool made it.
    """
    data = directory / "data"
    if blocks is not None:
        shutil.copytree(blocks, data)
    (directory / "prometheus.yml").write_text(config)
    log = directory / "log"
    command = [
        program,
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=100y",
        "--query.lookback-delta=20s",
        "--web.listen-address=127.0.0.1:0",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield _ready(process, log)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _answer(url: str, parameters: dict[str, Any] | None = None) -> bytes:
    """The body of an answer; without the proxy that the environment may name."""
    form = None if parameters is None else urllib.parse.urlencode(parameters).encode()
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, form, timeout=30) as answer:
        return bytes(answer.read())


def _ready(process: subprocess.Popen[bytes], log: Path) -> Prometheus:
    ends = time.monotonic() + READY_WITHIN_SECONDS
    while time.monotonic() < ends and process.poll() is None:
        if listening := re.search(r"Listening on.*address=(127\.0\.0\.1:\d+)", log.read_text()):
            url = f"http://{listening[1]}"
            with contextlib.suppress(urllib.error.HTTPError):
                _answer(f"{url}/-/ready")
                return Prometheus(url, json.loads(_answer(f"{url}/api/v1/status/buildinfo"))["data"]["version"])
        time.sleep(0.05)
    raise AssertionError(f"Prometheus did not start:\n{log.read_text()}")
