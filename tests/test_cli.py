"""The command line: one line on standard error and exit code 2, or, where told to, a sidecar that stays alive."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcrypt
import httpx
import pytest

from exporter import __version__, cli, recording
from exporter.exposition import Failure, Reason, Scraped
from exporter.recording import Entry
from exporter.settings import ENV_PREFIX
from tests.counting_engine import engine
from tests.fake_engine import EXPOSITION
from tests.sidecar import ENVIRONMENT, Sidecar, eventually, free_port, sidecar


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in os.environ:
        if name.startswith(ENV_PREFIX):
            monkeypatch.delenv(name)
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A recording of four scrapes, one of them failed."""
    path = tmp_path / "engine.scrapes.gz"
    entries = [Entry(1000.0 + at, Scraped(EXPOSITION, False, 0.0)) for at in (0, 1, 3)]
    entries.insert(2, Entry(1002.0, Failure(Reason.CONNECT, "refused")))
    with recording.open_log(path, "wb") as file:
        for entry in entries:
            recording.write_entry(file, entry)
    return path


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is said on standard error by a run that is refused."""
    assert cli.main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("vllm-sidecar: ")
    assert output.err.count("\n") == 1
    return output.err.removeprefix("vllm-sidecar: ").rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["--log.lev=info"], "unrecognized arguments: --log.lev=info"),
        (["--config.file"], "argument --config.file: expected one argument"),
        (["--log.level=loud"], "log_level: Input should be 'debug', 'info', 'warning' or 'error'"),
        (["--log.format=xml"], "log_format: Input should be 'logfmt' or 'json'"),
        (["--web.listen-address=10077"], "listen_address: '10077' is not HOST:PORT, :PORT or [IPV6]:PORT"),
        (["--web.listen-address=:65536"], "listen_address: ':65536' is not HOST:PORT, :PORT or [IPV6]:PORT"),
        (["--web.listen-address=192.0.2.1:1"], "cannot listen on 192.0.2.1:1: Cannot assign requested address"),
        (["--config.file=/nonexistent.yaml"], "cannot read /nonexistent.yaml: No such file or directory"),
        (["--config.check", "--config.file=/dev"], "cannot read /dev: not a regular file"),
        (["replay", "/nonexistent"], "cannot read /nonexistent: No such file or directory"),
        (["replay", __file__], f"{__file__}: line 1 is not '# scrape <unix seconds> 200'"),
        (["replay", "--loop=0", "x"], "--loop must be 1 or more"),
        (["replay"], "the following arguments are required: file"),
        (["record", "--url=nowhere", "x"], "url: not an http, https or http+unix URL, such as http://localhost:8000"),
        (["record", "--interval=0", "x"], "argument --interval: '0' is not a number of seconds above 0"),
        (["record", "--interval=nan", "x"], "argument --interval: 'nan' is not a number of seconds above 0"),
        (["record", "--seconds=-1", "x"], "argument --seconds: '-1' is not a number of seconds above 0"),
        (["demo", "--seconds=inf"], "argument --seconds: 'inf' is not a number of seconds above 0"),
        (["record", "--seconds=1", "/nonexistent/x"], "cannot write /nonexistent/x: No such file or directory"),
        (["http://a:1"], "http://a:1 is no command; to watch it: VLLM_SIDECAR_URL=http://a:1 vllm-sidecar"),
        (["demo", "--seconds=soon"], "argument --seconds: 'soon' is not a number of seconds above 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refused_with_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """Bad arguments, bad settings, files that are not there: before anything is served."""
    assert refusal(capsys, *arguments) == message


def test_a_command_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """The ones that there are are named."""
    message = refusal(capsys, "start")
    assert message.startswith("argument COMMAND: invalid choice: 'start' (choose from ")
    assert "'replay'" in message


@pytest.mark.parametrize("command", ["serve", "demo", "replay"])
def test_a_port_in_use(capsys: pytest.CaptureFixture[str], taken: str, log: Path, command: str) -> None:
    """Whatever it was to be used for."""
    arguments = {
        "serve": [f"--web.listen-address={taken}"],
        "demo": [f"--web.listen-address={taken}", "demo"],
        "replay": ["replay", str(log), f"--serve={taken}"],
    }[command]
    assert refusal(capsys, *arguments) == f"cannot listen on {taken}: Address already in use"


def test_refused_settings_of_every_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the file and from the environment, by the file's names."""
    file = tmp_path / "sidecar.yaml"
    file.write_text("slo: {ttft_seconds: 0}")
    assert refusal(capsys, f"--config.file={file}") == "slo.ttft_seconds: Input should be greater than 0"
    monkeypatch.setenv("VLLM_SIDECAR_PRIZE", "2")
    assert refusal(capsys) == "VLLM_SIDECAR_PRIZE: unknown setting"
    monkeypatch.delenv("VLLM_SIDECAR_PRIZE")
    monkeypatch.setenv("VLLM_SIDECAR_WINDOWS", "5m")
    message = refusal(capsys)
    assert '"windows"' in message
    assert message.endswith(": lists and objects are JSON in the environment")


def test_config_check_checks_and_does_nothing_else(
    capsys: pytest.CaptureFixture[str], taken: str, tmp_path: Path
) -> None:
    """It listens nowhere: the running sidecar's own port may be in the settings that are checked."""
    file = tmp_path / "sidecar.yaml"
    file.write_text(f"listen_address: {taken}\ngpu_hour_dollars: 2\n")
    assert cli.main(["--config.check", f"--config.file={file}"]) == 0
    assert capsys.readouterr().out == "settings are valid\n"


@pytest.mark.parametrize("arguments", [["--config.file=/nonexistent"], ["--bogus"]], ids=" ".join)
def test_config_check_ends_though_never_to_exit(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """A check that stayed would hang whoever checks."""
    assert arguments[0].rpartition("=")[2] in refusal(capsys, "--never-exit", "--config.check", *arguments)


def test_no_command_becomes_a_sidecar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container whose environment says never to exit, a command with a wrong argument still ends."""
    commands = re.findall(r"'(\w+)'", refusal(capsys, "start").partition("choose from ")[2])
    assert {"record", "replay", "check", "demo"} <= set(commands)
    monkeypatch.setenv("VLLM_SIDECAR_NEVER_EXIT", "true")
    for command in commands:
        assert "--bogus" in refusal(capsys, command, "--bogus", "x")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The package's version, and the Python it runs on."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(rf"vllm-sidecar {re.escape(__version__)} \(Python 3\.\d+\.\d+\S*\)\n", capsys.readouterr().out)


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """In the Prometheus manner."""
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = capsys.readouterr().out
    for flag in (
        "config.file",
        "config.check",
        "never-exit",
        "web.listen-address",
        "log.level",
        "log.format",
        "version",
    ):
        assert f"--{flag}" in text


def test_replay_prints_what_was_exported_at_each_scrape(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    """target_up after a good, a good, a failed and a good scrape; CSV with the recorded times."""
    assert cli.main(["replay", str(log)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "unix_seconds,metric,labels,value"
    ups = [line.split(",") for line in lines if ",vllm_sidecar_target_up," in line]
    assert [(up[0], up[3]) for up in ups] == [
        ("1000.000", "1.0"),
        ("1001.000", "1.0"),
        ("1002.000", "0.0"),
        ("1003.000", "1.0"),
    ]


def test_replay_to_a_reader_that_leaves(log: Path) -> None:
    """`replay … | head -1` ends quietly."""
    pipe = f"set -o pipefail; {sys.executable} -m exporter replay --loop 500 {log} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", pipe], capture_output=True, text=True, check=False, timeout=60, env=ENVIRONMENT
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "unix_seconds,metric,labels,value\n", "")


PLAN = "plan --gpu=h100-sxm --gpus=4 --params=70B --layers=80 --kv-heads=8 --head-dim=128 --rate=2 --mix=1:500:200"


@pytest.mark.parametrize(
    "command",
    ["replay --loop 100 {log}", "replay {log}", PLAN, f"{PLAN} --json"],
    ids=["much", "little", "plan", "json"],
)
@pytest.mark.parametrize("buffered", [True, False])
def test_output_onto_a_full_disk(log: Path, command: str, *, buffered: bool) -> None:
    """One line and exit code 2, though the reader of a pipe is left quietly; also where all of it was buffered."""
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "exporter", *command.format(log=log).split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
            env=environment if buffered else environment | {"PYTHONUNBUFFERED": "1"},
        )
    assert (done.returncode, done.stderr) == (2, "vllm-sidecar: cannot write: No space left on device\n")


def exported(served: Sidecar, name: str) -> float | None:
    return served.values().get(f"vllm_sidecar_{name}")


@pytest.mark.parametrize(
    ("arguments", "environment", "text"),
    [
        pytest.param(["--bogus"], {}, None, id="unknown flag"),
        pytest.param([], {"VLLM_SIDECAR_PRIZE": "2"}, None, id="unknown variable"),
        pytest.param([], {}, "gpu_hour_dollars: -1", id="bad value"),
        pytest.param([], {}, "a: b: c", id="no YAML"),
    ],
)
def test_never_exit_serves_that_the_settings_are_bad(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], text: str | None
) -> None:
    """A crashed native sidecar counts against the engine's pod: alive, not ready, config_valid 0, one log line."""
    if text is not None:
        file = tmp_path / "sidecar.yaml"
        file.write_text(text)
        arguments = [f"--config.file={file}"]
    with sidecar("--never-exit", *arguments, **environment) as served:
        assert exported(served, "config_valid") == 0.0
        assert httpx.get(f"{served.url}/-/healthy").status_code == 200
        assert httpx.get(f"{served.url}/-/ready").status_code == 503
        assert served.log().count("settings refused") == 1
        if text is None:
            return
        file.write_text("url: http://127.0.0.1:9\n")
        eventually(lambda: exported(served, "config_valid") == 1.0)
        assert httpx.get(f"{served.url}/-/ready").status_code == 200


@pytest.mark.parametrize("by", ["flag", "file"])
def test_never_exit_lets_nobody_in_whom_the_settings_keep_out(tmp_path: Path, by: str) -> None:
    """Settings that are refused at the start, and good later: by then at the latest users are asked for a password."""
    web, file = tmp_path / "web.yaml", tmp_path / "sidecar.yaml"
    web.write_text(f"basic_auth_users: {{ann: {bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}}}")
    good = "url: http://127.0.0.1:9\n" + (f"web_config_file: {web}\n" if by == "file" else "")
    file.write_text(good + "gpu_hour_dollars: -1\n")
    flags = [f"--web.config.file={web}"] if by == "flag" else []
    with sidecar("--never-exit", f"--config.file={file}", *flags) as served:

        def status(path: str, **more: Any) -> int | None:
            with contextlib.suppress(httpx.TransportError):  # a connection that the renewal ends
                return httpx.get(f"{served.url}{path}", **more).status_code
            return None

        if by == "flag":
            assert status("/metrics") == 401
        file.write_text(good)
        eventually(lambda: status("/-/ready") == 200)
        assert status("/api/v1/config") in (None, 401, 503)
        eventually(lambda: status("/api/v1/config", auth=("ann", "secret")) == 200)
        assert status("/api/v1/config") == 401


@pytest.mark.parametrize("spelling", ["{}={}", "{} {}"])
def test_never_exit_keeps_the_addresses_and_users_of_wrong_arguments(tmp_path: Path, spelling: str) -> None:
    """Whether a value stands behind its name or after it: nobody is let in, and nothing is served elsewhere."""
    web, page = tmp_path / "web.yaml", f"127.0.0.1:{free_port()}"
    web.write_text(f"basic_auth_users: {{ann: {bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}}}")
    flags = {"--web.page-address": page, "--web.config.file": web}
    arguments = [word for name, value in flags.items() for word in spelling.format(name, value).split()]
    with sidecar("--never-exit", "--bogus", *arguments) as served:
        assert httpx.get(f"{served.url}/metrics").status_code == 401
        assert httpx.get(f"http://{page}/").status_code == 401
        assert httpx.get(f"http://{page}/", auth=("ann", "secret")).status_code == 200


def test_never_exit_waits_for_its_port(unused_tcp_port: int) -> None:
    """While somebody else has it: one line, no crash, and it ends when told to."""
    with (
        socket.create_server(("127.0.0.1", unused_tcp_port)),
        sidecar("--never-exit", port=unused_tcp_port, wait=False) as waiting,
    ):
        eventually(lambda: "cannot listen" in waiting.log())
        assert waiting.process.poll() is None
        waiting.process.terminate()
        assert waiting.process.wait(timeout=10) == 0
        assert waiting.log().count("cannot listen") == 1


def test_log_lines_are_json_where_asked_for() -> None:
    """Each line an object with time, level and message."""
    with sidecar("--log.format=json", VLLM_SIDECAR_URL="http://127.0.0.1:9") as served:
        eventually(lambda: "scrape failed" in served.log())
        lines = [json.loads(line) for line in served.log().splitlines()]
    assert all({"ts", "level", "msg"} <= line.keys() for line in lines)
    assert [line["page"] for line in lines if line["msg"] == "serving"] == [True]
    [failed] = [line for line in lines if line["msg"] == "scrape failed"]
    assert (failed["level"], failed["state"], failed["reason"]) == ("info", "loading", "connect")


def test_how_much_is_logged_and_how_changes_with_the_settings(tmp_path: Path) -> None:
    """Without a restart: the second change is told as an object, and after the third it is quiet."""
    file = tmp_path / "sidecar.yaml"
    text = "url: http://127.0.0.1:9\n"
    file.write_text(text)
    with sidecar(f"--config.file={file}") as served:

        def changed_to(more: str, price: float) -> None:
            file.write_text(f"{text}{more}\ngpu_hour_dollars: {price}\n")
            eventually(lambda: exported(served, 'gpu_hour_dollars{target="127.0.0.1:9"}') == price)

        changed_to("log_format: json", 1.0)
        changed_to("log_level: error", 2.0)
        changed_to("", 3.0)
        told = [line for line in served.log().splitlines() if "settings reloaded" in line]
    assert len(told) == 2
    assert told[0].startswith("ts=")
    assert json.loads(told[1])["msg"] == "settings reloaded"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_recording_that_is_ended_is_whole(tmp_path: Path, how: signal.Signals) -> None:
    """Without --seconds it goes on until it is told to end; the compressed file is closed."""
    path, port = tmp_path / "engine.scrapes.gz", free_port()
    command = [sys.executable, "-m", "exporter", "record", f"--url=http://127.0.0.1:{port}", "--interval=0.05", path]
    with engine(port), subprocess.Popen(command, env=ENVIRONMENT) as recording_process:
        try:
            eventually(lambda: path.exists() and path.stat().st_size > 500)
        finally:
            recording_process.send_signal(how)
        assert recording_process.wait(timeout=10) == 0
    assert len(list(recording.read_log(path))) > 1


def test_an_engine_that_is_named_is_the_one_recorded(tmp_path: Path) -> None:
    """Whatever targets the settings name."""
    file, path, port = tmp_path / "sidecar.yaml", tmp_path / "engine.scrapes", free_port()
    file.write_text("targets: [{url: 'http://127.0.0.1:9'}, {url: 'http://127.0.0.1:19'}]")
    arguments = [f"--config.file={file}", "record", f"--url=http://127.0.0.1:{port}", "--seconds=0.1", str(path)]
    with engine(port):
        eventually(lambda: cli.main(arguments) == 0 and _answered(path))


def _answered(path: Path) -> bool:
    """Whether the first scrape of a log was answered: an engine that is starting refuses connections."""
    return isinstance(next(recording.read_log(path)).outcome, Scraped)


@pytest.mark.parametrize(
    "settings",
    [{}, {"DISCOVERY": '{"file_sd": ["/nonexistent"]}', "WORKER_INDEX": "1", "ENGINES": '["7"]', "SCRAPE__PATH": "/x"}],
    ids=["none", "of a fleet"],
)
def test_demo_shows_signals_of_a_real_engine(settings: dict[str, str]) -> None:
    """For two seconds: the state and the main signals, in lines where there is no terminal; of its own engine, whatever
    is set of others.
    """
    done = subprocess.run(
        [sys.executable, "-m", "exporter", "--web.listen-address=127.0.0.1:0", "demo", "--seconds=3"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=ENVIRONMENT | {f"VLLM_SIDECAR_{name}": value for name, value in settings.items()},
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"http://localhost:[1-9][0-9]* \(the page\)", done.stdout)  # not the 0 that was asked for
    assert "/metrics" in done.stdout
    assert re.search(r"state up  arrivals", done.stdout)


@pytest.mark.parametrize("which", [[], ["--recorded"]], ids=["simulated", "recorded"])
def test_demo_names_its_signals_and_ends_on_interrupt(which: list[str]) -> None:
    """A line a second until Ctrl-C, which is not an error; what is not known yet is called so."""
    command = [sys.executable, "-m", "exporter", "--web.listen-address=127.0.0.1:0", "demo", *which]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        line = next(line for line in demo.stdout if line.startswith("state up"))
        demo.send_signal(signal.SIGINT)
        assert demo.wait(timeout=20) == 0, demo.stderr.read()
        assert "Traceback" not in demo.stderr.read()
    for name in (
        "arrivals",
        "decode batch",
        "waiting for capacity",
        "TTFT p99, s",
        "KV usage",
    ):
        assert f"  {name} " in line


def test_the_page_of_the_demo_has_a_history() -> None:
    """Its charts fill as those of the sidecar do: the first point comes within a round of five seconds."""
    port = free_port()
    command = [sys.executable, "-m", "exporter", f"--web.listen-address=127.0.0.1:{port}", "demo", "--recorded"]

    def points() -> int:
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/history")
            return len(answer.json()["engines"][0]["series"]["unix_seconds"]) if answer.is_success else 0
        return 0

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT) as demo:
        try:
            eventually(lambda: points() > 0)
        finally:
            demo.send_signal(signal.SIGINT)
