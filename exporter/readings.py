"""What the page and the API say of each engine, worked out once a scrape however many ask."""

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from exporter import collect, recent
from exporter.signals.firing import Condition, conditions
from exporter.signals.verdict import Verdict, verdict
from exporter.signals.view import EngineView, State, TargetView
from exporter.targets import Target
from exporter.unknown import reasons


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
        if self.engine is None or not self.engine.fresh:
            return f"{self.target.label} was last seen {self.target.age_seconds or 0:.0f} s ago"
        return None


class Readings:
    """Readings of all targets.

    Args:
        targets: what is watched, in order.
    """

    def __init__(self, targets: Iterable[Target]) -> None:
        self._targets = targets
        self._kept: dict[str, tuple[object, list[Reading]]] = {}

    def all(self) -> list[Reading]:
        """Every engine, by target."""
        kept: dict[str, tuple[object, list[Reading]]] = {}
        for target in self._targets:
            view = target.view()
            label = view.label
            key = (target, target.version, view.state, tuple(engine.fresh for engine in view.engines), _second(view))
            before = self._kept.get(label)
            kept[label] = before if before is not None and before[0] == key else (key, _readings(view))
            for reading in kept[label][1]:
                reading.target = view  # for its age, which goes on
        self._kept = kept
        return [reading for _, readings in kept.values() for reading in readings]


def _second(view: TargetView) -> int:
    """Of silence, which a verdict counts; 0 while there is none."""
    return 0 if view.up else int(view.age_seconds or 0)


def _readings(view: TargetView) -> list[Reading]:
    found: list[dict[str, Any]] = []

    def shared() -> dict[str, Any]:
        if not found:
            found.append(collect.signals([view])[0])
        return found[0]

    return [Reading(view, engine, position, shared) for position, engine in enumerate(view.engines or (None,))]
