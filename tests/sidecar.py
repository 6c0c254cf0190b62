"""The sidecar as a process of its own, on loopback, for tests of what only a process shows."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from exporter.sample_line import parse_line
from exporter.settings import ENV_PREFIX
from tests.programs import ROOT

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)},
    "PYTHONPATH": str(ROOT),
}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def eventually(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until a condition holds; fail where it does not within so long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come about"
        time.sleep(0.05)


@dataclass(frozen=True)
class Sidecar:
    """A running sidecar: where it serves, its process, and the file it logs to."""

    url: str
    process: subprocess.Popen[bytes]
    log_file: Path

    def log(self) -> str:
        """What it has logged so far."""
        return self.log_file.read_text()

    def values(self) -> dict[str, float]:
        """Its metrics now, by name and labels as exposed."""
        text = httpx.get(f"{self.url}/metrics", timeout=10).text
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        return {line.rpartition(" ")[0]: parse_line(line).value for line in lines}

    def state(self) -> str | None:
        """The state of its only target."""
        return next(
            (
                key.partition('state="')[2].partition('"')[0]
                for key, value in self.values().items()
                if key.startswith("vllm_sidecar_target_state{") and value == 1.0
            ),
            None,
        )

    def serves(self) -> bool:
        """Whether it answers at all."""
        try:
            return httpx.get(f"{self.url}/-/healthy", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


@contextlib.contextmanager
def sidecar(*arguments: str, port: int | None = None, wait: bool = True, **environment: str) -> Iterator[Sidecar]:
    """Run it until the block ends. ``environment`` is added to that of this process without settings of ours."""
    port = port or free_port()
    command = [sys.executable, "-m", "exporter", f"--web.listen-address=127.0.0.1:{port}", *arguments]
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        process = subprocess.Popen(command, stderr=log, env=ENVIRONMENT | environment)
        running = Sidecar(f"http://127.0.0.1:{port}", process, Path(log.name))
        try:
            deadline = time.monotonic() + 20
            while wait and not running.serves():
                assert process.poll() is None, running.log()
                assert time.monotonic() < deadline, running.log()
                time.sleep(0.05)
            yield running
        finally:
            process.kill()
            process.wait()
