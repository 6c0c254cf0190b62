"""A whole fleet in one process: rendering it."""

from pathlib import Path

import pytest
from prometheus_client.exposition import choose_encoder

from exporter import collect
from exporter.exposition import Scraped
from exporter.pipeline import Pipeline
from exporter.recording import read_log
from exporter.render import Lines, exposition
from exporter.schema import Config, TargetConfig
from exporter.signals.view import SelfView, TargetView

RECORDING = Path(collect.__file__).parent / "data" / "burst.scrapes.xz"
NOBODY = SelfView("1.2.3", "3.11.2", config_valid=True, config_reload_unix_seconds=1.8e9)
HOSTILE = 'a"b\\c\nd'


def views() -> list[TargetView]:
    """Two targets: one with a recorded minute behind it and an awkward name, one that never answered."""
    entries = list(read_log(RECORDING))[:120]
    options = Config().options()
    busy = Pipeline(TargetConfig(name=HOSTILE, gpu_hour_dollars=2.0), options, at=entries[0].unix_seconds)
    for at, outcome in entries:
        assert isinstance(outcome, Scraped)
        busy.observe(outcome, at, at)
    dead = Pipeline(TargetConfig(name="dead"), options, at=entries[0].unix_seconds)
    return [busy.view(entries[-1].unix_seconds), dead.view(entries[-1].unix_seconds)]


class Registry:
    def __init__(self, families: list[object]) -> None:
        self.collect = lambda: families


@pytest.mark.parametrize(
    "accept", ["", "text/plain;version=1.0.0;escaping=allow-utf-8", "application/openmetrics-text"]
)
@pytest.mark.parametrize("left_out", [(), ("latency", "cost")])
def test_rendering_by_target_is_what_the_client_library_writes(accept: str, left_out: tuple[str, ...]) -> None:
    """The same bytes as prometheus_client's own encoder over the same families, the first time and the next."""
    encode, _ = choose_encoder(accept)
    targets = views()
    expected = encode(Registry(list(collect.families(NOBODY, targets, left_out))))
    own, lines = Lines(), [Lines() for _ in targets]
    for _ in range(2):
        found = [each.of(None, [view], left_out, several=True) for each, view in zip(lines, targets, strict=True)]
        found.append(own.of(NOBODY, (), left_out, several=True))
        assert exposition(found, (), encode) == expected
    assert expected.count(b"\n") > 200
