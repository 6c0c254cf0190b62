"""The sidecar as a process beside an engine that comes, dies and comes back; and told to end."""

import asyncio
import contextlib
import itertools
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from exporter.app import Sidecar as App
from exporter.app import create_app
from exporter.guard import Guard
from exporter.http_server import bind
from exporter.serve import Site
from exporter.webconfig import Web
from tests.counting_engine import TOKENS_PER_SECOND, engine
from tests.programs import ROOT, system
from tests.prometheus import serving
from tests.sidecar import ENVIRONMENT, Sidecar, eventually, free_port, sidecar

QUICK = {"VLLM_SIDECAR_SCRAPE__INTERVAL_SECONDS": "0.2"}
UP = 'vllm_sidecar_target_up{target="127.0.0.1:%d"}'
TOKENS = 'vllm_sidecar_generation_tokens_total{engine="0",model_name="tiny"}'
RESTARTS = 'vllm_sidecar_engine_restarts_total{engine="0",model_name="tiny"}'


def state_and_up(running: Sidecar, port: int) -> tuple[str | None, float | None]:
    """Both from one exposition: what a Prometheus would store."""
    values = running.values()
    states = [key for key, value in values.items() if key.startswith("vllm_sidecar_target_state") and value == 1.0]
    [state] = states
    return state.partition('state="')[2].partition('"')[0], values.get(UP % port)


def test_an_engine_that_comes_dies_and_comes_back() -> None:
    """At each scrape the state and target_up agree with what the engine is, and no counter of ours falls or jumps."""
    port = free_port()
    seen: list[tuple[float, float]] = []

    def shows(running: Sidecar, state: str, up: float) -> Callable[[], bool]:
        def check() -> bool:
            values = running.values()
            if TOKENS in values:
                seen.append((time.monotonic(), values[TOKENS]))
            return state_and_up(running, port) == (state, up)

        return check

    with sidecar(VLLM_SIDECAR_URL=f"http://127.0.0.1:{port}", **QUICK) as running:
        eventually(shows(running, "loading", 0.0))
        assert httpx.get(f"{running.url}/-/ready").status_code == 200
        assert TOKENS not in running.values()
        with engine(port, total=1e9) as first:
            eventually(shows(running, "up", 1.0))
            eventually(lambda: running.values()[TOKENS] > 20)
            first.send_signal(signal.SIGKILL)
            eventually(shows(running, "lost", 0.0))
        with engine(port):
            eventually(shows(running, "up", 1.0))
            eventually(shows(running, "up", 1.0))
            assert running.values()[RESTARTS] == 1.0
            eventually(lambda: running.values()[TOKENS] > 50)
            seen.append((time.monotonic(), running.values()[TOKENS]))
        failures = re.findall(r'msg="scrape failed".* state=(\w+) reason=(\w+)', running.log())
    # Down before it came, down after it was killed: a line when that changes, whatever the number of scrapes. One that
    # was being answered at that moment may fail in a way of its own.
    assert [failures[0], failures[-1]] == [("loading", "connect"), ("lost", "connect")]
    assert len(failures) <= 3
    assert all(later != earlier for earlier, later in itertools.pairwise(failures))
    assert all(later >= earlier for (_, earlier), (_, later) in itertools.pairwise(seen))
    # From 0 at the first scrape on; never more than the engines can have made since, a scrape's slack aside.
    elapsed = seen[-1][0] - seen[0][0]
    assert seen[-1][1] <= TOKENS_PER_SECOND * (elapsed + 2.0)


@pytest.mark.parametrize("hanging", [False, True], ids=["idle", "mid-scrape"])
def test_sigterm_ends_it_in_two_seconds_with_code_0(hanging: bool) -> None:
    """With a reader's connection open; idle, and while an engine that accepts does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1] if hanging else free_port()}"
        environment = {"VLLM_SIDECAR_URL": url, "VLLM_SIDECAR_SCRAPE__TIMEOUT_SECONDS": "30"}
        with sidecar(**environment) as running, httpx.Client() as reader:
            reader.get(f"{running.url}/metrics")
            with contextlib.closing(silent.accept()[0]) if hanging else contextlib.nullcontext():
                running.process.send_signal(signal.SIGTERM)
                assert running.process.wait(timeout=2) == 0
            assert "Traceback" not in running.log()


def test_sigterm_ends_it_while_a_reader_is_slow() -> None:
    """A reader that has sent half a request is waited for a second, and no longer."""
    port = free_port()
    with (
        sidecar(port=port, VLLM_SIDECAR_URL="http://127.0.0.1:9") as running,
        socket.create_connection(("127.0.0.1", port)) as reader,
    ):
        reader.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(timeout=5) == 0


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_it_ends_while_one_of_its_addresses_is_waited_for(how: signal.Signals) -> None:
    """The metrics are served, the page's port is somebody else's for now; the second signal finds nothing to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        page = f"--web.page-address=127.0.0.1:{taken.getsockname()[1]}"
        with sidecar("--never-exit", page, VLLM_SIDECAR_URL="http://127.0.0.1:9") as running:
            eventually(lambda: "cannot listen" in running.log())
            running.process.send_signal(how)
            running.process.send_signal(how)
            assert running.process.wait(timeout=5) == 0
            assert "Traceback" not in running.log()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", ""])
async def test_the_port_that_is_logged_is_the_one_served(host: str, caplog: pytest.LogCaptureFixture) -> None:
    """Where any port will do, as for the page beside a listen_address of :65535, nobody could know it otherwise."""
    caplog.set_level(logging.INFO)
    listening, web = bind(f"{host}:0"), Web(None)
    port = listening.getsockname()[1]
    one = Site(f"{host}:0", Guard(create_app(App()), web), web, page=True)
    serve = asyncio.create_task(one.serve(listening))
    await asyncio.sleep(0)
    one.end()
    await serve
    told = [record.fields["address"] for record in caplog.records if record.message == "serving"]
    assert told == [f"{host}:{port}"]


async def test_sigterm_is_heard_while_the_web_config_is_being_renewed() -> None:
    """The old server says farewell for up to a second; what is told then is told to the next one too."""
    listening = bind("127.0.0.1:0")
    port = listening.getsockname()[1]
    web = Web(None)
    one = Site("", Guard(create_app(App()), web), web, page=False)
    serving = asyncio.create_task(one.serve(listening))
    async with httpx.AsyncClient() as reader, asyncio.timeout(20):
        assert (await reader.get(f"http://127.0.0.1:{port}/-/healthy")).status_code == 200
        one.renew()
        await asyncio.sleep(0)
        signal.raise_signal(signal.SIGTERM)
        await serving
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass


def test_what_strangers_send_is_not_logged() -> None:
    """Garbage, and requests for a protocol that we do not speak: a line each would fill a disk."""
    port = free_port()
    with sidecar(port=port, VLLM_SIDECAR_URL="http://127.0.0.1:9") as running:
        eventually(lambda: "scrape failed" in running.log())
        before = running.log()
        upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade, close\r\nUpgrade: websocket\r\n\r\n"
        for sent, status in ((b"\x16\x03\x01 garbage\r\n\r\n", b"400"), (upgrade, b"200")):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(sent)
                assert stranger.recv(100).split()[1] == status
        assert running.log() == before


def test_sighup_has_the_files_read_again(tmp_path: Path) -> None:
    """As operators of Prometheus are used to; a process that does not handle it would be ended by it."""
    web = tmp_path / "web.yaml"
    web.write_text("{}")
    with sidecar(f"--web.config.file={web}", VLLM_SIDECAR_URL="http://127.0.0.1:9") as running:
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "web config reloaded" in running.log())
        assert "settings reloaded" in running.log()
        eventually(running.serves)
        assert running.process.poll() is None


def as_pid_1(*command: str, resolver: Path | None = None) -> subprocess.Popen[bytes]:
    """Run a command as PID 1 of a new PID namespace, with a file in place of /etc/resolv.conf if given."""
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    unshare = [system("unshare"), *rights, "--pid", "--fork", "--mount", "--mount-proc", "--kill-child"]
    bind = f"mount --bind {resolver} /etc/resolv.conf && " if resolver else ""
    return subprocess.Popen([*unshare, "sh", "-c", f'{bind}exec "$@"', "sh", *command], env=ENVIRONMENT)


def child_of(process: subprocess.Popen[bytes]) -> int:
    """The process that unshare forked: PID 1 inside."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    eventually(lambda: children.read_text().split())
    return int(children.read_text().split()[0])


def ends_as_pid_1(settings: Path, waits_for: Callable[[Sidecar], None], resolver: Path | None = None) -> None:
    """Start it as PID 1, wait for something, and tell it to end: code 0 in two seconds."""
    port = free_port()
    arguments = [f"--web.listen-address=127.0.0.1:{port}", f"--config.file={settings}"]
    process = as_pid_1(sys.executable, "-m", "exporter", *arguments, resolver=resolver)
    running = Sidecar(f"http://127.0.0.1:{port}", process, settings)
    try:
        eventually(running.serves)
        waits_for(running)
        os.kill(child_of(process), signal.SIGTERM)
        assert process.wait(timeout=2) == 0
    finally:
        process.kill()
        process.wait()


def test_sigterm_ends_it_as_pid_1(tmp_path: Path) -> None:
    """As in a container: the kernel delivers PID 1 only signals that it handles."""
    settings = tmp_path / "sidecar.yaml"
    settings.write_text("url: http://127.0.0.1:9\n")
    ends_as_pid_1(settings, lambda running: eventually(lambda: running.state() == "loading"))


def test_sigterm_ends_it_while_it_is_still_importing() -> None:
    """Which takes most of a second, and in which PID 1 would be deaf: the signal comes as the command line is imported.

    What is installed as vllm-sidecar begins the same way.
    """
    begin = """
import os, signal, sys

class Ending:
    def find_spec(self, name, path, target=None):
        if name == "exporter.cli":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Ending())
from exporter.__main__ import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", begin], check=False, env=ENVIRONMENT, capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"vllm-sidecar": "exporter.__main__:main"}


def test_sigterm_ends_it_while_a_name_server_does_not_answer(tmp_path: Path) -> None:
    """The system's resolver waits for 20 s and cannot be cancelled; the pod is not made to."""
    settings, resolver = tmp_path / "sidecar.yaml", tmp_path / "resolv.conf"
    settings.write_text("url: http://engine.example:8000\n")
    resolver.write_text("nameserver 127.0.0.99\noptions timeout:10 attempts:2\n")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.99", 53))  # as root
        silent.settimeout(20)
        ends_as_pid_1(
            settings, lambda _: None if b"engine" in silent.recv(512) else pytest.fail("asked else"), resolver
        )


PROMETHEUS = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: sidecar
    static_configs: [{{targets: ['{target}']}}]
"""


def test_a_restarted_sidecar_makes_no_spike_in_a_real_prometheus(tmp_path: Path) -> None:
    """The engine stands at 1e9 tokens and makes 100 a second; rate() over ours says so, through a restart of ours."""
    engine_port, port = free_port(), free_port()
    environment = {"VLLM_SIDECAR_URL": f"http://127.0.0.1:{engine_port}", **QUICK}
    scraping = PROMETHEUS.format(target=f"127.0.0.1:{port}")
    with engine(engine_port, total=1e9), serving(tmp_path, scraping) as prometheus:

        def asked(query: str) -> float | None:
            found = prometheus.instant(query)
            return float(found[0]["value"][1]) if found else None

        def samples() -> float:
            return asked("count_over_time(vllm_sidecar_generation_tokens_total[5m])") or 0.0

        with sidecar(port=port, **environment) as first:
            eventually(lambda: samples() >= 4)
            first.process.send_signal(signal.SIGTERM)
            first.process.wait(timeout=5)
        before = samples()
        with sidecar(port=port, **environment):
            eventually(lambda: samples() >= before + 4)
        rate = "rate(vllm_sidecar_generation_tokens_total[4s])[1m:500ms]"
        highest, lowest = asked(f"max_over_time({rate})"), asked(f"min_over_time({rate})")
        resets = asked("resets(vllm_sidecar_generation_tokens_total[5m])")
    # rate() extrapolates to the edges of its window, by up to half a scrape's distance on each side of 4 s.
    assert highest is not None
    assert highest <= 2 * TOKENS_PER_SECOND
    assert lowest is not None
    assert lowest >= 0
    assert resets == 1


def test_the_engine_of_a_recording_is_read_as_an_engine() -> None:
    """`replay --serve` beside the sidecar: what was recorded comes through, from a process to a process."""
    port = free_port()
    command = [sys.executable, "-m", "exporter", "replay", "--serve", f"127.0.0.1:{port}"]
    recording = str(ROOT / "exporter" / "data" / "burst.scrapes.xz")
    with subprocess.Popen([*command, recording], env=ENVIRONMENT, stderr=subprocess.DEVNULL) as played:
        try:
            with sidecar(VLLM_SIDECAR_URL=f"http://127.0.0.1:{port}", **QUICK) as running:
                eventually(lambda: state_and_up(running, port) == ("up", 1.0))
                names = {key.partition("{")[0] for key in running.values()}
        finally:
            played.terminate()
        assert played.wait(timeout=5) == 0
    assert {"vllm_sidecar_running_requests", "vllm_sidecar_arrivals_total", "vllm_sidecar_kv_usage_ratio"} <= names
