"""One target from outcomes of scrapes to what signals read: parse, integrate, judge the state, bill the time.

Live scraping and replay run this same path; time is a value, so what a test sees is what production does.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from exporter.accrual import CORE, Accrual
from exporter.billing import Bill, Stretch
from exporter.exposition import Failure, Parser, Reason, Scraped
from exporter.history import History, Restarts
from exporter.judgement import Judgement
from exporter.places import Places
from exporter.schema import Options, TargetConfig
from exporter.signals import decode, kv_cache, waste
from exporter.signals.arrivals import Frontend, RunningMaximum, abandoned_level, answered, offered_level
from exporter.signals.engine import has_work, is_asleep
from exporter.signals.view import STALE_SECONDS, EngineView, State, TargetView, stale_after
from exporter.signals.window import Window
from exporter.snapshot import TARGET, Engine, Layout, Snapshot
from exporter.sums import Sums
from exporter.upstream import PREFIXES, REQUIRED, SERIES, Column, Part

NOW_SECONDS = 15.0
MINUTE_SECONDS = 60.0
LONG_SECONDS = 300.0
COUNTERS_KEPT_SECONDS = 3600.0
SUSPICIOUS_SECONDS = 6.0
STEPS = Column("steps", Part.COUNT)


class Pipeline:
    """The path of one target.

    Args:
        config: the target's settings; may be replaced while running.
        options: settings that concern every target.
        at: monotonic seconds from which time is billed.
    """

    def __init__(self, config: TargetConfig, options: Options, at: float) -> None:
        self.config = config
        self.options = options
        self.interval_seconds = config.scrape.interval_seconds
        self.state = State.LOADING
        self.up: bool | None = None
        self._healthy: bool | None = None
        self._failures: Counter[str] = Counter({reason.value: 0 for reason in Reason})
        self._bad_lines = 0
        self._scraped: Scraped | None = None
        self._observed_at = at
        self._last_good: tuple[float, float] | None = None
        self._billed = Bill()
        self._dropped = 0
        self._layout = Layout()
        self._history = History(self._layout, self._keep_seconds)
        self._parser = Parser(self._layout, frozenset(self.config.engines), self.config.scrape.max_series)
        self._places = Places(self._layout, self.config.scrape.max_series)
        self._sums = Sums(self._layout, self._history)
        self._accruals: dict[Engine, Accrual] = {}
        self._judgements: dict[Engine, Judgement] = {}
        self._present: tuple[Engine, ...] = ()
        self._offered, self._abandoned = RunningMaximum(), RunningMaximum()

    @property
    def _keep_seconds(self) -> float:
        return max(LONG_SECONDS, *self.options.windows.values()) + 2 * STALE_SECONDS

    def observe(self, outcome: Scraped | Failure, at: float, unix: float) -> Failure | None:
        """Take in what came of a scrape; returns the failure, if it was or turned out to be one."""
        at = max(at, self._observed_at)  # a recorded clock may have been set back
        seconds = at - self._observed_at
        continuous = self.state in (State.UP, State.ASLEEP)
        self._observed_at = at
        result = self._parse(outcome) if isinstance(outcome, Scraped) else outcome
        if isinstance(result, Failure):
            self._failures[result.reason.value] += 1
            self._scraped = None
            answered = result.reason in (Reason.EMPTY, Reason.NO_SERIES)
            self.state = State.LOADING if answered or self._last_good is None else State.LOST
            self.up = self._healthy = False
            self._bill(seconds, [Stretch()] * len(self._present))
            return result
        self._bad_lines += result.bad_lines
        self._history.keep_seconds = self._keep_seconds
        restarts = self._history.observe(result, at)
        self._sums.observe()
        stretches = list(self._observe_engines(result, restarts, at, unix, continuous=continuous))
        asleep = bool(self._present) and all(is_asleep(self._history.last_two(engine)) for engine in self._present)
        self.state = State.ASLEEP if asleep else State.UP
        if not self.up or not self.suspicious:
            self._healthy = True
        self.up = True
        self._scraped = outcome if isinstance(outcome, Scraped) else None
        self._last_good = (at, unix)
        self._bill(seconds, stretches)
        self._observe_target(result, restarts)
        return None

    def observe_health(self, *, healthy: bool) -> None:
        """Take in the answer of the engine's own health check."""
        self._healthy = healthy

    @property
    def suspicious(self) -> bool:
        """Whether to ask for the engine's health: the scrape failed, or there is work and nothing moves."""
        return not self.up or any(
            has_work(self._history.last_two(engine))
            and self._observed_at - self._accruals[engine].moved_at >= SUSPICIOUS_SECONDS
            for engine in self._present
        )

    def _parse(self, scraped: Scraped) -> Snapshot | Failure:
        result = self._parser.parse(scraped.body, openmetrics=scraped.openmetrics)
        if isinstance(result, Failure):
            return result
        given_up = self._places.observe(result)
        return self._without(given_up) if given_up else result

    def _without(self, given_up: set[int]) -> Snapshot:
        """Let go of some series, and of the engines that have no other; returns the last snapshot in what is left."""
        slots = self._layout.slots
        self._dropped += sum(slots[position].column.series in SERIES for position in given_up)
        kept = [position for position in range(len(slots)) if position not in given_up]
        self._history.keep(kept)
        self._places.keep(kept)
        self._layout.keep(kept)
        self._sums.rebase()
        engines = self._layout.engines
        self._accruals = {engine: accrual for engine, accrual in self._accruals.items() if engine in engines}
        self._judgements = {engine: judgement for engine, judgement in self._judgements.items() if engine in engines}
        return self._parser.keep(kept)

    def _observe_engines(
        self, snapshot: Snapshot, restarts: Restarts, at: float, unix: float, *, continuous: bool
    ) -> Iterator[Stretch]:
        present = tuple(
            engine
            for engine, columns in self._layout.engines.items()
            if any(snapshot.value(slot) is not None for slot in columns.values())
        )
        for engine in present:  # first, so that a fault of ours in what follows leaves none without
            if engine not in self._accruals:
                self._accruals[engine], self._judgements[engine] = Accrual(unix, at), Judgement()
        self._present = present
        target = self._history.last_two(TARGET)
        alone = len(self._present) == 1 and not snapshot.others
        estimator = decode.estimator(self.config, several_api_servers=self._several_api_servers)
        for engine in self._present:
            accrual = self._accruals[engine]
            step, raw = self._history.last_two(engine), self._raw(engine, snapshot)
            began_again = restarts.process or (restarts.process is None and engine in restarts.owners)
            if began_again:
                accrual.begin_again(unix, step, answered(target, Window.first) if alone else None)
            accrual.served = accrual.served or any((raw(column) or 0.0) > 0 for column in CORE)
            accrual.steps_since_start = raw(STEPS) or accrual.steps_since_start
            unbroken = continuous and not began_again
            held = answered(target, Window.last) if alone else None
            busy = accrual.observe(step, held, estimator, continuous=unbroken)
            accrual.put(self._history, engine)
            self._judge(engine, snapshot, at, began_again=engine in restarts.owners)
            yield self._stretch(engine, busy, step) if unbroken else Stretch(busy)

    def _judge(self, engine: Engine, snapshot: Snapshot, at: float, *, began_again: bool) -> None:
        judgement = self._judgements[engine]
        if began_again:
            judgement.begin_again()
        written = kv_cache.written_tokens(self._raw(engine, snapshot))
        judgement.observe_cache(written, asleep=is_asleep(self._history.last_two(engine)))
        paper = None if self._several_api_servers else self.config.roofline
        if paper is None:
            judgement.advised = None
            return
        now, minute = self._window(engine, self._now_seconds, at), self._window(engine, MINUTE_SECONDS, at)
        judgement.observe_steps(now, minute, self.config, paper)

    def _stretch(self, engine: Engine, busy_seconds: float, step: Window) -> Stretch:
        """What an engine did since the scrape before, for the bill."""
        if self.config.gpu_hour_dollars is None:
            return Stretch(busy_seconds)
        limits = None if self._several_api_servers else self._judgements[engine].roofline(self.config)
        capacity = self._kv_capacity_tokens(engine)
        return Stretch(
            busy_seconds,
            None if limits is None else waste.rejected_share(step, limits.crossover_positions),
            None if capacity is None else waste.recomputed_share(step, capacity),
        )

    def _raw(self, engine: Engine, snapshot: Snapshot) -> Callable[[Column], float | None]:
        """An engine's columns as it exposes them: since its start, not since ours."""
        columns = self._layout.columns(engine)
        return lambda column: snapshot.value(columns[column]) if column in columns else None

    def _observe_target(self, snapshot: Snapshot, restarts: Restarts) -> None:
        target = self._history.last_two(TARGET)
        # Behind several API servers an engine has no gauges before its first step, and nobody in flight then.
        engines = [
            window
            for engine in self._present
            if (window := self._history.last_two(engine)).last("running") is not None or self._accruals[engine].served
        ]
        now = Frontend.read(target, engines, Window.last)
        before = Frontend.read(target, engines, Window.first)
        if restarts.process or (restarts.process is None and restarts.owners):
            self._offered.reset(level=offered_level(before.answered, 0.0, before.rejected, before.failed))
        offered = offered_level(now.answered, now.in_flight, now.rejected, now.failed)
        abandoned = abandoned_level(now.answered, now.finished, before.answered, before.finished)
        if snapshot.others:  # what they answer is in no finish that we read
            self._abandoned.forget("level")
            abandoned = None
        for name, counter, level in (("offered", self._offered, offered), ("abandoned", self._abandoned, abandoned)):
            if level is not None:
                self._history.put(TARGET, Column(name), counter.observe(level=level))
        if self.config.gpu_hour_dollars is not None:
            for state, dollars in self._billed.dollars.items():
                self._history.put(TARGET, Column("dollars", Part.VALUE, (state,)), dollars)

    def _bill(self, seconds: float, engines: list[Stretch]) -> None:
        price = self.config.gpu_hour_dollars
        if price is not None:
            # Before first contact only the settings can tell how many engines hold GPUs.
            engines = engines or [Stretch()] * max(1, len(self.config.engines))
            state = State.LOST if self._healthy is False else self.state
            self._billed.charge(state, seconds, price, self.config.gpus_per_engine, engines)

    @property
    def _now_seconds(self) -> float:
        return max(NOW_SECONDS, 5 * self.interval_seconds)

    @property
    def _several_api_servers(self) -> bool:
        if self.config.api_servers is None:
            return self._history.last_two(TARGET).last("process_start") is None
        return self.config.api_servers > 1

    def _kv_capacity_tokens(self, engine: Engine) -> float | None:
        return kv_cache.capacity_of(self._history.last_two(TARGET), engine.engine)

    def _missing(self) -> tuple[str, ...]:
        """Required series that an engine which has served does not expose, and engines asked for that are not there."""
        found = set()
        if self.up:
            there = {engine.engine for engine in self._present}
            found |= {f'{{engine="{engine}"}}' for engine in self.config.engines if engine not in there}
        for engine in self._present if self.up else ():
            if self._accruals[engine].served:
                window = self._history.last_two(engine)
                shown = {column.series for column, slot in window.columns.items() if window.last_at(slot) is not None}
                found |= {PREFIXES[0] + row.name for row in REQUIRED if row.key not in shown}
        return tuple(sorted(found))

    def view(self, at: float) -> TargetView:
        """What signals read, as of the last scrape, judged at a monotonic time."""
        age = None if self._last_good is None else max(0.0, at - self._last_good[0])
        fresh = age is not None and age <= stale_after(self.interval_seconds)
        kept = age is not None and age <= COUNTERS_KEPT_SECONDS
        # Windows end at the last scrape, good or not, so that two readings of it are the same whenever they are made.
        seen = min(at, self._observed_at)
        return TargetView(
            label=self.config.label,
            config=self.config,
            options=self.options,
            state=self.state,
            up=self.up,
            healthy=self._healthy,
            engines=tuple(self._engine_view(engine, seen, fresh=fresh) for engine in self._present) if kept else (),
            model_names=sorted({engine.model_name for engine in self._present}),
            last=self._history.last_two(TARGET) if kept else None,
            windows=self._windows(TARGET, seen) if fresh else {},
            dollars=None if self.config.gpu_hour_dollars is None else dict(self._billed.dollars),
            waste=None if self.config.gpu_hour_dollars is None else dict(self._billed.waste),
            failures=self._failures,
            bad_lines=self._bad_lines,
            dropped_series=self._dropped,
            missing=self._missing(),
            interval_seconds=self.interval_seconds,
            scrape_seconds=None if self._scraped is None else self._scraped.seconds,
            body_bytes=None if self._scraped is None else len(self._scraped.body),
            last_success_unix_seconds=None if self._last_good is None else self._last_good[1],
            age_seconds=age,
        )

    def _engine_view(self, engine: Engine, at: float, *, fresh: bool) -> EngineView:
        accrual = self._accruals[engine]
        last = self._history.last_two(engine)
        process_start = self._history.last_two(TARGET).last("process_start")
        judgement = self._judgements[engine]
        muted = self.state is not State.UP or not fresh
        return EngineView(
            engine=engine,
            config=self.config,
            options=self.options,
            now=self._window(engine, self._now_seconds, at),
            windows=self._windows(engine, at),
            minute=self._history.window(engine, MINUTE_SECONDS, at) or last,
            long=self._history.window(engine, LONG_SECONDS, at) or last,
            fresh=fresh,
            several_api_servers=self._several_api_servers,
            started_unix_seconds=accrual.first_seen_unix_seconds if process_start is None else process_start,
            restarts=accrual.restarts,
            stalled=False if muted else accrual.stalled(last, self.config.stall_after_seconds),
            time_at_level=accrual.time_at_level,
            roofline=judgement.roofline(self.config),
            ceilings=judgement.ceilings(self.config),
            kv_capacity_tokens=self._kv_capacity_tokens(engine),
            written_tokens=judgement.written_tokens,
            speculation_advised=judgement.advised,
        )

    def _window(self, engine: Engine | None, seconds: float, at: float) -> Window:
        """A window at least a third covered; else one of no length, in which nothing can be known."""
        window = self._history.window(engine, seconds, at)
        last = self._history.last_two(engine)
        if window is None or window.seconds < seconds / 3:
            return Window(last.rows[-1:], last.columns, last.born)
        return window

    def _windows(self, engine: Engine | None, at: float) -> dict[str, Window]:
        found = {name: self._window(engine, seconds, at) for name, seconds in self.options.windows.items()}
        return {name: window for name, window in found.items() if window.seconds > 0}
