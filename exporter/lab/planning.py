"""A deployment on paper: from model, hardware, price and traffic to every number a capacity decision needs. Pure.

The plan is sections of rows; keys carry the unit, values are ready for JSON, None is "there is no such value".
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from math import ceil, floor
from typing import Final

from exporter.lab import economics
from exporter.lab.plan_alternatives import (
    break_even_rows,
    draft_kv_rows,
    format_rows,
    speculation_rows,
    tensor_parallel_rows,
)
from exporter.lab.plan_inputs import BATCHES, Plan, PlanInputs, Row
from exporter.lab.steady_state import Engine, engine_of, time_to_first_token

CONTEXTS: Final = (2048, 8192, 32768, 131072)
CHUNK_BUDGETS: Final = (512, 1024, 2048, 4096, 8192)


def make_plan(inputs: PlanInputs) -> Plan:
    """All sections that can be told from the inputs.

    Raises:
        ValueError: the model, or a single request of the mix, does not fit or cannot meet the ITL SLO.
    """
    engine = engine_of(inputs, inputs.roofline)
    hardware, gpus = inputs.roofline.hardware.name, inputs.roofline.gpus
    if engine.pool_bytes <= 0:
        weights = inputs.roofline.model.weight_bytes / 1e9
        raise ValueError(f"{weights:.0f} GB of weights do not fit {gpus} x {hardware}")
    batch, limit = engine.batch_limit
    if batch < 1:
        raise ValueError(f"not one sequence of this mix can run on {gpus} x {hardware}: the limit is the {limit}")
    return {name: rows for name, rows in _sections(inputs, engine) if rows}


def _sections(inputs: PlanInputs, engine: Engine) -> Iterator[tuple[str, list[Row]]]:
    yield "assumptions", [_assumptions(inputs)]
    yield "roofline", [_roofline(engine)]
    yield "step_by_batch", [_step(engine, batch) for batch in BATCHES]
    yield "kv", [_kv(inputs, engine)]
    yield "context", [_context(engine, tokens) for tokens in CONTEXTS]
    budgets = sorted({*CHUNK_BUDGETS, inputs.max_num_batched_tokens})
    yield "chunk_budget", [_chunk(inputs, budget) for budget in budgets]
    if inputs.draft is not None:
        yield "speculation", speculation_rows(inputs.draft, engine)
        yield "speculation_break_even", break_even_rows(inputs.draft, engine)
        if inputs.draft.model is not None:
            yield "draft_kv", draft_kv_rows(inputs.draft.gamma, inputs.draft.model, engine)
    yield "tensor_parallel", tensor_parallel_rows(inputs, engine)
    yield "formats", format_rows(inputs, engine)
    yield from _demand(inputs, engine)


def _assumptions(inputs: PlanInputs) -> Row:
    roofline, traffic = inputs.roofline, inputs.traffic
    return {
        "hardware": roofline.hardware.name,
        "hardware_source": roofline.hardware.source,
        "gpus_per_engine": roofline.gpus,
        "total_params": roofline.model.total_params,
        "active_params": roofline.model.active_params,
        "weight_bytes_per_param": roofline.model.weight_bytes_per_param,
        "kv_bytes_per_element": roofline.model.kv_bytes_per_element,
        "mbu_ceiling_ratio": roofline.mbu,
        "mfu_ceiling_ratio": roofline.mfu,
        "attention_mfu_ceiling_ratio": roofline.attention_mfu,
        "step_overhead_seconds": roofline.step_overhead_seconds,
        "requests_per_second": traffic.requests_per_second,
        "peak_requests_per_second": traffic.peak_requests_per_second,
        "prompt_tokens": traffic.prompt_tokens,
        "computed_prompt_tokens": traffic.computed_prompt_tokens,
        "output_tokens": traffic.output_tokens,
    }


def _roofline(engine: Engine) -> Row:
    roofline, traffic = engine.roofline, engine.traffic
    return {
        "ridge_flops_per_byte": roofline.ridge_flops_per_byte,
        "crossover_positions_at_peaks": replace(roofline, mbu=1.0, mfu=1.0).crossover_positions,
        "crossover_positions": roofline.crossover_positions,
        "weight_read_seconds": roofline.weight_read_seconds,
        "positions_per_second": roofline.positions_per_second,
        "prefill_positions_per_output_token": traffic.prefill_per_decode,
        "batch_at_crossover_sequences": roofline.batch_at_crossover(
            traffic.computed_prompt_tokens, traffic.output_tokens
        ),
    }


def _step(engine: Engine, batch: int) -> Row:
    kv_tokens = batch * engine.traffic.resident_tokens
    with_kv = engine.roofline.step_seconds(batch, kv_tokens)
    positions = batch * (1.0 + engine.traffic.prefill_per_decode)
    return {
        "batch_sequences": batch,
        "decode_step_without_kv_seconds": engine.roofline.step_seconds(batch),
        "decode_step_seconds": with_kv,
        "decode_tokens_per_second": batch / with_kv,
        "mixed_positions": positions,
        "mixed_step_seconds": engine.step_seconds(batch),
        "mixed_output_tokens_per_second": engine.tokens_per_second(batch),
        "bound": "compute" if positions > engine.roofline.crossover_positions else "memory",
        "fits": "yes" if batch <= engine.preemption_point else "no",
    }


def _kv(inputs: PlanInputs, engine: Engine) -> Row:
    model, traffic = engine.roofline.model, engine.traffic
    batch, limit = engine.batch_limit
    return {
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "kv_copies": model.kv_copies(engine.roofline.gpus),
        "gpu_memory_utilization_ratio": inputs.gpu_memory_utilization,
        "reserve_bytes_per_gpu": inputs.reserve_bytes_per_gpu,
        "weight_bytes": model.weight_bytes,
        "pool_bytes": engine.pool_bytes,
        "capacity_tokens": engine.kv_tokens,
        "resident_tokens_per_sequence": traffic.resident_tokens,
        "resident_bytes_per_sequence": traffic.resident_tokens * model.kv_bytes_per_token,
        "preemption_point_sequences": engine.preemption_point,
        "longest_request_tokens": traffic.longest_tokens,
        "longest_requests_whole": floor(engine.kv_tokens / traffic.longest_tokens),
        "batch_limit_sequences": batch,
        "batch_limit_by": limit,
    }


def _context(engine: Engine, tokens: int) -> Row:
    return {
        "context_tokens": tokens,
        "fits_sequences": floor(engine.kv_tokens / tokens),
        "half_batch_sequences": engine.roofline.half_batch(tokens),
        "ceiling_tokens_per_second": engine.roofline.decode_ceiling_tokens_per_second(tokens),
    }


def _chunk(inputs: PlanInputs, budget: int) -> Row:
    roofline = inputs.roofline
    gap = roofline.step_seconds(budget)
    reference = max(*CHUNK_BUDGETS, inputs.max_num_batched_tokens)
    slo = inputs.itl_slo_seconds
    return {
        "budget_positions": budget,
        "gap_seconds": gap,
        "throughput_lost_ratio": roofline.chunk_overhead(budget, reference),
        "above_crossover": "yes" if budget >= roofline.crossover_positions else "no",
        "meets_itl_slo": None if slo is None else "yes" if gap <= slo else "no",
    }


def _demand(inputs: PlanInputs, engine: Engine) -> Iterator[tuple[str, list[Row]]]:
    """What the traffic needs and costs: engines for the peak, and the operating point at the mean."""
    traffic = inputs.traffic
    capacity = engine.capacity_requests_per_second
    engines = ceil(traffic.peak_requests_per_second / (capacity * inputs.target_utilization))
    mean_rate = traffic.requests_per_second / engines
    batch = engine.batch_at(mean_rate)
    if batch is None:
        raise ValueError("the mean rate is at capacity: lower the target utilisation")
    step = engine.step_seconds(batch)
    gpus = engines * engine.roofline.gpus
    positions = mean_rate * (traffic.computed_prompt_tokens + traffic.output_tokens)
    demand: Row = {
        "capacity_requests_per_second_per_engine": capacity,
        "target_utilization_ratio": inputs.target_utilization,
        "engines": engines,
        "gpus": gpus,
        "utilization_ratio": mean_rate / capacity,
        "compute_utilization_ratio": positions / engine.roofline.positions_per_second,
        "batch_sequences": batch,
        "step_seconds": step,
        "positions_per_step": batch * (1.0 + traffic.prefill_per_decode),
        "dollars_per_hour": None if inputs.gpu_hour_dollars is None else gpus * inputs.gpu_hour_dollars,
    }
    yield "demand", [demand]
    yield "time_to_first_token", [_ttft(inputs, engine, batch, part.prompt_tokens) for part in traffic.classes]
    if inputs.burst_requests_per_second is not None and inputs.burst_seconds is not None:
        peak = inputs.burst_requests_per_second / engines
        burst = economics.fluid_burst(mean_rate, peak, inputs.burst_seconds, capacity)
        row: Row = {
            "base_requests_per_second": mean_rate,
            "burst_requests_per_second": peak,
            "service_requests_per_second": capacity,
            **asdict(burst),
        }
        yield "burst_per_engine", [row]
    if inputs.preemptions_per_minute is not None:
        share = economics.preemptions_per_request(inputs.preemptions_per_minute, traffic.requests_per_second)
        extra = economics.worst_extra_prefill_ratio(share, traffic.longest_tokens, traffic.computed_prompt_tokens)
        yield "preemption", [{"preemptions_per_request_ratio": share, "worst_extra_prefill_ratio": extra}]
    if inputs.gpu_hour_dollars is not None:
        yield from _cost(inputs, gpus * inputs.gpu_hour_dollars)


def _ttft(inputs: PlanInputs, engine: Engine, batch: float, prompt_tokens: float) -> Row:
    computed = prompt_tokens * (1.0 - inputs.traffic.cached_share)
    wait = engine.step_seconds(batch)
    return {
        "prompt_tokens": prompt_tokens,
        "computed_tokens": computed,
        "prefill_alone_seconds": engine.roofline.step_seconds(computed),
        "attention_seconds": engine.roofline.attention_seconds(computed, prompt_tokens - computed),
        "admission_wait_seconds": wait,
        "ttft_seconds": time_to_first_token(
            engine.roofline,
            computed,
            wait,
            budget=inputs.max_num_batched_tokens,
            batch=batch,
            kv_tokens=batch * inputs.traffic.resident_tokens,
            cached_tokens=prompt_tokens - computed,
        ),
    }


def _cost(inputs: PlanInputs, dollars_per_hour: float) -> Iterator[tuple[str, list[Row]]]:
    traffic = inputs.traffic
    rate = traffic.requests_per_second
    cached = rate * (traffic.prompt_tokens - traffic.computed_prompt_tokens)
    prices = economics.cost_per_million(
        dollars_per_hour, rate * traffic.computed_prompt_tokens, cached, rate * traffic.output_tokens
    )
    yield (
        "cost_per_million_tokens",
        [{"basis": basis, "token_type": kind, "dollars": price} for (basis, kind), price in prices.items()],
    )
    per_request = dollars_per_hour / economics.SECONDS_PER_HOUR / rate
    yield (
        "cost_per_request",
        [{"dollars_per_request": per_request, "requests_per_dollar": 1 / per_request if per_request else None}],
    )
    if inputs.thinking_tokens is not None:
        price, output = prices["output", "output"], traffic.output_tokens
        answer = output - inputs.thinking_tokens
        yield (
            "thinking",
            [
                {
                    "thinking_tokens": inputs.thinking_tokens,
                    "answer_tokens": answer,
                    "dollars_per_1000_requests": economics.output_dollars(output, price, 1000),
                    "dollars_per_1000_requests_without": economics.output_dollars(answer, price, 1000),
                }
            ],
        )
