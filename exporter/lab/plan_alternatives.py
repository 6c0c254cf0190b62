"""The planned engine beside others: speculating, on more or fewer GPUs, in other number formats. Pure."""

from dataclasses import replace
from functools import partial
from math import floor
from typing import Final

from exporter.hardware import Roofline
from exporter.lab import economics
from exporter.lab.plan_inputs import BATCHES, Draft, PlanInputs, Row
from exporter.lab.steady_state import Engine, engine_of
from exporter.model_geometry import BYTES_PER_ELEMENT, COMPUTE_PRECISION, ModelGeometry
from exporter.speculation import Objective, break_even_batch, expected_tokens_per_step, speedup

OBJECTIVES: Final[tuple[Objective, ...]] = ("latency", "throughput")
TENSOR_PARALLEL: Final = (1, 2, 4, 8)
FORMATS: Final = (
    # label, weights stored in, multiplied in, KV cache
    ("bf16, KV bf16", "bf16", "bf16", "bf16"),
    ("bf16, KV fp8", "bf16", "bf16", "fp8"),
    ("fp8, KV bf16", "fp8", "fp8", "bf16"),
    ("fp8, KV fp8", "fp8", "fp8", "fp8"),
    ("fp8 weight-only, KV fp8", "fp8", "bf16", "fp8"),
    ("int4 weight-only, KV fp8", "int4", "bf16", "fp8"),
)


def tensor_parallel_rows(inputs: PlanInputs, engine: Engine) -> list[Row]:
    """The same model on more and fewer GPUs; communication is not modelled, so wide groups look too good."""
    return [
        {"gpus": gpus, **_variant(inputs, engine, replace(inputs.roofline, gpus=gpus))}
        for gpus in sorted({*TENSOR_PARALLEL, inputs.roofline.gpus})
    ]


def format_rows(inputs: PlanInputs, engine: Engine) -> list[Row]:
    """The same engine with weights and KV stored in other formats."""
    return [
        {"format": label, **_variant(inputs, engine, replace(inputs.roofline, model=_stored(engine, *stored)))}
        for label, *stored in FORMATS
    ]


def speculation_rows(draft: Draft, engine: Engine) -> list[Row]:
    """Speedup by batch: for decode alone, where the objectives agree, and for the mix under each."""
    gain = partial(
        speedup,
        gamma=draft.gamma,
        tokens_per_step=expected_tokens_per_step(draft.alpha, draft.gamma),
        draft_cost=draft.cost,
        crossover_positions=engine.roofline.crossover_positions,
    )
    ratio = engine.traffic.prefill_per_decode
    return [
        {
            "batch_sequences": batch,
            "pure_decode_speedup_ratio": gain("latency", batch=batch, prefill_positions=0.0),
            "mix_latency_speedup_ratio": gain("latency", batch=batch, prefill_positions=ratio * batch),
            "mix_throughput_speedup_ratio": gain("throughput", batch=batch, prefill_positions=ratio * batch),
        }
        for batch in BATCHES
    ]


def break_even_rows(draft: Draft, engine: Engine) -> list[Row]:
    """By objective, the batch from which speculation loses; None: it gains at every batch."""
    expected = expected_tokens_per_step(draft.alpha, draft.gamma)
    solve = partial(
        break_even_batch,
        gamma=draft.gamma,
        tokens_per_step=expected,
        draft_cost=draft.cost,
        crossover_positions=engine.roofline.crossover_positions,
    )
    return [
        {
            "objective": objective,
            "tokens_per_step": expected,
            "break_even_pure_decode_sequences": solve(objective, prefill_per_decode=0.0),
            "break_even_mix_sequences": solve(objective, prefill_per_decode=engine.traffic.prefill_per_decode),
        }
        for objective in OBJECTIVES
    ]


def draft_kv_rows(gamma: int, draft: ModelGeometry, engine: Engine) -> list[Row]:
    """What a draft model takes from the KV pool: weights, its own KV per token, slots for tokens not yet accepted."""
    gpus, target = engine.roofline.gpus, engine.roofline.model
    target_bytes = target.kv_bytes_per_token * target.kv_copies(gpus)
    both_bytes = target_bytes + draft.kv_bytes_per_token * draft.kv_copies(gpus)
    resident = engine.traffic.resident_tokens
    left = max(0.0, engine.pool_bytes - draft.weight_bytes)
    bites = (
        ("nothing", engine.pool_bytes / target_bytes, resident),
        ("its weights", left / target_bytes, resident),
        ("and its own KV", left / both_bytes, resident),
        ("and look-ahead slots", left / both_bytes, resident + gamma),
    )
    return [
        {"taken": bite, "capacity_tokens": capacity, "preemption_point_sequences": capacity / tokens}
        for bite, capacity, tokens in bites
    ]


def _stored(engine: Engine, weights: str, computed: str, kv_cache: str) -> ModelGeometry:
    return replace(
        engine.roofline.model,
        weight_bytes_per_param=BYTES_PER_ELEMENT[weights],
        compute_precision=COMPUTE_PRECISION[computed],
        kv_bytes_per_element=BYTES_PER_ELEMENT[kv_cache],
    )


def _variant(inputs: PlanInputs, planned: Engine, roofline: Roofline) -> Row:
    """Another engine beside the planned one; ratios are None where it does not fit."""
    engine = engine_of(inputs, roofline)
    batch, limit = engine.batch_limit
    row: Row = {
        "weight_read_seconds": roofline.weight_read_seconds,
        "crossover_positions": roofline.crossover_positions,
        "kv_capacity_tokens": engine.kv_tokens,
        "longest_requests_whole": floor(engine.kv_tokens / engine.traffic.longest_tokens),
        "batch_limit_sequences": batch,
        "batch_limit_by": limit if engine.pool_bytes > 0 else "does not fit",
        "output_tokens_per_second": None,
        "throughput_ratio": None,
        "cost_per_token_ratio": None,
    }
    if batch >= 1:
        made = engine.tokens_per_second(batch)
        throughput = made / planned.tokens_per_second(planned.batch_limit[0])
        gpus = roofline.gpus / planned.roofline.gpus
        row |= {
            "output_tokens_per_second": made,
            "throughput_ratio": throughput,
            "cost_per_token_ratio": economics.cost_per_token_ratio(gpus, throughput),
        }
    return row
