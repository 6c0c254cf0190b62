"""How many replicas a model wants: advice, worked out from demand and held steady. Time is a value."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from exporter.engine_schema import Replicas
from exporter.signals.queue import capacity_waiting
from exporter.signals.view import EngineView, State, TargetView, Value
from exporter.signals.window import divide
from exporter.upstream import Part

TOLERANCE_RATIO = 0.05
"""A demand that is over by less raises nothing."""
HALF_OF_CAPACITY = 0.5


@dataclass(frozen=True, slots=True)
class Demand:
    """What a model is asked for, and what a replica can do.

    Attributes:
        replicas: engines that serve it now.
        arrivals_per_second: requests.
        output_tokens: per request, on average.
        waiting_requests: for capacity.
        tokens_per_second: sustained by one replica; None where neither set nor yet seen.
    """

    replicas: int
    arrivals_per_second: Value
    output_tokens: Value
    waiting_requests: float
    tokens_per_second: Value

    @property
    def offered_tokens_per_second(self) -> Value:
        """Output tokens that arrive to be made."""
        if self.arrivals_per_second == 0:
            return 0.0
        if self.arrivals_per_second is None or self.output_tokens is None:
            return None
        return self.arrivals_per_second * self.output_tokens


def exact(demand: Demand, settings: Replicas) -> Value:
    """Replicas before rounding: for the arrivals ``arrivals x output / (rate x utilisation)``, for the queue
    ``waiting x output / (rate x drain time)``, whichever is more.

    30 requests/s x 500 tokens at 6,000 tokens/s and 0.7 is 3.57.
    """
    offered, rate = demand.offered_tokens_per_second, demand.tokens_per_second
    if rate is None or offered is None:
        return None
    queued = demand.waiting_requests * (demand.output_tokens or 0.0)
    return max(offered / (rate * settings.target_utilization_ratio), queued / (rate * settings.drain_seconds))


@dataclass(slots=True)
class Advice:
    """What is advised for one model, and since when."""

    replicas: int | None = None
    changed_at: float = -math.inf
    low_since: float | None = None
    tokens_per_second: Value = None
    output_tokens: Value = None
    why: str = ""

    def observe(self, demand: Demand, settings: Replicas, at: float) -> None:
        """Take in the demand at a monotonic time. Up at once, then a cooldown; down only after a long lull, by one:
        a cold start takes minutes, and a replica that comes back is cold.
        """
        wanted = exact(demand, settings)
        if wanted is None:
            self.why = "no replica has been seen at work with a queue, and replicas.tokens_per_second is not set"
            if demand.tokens_per_second is not None:
                self.why = "how much is asked for is not known"
            self.replicas = None if self.replicas is None else self._bounded(self.replicas, settings)
            return
        self.why = f"{wanted:.2f} replicas' work at {demand.tokens_per_second:,.0f} tokens/s each"
        if self.replicas is None:
            self._change(max(self._rounded(wanted, settings), self._bounded(demand.replicas, settings)), at)
            return
        self.replicas = self._bounded(self.replicas, settings)
        self._watch_lull(demand, at)
        cool = at - self.changed_at >= settings.cooldown_seconds
        if not cool:
            return
        if wanted > self.replicas * (1 + TOLERANCE_RATIO) and self._rounded(wanted, settings) > self.replicas:
            self._change(self._rounded(wanted, settings), at)
        elif self.low_since is not None and at - self.low_since >= settings.low_seconds:
            fewer = self._bounded(self.replicas - 1, settings)
            if self._rounded(wanted, settings) <= fewer < self.replicas:
                self._change(fewer, at)

    def _watch_lull(self, demand: Demand, at: float) -> None:
        capacity = (demand.tokens_per_second or 0.0) * (self.replicas or 0)
        offered = demand.offered_tokens_per_second
        low = offered is not None and offered < HALF_OF_CAPACITY * capacity and not demand.waiting_requests
        self.low_since = (at if self.low_since is None else self.low_since) if low else None

    def _change(self, replicas: int, at: float) -> None:
        self.replicas, self.changed_at, self.low_since = replicas, at, None

    @staticmethod
    def _bounded(replicas: int, settings: Replicas) -> int:
        return max(settings.minimum, min(settings.maximum, replicas))

    @classmethod
    def _rounded(cls, wanted: float, settings: Replicas) -> int:
        return cls._bounded(math.ceil(wanted - 1e-9), settings)


@dataclass(slots=True)
class Fleet:
    """The advice for every model watched."""

    advice: dict[str, Advice] = field(default_factory=dict)

    def observe(self, targets: Iterable[TargetView], settings: Replicas, at: float) -> None:
        """Take in all targets at a monotonic time; models that are watched no more are forgotten."""
        serving: dict[str, list[EngineView]] = {}
        for target in targets:
            for engine in target.engines:
                engines = serving.setdefault(target.config.model_name or engine.engine.model_name, [])
                if target.state is State.UP and engine.fresh:
                    engines.append(engine)
        self.advice = {model: self.advice.get(model, Advice()) for model in serving}
        for model, engines in serving.items():
            self.advice[model].observe(_demand(self.advice[model], engines, settings), settings, at)

    def desired(self) -> dict[str, int]:
        """Replicas by model, where known."""
        return {model: advice.replicas for model, advice in self.advice.items() if advice.replicas is not None}


def _demand(advice: Advice, engines: list[EngineView], settings: Replicas) -> Demand:
    arrivals = [rate for engine in engines if (rate := engine.minute.rate("arrivals")) is not None]
    finished = sum(engine.long.increase("output_tokens", part=Part.COUNT) or 0.0 for engine in engines)
    produced = sum(engine.long.increase("output_tokens", part=Part.SUM) or 0.0 for engine in engines)
    advice.output_tokens = divide(produced, finished) or advice.output_tokens
    rates = [rate for engine in engines if (rate := _rate_while_queued(engine)) is not None]
    advice.tokens_per_second = settings.tokens_per_second or (max(rates) if rates else advice.tokens_per_second)
    return Demand(
        replicas=len(engines),
        arrivals_per_second=sum(arrivals) if arrivals else None,
        output_tokens=advice.output_tokens,
        waiting_requests=sum(capacity_waiting(engine.now) or 0.0 for engine in engines),
        tokens_per_second=advice.tokens_per_second,
    )


def _rate_while_queued(engine: EngineView) -> Value:
    """Output tokens per second, if requests waited at every scrape of the window: that is what it can do."""
    levels = [waiting for _, waiting in engine.now.levels("waiting")]
    queued = engine.now.seconds > 0 and bool(levels) and min(levels) > 0
    return (engine.now.rate("generation_tokens") or None) if queued else None
