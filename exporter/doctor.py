"""All findings on a target, the gravest first, and what could not be looked at. Scrapes nothing, prints nothing."""

import difflib
from collections.abc import Collection, Iterator
from functools import partial

from exporter.findings import CHECKS, Finding, Severity, slo_off_bucket
from exporter.signals.view import EngineView, TargetView
from exporter.upstream import Part


def examine(target: TargetView, exposed: Collection[str] = ()) -> list[Finding]:
    """All findings on a target and its engines, the gravest first.

    Args:
        target: as it stands after some seconds of scraping.
        exposed: sample names in the last body, to tell what a missing one may be called now.
    """
    found = [
        unhealthy(target),
        missing_series(target, exposed),
        filter_floods_log(target),
        *(each for engine in target.engines if engine.fresh for each in _of_engine(engine)),
    ]
    order = list(Severity)
    return sorted((each for each in found if each is not None), key=lambda each: order.index(each.severity))


def unjudged(target: TargetView) -> Iterator[str]:
    """What could not be looked at, and which setting would let it."""
    config = target.config
    if config.roofline is None:
        yield "roofline, chunk budget, speculation: set hardware and model"
    if config.max_num_seqs is None:
        yield "seats against the KV cache and the CUDA graphs: set max_num_seqs"
    if config.max_num_batched_tokens is None:
        yield "chunk budget: set max_num_batched_tokens"
    if config.slo.e2e_seconds is None:
        yield "end-to-end objective: set slo.e2e_seconds"
    if not any(engine.now.increase("steps", part=Part.COUNT) for engine in target.engines):
        yield "latency, batch, utilisation: nothing was served meanwhile"


def _of_engine(view: EngineView) -> Iterator[Finding | None]:
    for check in CHECKS:
        yield check(partial(Finding, engine=view.engine.engine), view)
    yield from slo_off_bucket(partial(Finding, engine=view.engine.engine), view)


def unhealthy(target: TargetView) -> Finding | None:
    """Its metrics answer and its own health check does not: a dead engine goes on exposing frozen values."""
    if not target.up or target.healthy is not False:
        return None
    return Finding(
        "unhealthy",
        Severity.CRITICAL,
        f"{target.config.scrape.path} answers, {target.config.scrape.health_path} does not",
        "look into the engine's log and restart it; what it exposes are the values from before",
    )


def missing_series(target: TargetView, exposed: Collection[str]) -> Finding | None:
    """Series that signals need and a serving engine does not expose, with names that look like a renaming."""
    if not target.missing:
        return None
    names = []
    for name in target.missing:
        like = difflib.get_close_matches(name, sorted(exposed), n=1, cutoff=0.8)
        names.append(f"{name} (is it {like[0]} now?)" if like else name)
    return Finding(
        "missing_series",
        Severity.CRITICAL,
        f"not exposed: {', '.join(names)}",
        "start vLLM without --disable-log-stats; if a series was renamed, use a sidecar that knows this vLLM",
    )


def filter_floods_log(target: TargetView) -> Finding | None:
    """The server-side filter is on, and each scrape writes a long line into the engine's access log."""
    if not target.config.scrape.filter:
        return None
    return Finding(
        "filter_floods_log",
        Severity.WARNING,
        f"scrape.filter is on: a 2 kB access-log line every {target.interval_seconds:g} s",
        "run vLLM with --disable-access-log-for-endpoints /metrics,/metrics/,/health, or switch the filter off",
    )
