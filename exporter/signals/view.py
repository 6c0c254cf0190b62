"""What a signal is given: the windows of one engine, or of one target, and the settings that metrics cannot say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from exporter.hardware import Roofline
from exporter.schema import Options, TargetConfig
from exporter.signals.levels import TimeAtLevel
from exporter.signals.window import Window
from exporter.snapshot import Engine

Value = float | None
"""A number, or None: not known, and therefore not exported."""

Labelled = Mapping[tuple[str, ...], Value]
"""Values by the values of a metric's own labels, in the order the catalogue names them."""


class State(Enum):
    """The state of a target: they bill, alert and show differently."""

    LOADING = "loading"
    UP = "up"
    ASLEEP = "asleep"
    LOST = "lost"


STALE_SECONDS = 10.0


def stale_after(interval_seconds: float) -> float:
    """The age of the last good scrape from which gauges are of the past: 10 s, or two intervals if that is longer."""
    return max(STALE_SECONDS, 2 * interval_seconds)


@dataclass(frozen=True, slots=True)
class SourceView:
    """A source of targets: whether its last answer was good, how many it names, how many of them were dropped."""

    name: str
    valid: bool
    targets: int
    dropped: int
    good_unix_seconds: float | None


@dataclass(frozen=True, slots=True)
class SelfView:
    """The sidecar: its versions, whether its settings are good, and all it watches.

    Attributes:
        targets: every target.
        expected_targets: how many there should be; None where that is not set.
        sources: where targets are found, each asked at least once.
        desired_replicas: advised by model.
    """

    version: str
    python_version: str
    config_valid: bool
    config_reload_unix_seconds: float | None
    targets: Sequence["TargetView"] = ()
    expected_targets: int | None = None
    sources: Sequence[SourceView] = ()
    desired_replicas: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine, as of its target's last good scrape.

    Attributes:
        engine: its labels.
        now: the window of "now" signals: 15 s, or 5 scrape intervals.
        windows: the slow signals' windows by name; one not yet covered is left out.
        minute: 60 s. For service rates.
        long: 5 minutes. For means of what ends rarely.
        fresh: whether the last good scrape is recent enough for gauges.
        several_api_servers: more than one API server process shares the metrics.
        started_unix_seconds: when the engine began, or was first seen where it does not say.
        restarts: times it began again since the first scrape.
        stalled: work but no movement; None while that cannot be judged.
        time_at_level: seconds spent at each level of a gauge, by signal.
        roofline: the engine on paper at the ceilings in force; None without hardware or model in the settings.
        ceilings: those ceilings and their sources, by resource.
        kv_capacity_tokens: of the KV cache; None where the engine does not say.
        written_tokens: put into the KV cache since the engine began or woke.
        speculation_advised: whether speculation pays; None while that is not known.
    """

    engine: Engine
    config: TargetConfig
    options: Options
    now: Window
    windows: Mapping[str, Window]
    minute: Window
    long: Window
    fresh: bool
    several_api_servers: bool
    started_unix_seconds: float
    restarts: int
    stalled: bool | None
    time_at_level: Mapping[str, TimeAtLevel]
    roofline: Roofline | None = None
    ceilings: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    kv_capacity_tokens: float | None = None
    written_tokens: float | None = None
    speculation_advised: bool | None = None


@dataclass(frozen=True, slots=True)
class TargetView:
    """One target: the port, what is behind it, and how scraping it goes.

    Attributes:
        label: the value of the label ``target``.
        up: the last scrape succeeded; None before the first attempt.
        healthy: ``/health`` when it was last asked, or that nothing looked wrong.
        model_names: models of the engines last seen, however long ago.
        last: columns of the target itself; None before the first good scrape.
        windows: as an engine's, over the target's own columns.
        dollars: cost by state since the sidecar's start; None without a price.
        waste: dollars wasted by kind; None without a price.
        failures: failed scrapes by reason.
        dropped_series: series that were dropped since too many came and went.
        missing: required series that cannot be found, while that can be judged.
    """

    label: str
    config: TargetConfig
    options: Options
    state: State
    up: bool | None
    healthy: bool | None
    engines: Sequence[EngineView]
    model_names: Sequence[str]
    last: Window | None
    windows: Mapping[str, Window]
    dollars: Mapping[str, float] | None
    failures: Mapping[str, int]
    bad_lines: int
    dropped_series: int
    missing: Sequence[str]
    interval_seconds: float
    scrape_seconds: float | None
    body_bytes: int | None
    last_success_unix_seconds: float | None
    age_seconds: float | None
    waste: Mapping[str, float] | None = None
