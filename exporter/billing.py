"""The bill of one target as it grows: price x GPUs x time by what the GPUs did, and what of it was wasted."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from exporter.signals import cost, waste
from exporter.signals.view import State


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one engine did between two scrapes: seconds stepping, and shares of them; None is not known."""

    busy_seconds: float = 0.0
    rejected_share: float | None = None
    recomputed_share: float | None = None


@dataclass(slots=True)
class Bill:
    """Dollars since the sidecar's start, by state of the GPUs and by kind of waste; a kind begins when it is known."""

    dollars: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys((cost.BUSY, cost.IDLE, cost.UNAVAILABLE), 0.0)
    )
    waste: dict[str, float] = field(default_factory=lambda: {waste.IDLE: 0.0})

    def charge(
        self, state: State, seconds: float, gpu_hour_dollars: float, gpus_per_engine: int, engines: Sequence[Stretch]
    ) -> None:
        """Add a stretch of time: all of it is billed, whatever the engines did in it."""
        busy = [min(seconds, engine.busy_seconds) for engine in engines]
        for kind, dollars in cost.dollars(state, seconds, gpu_hour_dollars, gpus_per_engine, busy).items():
            self.dollars[kind] += dollars
        self.waste[waste.IDLE] = self.dollars[cost.IDLE]
        per_second = gpu_hour_dollars * gpus_per_engine / cost.HOUR_SECONDS if state is State.UP else 0.0
        for engine, busy_seconds in zip(engines, busy, strict=True):
            shares = {waste.REJECTED: engine.rejected_share, waste.RECOMPUTED: engine.recomputed_share}
            for kind, share in shares.items():
                if share is not None:
                    self.waste[kind] = self.waste.get(kind, 0.0) + per_second * busy_seconds * share
