"""Recordings of a real engine as hours of Prometheus blocks, and the rules evaluated over them."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import yaml

from exporter import collect
from exporter.pipeline import Pipeline
from exporter.recording import Entry
from exporter.replay import interval_seconds, looped, write_openmetrics
from exporter.schema import Config
from exporter.signals.view import SelfView
from tests.alerting.rules import RECORDED, Rule, load
from tests.alerting.test_units import seconds
from tests.programs import system
from tests.prometheus import Prometheus, blocks_of, serving

STEP_SECONDS = 30
LABELS = {"job": "vllm-sidecar", "namespace": "prod", "pod": "a", "instance": "a:10077"}
NOBODY = SelfView("", "", config_valid=True, config_reload_unix_seconds=None)


def from_zero(entries: list[Entry]) -> list[Entry]:
    """A stretch of a recording as if the engine had begun with it: every counter less what it was at first."""
    base: dict[bytes, float] = {}

    def line(text: bytes) -> bytes:
        series, _, value = text.rpartition(b" ")
        if not re.match(rb"[a-z_:]+_(total|count|sum|bucket)(\{|$)", series):
            return text
        return b"%b %r" % (series, float(value) - base.setdefault(series, float(value)))

    return [
        entry._replace(
            outcome=entry.outcome._replace(body=b"\n".join(map(line, entry.outcome.body.splitlines())) + b"\n")
        )
        for entry in entries
    ]


def write_scrapes(entries: list[Entry], hours: float, settings: dict, path: Path) -> tuple[float, float]:
    """What Prometheus would have scraped of the sidecar every 30 s while the recording played for hours.

    Returns:
        The first and the last unix second, multiples of 30 s.
    """
    config = Config(**settings)
    period = entries[-1].unix_seconds - entries[0].unix_seconds + interval_seconds(entries)
    entries = looped(entries, int(hours * 3600 / period) + 1)
    pipeline = Pipeline(config.all_targets()[0], config.options(), at=entries[0].unix_seconds)
    pipeline.interval_seconds = interval_seconds(entries)
    first = due = (entries[0].unix_seconds // STEP_SECONDS + 1) * STEP_SECONDS
    scraped = []
    for at, outcome in entries:
        pipeline.observe(outcome, at=at, unix=at)
        if at >= due:
            families = list(collect.families(NOBODY, [pipeline.view(at)]))
            for family in families:
                family.samples = [sample._replace(labels={**sample.labels, **LABELS}) for sample in family.samples]
            scraped.append((due, families))
            due += STEP_SECONDS
    with path.open("w") as out:
        write_openmetrics(scraped, out)
    return first, scraped[-1][0]


def _levels(rules: list[Rule]) -> list[list[Rule]]:
    """Recording rules in the order in which they can be evaluated: each level reads only what is below it."""
    waiting, levels = [rule for rule in rules if not rule.is_alert], []
    while waiting:
        names = {rule.name for rule in waiting}
        ready = [
            rule for rule in waiting if not {found[0] for found in re.finditer(RECORDED, rule.body["expr"])} & names
        ]
        levels.append(ready)
        waiting = [rule for rule in waiting if rule not in ready]
    return levels


def firing(scrapes: Path, first: float, last: float) -> dict[str, list[float]]:
    """Unix seconds at which each alert of the sidecars' rules fires, evaluated every 30 s over the blocks."""
    blocks = blocks_of(scrapes, scrapes.parent / "blocks")
    rules = load("sidecar")
    for number, level in enumerate(_levels(rules)):
        path = scrapes.parent / f"level-{number}.yaml"
        path.write_text(yaml.safe_dump({"groups": [{"name": "level", "rules": [rule.body for rule in level]}]}))
        with serving(scrapes.parent, blocks=blocks) as prometheus:
            command = [system("promtool"), "tsdb", "create-blocks-from", "rules", f"--start={first:.0f}"]
            command += [
                f"--end={last:.0f}",
                f"--eval-interval={STEP_SECONDS}s",
                f"--url={prometheus.url}",
                f"--output-dir={blocks}",
            ]
            done = subprocess.run([*command, path], capture_output=True, text=True, check=False, timeout=120)
            assert done.returncode == 0, done.stdout + done.stderr
    with serving(scrapes.parent, blocks=blocks) as prometheus:
        found: dict[str, list[float]] = {}
        for rule in rules:
            if rule.is_alert and rule.name != "VLLMWatchdog":
                found.setdefault(rule.name, []).extend(_firing(prometheus, rule, first, last))
    return {name: sorted(times) for name, times in found.items() if times}


def _firing(prometheus: Prometheus, rule: Rule, first: float, last: float) -> Iterator[float]:
    for series in prometheus.range(rule.body["expr"], first, last, STEP_SECONDS):
        since = before = None
        for at, _ in series["values"]:
            since = since if since is not None and at - before == STEP_SECONDS else at
            before = at
            if at - since >= seconds(rule.body["for"]):
                yield at
