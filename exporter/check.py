"""``vllm-sidecar check``: scrape an engine for some seconds through the real pipeline, and print what a doctor says."""

import asyncio
import importlib.util
import itertools
import json
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import IO, Any

from exporter import collect, doctor
from exporter.exposition import Failure, Scraped
from exporter.findings import Finding, Severity
from exporter.pipeline import Pipeline
from exporter.sample_line import parse_line
from exporter.schema import Options, TargetConfig
from exporter.scrape import Scraper, next_due
from exporter.signals import (
    cost,
    decode,
    kv_cache,
    latency,
    preemption,
    prefix_cache,
    queue,
    roofline,
    speculation,
    step,
)
from exporter.signals.view import EngineView, State, TargetView, Value
from exporter.upstream import Part

FINE, FINDINGS, CANNOT_TELL = 0, 1, 2
ATTEMPTS = 3
VERDICTS = {FINE: "fine", FINDINGS: "findings", CANNOT_TELL: "cannot tell"}
STYLES = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


@dataclass(frozen=True, slots=True)
class Report:
    """What a check came to.

    Attributes:
        view: the target at the end.
        findings: the gravest first.
        unjudged: what could not be looked at.
        failure: of the last scrape, if it failed.
    """

    view: TargetView
    findings: list[Finding]
    unjudged: list[str]
    failure: Failure | None

    @property
    def exit_code(self) -> int:
        """0 fine, 1 findings that want a change, 2 the engine did not answer or did nothing to judge it by."""
        if self.failure is not None or self.view.state is not State.UP:
            return CANNOT_TELL
        if any(each.severity is not Severity.INFO for each in self.findings):
            return FINDINGS
        served = any(engine.now.increase("steps", part=Part.COUNT) for engine in self.view.engines)
        return FINE if served else CANNOT_TELL


def conclude(view: TargetView, last: Scraped | Failure, failure: Failure | None) -> Report:
    """The report on a target as it stands after its last scrape."""
    exposed = sample_names(last.body) if isinstance(last, Scraped) else set()
    return Report(view, doctor.examine(view, exposed), list(doctor.unjudged(view)), failure)


def sample_names(body: bytes) -> Collection[str]:
    """Names of the samples in an exposition; lines that cannot be read are left out."""
    found = set()
    for line in body.decode(errors="replace").splitlines():
        if line and not line.startswith("#"):
            try:
                found.add(parse_line(line).name)
            except ValueError:
                continue
    return found


async def check(config: TargetConfig, seconds: float, interval_seconds: float) -> Report:
    """Scrape for so long at a steady pace and conclude; three scrapes in vain at the beginning end it early."""
    name = f"{seconds:g}s"
    began = due = time.monotonic()
    pipeline = Pipeline(config, Options({name: seconds}, (0.5, 0.99)), at=began)
    pipeline.interval_seconds = interval_seconds
    async with Scraper(config) as scraper:
        for attempt in itertools.count(1):
            outcome = await scraper.scrape()
            failure = pipeline.observe(outcome, at=time.monotonic(), unix=time.time())
            due = next_due(due, interval_seconds, time.monotonic())
            if failure is None and pipeline.suspicious:
                pipeline.observe_health(healthy=await scraper.healthy())
            in_vain = attempt >= ATTEMPTS and pipeline.state is State.LOADING
            if due - began > seconds or in_vain:
                break
            await asyncio.sleep(max(0.0, due - time.monotonic()))
    return conclude(pipeline.view(time.monotonic()), outcome, failure)


def as_json(report: Report) -> dict[str, Any]:
    """The report for a program: verdict, findings, what was not judged, all signals."""
    return {
        "verdict": VERDICTS[report.exit_code],
        "failure": None
        if report.failure is None
        else report.failure._asdict() | {"reason": report.failure.reason.value},
        "findings": [asdict(each) | {"severity": each.severity.value} for each in report.findings],
        "not_judged": report.unjudged,
        "signals": collect.signals([report.view])[0],
    }


def write(report: Report, out: IO[str], *, json_wanted: bool = False) -> None:
    """Print a report: as JSON, or for a person, in colour on a terminal where rich is installed."""
    if json_wanted:
        out.write(json.dumps(as_json(report), indent=2) + "\n")
        return
    if out.isatty() and importlib.util.find_spec("rich") is not None:
        from rich.console import Console  # noqa: PLC0415 - comes with the extra lab

        console = Console(file=out, highlight=False)
        for style, line in lines(report):
            console.print(line, style=style, markup=False)
        return
    out.writelines(f"{line}\n" for _, line in lines(report))


def lines(report: Report) -> Iterator[tuple[str, str]]:
    """(style, text) of one screen. Control characters in an engine's names are escaped: a terminal would obey them."""
    for style, text in _lines(report):
        yield style, text if text.isprintable() else text.encode("unicode_escape").decode()


def _lines(report: Report) -> Iterator[tuple[str, str]]:
    """Findings first, then what was not judged, then the signals."""
    view = report.view
    yield "bold", f"{view.config.url}: {VERDICTS[report.exit_code]}, target is {view.state.value}"
    if report.failure is not None:
        yield "bold red", f"last scrape failed: {report.failure.reason.value}, {report.failure.detail}"
    for each in report.findings:
        of = f" (engine {each.engine})" if each.engine and len(view.engines) > 1 else ""
        yield STYLES[each.severity], f"{each.severity.value.upper():<9}{each.name}{of}: {each.evidence}"
        yield "", f"{'':9}-> {each.change}"
    for aspect in report.unjudged if report.failure is None else ():
        yield "dim", f"not judged: {aspect}"
    for engine in view.engines:
        yield "bold", f"engine {engine.engine.engine or '-'}, model {engine.engine.model_name or '-'}"
        yield from (("", line) for line in columns(list(shown(view, engine))))


def columns(cells: list[tuple[str, str]]) -> Iterator[str]:
    """Names and values in two columns."""
    rows = (len(cells) + 1) // 2
    for row in range(rows):
        pair = (cells[at] for at in (row, row + rows) if at < len(cells))
        yield "  " + "    ".join(f"{name:<26}{value:>11}" for name, value in pair)


def shown(target: TargetView, view: EngineView) -> Iterator[tuple[str, str]]:
    """The signals a person looks at first, by name; - is not known."""
    window = next(iter(target.options.windows))
    quantiles = latency.quantiles(view)
    positions, gains = step.positions(view), speculation.expected_speedup(view)
    prices = cost.per_million_tokens(target)
    yield from (
        ("arrivals/s", _number(view.now.rate("arrivals"), ".2f")),
        ("running", _number(view.now.last("running"), ".0f")),
        ("decode batch", _number(decode.batch_size(view), ".1f")),
        ("waiting for capacity", _number(queue.capacity_waiting(view.now), ".0f")),
        ("predicted TTFT, s", _number(queue.predicted_ttft(view), ".2f")),
        ("TTFT p50, s", _number(quantiles.get(("ttft", "0.5", window)), ".3f")),
        ("TTFT p99, s", _number(quantiles.get(("ttft", "0.99", window)), ".3f")),
        ("ITL p50, s", _number(quantiles.get(("itl", "0.5", window)), ".4f")),
        ("ITL p99, s", _number(quantiles.get(("itl", "0.99", window)), ".4f")),
        ("preemptions/arrival", _number(preemption.per_arrival(view).get((window,)), ".1%")),
        ("prefix-cache hits", _number(prefix_cache.hit_ratio(view).get((window,)), ".1%")),
        ("KV usage", _number(kv_cache.usage(view), ".0%")),
        ("KV capacity, tokens", _number(kv_cache.capacity_tokens(view), ",.0f")),
        ("preemption point", _number(kv_cache.preemption_point(view), ".1f")),
        ("warmness", _number(kv_cache.warmness(view), ".0%")),
        ("step, s", _number(step.step_seconds(view), ".4f")),
        ("prefill positions/step", _number(positions.get(("prefill",)), ".1f")),
        ("decode positions/step", _number(positions.get(("decode",)), ".1f")),
        ("crossover, positions", _number(roofline.crossover_positions(view), ".0f")),
        ("crossover ratio", _number(roofline.crossover_ratio(view), ".2f")),
        ("MFU", _number(roofline.model_flops_utilization(view), ".1%")),
        ("MBU", _number(roofline.memory_bandwidth_utilization(view), ".1%")),
        ("tokens/request-step", _number(speculation.tokens_per_step(view), ".2f")),
        ("speculation, latency", _number(gains.get(("latency",)), ".2f")),
        ("speculation, throughput", _number(gains.get(("throughput",)), ".2f")),
        ("$/1M output", _number(prices.get(("output", "output", window)), ".2f")),
    )


def _number(value: Value, form: str) -> str:
    return "-" if value is None else format(value, form)


def run(config: TargetConfig, seconds: float, interval_seconds: float, *, json_wanted: bool) -> int:
    """Check and print; returns the exit code. Interrupted, it cannot tell."""
    try:
        report = asyncio.run(check(config, seconds, interval_seconds))
    except KeyboardInterrupt:
        return CANNOT_TELL
    write(report, sys.stdout, json_wanted=json_wanted)
    return report.exit_code
