"""What must hold whatever bytes an engine sends. An input is one body, or several scrapes with a NUL between them."""

import math

from exporter.catalogue import TABLE, Scope, Type
from exporter.collect import points, signals
from exporter.exposition import Failure, Parser, Scraped, condense
from exporter.pipeline import Pipeline
from exporter.sample_line import parse_line
from exporter.schema import Options, Scrape, TargetConfig
from exporter.signals.view import EngineView, TargetView
from exporter.snapshot import Layout, Snapshot

MOST_SCRAPES, MOST_SERIES = 4, 20
INTERVAL_SECONDS = 15.0
OPTIONS = Options({"1m": 60.0}, (0.5, 0.99))
CONFIG = TargetConfig.model_validate(
    {
        "gpu_hour_dollars": 2.0,
        "gpus_per_engine": 4,
        "hardware": {"profile": "h100-sxm"},
        "model": {"total_params": 70e9, "layers": 80, "kv_heads": 8, "head_dim": 128},
        "max_num_batched_tokens": 512,
        "speculation": {"alpha": 0.8, "gamma": 3, "draft_cost": 0.1},
        "baseline": {"busy_dollars_per_million_output_tokens": 0.5, "prefix_cache_hit_ratio": 0.5},
    }
)
"""All that can be set, so that all that can be exported is."""
FEW_PLACES = CONFIG.model_copy(update={"scrape": Scrape(max_series=3 * MOST_SERIES)})
"""So few that some are given up."""
MAY_FALL = ("queue_growth_requests_per_second",)
SHARES = ("kv_usage_ratio", "prefix_cache_hit_ratio", "warmness_ratio", "goodput_ratio")
ROWS = {
    TargetView: [row for row in TABLE if row.scope is Scope.TARGET],
    EngineView: [row for row in TABLE if row.scope is Scope.ENGINE],
}
OF_BUCKETS = ("slo_events_total", "slo_misses_total")
"""Counters that begin again when the edges of their histogram change."""


def parser(data: bytes) -> None:
    """Every body is a snapshot or a failure, the same one when it is read again; a line is a sample or a ValueError."""
    layout = Layout()
    reading = Parser(layout, max_series=MOST_SERIES)
    for body in data.split(b"\0")[:MOST_SCRAPES]:
        condense(body, MOST_SERIES)
        for openmetrics in (False, True):
            found = reading.parse(body, openmetrics=openmetrics)
            again = reading.parse(body, openmetrics=openmetrics)
            if isinstance(found, Failure):
                assert isinstance(again, Failure)
                assert again.reason is found.reason
                continue
            assert isinstance(again, Snapshot)
            assert [repr(value) for value in again.values] == [repr(value) for value in found.values]
            assert again.bad_lines == found.bad_lines
            assert sum(value is not None for value in found.values) <= MOST_SERIES
            assert len(found.values) <= len(layout.slots) <= MOST_SERIES * MOST_SCRAPES
    for line in data.split(b"\n", 8)[:8]:
        try:
            parse_line(line.decode())
        except ValueError:  # a UnicodeDecodeError is one
            continue


def possible(name: str, value: float) -> bool:
    """Whether a metric can have this value: it is finite, and not below 0; a share is not above 1."""
    return math.isfinite(value) and (value >= 0 or name in MAY_FALL) and (value <= 1 or name not in SHARES)


def pipeline(data: bytes) -> None:
    """All that is exported of a target can be and comes once, and no counter falls from one scrape to the next."""
    path = Pipeline(FEW_PLACES, OPTIONS, at=0.0)
    before: dict[tuple[object, ...], float] = {}
    for turn, body in enumerate(data.split(b"\0")[:MOST_SCRAPES]):
        at = INTERVAL_SECONDS * turn
        path.observe(Scraped(body, openmetrics=False, seconds=0.01), at, 1e9 + at)
        view = path.view(at)
        now: dict[tuple[object, ...], float] = {}
        for shown in (view, *view.engines):
            for row in ROWS[type(shown)]:
                for suffix, labels, value in points(row.fill(shown)):
                    key = row.name, shown.engine if isinstance(shown, EngineView) else None, suffix, labels
                    assert key not in now, key
                    assert possible(row.name, value), key
                    now[key] = value
                    if row.type is Type.COUNTER and row.name not in OF_BUCKETS:
                        assert value >= before.get(key, 0.0), key
        before = now
    signals([view])


CHECKS = {"parser": parser, "pipeline": pipeline}
