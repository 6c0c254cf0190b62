"""The roofline of one engine: hardware profiles as data, and step time, crossover and KV capacity from them.

Pure: no HTTP, no clock; the live signals and ``vllm-sidecar plan`` call the same functions. Derivations, sources and
limits of every formula are in ``docs/economics.md``. A wrong value raises ``ValueError`` with one line for a person.

A *position* is one token of one sequence going through the model in a step: a decode sequence brings one (more under
speculation), a prompt one for each of its tokens that is computed in that step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from exporter.model_geometry import ModelGeometry, Precision

DEFAULT_MBU: Final = 0.68
"""Ceiling of memory-bandwidth utilisation taken where none is configured or calibrated."""

DEFAULT_MFU: Final = 0.42
"""Ceiling of FLOP/s utilisation taken where none is configured or calibrated."""

DEFAULT_ATTENTION_MFU: Final = 0.35
"""The same for the attention of prompts: FlashAttention-2 on H100; version 3 reaches up to 0.75 (arXiv:2407.08608)."""

DEFAULT_GPU_MEMORY_UTILIZATION: Final = 0.92
"""vLLM's own default of ``--gpu-memory-utilization`` (0.32; 0.9 in older versions)."""

DEFAULT_RESERVE_BYTES_PER_GPU: Final = 4e9
"""Activations, CUDA graphs and buffers that vLLM takes before the KV pool: 5 % of 80 GB, on the safe side."""


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """One GPU.

    Attributes:
        name: the key settings use.
        peak_flops: dense peak in FLOP/s by precision; a precision that is missing is not native.
        bandwidth_bytes_per_second: of its memory.
        capacity_bytes: of its memory, as marketed (decimal; the driver shows a few per cent more).
        source: where the figures are from.
    """

    name: str
    peak_flops: Mapping[Precision, float]
    bandwidth_bytes_per_second: float
    capacity_bytes: float
    source: str

    def __post_init__(self) -> None:
        for precision, flops in self.peak_flops.items():
            if not flops > 0:
                raise ValueError(f"peak FLOP/s of {self.name} in {precision} must be above 0, not {flops}")
        if not self.bandwidth_bytes_per_second > 0:
            raise ValueError(f"bandwidth of {self.name} must be above 0, not {self.bandwidth_bytes_per_second}")
        if not self.capacity_bytes > 0:
            raise ValueError(f"capacity of {self.name} must be above 0, not {self.capacity_bytes}")

    def peak(self, precision: Precision) -> float:
        """Dense peak in FLOP/s; where the precision is not native the weights are unpacked and it is bf16's."""
        flops = self.peak_flops.get(precision) or self.peak_flops.get("bf16")
        if flops is None:
            raise ValueError(f"hardware profile {self.name} has no peak for {precision}")
        return flops


PROFILES: Final[Mapping[str, HardwareProfile]] = {
    profile.name: profile
    for profile in (
        HardwareProfile(
            "h100-sxm",
            {"bf16": 989e12, "fp8": 1979e12, "int8": 1979e12},
            3.35e12,
            80e9,
            "NVIDIA H100 datasheet, SXM5 column: 1,979 and 3,958 TFLOPS are with sparsity, halved",
        ),
        HardwareProfile(
            "h100-pcie",
            {"bf16": 756e12, "fp8": 1513e12, "int8": 1513e12},
            2.0e12,
            80e9,
            "NVIDIA H100 datasheet, PCIe column: 1,513 and 3,026 TFLOPS are with sparsity, halved",
        ),
        HardwareProfile(
            "h200",
            {"bf16": 989e12, "fp8": 1979e12, "int8": 1979e12},
            4.8e12,
            141e9,
            "NVIDIA H200 datasheet, SXM column: the H100's compute, halved from sparse; 141 GB HBM3e",
        ),
        HardwareProfile(
            "b200",
            {"bf16": 2250e12, "fp8": 4500e12, "int8": 4500e12, "fp4": 9000e12},
            7.7e12,
            180e9,
            "NVIDIA Blackwell architecture technical brief, HGX B200 per GPU, dense (the bare chip: 192 GB, 8 TB/s)",
        ),
        HardwareProfile(
            "b300",
            {"bf16": 2250e12, "fp8": 4500e12, "int8": 150e12, "fp4": 14000e12},
            8.0e12,
            288e9,
            "NVIDIA Blackwell architecture technical brief, HGX B300 per GPU, dense (FP8 as B200; FP4 alone is faster)",
        ),
        HardwareProfile(
            "a100-80g",
            {"bf16": 312e12, "int8": 624e12},
            2.039e12,
            80e9,
            "NVIDIA A100 datasheet, 80GB SXM column, dense; the PCIe card has 1.935 TB/s; no FP8",
        ),
        HardwareProfile(
            "l40s",
            {"bf16": 362e12, "fp8": 733e12, "int8": 733e12},
            864e9,
            48e9,
            "NVIDIA L40S datasheet: 362.05 | 733 and 733 | 1,466 are dense | sparse; GDDR6",
        ),
        HardwareProfile(
            "mi300x",
            {"bf16": 1307.4e12, "fp8": 2614.9e12, "int8": 2614.9e12},
            5.3e12,
            192e9,
            "AMD Instinct MI300X datasheet, dense; sparse figures are double",
        ),
        HardwareProfile(
            "mi325x",
            {"bf16": 1307.4e12, "fp8": 2614.9e12, "int8": 2614.9e12},
            6.0e12,
            256e9,
            "AMD Instinct MI325X datasheet, dense: the MI300X's compute with 256 GB HBM3E",
        ),
    )
}


def hardware_profile(
    name: str,
    *,
    peak_flops: float | None = None,
    bandwidth_bytes_per_second: float | None = None,
    capacity_bytes: float | None = None,
) -> HardwareProfile:
    """Look a profile up and lay overrides over it; an overridden peak holds for every precision.

    Raises:
        ValueError: the name is unknown (the known ones are listed) or an override is not above 0.
    """
    base = PROFILES.get(name.lower())
    if base is None:
        raise ValueError(f"unknown hardware profile {name!r}; known: {', '.join(PROFILES)}")
    changes = {"peak": peak_flops, "bandwidth": bandwidth_bytes_per_second, "capacity": capacity_bytes}
    given = ", ".join(key for key, value in changes.items() if value is not None)
    return replace(
        base,
        peak_flops=base.peak_flops if peak_flops is None else dict.fromkeys((*base.peak_flops, "bf16"), peak_flops),
        bandwidth_bytes_per_second=(
            base.bandwidth_bytes_per_second if bandwidth_bytes_per_second is None else bandwidth_bytes_per_second
        ),
        capacity_bytes=base.capacity_bytes if capacity_bytes is None else capacity_bytes,
        source=f"{base.source}; {given} configured" if given else base.source,
    )


@dataclass(frozen=True, slots=True)
class Roofline:
    """One engine: a model on its GPUs (one tensor-parallel group), with what of the peaks it reaches at best.

    Attributes:
        hardware: one GPU.
        model: the model as served.
        gpus: GPUs of one engine.
        mbu: ceiling of memory-bandwidth utilisation, in (0, 1].
        mfu: ceiling of FLOP/s utilisation, in (0, 1].
        step_overhead_seconds: of every step, whatever is in it (scheduling, launches, sampling).
        attention_mfu: ceiling of FLOP/s utilisation of a prompt's attention, in (0, 1].
    """

    hardware: HardwareProfile
    model: ModelGeometry
    gpus: int = 1
    mbu: float = DEFAULT_MBU
    mfu: float = DEFAULT_MFU
    step_overhead_seconds: float = 0.0
    attention_mfu: float = DEFAULT_ATTENTION_MFU

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ValueError(f"gpus must be at least 1, not {self.gpus}")
        for name in ("mbu", "mfu", "attention_mfu"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is a ceiling in (0, 1], not {getattr(self, name)}")
        if not self.step_overhead_seconds >= 0:
            raise ValueError(f"step_overhead_seconds must not be below 0, not {self.step_overhead_seconds}")

    @property
    def peak_flops(self) -> float:
        """FLOP/s of all GPUs at the model's precision, without efficiency: the denominator of a utilisation."""
        return self.gpus * self.hardware.peak(self.model.compute_precision)

    @property
    def peak_bandwidth(self) -> float:
        """Bytes/s of all GPUs, without efficiency: the denominator of a utilisation."""
        return self.gpus * self.hardware.bandwidth_bytes_per_second

    @property
    def ridge_flops_per_byte(self) -> float:
        """Arithmetic intensity at which compute and memory take equally long (Williams et al. 2009), at the peaks."""
        return self.peak_flops / self.peak_bandwidth

    @property
    def weight_read_seconds(self) -> float:
        """Time to read every weight once: the floor of a step."""
        return self.model.weight_bytes / (self.peak_bandwidth * self.mbu)

    @property
    def positions_per_second(self) -> float:
        """Positions a second when compute is the limit."""
        return self.peak_flops * self.mfu / self.model.flops_per_position

    @property
    def crossover_positions(self) -> float:
        """Positions of a step whose compute takes as long as reading the weights: fewer are memory-bound.

        ``(bytes_per_param / 2) x (total / active) x peak / bandwidth x mfu / mbu``; the GPU count cancels.
        """
        return self.weight_read_seconds * self.positions_per_second

    def batch_at_crossover(self, prompt_tokens: float, output_tokens: float) -> float:
        """Running decode sequences whose mix reaches the crossover, each token bringing its share of prefill.

        Args:
            prompt_tokens: *computed* prompt tokens per request (cached ones are no positions).
            output_tokens: output tokens per request, above 0.
        """
        return self.crossover_positions / (1.0 + prompt_tokens / output_tokens)

    def kv_read_seconds(self, kv_tokens: float) -> float:
        """Time to read the KV of ``kv_tokens`` tokens (of all sequences in the step) once."""
        copies = self.model.kv_copies(self.gpus)
        return kv_tokens * self.model.kv_bytes_per_token * copies / (self.peak_bandwidth * self.mbu)

    def attention_seconds(self, new_tokens: float, context_tokens: float = 0.0) -> float:
        """Time of a prompt's attention, beside its positions: grows with the square of the prompt."""
        flops = self.model.attention_flops(new_tokens, context_tokens)
        return flops / (self.gpus * self.hardware.peak("bf16") * self.attention_mfu)

    def step_seconds(self, positions: float, kv_tokens: float = 0.0) -> float:
        """Time of a step: ``overhead + max(weight read, positions / rate) + KV read``.

        Matrix multiplications overlap reading weights with computing; attention comes between them, so its reads add.
        """
        compute = positions / self.positions_per_second
        return self.step_overhead_seconds + max(self.weight_read_seconds, compute) + self.kv_read_seconds(kv_tokens)

    def chunk_overhead(self, budget: float, reference: float) -> float:
        """Share of prefill throughput that steps of ``budget`` positions lose against steps of ``reference``.

        ``1 - (T(reference) / reference) / (T(budget) / budget)``: the overhead comes more often, and under the
        crossover the weight read does.
        """
        return 1.0 - self.step_seconds(reference) / reference * budget / self.step_seconds(budget)

    def half_batch(self, context_tokens: float) -> float:
        """Sequences of a context whose KV takes as long to read as the weights: half the throughput ceiling."""
        return self.weight_read_seconds / self.kv_read_seconds(context_tokens)

    def decode_ceiling_tokens_per_second(self, context_tokens: float) -> float:
        """Decode tokens a second no batch of this context can pass: the KV reads alone, weights and compute free."""
        return 1.0 / self.kv_read_seconds(context_tokens)

    def kv_pool_bytes(
        self,
        gpu_memory_utilization: float = DEFAULT_GPU_MEMORY_UTILIZATION,
        reserve_bytes_per_gpu: float = DEFAULT_RESERVE_BYTES_PER_GPU,
    ) -> float:
        """Bytes left for KV on all GPUs: their share of memory less weights and reserve; 0 or less does not fit."""
        if not 0 < gpu_memory_utilization <= 1:
            raise ValueError(f"gpu_memory_utilization must be in (0, 1], not {gpu_memory_utilization}")
        if not reserve_bytes_per_gpu >= 0:
            raise ValueError(f"reserve_bytes_per_gpu must not be below 0, not {reserve_bytes_per_gpu:g}")
        per_gpu = self.hardware.capacity_bytes * gpu_memory_utilization - reserve_bytes_per_gpu
        return self.gpus * per_gpu - self.model.weight_bytes

    def kv_capacity_tokens(self, pool_bytes: float) -> float:
        """Tokens a KV pool of so many bytes over all GPUs holds (never below 0)."""
        return max(0.0, pool_bytes) / (self.model.kv_bytes_per_token * self.model.kv_copies(self.gpus))
