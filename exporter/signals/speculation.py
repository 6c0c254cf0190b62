"""Does speculative decoding pay now: tokens per step, speedup by objective, break-even, advice. On or off."""

from dataclasses import dataclass

from exporter.hardware import Roofline
from exporter.schema import TargetConfig
from exporter.signals.step import computed_prompt_tokens, steps_in
from exporter.signals.view import EngineView, Labelled, Value
from exporter.signals.window import Window, divide
from exporter.speculation import Objective, break_even_batch, expected_tokens_per_step, speedup
from exporter.upstream import Part

OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput")
GAIN, LOSS = 1.05, 0.95
"""Advice changes to yes at the one and to no at the other; between them it stays."""


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """What decides whether speculation pays.

    Attributes:
        batch: decode sequences per step.
        prefill_positions: prompt tokens computed per step, as they are or would be without speculation.
        gamma: draft tokens per request and step.
        tokens_per_step: per request and step, with speculation.
    """

    batch: float
    prefill_positions: float
    gamma: float
    tokens_per_step: float

    def speedup(self, objective: Objective, roofline: Roofline, draft_cost: float) -> float:
        """Decode tokens per second with speculation over without."""
        return speedup(
            objective,
            batch=self.batch,
            prefill_positions=self.prefill_positions,
            gamma=self.gamma,
            tokens_per_step=self.tokens_per_step,
            draft_cost=draft_cost,
            crossover_positions=roofline.crossover_positions,
        )

    def break_even(self, objective: Objective, roofline: Roofline, draft_cost: float) -> Value:
        """The batch from which it loses, prefill growing with the batch; None where it gains at every batch."""
        return break_even_batch(
            objective,
            prefill_per_decode=self.prefill_positions / self.batch,
            gamma=self.gamma,
            tokens_per_step=self.tokens_per_step,
            draft_cost=draft_cost,
            crossover_positions=roofline.crossover_positions,
        )


def operating_point(window: Window, config: TargetConfig) -> OperatingPoint | None:
    """The point a window shows: measured while drafts are made, with the configured alpha and gamma while not.

    None where nothing decodes, and while speculation is off and alpha or gamma is not configured.
    """
    sequences = window.increase("itl", part=Part.COUNT)
    batch = divide(sequences, steps_in(window))
    prefill = divide(computed_prompt_tokens(window), steps_in(window))
    if not batch or prefill is None:
        return None
    drafted = window.increase("draft_tokens")
    if drafted:
        gamma, tokens = divide(drafted, sequences), tokens_per_request_step(window)
        if gamma is None or tokens is None:
            return None
        return OperatingPoint(batch, prefill / tokens, gamma, tokens)
    alpha, length = config.speculation.alpha, config.speculation.gamma
    if alpha is None or length is None:
        return None
    return OperatingPoint(batch, prefill, length, expected_tokens_per_step(alpha, length))


def tokens_per_request_step(window: Window) -> Value:
    """Tokens a request gains per step in which it decodes; 1 without speculation. None for no more tokens than first
    ones, which do not add up with any decode.
    """
    generated, first = window.increase("generation_tokens"), window.increase("ttft", part=Part.COUNT)
    sequences = window.increase("itl", part=Part.COUNT)
    return None if generated is None or first is None or generated <= first else divide(generated - first, sequences)


def tokens_per_step(view: EngineView) -> Value:
    """Tokens a request gains per step in which it decodes: 1 without speculation, 1 + accepted tokens with it.
    Absent without decode.
    """
    return tokens_per_request_step(view.now)


def expected_speedup(view: EngineView) -> Labelled:
    """Decode tokens per second with speculation over without it, at this batch and prefill: measured while it is on,
    by the settings speculation.alpha and gamma while it is off. Objective latency takes prefill per step as it is,
    throughput adds that of sequences ending sooner. Absent without decode, without hardware and model in the
    settings, while off without alpha and gamma, and with several API servers.
    """
    point, roofline, cost = _point(view), view.roofline, view.config.speculation.draft_cost
    if point is None or roofline is None:
        return {}
    return {(objective,): point.speedup(objective, roofline, cost) for objective in OBJECTIVES}


def break_even(view: EngineView) -> Labelled:
    """Decode batch from which speculation loses, at this mix of prefill and decode; 0 where it gains at none. Absent
    where it gains at every batch, and as speculation_expected_speedup_ratio.
    """
    point, roofline, cost = _point(view), view.roofline, view.config.speculation.draft_cost
    if point is None or roofline is None:
        return {}
    return {(objective,): point.break_even(objective, roofline, cost) for objective in OBJECTIVES}


def advised(view: EngineView) -> Value:
    """1 if speculation pays under the objective set, over the last minute: from a speedup of 1.05 on, until one of
    0.95. Absent before a third of a minute, and as speculation_expected_speedup_ratio.
    """
    return None if view.speculation_advised is None else float(view.speculation_advised)


def advise(before: bool | None, speedup_ratio: Value) -> bool | None:
    """The advice after a speedup, given the one before: it changes only when the speedup is clear of 1."""
    if speedup_ratio is None:
        return None
    if before is None:
        return speedup_ratio > 1
    return speedup_ratio > LOSS if before else speedup_ratio >= GAIN


def _point(view: EngineView) -> OperatingPoint | None:
    return None if view.several_api_servers else operating_point(view.now, view.config)
