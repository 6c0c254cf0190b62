"""Arrivals that clump like real traffic: a Markov-modulated process with gamma gaps, length mixtures, trace files."""

import csv
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LengthClass:
    """A share of the requests, with lognormal prompt and output lengths: (mu, sigma) of the logarithm of tokens."""

    name: str
    share: float
    prompt: tuple[float, float]
    output: tuple[float, float]


MIXTURE = (
    LengthClass("short", 0.7, (5.5, 0.5), (4.0, 0.6)),
    LengthClass("long", 0.3, (8.2, 0.4), (6.5, 0.5)),
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to send: seconds after the start, class, tokens in and out."""

    at: float
    label: str
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Pattern:
    """Rates in requests a second. Dwell times are means of exponentials; a fixed burst window takes their place."""

    base_rate: float
    burst_rate: float = 0.0
    base_dwell_seconds: float = 60.0
    burst_dwell_seconds: float = 20.0
    burst_window: tuple[float, float] | None = None
    """(start, end) in seconds of the one burst."""
    cv: float = 1.0
    """Coefficient of variation of the gaps inside a state; 1 is Poisson, above it clumps."""

    def __post_init__(self) -> None:
        if self.base_rate <= 0:
            raise ValueError(f"the rate must be above 0, not {self.base_rate:g}")
        if self.burst_rate < 0:
            raise ValueError(f"the burst rate cannot be below 0: {self.burst_rate:g}")
        if self.cv <= 0:
            raise ValueError(f"the coefficient of variation must be above 0, not {self.cv:g}")
        if self.base_dwell_seconds <= 0 or self.burst_dwell_seconds <= 0:
            raise ValueError("mean dwell times must be above 0")
        if self.burst_window and not 0 <= self.burst_window[0] < self.burst_window[1]:
            raise ValueError(f"the burst window must start at 0 or later and end after it starts: {self.burst_window}")


def states(pattern: Pattern, rng: random.Random) -> Iterator[tuple[float, float]]:
    """(end in seconds, rate) of one state after the other; the last is endless."""
    if pattern.burst_window:
        start, end = pattern.burst_window
        yield start, pattern.base_rate
        yield end, pattern.burst_rate
    now = 0.0
    while pattern.burst_rate and not pattern.burst_window:
        now += rng.expovariate(1 / pattern.base_dwell_seconds)
        yield now, pattern.base_rate
        now += rng.expovariate(1 / pattern.burst_dwell_seconds)
        yield now, pattern.burst_rate
    yield inf, pattern.base_rate


def times(pattern: Pattern, rng: random.Random) -> Iterator[float]:
    """Arrival times in seconds, for ever.

    Gaps of mean 1 are drawn from a gamma distribution of shape 1/cv² and stretched through the rate in force, so that
    a gap that spans a change of state is neither cut nor redrawn and every state keeps its rate.
    """
    shape = 1 / pattern.cv**2
    timeline = states(pattern, rng)
    end, rate = next(timeline)
    now = 0.0
    while True:
        gap = rng.gammavariate(shape, 1 / shape)
        while gap > (end - now) * rate:
            gap -= (end - now) * rate
            now = end
            end, rate = next(timeline)
        now += gap / rate
        yield now


def arrivals(
    pattern: Pattern, seconds: float, *, seed: int, mixture: Sequence[LengthClass] = MIXTURE, longest: int = 32_000
) -> Iterator[Arrival]:
    """Arrivals for `seconds`; no request has more than `longest` tokens in all."""
    clock, lengths = random.Random(f"{seed} times"), random.Random(f"{seed} lengths")  # noqa: S311 - a simulation
    weights = [part.share for part in mixture]
    for at in times(pattern, clock):
        if at >= seconds:
            return
        part = lengths.choices(mixture, weights)[0]
        prompt = min(max(1, round(lengths.lognormvariate(*part.prompt))), longest - 1)
        output = min(max(1, round(lengths.lognormvariate(*part.output))), longest - prompt)
        yield Arrival(at, part.name, prompt, output)


def read_trace(path: Path) -> list[Arrival]:
    """Read a CSV trace: columns `seconds,prompt_tokens,output_tokens` and, if there is one, `class`.

    Raises:
        ValueError: names the first bad line.
        OSError: the file cannot be read.
    """
    found: list[Arrival] = []
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        missing = {"seconds", "prompt_tokens", "output_tokens"} - set(rows.fieldnames or ())
        if missing:
            raise ValueError(f"{path}, line 1: no column {', '.join(sorted(missing))}")
        for row in rows:
            try:
                arrival = Arrival(
                    float(row["seconds"]),
                    row.get("class") or "trace",
                    int(row["prompt_tokens"]),
                    int(row["output_tokens"]),
                )
            except (TypeError, ValueError):
                raise ValueError(f"{path}, line {rows.line_num}: {','.join(map(str, row.values()))!r}") from None
            if not 0 <= arrival.at < inf or arrival.prompt_tokens < 1 or arrival.output_tokens < 1:
                raise ValueError(f"{path}, line {rows.line_num}: times start at 0, token counts at 1")
            found.append(arrival)
    if not found:
        raise ValueError(f"{path}: no arrivals")
    return sorted(found, key=lambda arrival: arrival.at)
