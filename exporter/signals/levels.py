"""Time at level: histograms with one observation a whole second, so that quantiles see what Prometheus misses."""

import math
from dataclasses import dataclass, field

EDGES: dict[str, tuple[float, ...]] = {
    "waiting": (0, 1, 4, 16, 64, 256, 1024),
    "kv_usage": (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99),
    "decode_batch": (0, 1, 2, 4, 8, 16, 32, 64, 128, 256),
}
"""Upper edges by signal; +Inf is implied."""


@dataclass(slots=True)
class TimeAtLevel:
    """Whole seconds spent at or below each edge, and the level's integral over them.

    A scrape's level stands for the time since the scrape before it. What is left of a second waits for the next.
    """

    edges: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0
    _left: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.edges) + 1)

    def observe(self, level: float, seconds: float) -> None:
        """Spend time at a level."""
        whole = math.floor(self._left + seconds)
        self._left += seconds - whole
        self.total += whole * level
        for position, edge in enumerate((*self.edges, math.inf)):
            if level <= edge:
                self.counts[position] += whole
