"""One engine under a traffic mix: what it holds, how fast it steps, what it can serve. Pure."""

from bisect import bisect_right
from dataclasses import dataclass
from math import ceil, floor, inf

from exporter.hardware import Roofline
from exporter.lab.economics import Traffic
from exporter.lab.plan_inputs import PlanInputs


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine under the plan's traffic mix: what it holds and what it can serve."""

    roofline: Roofline
    traffic: Traffic
    pool_bytes: float
    max_num_seqs: int
    itl_slo_seconds: float | None

    @property
    def kv_tokens(self) -> float:
        """Capacity of the KV pool."""
        return self.roofline.kv_capacity_tokens(self.pool_bytes)

    @property
    def preemption_point(self) -> float:
        """Running sequences at which the pool is full."""
        return self.kv_tokens / self.traffic.resident_tokens

    @property
    def attention_seconds_per_sequence(self) -> float:
        """What each decode sequence adds to a step beside positions: its KV read, its share of prompts' attention."""
        cached, traffic = self.traffic.cached_share, self.traffic
        prompts = traffic.mean(
            lambda part: self.roofline.attention_seconds(part.prompt_tokens * (1 - cached), part.prompt_tokens * cached)
        )
        return self.roofline.kv_read_seconds(traffic.resident_tokens) + prompts / traffic.output_tokens

    def step_seconds(self, batch: float) -> float:
        """Mean step in a steady state: each decode sequence brings its share of prefill."""
        positions = batch * (1.0 + self.traffic.prefill_per_decode)
        return self.roofline.step_seconds(positions) + batch * self.attention_seconds_per_sequence

    def tokens_per_second(self, batch: float) -> float:
        """Output tokens a second at that batch."""
        return batch / self.step_seconds(batch)

    @property
    def batch_limit(self) -> tuple[int, str]:
        """Largest batch and what sets it; (0, ...) where not even one sequence goes."""
        limits = [(floor(self.preemption_point), "KV pool"), (self.max_num_seqs, "max_num_seqs")]
        if self.itl_slo_seconds is not None:
            others = min(limits)[0]
            within = bisect_right(range(1, others + 1), self.itl_slo_seconds, key=self.step_seconds)
            if within < others:
                limits.append((within, "ITL SLO"))
        return min(limits)

    @property
    def capacity_requests_per_second(self) -> float:
        """Requests a second at the largest batch."""
        batch, _ = self.batch_limit
        return self.tokens_per_second(batch) / self.traffic.output_tokens if batch else 0.0

    def batch_at(self, requests_per_second: float) -> float | None:
        """The batch that serves a rate in a steady state (Little's law); None at or past capacity.

        ``B = rate x output x step(B)``, linear in B on either side of the crossover.
        """
        if requests_per_second >= self.capacity_requests_per_second:
            return None
        rate = requests_per_second * self.traffic.output_tokens
        roofline, ratio = self.roofline, 1.0 + self.traffic.prefill_per_decode
        attention = self.attention_seconds_per_sequence
        batch = rate * (roofline.step_overhead_seconds + roofline.weight_read_seconds) / (1.0 - rate * attention)
        if batch * ratio > roofline.crossover_positions:
            compute = attention + ratio / roofline.positions_per_second
            beyond = rate * roofline.step_overhead_seconds / (1.0 - rate * compute)
            batch = max(beyond, roofline.crossover_positions / ratio)
        return batch


def engine_of(inputs: PlanInputs, roofline: Roofline) -> Engine:
    """The plan's engine on that roofline: other GPUs, other formats, the same rest."""
    pool = roofline.kv_pool_bytes(inputs.gpu_memory_utilization, inputs.reserve_bytes_per_gpu)
    return Engine(roofline, inputs.traffic, pool, inputs.max_num_seqs, inputs.itl_slo_seconds)


def time_to_first_token(
    roofline: Roofline,
    prompt_tokens: float,
    admission_wait_seconds: float,
    *,
    budget: float = inf,
    batch: float = 0.0,
    kv_tokens: float = 0.0,
    cached_tokens: float = 0.0,
) -> float | None:
    """Wait for the step in flight, then the prompt in chunks beside ``batch`` decode sequences, which go first.

    ``prompt_tokens`` are computed ones, ``cached_tokens`` those before them. None where the decode sequences leave the
    budget no room.
    """
    room = budget - batch
    if room <= 0:
        return None
    chunks = ceil(prompt_tokens / room) or 1
    full = (chunks - 1) * roofline.step_seconds(budget, kv_tokens) if chunks > 1 else 0.0
    rest = prompt_tokens - (chunks - 1) * room if chunks > 1 else prompt_tokens
    attention = roofline.attention_seconds(prompt_tokens, cached_tokens)
    return admission_wait_seconds + full + attention + roofline.step_seconds(rest + batch, kv_tokens)
