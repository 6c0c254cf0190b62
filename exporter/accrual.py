"""What one engine accumulates between scrapes, beyond its own counters: arrivals, busy and queued time, levels."""

from dataclasses import dataclass, field

from exporter.history import History
from exporter.signals.arrivals import RunningMaximum, engine_levels, finished_requests
from exporter.signals.decode import batch_in
from exporter.signals.engine import has_work
from exporter.signals.levels import EDGES, TimeAtLevel
from exporter.signals.queue import capacity_waiting
from exporter.signals.step import busy_seconds, seconds_to_outputs, steps_in
from exporter.signals.window import Window, divide, plus
from exporter.snapshot import Engine
from exporter.upstream import TABLE, Column, Kind, Part

CORE = tuple(
    Column(row.key, Part.VALUE if row.kind is Kind.COUNTER else Part.COUNT)
    for row in TABLE
    if row.core and row.scope_engine
)
WARM_UP_STEPS = 100
WARM_UP_PATIENCE = 5
"""The first steps compile and capture: a stall is called that many times later during them."""


@dataclass(slots=True)
class Accrual:
    """State of one engine between two scrapes. ``served``: a core counter of its stands above zero."""

    first_seen_unix_seconds: float
    moved_at: float
    arrivals: RunningMaximum = field(default_factory=RunningMaximum)
    restarts: int = 0
    served: bool = False
    steps_since_start: float = 0.0
    step_seconds: float | None = None
    first_token_seconds: float | None = None
    busy_seconds: float = 0.0
    queued_seconds: float = 0.0
    queued_first_tokens: float = 0.0
    time_at_level: dict[str, TimeAtLevel] = field(default_factory=dict)

    def begin_again(self, unix_seconds: float, before: Window, answered_before: float | None) -> None:
        """The engine's process began again: nothing waits there, and what comes now comes on top."""
        self.restarts += 1
        self.moved_at = before.rows[-1].at
        self.first_seen_unix_seconds = unix_seconds
        self.steps_since_start = 0.0
        self.served = False
        first_tokens = before.first("ttft", part=Part.COUNT)
        finished = finished_requests(before, Window.first)
        self.arrivals.reset(seen=first_tokens, held=answered_before, ended=finished)

    def observe(self, step: Window, answered: float | None, estimator: str, *, continuous: bool) -> float:
        """Take in the stretch from one good scrape to the next; returns how much of it the engine was busy, in seconds.

        Args:
            step: the last two scrapes.
            answered: 2xx responses since the first scrape, if this engine is the only one behind the port.
            estimator: of the decode batch.
            continuous: no scrape failed and the engine did not begin again in between.
        """
        at = step.rows[-1].at
        running, waiting = step.last("running"), step.last("waiting")
        first_tokens = step.last("ttft", part=Part.COUNT)
        if answered is None:  # others answer too, and what they answer is none of this engine's
            self.arrivals.forget("held")
        self.arrivals.observe(**engine_levels(first_tokens, waiting, running, answered, finished_requests(step)))
        steps = steps_in(step)
        working = has_work(step) and has_work(step, Window.first)
        if not working or any(step.increase_of(column) for column in CORE):
            self.moved_at = at
        busy = self._busy(step, steps, continuous=continuous)
        if continuous:
            self._queue(step)
            self._levels(step, steps, estimator)
        return busy

    def _busy(self, step: Window, steps: float | None, *, continuous: bool) -> float:
        before = step.first("running") if continuous else 0.0
        running = step.last("running")
        gap, first = (
            divide(step.increase(series, part=Part.SUM), step.increase(series, part=Part.COUNT))
            for series in ("itl", "ttft")
        )
        self.first_token_seconds = first or self.first_token_seconds
        # What those that run now have spent towards their next outputs is not counted yet: as long as usual, at most.
        unfinished = 0.0 if running == 0 else self.first_token_seconds
        at_most = plus(seconds_to_outputs(step), unfinished, gap if running and gap else 0.0)
        finished = finished_requests(step, Window.increase)
        if before and finished is not None and before > finished:
            at_most = None  # one of those that ran at the earlier scrape, if in a long prefill, runs still
        busy = busy_seconds(step.seconds, steps, before, running, self.step_seconds or gap, at_most=at_most)
        if before and running:
            self.step_seconds = divide(busy, steps) or self.step_seconds
        self.busy_seconds += busy
        return busy

    def _queue(self, step: Window) -> None:
        if capacity_waiting(step, Window.first) and capacity_waiting(step):
            self.queued_seconds += step.seconds
            self.queued_first_tokens += step.increase("ttft", part=Part.COUNT) or 0.0

    def _levels(self, step: Window, steps: float | None, estimator: str) -> None:
        batch = batch_in(step, estimator) if steps else 0.0 if step.last("running") == 0 else None
        levels = {"waiting": step.last("waiting"), "kv_usage": step.last("kv_usage"), "decode_batch": batch}
        for name, level in levels.items():
            if level is not None:
                self.time_at_level.setdefault(name, TimeAtLevel(EDGES[name])).observe(level, step.seconds)

    def stalled(self, step: Window, stall_after_seconds: float) -> bool | None:
        """Whether there is work and nothing has moved for so long; None where the gauges do not tell of work."""
        if step.last("running") is None and step.last("waiting") is None:
            return None
        patience = stall_after_seconds * (WARM_UP_PATIENCE if self.steps_since_start < WARM_UP_STEPS else 1)
        return has_work(step) and step.rows[-1].at - self.moved_at >= patience

    def put(self, history: History, engine: Engine) -> None:
        """Write the running totals into the last row."""
        for name in ("busy_seconds", "queued_seconds", "queued_first_tokens"):
            history.put(engine, Column(name), getattr(self, name))
        history.put(engine, Column("arrivals"), self.arrivals.total)
