"""What must hold whatever bytes an engine sends. An input is one body, or several scrapes with a NUL between them."""

import math

from exporter.collect import families, signals
from exporter.exposition import Failure, Parser, Scraped, condense
from exporter.pipeline import Pipeline
from exporter.sample_line import parse_line
from exporter.schema import Options, TargetConfig
from exporter.signals.view import SelfView
from exporter.snapshot import Layout, Snapshot

MOST_SCRAPES = 4
INTERVAL_SECONDS = 15.0
OPTIONS = Options({"1m": 60.0}, (0.5, 0.99))
CONFIG = TargetConfig(gpu_hour_dollars=2.0)
SIDECAR = SelfView("0", "3", config_valid=True, config_reload_unix_seconds=None)


def parser(data: bytes) -> None:
    """Every body is a snapshot or a failure, the same one when it is read again; a line is a sample or a ValueError."""
    layout = Layout()
    reading = Parser(layout, max_series=200)
    for body in data.split(b"\0")[:MOST_SCRAPES]:
        condense(body, 200)
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
            assert len(found.values) <= len(layout.slots) <= 201
    for line in data.split(b"\n", 8)[:8]:
        try:
            parse_line(line.decode())
        except ValueError:  # a UnicodeDecodeError is one
            continue


def pipeline(data: bytes) -> None:
    """All that is exported is finite and comes once, and no counter falls."""
    path = Pipeline(CONFIG, OPTIONS, at=0.0)
    before: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for turn, body in enumerate(data.split(b"\0")[:MOST_SCRAPES]):
        at = INTERVAL_SECONDS * turn
        path.observe(Scraped(body, openmetrics=False, seconds=0.01), at, 1e9 + at)
        view = path.view(at)
        now: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for family in families(SIDECAR, [view]):
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                assert key not in now, key
                assert math.isfinite(sample.value), key
                now[key] = sample.value
                if family.type == "counter":
                    assert sample.value >= before.get(key, 0.0), key
        before = now
        signals([view])


CHECKS = {"parser": parser, "pipeline": pipeline}
