"""What the page and the API say of each engine, worked out once a scrape however many ask."""

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from exporter import collect, recent
from exporter.signals.firing import Condition, conditions
from exporter.signals.verdict import Verdict, verdict
from exporter.signals.view import EngineView, State, TargetView, stale_after
from exporter.targets import Target
from exporter.unknown import reasons

REUSED_SECONDS = 2.0
SLICE_SECONDS = 0.01


class Reading:
    """One engine, or a target that has shown none yet, as of its last scrape.

    Args:
        target: the port.
        engine: the engine behind it, if one has been seen.
        position: of the engine among the target's.
        shared: the target's signals, computed once for all its engines.
    """

    def __init__(
        self, target: TargetView, engine: EngineView | None, position: int, shared: Callable[[], dict[str, Any]]
    ) -> None:
        self.target = target
        self.engine = engine
        self._position = position
        self._shared = shared
        self.since = 0.0
        """Seconds since it was made."""

    @property
    def age_seconds(self) -> float | None:
        """Since the scrape behind it; None where there was none."""
        return None if self.target.age_seconds is None else self.target.age_seconds + self.since

    @property
    def key(self) -> recent.Key:
        """Target, model name, engine."""
        return recent.key_of(self.target, self.engine)

    @property
    def model_name(self) -> str:
        """As settings have it, else as the engine says; empty if neither."""
        return self.key[1] or self.target.config.model_name or ""

    @property
    def labels(self) -> dict[str, str]:
        """Which engine this is."""
        return {"target": self.key[0], "model_name": self.model_name, "engine": self.key[2]}

    @cached_property
    def verdict(self) -> Verdict:
        """What is the matter."""
        return verdict(self.target, self.engine)

    @cached_property
    def conditions(self) -> list[Condition]:
        """Alerts that fire if this lasts."""
        return conditions(self.target, self.engine)

    @cached_property
    def unknown(self) -> dict[str, str]:
        """Why what is not known is not."""
        return {} if self.engine is None else reasons(self.target, self.engine)

    @property
    def of_target(self) -> dict[str, Any]:
        """Signals of the port, by name."""
        return {name: value for name, value in self._shared().items() if name != "engines"}

    @property
    def signals(self) -> dict[str, Any]:
        """Signals of the engine, by name."""
        engines = self._shared()["engines"]
        return dict(engines[self._position]) if self.engine is not None else {}

    @property
    def unfit(self) -> str | None:
        """Why nobody should act on this; None where they may."""
        if self.target.state is not State.UP:
            return f"{self.target.label} is {self.target.state.value}"
        if self.target.healthy is False:
            return f"{self.target.label} fails its health check"
        too_old = (self.age_seconds or 0.0) > stale_after(self.target.interval_seconds)
        if self.engine is None or not self.engine.fresh or too_old:
            return f"{self.target.label} was last seen {self.age_seconds or 0:.0f} s ago"
        return None


class Readings:
    """Readings of all targets.

    Args:
        targets: what is watched, in order.
        clock: monotonic seconds.
    """

    def __init__(self, targets: Iterable[Target], clock: Callable[[], float] = time.monotonic) -> None:
        self._targets = targets
        self._clock = clock
        self._kept: dict[Target, tuple[int, float, list[Reading]]] = {}
        self._one = asyncio.Lock()

    async def ahead(self, work: Callable[[Reading], object]) -> None:
        """Do work that is kept for every reading, with pauses in which scrapes go on: a large fleet's takes long."""
        async with self._one:
            began = time.monotonic()
            for target in list(self._targets):
                for reading in self._of(target):
                    work(reading)
                if time.monotonic() - began > SLICE_SECONDS:
                    await asyncio.sleep(0)
                    began = time.monotonic()

    def all(self) -> list[Reading]:
        """Every engine, by target."""
        return [reading for target in self._targets for reading in self._of(target)]

    def forget(self) -> None:
        """Let go of what would be made again: each holds its windows, long after the last one has read it."""
        now = self._clock()
        self._kept = {target: kept for target, kept in self._kept.items() if now - kept[1] < REUSED_SECONDS}

    def _of(self, target: Target) -> list[Reading]:
        """A target's, made again after a scrape, and after some time for what time changes."""
        now = self._clock()
        version, made, readings = self._kept.get(target, (-1, 0.0, []))
        if version != target.version or now - made >= REUSED_SECONDS:
            version, made, readings = target.version, now, _readings(target.view())
        self._kept[target] = version, made, readings
        for reading in readings:
            reading.since = now - made
        return readings


def _readings(view: TargetView) -> list[Reading]:
    found: list[dict[str, Any]] = []

    def shared() -> dict[str, Any]:
        if not found:
            found.append(collect.signals([view])[0])
        return found[0]

    return [Reading(view, engine, position, shared) for position, engine in enumerate(view.engines or (None,))]
