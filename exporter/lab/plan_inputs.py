"""What a plan is asked: engine, traffic, price and limits, checked. Pure."""

from dataclasses import dataclass
from typing import Final

from exporter.hardware import DEFAULT_GPU_MEMORY_UTILIZATION, DEFAULT_RESERVE_BYTES_PER_GPU, Roofline
from exporter.lab.economics import Traffic
from exporter.model_geometry import ModelGeometry
from exporter.speculation import expected_tokens_per_step

Row = dict[str, float | str | None]
Plan = dict[str, list[Row]]

BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Batches shown, in sequences."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Speculation as configured.

    Attributes:
        alpha: acceptance rate of a draft token, in [0, 1).
        gamma: draft tokens per request and step.
        cost: time of one draft pass over a memory-bound step of the target.
        model: the draft model, None for n-grams.
    """

    alpha: float
    gamma: int
    cost: float
    model: ModelGeometry | None = None

    def __post_init__(self) -> None:
        expected_tokens_per_step(self.alpha, self.gamma)
        if not self.cost >= 0:
            raise ValueError(f"the draft cost must not be below 0, not {self.cost:g}")


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """What is asked; every field that is None leaves its section out."""

    roofline: Roofline
    traffic: Traffic
    gpu_hour_dollars: float | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    itl_slo_seconds: float | None = None
    gpu_memory_utilization: float = DEFAULT_GPU_MEMORY_UTILIZATION
    reserve_bytes_per_gpu: float = DEFAULT_RESERVE_BYTES_PER_GPU
    target_utilization: float = 0.8
    draft: Draft | None = None
    burst_requests_per_second: float | None = None
    burst_seconds: float | None = None
    preemptions_per_minute: float | None = None
    thinking_tokens: float | None = None

    def __post_init__(self) -> None:
        if self.gpu_hour_dollars is not None and not self.gpu_hour_dollars >= 0:
            raise ValueError(f"the price must not be below 0, not {self.gpu_hour_dollars:g}")
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("itl_slo_seconds", "burst_requests_per_second", "burst_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value:g}")
        if (self.burst_seconds is None) != (self.burst_requests_per_second is None):
            raise ValueError("a burst needs both its rate and its duration")
        if not 0 < self.target_utilization <= 1:
            raise ValueError(f"the target utilisation must be in (0, 1], not {self.target_utilization:g}")
        if self.preemptions_per_minute is not None and not self.preemptions_per_minute >= 0:
            raise ValueError(f"preemptions per minute must not be below 0, not {self.preemptions_per_minute:g}")
        thinking, output = self.thinking_tokens, self.traffic.output_tokens
        if thinking is not None and not 0 <= thinking < output:
            raise ValueError(f"thinking tokens are part of the mean output of {output:g}, so {thinking:g} cannot be")
