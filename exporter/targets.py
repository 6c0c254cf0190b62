"""Which engines are watched: one timer a target, its scrapes, its pipeline."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator

from exporter.exposition import Failure, Reason, Scraped
from exporter.pipeline import Pipeline
from exporter.render import Lines
from exporter.schema import Config, Options, TargetConfig
from exporter.scrape import HEALTH_TIMEOUT_SECONDS, Scraper, next_due
from exporter.signals import slo
from exporter.signals.view import State, TargetView

log = logging.getLogger("exporter.targets")

SHARE_OF_EVENT_LOOP = 0.01
LONGEST_STRETCH_SECONDS = 5.0
LARGE_BODIES = 4
"""Bodies over a megabyte held at once, of all targets."""
AHEAD_SECONDS = 120.0
RENDERED_AHEAD_FROM = 100
"""With fewer targets, rendering them when asked takes a tenth of a second at most, and less in all."""
DURATIONS_KEPT = 60
DURATIONS_JUDGED = 10
"""Fewer scrapes than these do not tell what one costs: the first ones open connections."""


def stretched(interval_seconds: float, durations: Iterable[float]) -> float:
    """The interval at which scraping stays under 1 % of the engine's event loop, at most 5 s or what is set.

    Judged by a low quantile of the scrapes' durations: under overload most of a duration is the queue's, not the
    scrape's, and that is when scrapes are needed.
    """
    known = sorted(durations)
    if len(known) < DURATIONS_JUDGED:
        return interval_seconds
    low = known[len(known) // 10]
    return max(interval_seconds, min(low / SHARE_OF_EVENT_LOOP, LONGEST_STRETCH_SECONDS))


class Target:
    """A target being watched."""

    def __init__(self, config: TargetConfig, options: Options, large_bodies: asyncio.Semaphore | None = None) -> None:
        self.pipeline = Pipeline(config, options, at=time.monotonic())
        self.version = 0
        self._lines = Lines()
        self._text: tuple[object, list[str]] = (None, [])
        self._ahead: tuple[Collection[str], float] | None = None
        self._large_bodies = large_bodies
        self._scraper = Scraper(config, large_bodies=large_bodies)
        self._durations: deque[float] = deque(maxlen=DURATIONS_KEPT)
        self._ticked_at = time.monotonic()
        self._shown: object = None
        self._fault: str | None = None
        self._unfit: dict[str, float | None] = {}

    @property
    def config(self) -> TargetConfig:
        """The settings in force."""
        return self.pipeline.config

    def configure(self, config: TargetConfig, options: Options) -> None:
        """Take in settings that do not change what is scraped. How it is scraped changes at the next tick."""
        self.pipeline.config = config
        self.pipeline.options = options
        self.version += 1
        self._log_unfit()

    def view(self) -> TargetView:
        """What signals read, now."""
        return self.pipeline.view(time.monotonic())

    def text(self, view: TargetView, left_out: Collection[str], *, several: bool) -> list[str]:
        """The lines of a view by row of the catalogue, made once a scrape."""
        shown = (view.last is None, tuple(view.windows), tuple(engine.fresh for engine in view.engines))
        key = (self.version, tuple(left_out), several, shown)
        if key != self._text[0]:
            self._text = (key, self._lines.of(None, [view], left_out, several=several))
        return self._text[1]

    def render_ahead(self, left_out: Collection[str]) -> None:
        """Make the lines right after each scrape for some time: a large fleet's are too many to make when asked for."""
        self._ahead = (left_out, time.monotonic() + AHEAD_SECONDS)

    @property
    def punctual(self) -> bool:
        """Whether the timer has ticked within three intervals, or one interval and the deadlines of what it asks."""
        interval = self.pipeline.interval_seconds
        deadline = self._scraper.config.scrape.timeout_seconds
        patience = max(3 * interval, interval + deadline + HEALTH_TIMEOUT_SECONDS)
        return time.monotonic() - self._ticked_at <= patience + 1.0

    async def watch(self, phase: float) -> None:
        """Scrape for ever, on time: a scrape longer than the interval skips ticks and does not shift them.

        Args:
            phase: when in the interval to begin, 0-1, so that the targets of a fleet take turns.
        """
        due = time.monotonic() + min(0.99, phase + random.uniform(0, 0.1)) * self.pipeline.interval_seconds  # noqa: S311
        try:
            while True:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                self._ticked_at = time.monotonic()
                await self._tick_safely()
                due = next_due(due, self.pipeline.interval_seconds, time.monotonic())
        finally:
            await self._scraper.close()

    async def _tick_safely(self) -> None:
        """A tick. A fault of ours must not end the watch, nor leave the target up as if it had been read."""
        try:
            await self._tick()
            self._fault = None
        except Exception as error:
            if self._fault != repr(error):
                self._fault = repr(error)
                log.exception("a scrape failed inside the sidecar", extra={"fields": {"target": self.config.label}})
            fault = Failure(Reason.PARSE, "the sidecar failed")
            self.pipeline.observe(fault, at=time.monotonic(), unix=time.time())
            self.version += 1

    async def _tick(self) -> None:
        now = self._scraper.config
        if (now.url, now.scrape) != (self.config.url, self.config.scrape):
            await self._scraper.close()
            self._scraper = Scraper(self.config, large_bodies=self._large_bodies)
            self.pipeline.interval_seconds = self.config.scrape.interval_seconds
        outcome = await self._scraper.scrape()
        failure = self.pipeline.observe(outcome, at=time.monotonic(), unix=time.time())
        if isinstance(outcome, Scraped) and failure is None:
            self._durations.append(outcome.seconds)
            self.pipeline.interval_seconds = stretched(self.config.scrape.interval_seconds, self._durations)
        if self.pipeline.suspicious and not _unreachable(failure):
            self.pipeline.observe_health(healthy=await self._scraper.healthy())
        self.version += 1
        if self._ahead is not None and time.monotonic() < self._ahead[1]:
            self.text(self.view(), self._ahead[0], several=True)
        self._log_changes(failure)

    def _log_changes(self, failure: Failure | None) -> None:
        """One line when the state or the reason changes, none for a scrape that is like the one before."""
        state = self.pipeline.state
        now = (state, failure.reason if failure else None)
        if now != self._shown:
            fields = {"target": self.config.label, "url": self.config.url, "state": state.value}
            if failure is None:
                log.info("target is %s", state.value, extra={"fields": fields})
            else:
                level = logging.INFO if state is State.LOADING else logging.WARNING
                details = {**fields, "reason": failure.reason.value, "detail": failure.detail}
                log.log(level, "scrape failed", extra={"fields": details})
            self._shown = now
            self._log_unfit()

    def _log_unfit(self) -> None:
        """Say, once each, which objectives cannot be counted: their thresholds lie below the first bucket's edge."""
        before = self._unfit
        self._unfit = {
            each: slo.threshold_of(engine, each) for engine in self.view().engines for each in slo.unfit(engine)
        }
        for each in sorted(self._unfit):
            if before.get(each) != self._unfit[each]:
                fields = {"target": self.config.label, "slo": each}
                log.warning("objective below the first bucket edge cannot be counted", extra={"fields": fields})


def _unreachable(failure: Failure | None) -> bool:
    return failure is not None and failure.reason in (Reason.CONNECT, Reason.TLS)


class Targets:
    """All targets, each with a task of its own."""

    def __init__(self) -> None:
        self._watched: dict[str, tuple[Target, asyncio.Task[None]]] = {}
        self._large_bodies = asyncio.Semaphore(LARGE_BODIES)

    def __iter__(self) -> Iterator[Target]:
        return iter([target for target, _ in self._watched.values()])

    def apply(self, config: Config, found: Iterable[TargetConfig] | None = None) -> None:
        """Watch these targets: start what is new, stop what is gone, reconfigure the rest.

        Args:
            config: the settings.
            found: the targets; by default those that the settings list.
        """
        options = config.options()
        wanted = {target.label: target for target in (config.all_targets() if found is None else found)}
        for label, (target, task) in list(self._watched.items()):
            if label not in wanted or _scraping(wanted[label]) != _scraping(target.config):
                task.cancel()
                del self._watched[label]
        new = [target for label, target in wanted.items() if label not in self._watched]
        for label, (target, _) in self._watched.items():
            target.configure(wanted[label], options)
        for position, target_config in enumerate(new):
            target = Target(target_config, options, self._large_bodies)
            if len(wanted) >= RENDERED_AHEAD_FROM:
                target.render_ahead(config.disabled_groups)
            task = asyncio.create_task(target.watch(position / len(new)), name=f"watch {target_config.label}")
            self._watched[target_config.label] = (target, task)

    async def stop(self) -> None:
        """Stop all watching."""
        tasks = [task for _, task in self._watched.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _scraping(config: TargetConfig) -> object:
    """The settings whose change means another target; one of the same name at another address has only moved."""
    return config.engines, config.scrape.max_series
