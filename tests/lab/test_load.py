"""The load generator: it sends on time, proves it, and says when it did not."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from exporter.lab.arrivals import Arrival
from exporter.lab.client import Outcome, Prompts, Target
from exporter.lab.load import connection_limit, main, offer
from exporter.lab.load_picture import draw
from exporter.lab.load_report import Run, Slo, dispersion, peak_in_flight, quantile, report, summary, text, timeline
from exporter.lab.profiles import PROFILES
from exporter.lab.serving import Layout
from exporter.lab.simulate import Simulator, serving

FAST = replace(PROFILES["demo"], weight_read_seconds=0.002, positions_per_second=1_000_000)


def outcome(
    at: float, *, late: float = 0.0, ttft: float = 0.1, tokens: int = 3, gap: float = 0.05, **fields: Any
) -> Outcome:
    """A request that was served: first token after `ttft`, the others `gap` apart."""
    started = at + late
    last = started + ttft + gap * (tokens - 1)
    served = Outcome(
        Arrival(at, fields.pop("label", "short"), 10, tokens),
        scheduled=at,
        started=started,
        sent=started,
        first_token=started + ttft,
        last_token=last,
        ended=last,
        tokens=tokens,
        gaps=array("d", [gap] * (tokens - 1)),
    )
    for name, value in fields.items():
        setattr(served, name, value)
    return served


def run_of(*outcomes: Outcome, seconds: float = 10.0, max_connections: int = 1000) -> Run:
    ended = max(each.ended for each in outcomes)
    return Run(outcomes, started=0.0, ended=ended, max_connections=max_connections, planned_seconds=seconds)


SLO = Slo(ttft=1.0, tpot=0.1)


def test_quantiles_are_values_that_were_seen() -> None:
    """Of 1 to 100 half lie at or below 50 and 99 % at or below 99."""
    values = [float(number) for number in range(1, 101)]
    assert [quantile(values, q) for q in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert quantile([7.0], 0.99) == 7
    assert summary([]) is None


def test_classes_are_never_averaged_together() -> None:
    """Short TTFT 0.1 s, long 5 s: no 2.55 anywhere."""
    found = report(run_of(outcome(0), outcome(1, ttft=5.0, label="long")), SLO)
    assert found["classes"]["short"]["ttft_seconds"]["mean"] == pytest.approx(0.1)
    assert found["classes"]["long"]["ttft_seconds"]["mean"] == pytest.approx(5.0)
    assert "ttft_seconds" not in found


def test_goodput_needs_both_targets_and_a_finish() -> None:
    """Of four one is too late to start, one too slow, one failed: 25 % and 0.1 a second over 10 s."""
    run = run_of(outcome(0), outcome(1, ttft=1.5), outcome(2, gap=0.2), outcome(3, error="timeout"))
    found = report(run, SLO)["classes"]["short"]
    assert found["goodput_ratio"] == 0.25
    assert found["goodput_requests_per_second"] == pytest.approx(0.1)
    assert (found["finished"], found["errors"]) == (3, {"timeout": 1})


def test_what_failed_is_no_latency() -> None:
    found = report(run_of(outcome(0), outcome(1, ttft=60, error="disconnected")), SLO)["classes"]["short"]
    assert found["ttft_seconds"]["max"] == pytest.approx(0.1)


def test_a_run_that_its_own_cpu_held_back_is_invalid() -> None:
    """Two of a hundred 50 ms late put the 99th percentile beyond 20 ms; one does not."""
    for late, valid in ((1, True), (2, False)):
        run = run_of(*(outcome(at / 10, late=0.05 if at < late else 0.001) for at in range(100)))
        found = report(run, SLO)
        assert found["verdict"]["valid"] is valid
        assert ("INVALID: too slow" in text(found)) is not valid


def test_a_run_that_its_pool_held_back_is_invalid() -> None:
    found = report(run_of(outcome(0), outcome(0.1, queued_for_pool=True), max_connections=1), SLO)["verdict"]
    assert found["valid"] is False
    assert found["reasons"] == [
        "closed loop: the pool of 1 connections held 1 requests back; 2 were in flight at the peak"
    ]


def test_in_flight_counts_from_hand_over_to_end() -> None:
    """Requests from 0 to 0.2, 0.1 to 0.3 and 1 to 1.2: two at once, and one arrival in the second second."""
    run = run_of(*(outcome(at) for at in (0.0, 0.1, 1.0)))
    assert peak_in_flight(run.outcomes) == 2
    assert timeline(run) == {"arrivals": [2, 1], "in_flight": [2, 1]}


def test_dispersion_of_even_counts_is_zero_and_needs_five_windows() -> None:
    """One arrival each second for 12 s: every window of 1 or 2 s has the same count; 5 s has two windows only."""
    assert dispersion([second + 0.5 for second in range(12)], 12) == {"1": 0, "2": 0}


def test_prompts_have_the_length_asked_for_and_are_new_each_time() -> None:
    prompts = Prompts(1)
    first, second = json.loads(prompts.tokens(5000)), json.loads(prompts.tokens(5000))
    assert (len(first), len(second)) == (5000, 5000)
    assert first[:16] != second[:16]
    assert len(json.loads(prompts.tokens(100_000))) == 100_000
    assert len(json.loads(prompts.tokens(1))) == 1
    assert len(json.loads(prompts.text(7)).split()) == 7


def test_tpot_needs_a_second_token() -> None:
    assert outcome(0, tokens=1).tpot is None
    assert outcome(0, tokens=3).tpot == pytest.approx(0.05)


def test_the_connection_limit_is_sized_from_the_plan() -> None:
    assert connection_limit(50) == 50


def target(simulator: Simulator, *, chat: bool = False, prose: bool = False) -> Target:
    return Target(f"http://127.0.0.1:{simulator.listener.port}", "simulated", chat, prose)


def plan(count: int, spacing: float, output: int = 5) -> list[Arrival]:
    return [Arrival(number * spacing, "short", 20, output) for number in range(count)]


@pytest.mark.parametrize(("chat", "prose"), [(False, False), (False, True), (True, False)])
async def test_every_token_of_every_request_is_seen(chat: bool, prose: bool) -> None:
    async with serving(Layout(FAST)) as simulator:
        run = await offer(target(simulator, chat=chat, prose=prose), plan(10, 0.02), seconds=1, max_connections=100)
    assert [(each.error, each.tokens) for each in run.outcomes] == [(None, 5)] * 10
    assert all(each.ttft is not None and each.ttft > 0 for each in run.outcomes)
    assert all(1 <= len(each.gaps) + 1 <= 5 for each in run.outcomes)


def clear_when_sent(simulator: Simulator, count: int) -> Callable[[int, int], None]:
    """Let the engine go on once every request has been handed over."""

    def progress(sent: int, _done: int) -> None:
        if sent == count:
            simulator.faults.clear("pause")

    return progress


@pytest.mark.parametrize(("limit", "held"), [(5, 15), (20, 0)])
async def test_a_pool_that_is_too_small_is_found_out_and_one_sized_from_the_plan_is_not(limit: int, held: int) -> None:
    """The engine serves nobody until all twenty have come: a pool of five holds fifteen back."""
    async with serving(Layout(FAST)) as simulator:
        simulator.faults.set("pause", {})
        progress = clear_when_sent(simulator, 20)
        run = await offer(target(simulator), plan(20, 0.01), seconds=1, max_connections=limit, progress=progress)
    found = report(run, SLO)["verdict"]
    assert found["held_back_by_pool"] == held
    assert ("closed loop" in "".join(found["reasons"])) is bool(held)


async def test_arrivals_do_not_wait_for_a_server_that_does_not_answer() -> None:
    """All twenty are handed over although the engine answers the first only when it has the last."""
    async with serving(Layout(FAST)) as simulator:
        simulator.faults.set("pause", {})
        progress = clear_when_sent(simulator, 20)
        run = await offer(target(simulator), plan(20, 0.02), seconds=1, max_connections=20, progress=progress)
    assert [each.error for each in run.outcomes] == [None] * 20
    assert peak_in_flight(run.outcomes) == 20


async def test_clients_with_a_timeout_leave() -> None:
    async with serving(Layout(FAST)) as simulator:
        simulator.faults.set("pause", {})
        run = await offer(target(simulator), plan(3, 0.01), seconds=1, max_connections=3, client_timeout=0.2)
        async with asyncio.timeout(5):
            while any(engine.load for engine in simulator.serving.live):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        abandoned = [len(engine.truth.abandoned) for engine in simulator.serving.live]
    assert [each.error for each in run.outcomes] == ["timeout"] * 3
    assert abandoned == [3]


async def test_a_server_that_dies_half_way_is_an_error_and_no_latency() -> None:
    async with serving(Layout(replace(FAST, weight_read_seconds=0.05))) as simulator:
        asyncio.get_running_loop().call_later(0.3, simulator.faults.set, "die", {})
        run = await offer(target(simulator), plan(8, 0.1, output=100), seconds=1, max_connections=8)
    assert {each.error for each in run.outcomes} <= {"stream_error", "http_500"}
    assert report(run, SLO)["classes"]["short"]["e2e_seconds"] is None


@contextmanager
def answering(content: bytes) -> Iterator[str]:
    """A server that answers every connection with these bytes and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(content)

        threading.Thread(target=answer, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"data: {bad}\n\n", "garbage"),
        (b'data: {"choices":[{"text":"a"}]}\n\n', "truncated"),
        (b'data: {"error":{"message":"no"}}\n\n', "stream_error"),
        (b"", "truncated"),
    ],
)
async def test_a_stream_that_breaks_is_named(body: bytes, error: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    with answering(head + body) as url:
        run = await offer(Target(url, "m"), plan(1, 0), seconds=1, max_connections=1)
    assert run.outcomes[0].error == error


async def test_a_connection_that_breaks_is_named() -> None:
    with answering(b"") as url:
        run = await offer(Target(url, "m"), plan(1, 0), seconds=1, max_connections=1)
    assert run.outcomes[0].error == "disconnected"


@contextmanager
def simulate(*options: str) -> Iterator[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "exporter.lab.simulate", "--port", "0", "--control-port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[1].removesuffix("/metrics")
        finally:
            process.terminate()
    assert process.returncode == 0


def test_the_simulate_command_serves_until_it_is_told_to_stop() -> None:
    with simulate("--profile", "demo") as url:
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 200


@pytest.fixture
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is not what these tests are about."""
    monkeypatch.setattr("exporter.lab.load_report.LATE_SECONDS", 60)


SEAT = replace(FAST, max_num_seqs=1)


@pytest.mark.usefixtures("_unhurried")
async def test_the_command_reports_draws_and_finds_the_pool_too_small(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One seat serves some ten requests a second: at 40 a second more than five are there at once."""
    async with serving(Layout(SEAT)) as simulator:
        files = ["--json", str(tmp_path / "report.json"), "--picture", str(tmp_path / "run.png")]
        common = ["--url", target(simulator).url, "--rate", "40", "--seconds", "2", "--client-timeout", "2"]
        assert await asyncio.to_thread(main, [*common, *files, "--max-connections", "5"]) == 1
        assert "INVALID: closed loop: the pool of 5 connections held" in capsys.readouterr().out
        assert await asyncio.to_thread(main, [*common, *files]) == 0
        assert "valid: open loop" in capsys.readouterr().out
    found = json.loads((tmp_path / "report.json").read_text())
    assert set(found["classes"]) == {"short", "long"}
    assert found["verdict"]["held_back_by_pool"] == 0
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("_unhurried")
async def test_a_sweep_stops_at_the_frontier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One seat serves some ten a second: 2/s meets a TTFT of 0.8 s, at 42/s a second of work comes every 0.25 s."""
    async with serving(Layout(SEAT)) as simulator:
        load = ["--url", target(simulator).url, "--longest", "1000", "--cv", "0.2", "--seconds", "2"]
        slo = ["--slo-ttft", "0.8", "--slo-tpot", "0.5", "--json", str(tmp_path / "sweep.json")]
        assert await asyncio.to_thread(main, [*load, *slo, "--sweep", "2", "82", "40"]) == 0
    steps = json.loads((tmp_path / "sweep.json").read_text())["sweep"]
    assert [(step["rate"], step["met"]) for step in steps] == [(2, True), (42, False)]
    assert "SLO frontier: 2/s, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--rate", "0"], "the rate must be above 0, not 0"),
        (["--cv", "0"], "the coefficient of variation must be above 0, not 0"),
        (["--rate", "nan"], "--rate must be a finite number, not nan"),
        (["--seconds", "inf"], "--seconds must be a finite number, not inf"),
        (["--sweep", "1", "inf", "1"], "--sweep must be a finite number, not inf"),
        (["--seconds", "-1"], "--seconds must be above 0, not -1"),
        (["--slo-ttft", "0"], "--slo-ttft must be above 0, not 0"),
        (["--slo-share", "2"], "--slo-share is a share from 0 to 1, not 2"),
        (["--longest", "1"], "--longest must be at least 2"),
        (["--sweep", "5", "1", "1"], "--sweep goes from a rate above 0 up to a higher one in steps above 0"),
        (["--sweep", "1", "2", "1", "--trace", "x"], "--sweep needs a rate to raise: it cannot go with --trace"),
        (["--sweep", "1", "2", "1", "--picture", "x.png"], "--picture draws one run: it cannot go with --sweep"),
        (["--url", "localhost:8000"], "--url must begin with http:// or https://: localhost:8000"),
        (["--trace", "/nowhere.csv"], "[Errno 2] No such file or directory: '/nowhere.csv'"),
    ],
)
def test_arguments_that_make_no_sense_end_in_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err == f"vllm-sidecar load: {message}\n"


def test_a_bad_trace_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("seconds,prompt_tokens,output_tokens\n1,2,x\n")
    assert main(["--trace", str(trace)]) == 2
    assert capsys.readouterr().err == f"vllm-sidecar load: {trace}, line 2: '1,2,x'\n"


def test_a_dead_server_is_reported_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    assert main(["--url", f"http://127.0.0.1:{port}", "--seconds", "1"]) == 2
    assert capsys.readouterr().err.startswith(f"vllm-sidecar load: no server at http://127.0.0.1:{port}: ")


def test_a_server_that_went_away_before_the_first_request_is_reported_as_such(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find_model(_url: str) -> str:
        return "m"

    monkeypatch.setattr("exporter.lab.load.find_model", find_model)
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    assert main(["--url", f"http://127.0.0.1:{port}", "--rate", "20", "--seconds", "1"]) == 2
    assert "went away: no request could connect" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", b"HTTP/1.1 404 No\r\n\r\n"])
def test_a_server_of_another_kind_is_reported_as_such(answer: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(answer) as url:
        assert main(["--url", url, "--seconds", "1"]) == 2
    assert url in capsys.readouterr().err


def test_an_empty_run_can_be_drawn(tmp_path: Path) -> None:
    """One request that failed at once has no latency to show."""
    failed = Outcome(Arrival(0, "short", 1, 1), 0.0, ended=0.1, error="connect")
    draw(run_of(failed), tmp_path / "run.svg")
    assert "<svg" in (tmp_path / "run.svg").read_text()
