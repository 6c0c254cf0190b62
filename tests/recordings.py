"""Recordings of a real engine, replayed through the real pipeline, beside what its scheduler did in the same run."""

import csv
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import exporter
from exporter.exposition import Scraped
from exporter.recording import Entry, read_log
from exporter.replay import replay
from exporter.schema import Options, TargetConfig
from tests.bodies import samples

DATA = Path(__file__).parent / "data" / "recordings"
BURST = Path(exporter.__file__).parent / "data" / "burst.scrapes.xz"
WINDOW_SECONDS = 15.0
MODEL = "tiny"


class Step(NamedTuple):
    """What the scheduler did at a time: sequences and positions of this step, by decode and prefill."""

    at: float
    running: int
    decode: int
    prefill: int
    decode_positions: int
    prefill_positions: int


@dataclass(frozen=True)
class Scrape:
    """A good scrape: when, the raw samples by full text before the value, and what the pipeline then exports."""

    at: float
    raw: dict[str, float]
    shown: dict


@dataclass(frozen=True)
class Window:
    """15 s that end at a good scrape and began at another, and the steps in them, with when the next step began."""

    before: Scrape
    now: Scrape
    steps: list[Step]
    next_at: list[float]

    @property
    def seconds(self) -> float:
        return self.now.at - self.before.at

    @property
    def producing(self) -> list[Step]:
        """Steps that put out a token of some sequence past its first."""
        return [step for step in self.steps if step.decode]

    @property
    def busy_seconds(self) -> float:
        """The time in steps. After a step without a sequence, which only cleans up, the engine waits."""
        stretches = zip(self.steps, self.next_at, strict=True)
        return sum(next_at - step.at for step, next_at in stretches if step.decode or step.prefill)

    def mean_over_time(self, kind: str) -> float:
        """Sequences of a kind, each step weighing as long as it lasted."""
        stretches = zip(self.steps, self.next_at, strict=True)
        return sum(getattr(step, kind) * (next_at - step.at) for step, next_at in stretches) / self.seconds

    def exported(self, name: str, engine: str = "0", **labels: str) -> float | None:
        """What the pipeline exports at the end of the window."""
        pairs = tuple(sorted({"engine": engine, "model_name": MODEL, **labels}.items()))
        return self.now.shown.get((name, pairs))

    def exported_increase(self, name: str) -> float:
        """Of an exported counter of engine 0."""
        key = name, (("engine", "0"), ("model_name", MODEL))
        return self.now.shown[key] - self.before.shown[key]

    def raw(self, name: str, engine: str = "0") -> float:
        """A raw gauge at the end of the window."""
        return self.now.raw[series(name, engine)]

    def raw_increase(self, name: str, engine: str = "0") -> float:
        """Of a raw counter; the recorded engines did not restart."""
        return self.now.raw[series(name, engine)] - self.before.raw[series(name, engine)]


def series(name: str, engine: str = "0") -> str:
    """A raw series of an engine, as vLLM writes it."""
    return f'vllm:{name}{{engine="{engine}",model_name="{MODEL}"}}'


@cache
def entries(name: str) -> list[Entry]:
    """The scrapes of a recording."""
    return list(read_log(BURST if name == "burst" else DATA / f"{name}.scrapes.xz"))


@cache
def scrapes(name: str) -> list[Scrape]:
    """The good scrapes of a recording with what the pipeline exports at each."""
    options = Options({"1m": 60.0}, (0.5, 0.9, 0.99))
    replayed = replay(entries(name), TargetConfig(gpu_hour_dollars=2.0), options)
    return [
        Scrape(at, _plain(entry.outcome.body), samples(families))
        for entry, (at, families) in zip(entries(name), replayed, strict=True)
        if isinstance(entry.outcome, Scraped)
    ]


def _plain(body: bytes) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in body.decode().splitlines() if line and line[0] != "#")
    return {head: float(value) for head, _, value in lines}


@cache
def truth(name: str, engine: str = "0") -> list[Step]:
    """Every step of an engine."""
    columns = ("running", "decode_sequences", "prefill_sequences", "decode_positions", "prefill_positions")
    rows = _rows(f"{name}.steps.csv.xz")
    return [
        Step(float(row["unix_seconds"]), *(int(row[column]) for column in columns))
        for row in rows
        if row["engine"] == engine
    ]


@cache
def events(name: str, event: str) -> list[float]:
    """When each event of a kind happened."""
    return [float(row["unix_seconds"]) for row in _rows(f"{name}.events.csv.xz") if row["event"] == event]


def _rows(file: str) -> list[dict[str, str]]:
    with lzma.open(DATA / file, "rt", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def windows(name: str, engine: str = "0") -> Iterator[Window]:
    """The 15 s up to each good scrape that has another so long before it, within 0.3 s."""
    good, steps = scrapes(name), truth(name, engine)
    stretches = [*pairwise(steps)]
    for now in good:
        before = min(good, key=lambda scrape: abs(scrape.at - (now.at - WINDOW_SECONDS)))
        if abs(before.at - (now.at - WINDOW_SECONDS)) < 0.3:
            inside = [(step, after.at) for step, after in stretches if before.at < step.at <= now.at]
            yield Window(before, now, [step for step, _ in inside], [at for _, at in inside])


def busy_windows(name: str, engine: str = "0") -> list[Window]:
    """Those with at least 20 output-producing steps, by which signals of steps are judged."""
    return [window for window in windows(name, engine) if len(window.producing) >= 20]


def error(value: float | None, true: float) -> float:
    """How far off, as a share of the truth. A value must be there."""
    assert value is not None
    return abs(value / true - 1)


def quantile(errors: list[float], q: float) -> float:
    """The q-quantile, from above: no smaller error covers that share."""
    assert errors
    return sorted(errors)[min(len(errors) - 1, int(q * len(errors)))]


def median(errors: list[float]) -> float:
    return quantile(errors, 0.5)
