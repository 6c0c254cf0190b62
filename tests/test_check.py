"""vllm-sidecar check: one screen or JSON, and an exit code: 0 fine, 1 findings, 2 cannot tell."""

import asyncio
import contextlib
import io
import json
import socket
import threading

import pytest
from fastapi import FastAPI, Response

from exporter.check import FINDINGS, Report, as_json, conclude, lines, sample_names, write
from exporter.cli import main
from exporter.exposition import Failure, Reason, Scraped
from exporter.findings import Finding, Severity
from exporter.http_server import bind, server_of
from tests.fake_engine import EXPOSITION
from tests.live import FOUR_H100, busy, engine, fed, steps

GONE = Failure(Reason.CONNECT, "refused")


def report(second=lambda body: steps(body, 20, sequences=8), running=8, failure=None, **settings):
    """The report on an engine that did the same each second for 70 s."""
    body = engine(capacity_tokens=10).tokens(generated=1000)
    one = busy(fed(**settings), body, 70, second, running)
    if failure is not None:
        one.fail(71)
        return conclude(one.view(), failure, failure)
    return conclude(one.view(), Scraped(body.text(), False, 0.01), None)


def test_fine():
    """Served, and nothing to change."""
    assert report().exit_code == 0


def test_findings():
    """128 positions a chunk are too few."""
    assert report(**FOUR_H100, max_num_batched_tokens=128).exit_code == 1


def test_what_is_only_good_to_know_is_no_finding_to_act_on():
    """Spare compute is an information."""
    found = report(**FOUR_H100)

    assert [each.severity for each in found.findings] == [Severity.INFO]
    assert found.exit_code == 0


def test_an_idle_engine_cannot_be_told_to_be_fine():
    """Nothing was served while it was looked at."""
    assert report(lambda body: body, running=0).exit_code == 2


def test_an_idle_engine_that_is_set_wrong_has_findings():
    assert report(lambda body: body, running=0, **FOUR_H100, max_num_batched_tokens=128).exit_code == 1


def test_an_engine_that_is_gone_cannot_be_told():
    """And the screen says why."""
    found = report(failure=GONE)

    assert found.exit_code == 2
    assert ("bold red", "last scrape failed: connect, refused") in list(lines(found))


def test_a_renamed_series_is_looked_for_in_the_body():
    """The last body has something like it."""
    body = engine().drop("vllm:num_preemptions_total").set("vllm:num_preemption_events_total", 1)
    one = busy(fed(), body, 20, lambda each: steps(each, 20, sequences=8))
    found = conclude(one.view(), Scraped(body.text(), False, 0.01), None)

    assert "is it vllm:num_preemption_events_total now?" in found.findings[0].evidence


def test_names_in_a_body_with_bad_lines():
    """Bad lines are left out."""
    assert sample_names(b'# HELP x y\nx{a="b"} 1\n<html>\n\xff\ny_total 2\n') == {"x", "y_total"}


def test_the_screen():
    """Findings first, then what was not judged, then the signals with their numbers."""
    text = [line for _, line in lines(report(**FOUR_H100, max_num_batched_tokens=128, gpu_hour_dollars=1.0))]

    assert text[0] == "http://localhost:8000: findings, target is up"
    assert text[1].startswith("WARNING  chunk_below_crossover: max_num_batched_tokens is 128")
    assert text[2].strip().startswith("-> raise --max-num-batched-tokens")
    assert any(line.startswith("not judged: seats") for line in text)
    signals = " ".join(text[text.index("engine 0, model m") :])
    assert "crossover, positions              182" in signals
    assert "decode batch                      8.0" in signals
    assert all(len(line) <= 160 for line in text)
    assert len(text) < 40


def test_plain_text_into_a_pipe():
    """No colour, no markup, one line a line."""
    out = io.StringIO()
    write(report(**FOUR_H100), out)

    assert "\x1b" not in out.getvalue()
    assert out.getvalue().startswith("http://localhost:8000: fine")


def test_a_name_that_would_write_over_the_screen():
    """An engine calls itself what it likes; a terminal would clear itself and show the line after as ours."""
    body = EXPOSITION.replace(b"tiny", b"\x1b[2J\\nall is fine")
    hostile = fed()
    hostile.scrape(0.0, body)
    told = [line for _, line in lines(conclude(hostile.view(), Scraped(body, False, 0.01), None))]

    assert r"engine 0, model \x1b[2J\nall is fine" in told
    assert all(line.isprintable() for line in told)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_colour_on_a_terminal(monkeypatch):
    """Where rich is installed; a bracket in a text is no markup."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    odd = Finding("odd", Severity.CRITICAL, "[bold]a[/bold]", "nothing")
    write(Report(report().view, [odd], [], None), out)

    assert "\x1b[" in out.getvalue()
    assert "[bold]a[/bold]" in out.getvalue()


def test_a_terminal_without_rich(monkeypatch):
    """The runtime image has none: plain text."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    out = Terminal()
    write(report(), out)

    assert "\x1b" not in out.getvalue()


def test_json():
    """Everything of the screen for a program; null is not known."""
    found = as_json(report(**FOUR_H100, max_num_batched_tokens=128))

    assert found["verdict"] == "findings"
    assert found["failure"] is None
    assert found["findings"][0] == {
        "name": "chunk_below_crossover",
        "severity": "warning",
        "engine": "0",
        "evidence": "max_num_batched_tokens is 128, steps are memory-bound up to 182 positions",
        "change": "raise --max-num-batched-tokens to 182 or more: up to there it is free",
    }
    assert found["signals"]["engines"][0]["crossover_positions"] == pytest.approx(182.344, abs=1e-3)
    assert found["signals"]["engines"][0]["model_flops_utilization_ratio"] is None
    json.dumps(found, allow_nan=False)


@pytest.fixture
def served():
    """A real HTTP server that exposes one unchanging engine; its URL."""
    body = engine(capacity_tokens=10).tokens(generated=1000).text()
    app = FastAPI(openapi_url=None)

    @app.get("/metrics")
    async def metrics():
        return Response(body, media_type="text/plain")

    listening = bind("127.0.0.1:0")
    server = server_of(app)
    server.capture_signals = contextlib.nullcontext
    with asyncio.Runner() as runner:
        thread = threading.Thread(target=lambda: runner.run(server.serve(sockets=[listening])))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        runner.get_loop().call_soon_threadsafe(server.end)
        thread.join()


def test_the_command(served, capsys, monkeypatch):
    """Scrapes over HTTP with the settings in force, prints JSON, tells by its exit code."""
    for name, value in (
        ("HARDWARE__PROFILE", "h100-sxm"),
        ("MODEL__TOTAL_PARAMS", "70e9"),
        ("MODEL__LAYERS", "80"),
        ("MODEL__KV_HEADS", "8"),
        ("MODEL__HEAD_DIM", "128"),
        ("MAX_NUM_BATCHED_TOKENS", "16"),
    ):
        monkeypatch.setenv(f"VLLM_SIDECAR_{name}", value)

    assert main(["check", served, "--seconds", "0.3", "--interval", "0.1", "--json"]) == FINDINGS
    found = json.loads(capsys.readouterr().out)
    assert found["signals"]["target_up"] == 1
    assert [each["name"] for each in found["findings"]] == ["chunk_below_crossover"]


def test_a_url_given_is_the_only_target(served, capsys, tmp_path):
    """Whatever targets the settings name."""
    settings = tmp_path / "sidecar.yaml"
    settings.write_text("targets: [{url: 'http://a'}, {url: 'http://b'}]\n")

    assert main(["--config.file", str(settings), "check", served, "--seconds", "0.2", "--interval", "0.1"]) == 2
    assert capsys.readouterr().out.startswith(f"{served}: cannot tell, target is up")


def test_interrupted_it_cannot_tell(monkeypatch):
    """Ctrl-C is not an engine in order."""

    def interrupted(coroutine):
        coroutine.close()
        raise KeyboardInterrupt

    monkeypatch.setattr("exporter.check.asyncio.run", interrupted)

    assert main(["check"]) == 2


def test_nobody_there(capsys):
    """Exit code 2, and soon: three scrapes in vain, not all of the time asked for."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]

    assert main(["check", f"http://127.0.0.1:{port}", "--seconds", "3600", "--interval", "0.05"]) == 2
    assert "last scrape failed: connect" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--seconds", "0"], "argument --seconds: '0' is not a number of seconds above 0"),
        (["--interval", "nan"], "argument --interval: 'nan' is not a number of seconds above 0"),
        (["ftp://x"], "not an http, https or http+unix URL"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
    ],
)
def test_bad_arguments(arguments, line, capsys):
    """One line, exit code 2."""
    assert main(["check", *arguments]) == 2
    assert line in capsys.readouterr().err
