"""The sidecar beside a real vLLM in its shapes. Run by ``make test-engine``; plain pytest does not collect it."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Self

import httpx
import pytest

from tests.programs import ROOT
from tests.sidecar import Sidecar, eventually, free_port, sidecar

ENGINE = Path(os.environ.get("ENGINE", ROOT / ".engine")).resolve()
START_SECONDS = 600.0
REQUESTS, TOKENS_EACH, PROMPT_TOKENS_EACH = 8, 32, 16


@contextlib.contextmanager
def vllm(port: int, *flags: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A real engine on the tiny model, until the block ends; in a process group of its own."""
    command = [ENGINE / "venv/bin/vllm", "serve", ENGINE / "tiny", "--served-model-name=tiny", "--host=127.0.0.1"]
    command += [f"--port={port}", "--max-model-len=4096", "--enforce-eager", *flags]
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"}
    cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with (Path("/tmp") / f"vllm-{port}.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=os.environ | quiet | cpu, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield process
        finally:
            kill(process)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL to every process of the engine."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def complete(port: int) -> int:
    """One request of known size; returns the tokens it was given."""
    body = {"model": "tiny", "prompt": [65] * PROMPT_TOKENS_EACH, "max_tokens": TOKENS_EACH, "ignore_eos": True}
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=120)
    return int(answer.raise_for_status().json()["usage"]["completion_tokens"])


class Watch:
    """Reads the sidecar as a Prometheus would, ten times a second, and keeps what it said."""

    def __init__(self, running: Sidecar) -> None:
        self._running = running
        self._done = threading.Event()
        self.seen: list[dict[str, float]] = []

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._done.wait(0.1):
            self.seen.append(self._running.values())

    def judge(self, most_tokens: float) -> None:
        """target_up and the state agree each time; no counter ever falls, or shows more than was made."""
        for values in self.seen:
            [up] = [value for key, value in values.items() if key.startswith("vllm_sidecar_target_up{")] or [None]
            state = state_of(values)
            assert up in ((None, 0.0) if state == "loading" else (1.0,) if state == "up" else (0.0,))
            assert total(values, "generation_tokens_total") <= most_tokens
        for before, after in pairwise(self.seen):
            for key in before.keys() & after.keys():
                if key.partition("{")[0].endswith(("_total", "_count", "_bucket")):
                    assert after[key] >= before[key], key
                assert not after[key] < 0 or "growth" in key, key


def state_of(values: dict[str, float]) -> str:
    [state] = [key for key, value in values.items() if key.startswith("vllm_sidecar_target_state{") and value == 1.0]
    return state.partition('state="')[2].partition('"')[0]


def total(values: dict[str, float], name: str) -> float:
    """A counter over all engines."""
    return sum(value for key, value in values.items() if key.startswith(f"vllm_sidecar_{name}{{"))


def engines(values: dict[str, float]) -> set[str]:
    """The engines that have a gauge now."""
    gauges = [key for key in values if key.startswith("vllm_sidecar_running_requests{")]
    return {key.partition('engine="')[2].partition('"')[0] for key in gauges}


def serve(running: Sidecar, port: int, times: int) -> None:
    """Put a known load on the engine, and wait until the sidecar shows exactly that, ``times`` rounds in all."""
    with ThreadPoolExecutor(REQUESTS) as clients:
        assert sum(clients.map(complete, [port] * REQUESTS)) == REQUESTS * TOKENS_EACH
    requests = float(times * REQUESTS)
    expected = {
        "generation_tokens_total": requests * TOKENS_EACH,
        "prompt_tokens_total": requests * PROMPT_TOKENS_EACH,
        "first_tokens_total": requests,
        "finished_requests_total": requests,
        "arrivals_total": requests,
        # Each token but a request's first is one decode sequence in one step.
        "decode_sequence_steps_total": requests * (TOKENS_EACH - 1),
    }

    def shown() -> dict[str, float]:
        values = running.values()
        return {name: total(values, name) for name in expected}

    with contextlib.suppress(AssertionError):
        eventually(lambda: shown() == expected, seconds=15)
    assert shown() == expected


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    ("flags", "names", "filtered"),
    [
        pytest.param([], {"0"}, True, id="one API server"),
        pytest.param(["--api-server-count=2"], {"0"}, False, id="two API servers"),
        pytest.param(["--data-parallel-size=2"], {"0", "1"}, False, id="data parallel"),
    ],
)
def test_an_engine_comes_serves_dies_and_comes_back(flags: list[str], names: set[str], filtered: bool) -> None:
    """State and target_up at each scrape, exact totals from a known load, with the filter on where it works."""
    port = free_port()
    environment = {
        "VLLM_SIDECAR_URL": f"http://127.0.0.1:{port}",
        "VLLM_SIDECAR_SCRAPE__FILTER": "true",
        "VLLM_SIDECAR_SCRAPE__INTERVAL_SECONDS": "0.5",
    }
    made = float(REQUESTS * TOKENS_EACH)
    with sidecar(**environment) as running, Watch(running) as watch:
        eventually(lambda: state_of(running.values()) == "loading")
        with vllm(port, *flags) as first:
            eventually(lambda: state_of(running.values()) == "up", START_SECONDS)
            assert "lost" not in {state_of(values) for values in watch.seen}
            serve(running, port, 1)
            assert engines(running.values()) == names
            [size] = [value for key, value in running.values().items() if "scrape_body_bytes{" in key]
            assert (size < 25_000) is filtered
            kill(first)
            eventually(lambda: state_of(running.values()) == "lost")
            eventually(lambda: not engines(running.values()))  # gauges go within 10 s, counters stay
            assert total(running.values(), "generation_tokens_total") == made
        with vllm(port, *flags):
            eventually(lambda: state_of(running.values()) == "up", START_SECONDS)
            assert total(running.values(), "generation_tokens_total") == made
            serve(running, port, 2)
            assert total(running.values(), "engine_restarts_total") == len(names)
        eventually(lambda: state_of(running.values()) == "lost")
        time.sleep(1)
        assert running.log().count("scrape failed") <= 6, running.log()
    watch.judge(most_tokens=2 * made)
