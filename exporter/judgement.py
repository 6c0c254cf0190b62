"""What is concluded of one engine from scrape to scrape: its ceilings, the advice on speculation, its warmth."""

from dataclasses import dataclass, field, replace

from exporter.calibration import Calibration, ceilings
from exporter.hardware import Roofline
from exporter.schema import TargetConfig
from exporter.signals import speculation
from exporter.signals.window import Window


@dataclass(slots=True)
class Judgement:
    """State of one engine's conclusions. Ceilings outlive a restart of the engine, warmth does not.

    Attributes:
        advised: whether speculation pays; None while that is not known.
        written_tokens: put into the KV cache since the engine began or woke; None while that is not known.
    """

    advised: bool | None = None
    written_tokens: float | None = None
    _calibration: Calibration = field(default_factory=Calibration)
    _most_tokens: float = 0.0
    _lost_tokens: float = 0.0

    def begin_again(self) -> None:
        """The engine's counters began again at zero, and with them its cache."""
        self._most_tokens = self._lost_tokens = 0.0

    def observe_cache(self, written: float | None, *, asleep: bool) -> None:
        """Take in the tokens an engine wrote since its counters began; sleep empties the KV cache.

        They never fall: before vLLM 0.16 they are less those found in a cache, of which some are counted twice.
        """
        self._most_tokens = max(self._most_tokens, written or 0.0)
        if asleep:
            self._lost_tokens = self._most_tokens
        self.written_tokens = None if written is None else self._most_tokens - self._lost_tokens

    def observe_steps(self, now: Window, minute: Window, config: TargetConfig, paper: Roofline) -> None:
        """Take in the last seconds and the last minute, with the settings in force and what they say on paper."""
        self._calibration.observe(now, paper)
        point, settings = speculation.operating_point(minute, config), config.speculation
        limits = self.roofline(config)
        speedup = (
            None if point is None or limits is None else point.speedup(settings.objective, limits, settings.draft_cost)
        )
        self.advised = speculation.advise(self.advised, speedup)

    def ceilings(self, config: TargetConfig) -> dict[str, tuple[float, str]]:
        """Ceilings in force and their sources by resource; none without hardware and model."""
        if config.roofline is None:
            return {}
        return ceilings(config.hardware.mbu, config.hardware.mfu, self._calibration)

    def roofline(self, config: TargetConfig) -> Roofline | None:
        """The engine on paper at the ceilings in force."""
        paper, found = config.roofline, self.ceilings(config)
        return None if paper is None else replace(paper, mbu=found["bandwidth"][0], mfu=found["compute"][0])
