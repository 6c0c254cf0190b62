"""Replay: a recorded target through the real pipeline, with the recorded clock.

Prints what ``/metrics`` would have said of targets and engines right after each scrape, as CSV or as OpenMetrics with
timestamps, which ``promtool tsdb create-blocks-from openmetrics`` turns into blocks.
"""

import csv
from collections.abc import Iterable, Iterator
from itertools import pairwise
from statistics import median
from typing import IO

from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample

from exporter import collect
from exporter.catalogue import METRICS, PREFIX, Scope
from exporter.pipeline import Pipeline
from exporter.recording import Entry
from exporter.schema import Options, TargetConfig
from exporter.signals.view import SelfView

_NOBODY = SelfView("", "", config_valid=True, config_reload_unix_seconds=None)


SHORTEST_SECONDS = 0.001
"""A log's times have so many digits; of a clock that stood still or went back nothing can be told."""


def interval_seconds(entries: list[Entry]) -> float:
    """The interval at which a log was recorded: the median time between two scrapes."""
    gaps = [later.unix_seconds - earlier.unix_seconds for earlier, later in pairwise(entries)]
    return max(median(gaps), SHORTEST_SECONDS) if gaps else 1.0


def replay(entries: list[Entry], config: TargetConfig, options: Options) -> Iterator[tuple[float, list[Family]]]:
    """(unix seconds, families) after each scrape, through the path that live scraping takes."""
    pipeline = Pipeline(config, options, at=entries[0].unix_seconds)
    pipeline.interval_seconds = interval_seconds(entries)
    for unix_seconds, outcome in entries:
        pipeline.observe(outcome, at=unix_seconds, unix=unix_seconds)
        found = collect.families(_NOBODY, [pipeline.view(unix_seconds)])
        yield unix_seconds, [family for family in found if _scope(family) is not Scope.SELF]


def _scope(family: Family) -> Scope:
    name = family.name.removeprefix(PREFIX)
    row = METRICS.get(name) or METRICS[f"{name}_total"]
    return row.scope


def looped(entries: list[Entry], times: int) -> list[Entry]:
    """The log so many times over, the clock going on; its totals begin again each time, as with a restart."""
    period = entries[-1].unix_seconds - entries[0].unix_seconds + interval_seconds(entries)
    return [Entry(unix_seconds + turn * period, outcome) for turn in range(times) for unix_seconds, outcome in entries]


def write_csv(replayed: Iterable[tuple[float, list[Family]]], out: IO[str]) -> None:
    """``unix_seconds,metric,labels,value``, a line a sample."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("unix_seconds", "metric", "labels", "value"))
    for unix_seconds, families in replayed:
        for family in families:
            for sample in family.samples:
                writer.writerow((f"{unix_seconds:.3f}", sample.name, render_labels(sample), repr(float(sample.value))))


def write_openmetrics(replayed: Iterable[tuple[float, list[Family]]], out: IO[str]) -> None:
    """OpenMetrics with a timestamp a sample: a family is one block, and a series' samples stand in order of time."""
    heads: dict[str, Family] = {}
    lines: dict[str, dict[tuple[str, str], list[str]]] = {}
    for unix_seconds, families in replayed:
        for family in families:
            heads.setdefault(family.name, family)
            series = lines.setdefault(family.name, {})
            for sample in family.samples:
                labels = render_labels(sample)
                line = f"{sample.name}{{{labels}}} {float(sample.value)!r} {unix_seconds:.3f}\n"
                series.setdefault((sample.name, labels), []).append(line)
    for name, family in heads.items():
        out.write(f"# HELP {name} {_escape(family.documentation)}\n# TYPE {name} {family.type}\n")
        for found in lines[name].values():
            out.writelines(found)
    out.write("# EOF\n")


def render_labels(sample: Sample) -> str:
    """Labels as in the exposition, without braces."""
    return ",".join(f'{name}="{_escape(value)}"' for name, value in sorted(sample.labels.items()))


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
