"""THE table of series that vLLM 0.32 exposes for an engine, in its order, and where each value comes from."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from exporter.lab.cache_config import cache_config_labels
from exporter.lab.engine import Engine
from exporter.lab.observations import Histogram

Labels = Mapping[str, str]
Values = Iterable[tuple[Labels, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """One metric family. `name` is the base name: a counter's without `_total`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    read: Callable[[Engine], Values | Histogram]
    """Values by further labels, or the histogram."""
    engine_label: bool = True
    model_label: bool = True
    stepped_only: bool = False
    """In multiprocess mode, absent until the engine's first step."""


def _one(value: float) -> Values:
    return (({}, value),)


def _by(label: str, values: Mapping[str, float]) -> Values:
    return [({label: name}, value) for name, value in values.items()]


def _sleep_state(engine: Engine) -> Values:
    states = ("awake", "weights_offloaded", "discard_all")
    return _by("sleep_state", {state: level == engine.sleep_level for level, state in enumerate(states)})


def _prompt_sources(engine: Engine) -> Values:
    seen = engine.observations
    sources = {
        "local_compute": seen.prompt_tokens - seen.prompt_tokens_cached,
        "local_cache_hit": seen.prompt_tokens_cached,
        "external_kv_transfer": 0,
    }
    return _by("source", sources)


def _cache_tiers(engine: Engine) -> Values:
    tiers = dict.fromkeys(("device", "host", "p2p", "disk", "external_unspecified"), 0)
    return _by("source", tiers | {"device": engine.observations.prefix_cache_hits})


def _accepted_positions(engine: Engine) -> Values:
    positions = enumerate(engine.observations.drafts.accepted_per_position)
    return [({"position": str(position)}, accepted) for position, accepted in positions]


SPECULATION_SERIES: tuple[Series, ...] = (
    Series(
        "vllm:spec_decode_num_drafts",
        "counter",
        "Number of spec decoding drafts.",
        lambda engine: _one(engine.observations.drafts.drafts),
    ),
    Series(
        "vllm:spec_decode_num_draft_tokens",
        "counter",
        "Number of draft tokens.",
        lambda engine: _one(engine.observations.drafts.draft_tokens),
    ),
    Series(
        "vllm:spec_decode_num_accepted_tokens",
        "counter",
        "Number of accepted tokens.",
        lambda engine: _one(engine.observations.drafts.accepted_tokens),
    ),
    Series(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "counter",
        "Accepted tokens per draft position.",
        _accepted_positions,
    ),
)
"""Exposed first, and only where speculation is configured."""

ENGINE_SERIES: tuple[Series, ...] = (
    Series(
        "vllm:estimated_flops_per_gpu",
        "counter",
        "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).",
        lambda _engine: _one(0),
    ),
    Series(
        "vllm:estimated_read_bytes_per_gpu",
        "counter",
        "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).",
        lambda _engine: _one(0),
    ),
    Series(
        "vllm:estimated_write_bytes_per_gpu",
        "counter",
        "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).",
        lambda _engine: _one(0),
    ),
    Series(
        "vllm:num_requests_running",
        "gauge",
        "Number of requests in model execution batches.",
        lambda engine: _one(engine.observations.running),
        stepped_only=True,
    ),
    Series(
        "vllm:num_requests_waiting",
        "gauge",
        "Number of requests waiting to be processed.",
        lambda engine: _one(engine.observations.waiting),
        stepped_only=True,
    ),
    Series(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        (
            "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
            "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of "
            "all reasons equals vllm:num_requests_waiting."
        ),
        lambda engine: _by("reason", {"capacity": engine.observations.waiting, "deferred": 0}),
        stepped_only=True,
    ),
    Series(
        "vllm:engine_sleep_state",
        "gauge",
        (
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
            "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2."
        ),
        _sleep_state,
    ),
    Series(
        "vllm:kv_cache_usage_perc",
        "gauge",
        "KV-cache usage. 1 means 100 percent usage.",
        lambda engine: _one(engine.observations.kv_cache_usage),
        stepped_only=True,
    ),
    Series(
        "vllm:prefix_cache_queries",
        "counter",
        "Prefix cache queries, in terms of number of queried tokens.",
        lambda engine: _one(engine.observations.prefix_cache_queries),
    ),
    Series(
        "vllm:prefix_cache_hits",
        "counter",
        "Prefix cache hits, in terms of number of cached tokens.",
        lambda engine: _one(engine.observations.prefix_cache_hits),
    ),
    Series(
        "vllm:external_prefix_cache_queries",
        "counter",
        (
            "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of "
            "queried tokens."
        ),
        lambda _engine: _one(0),
    ),
    Series(
        "vllm:external_prefix_cache_hits",
        "counter",
        (
            "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of "
            "cached tokens."
        ),
        lambda _engine: _one(0),
    ),
    Series(
        "vllm:mm_cache_queries",
        "counter",
        "Multi-modal cache queries, in terms of number of queried items.",
        lambda _engine: _one(0),
    ),
    Series(
        "vllm:mm_cache_hits",
        "counter",
        "Multi-modal cache hits, in terms of number of cached items.",
        lambda _engine: _one(0),
    ),
    Series(
        "vllm:num_preemptions",
        "counter",
        "Cumulative number of preemption from the engine.",
        lambda engine: _one(engine.observations.preemptions),
    ),
    Series(
        "vllm:prompt_tokens",
        "counter",
        "Number of prefill tokens processed.",
        lambda engine: _one(engine.observations.prompt_tokens),
    ),
    Series(
        "vllm:prompt_tokens_by_source",
        "counter",
        "Number of prompt tokens by source.",
        _prompt_sources,
    ),
    Series(
        "vllm:prompt_tokens_cached",
        "counter",
        "Number of cached prompt tokens (local + external).",
        lambda engine: _one(engine.observations.prompt_tokens_cached),
    ),
    Series(
        "vllm:prompt_tokens_cached_by_source",
        "counter",
        (
            "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to "
            "DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at "
            "admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits."
        ),
        _cache_tiers,
    ),
    Series(
        "vllm:generation_tokens",
        "counter",
        "Number of generation tokens processed.",
        lambda engine: _one(engine.observations.generation_tokens),
    ),
    Series(
        "vllm:request_success",
        "counter",
        "Count of successfully processed requests.",
        lambda engine: _by("finished_reason", engine.observations.finished),
    ),
    Series(
        "vllm:admission_rejections",
        "counter",
        "Number of admission attempts rejected by a queue limit, by reason.",
        lambda _engine: _by("reason", {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}),
        engine_label=False,
    ),
    Series(
        "vllm:request_prompt_tokens",
        "histogram",
        "Number of prefill tokens processed.",
        lambda engine: engine.observations.request_prompt_tokens,
    ),
    Series(
        "vllm:request_generation_tokens",
        "histogram",
        "Number of generation tokens processed.",
        lambda engine: engine.observations.request_generation_tokens,
    ),
    Series(
        "vllm:iteration_tokens_total",
        "histogram",
        "Histogram of number of tokens per engine_step.",
        lambda engine: engine.observations.iteration_tokens,
    ),
    Series(
        "vllm:request_max_num_generation_tokens",
        "histogram",
        "Histogram of maximum number of requested generation tokens.",
        lambda engine: engine.observations.request_max_num_generation_tokens,
    ),
    Series(
        "vllm:request_params_n",
        "histogram",
        "Histogram of the n request parameter.",
        lambda engine: engine.observations.request_params_n,
    ),
    Series(
        "vllm:request_params_max_tokens",
        "histogram",
        "Histogram of the max_tokens request parameter.",
        lambda engine: engine.observations.request_params_max_tokens,
    ),
    Series(
        "vllm:time_to_first_token_seconds",
        "histogram",
        "Histogram of time to first token in seconds.",
        lambda engine: engine.observations.time_to_first_token,
    ),
    Series(
        "vllm:inter_token_latency_seconds",
        "histogram",
        "Histogram of inter-token latency in seconds.",
        lambda engine: engine.observations.inter_token_latency,
    ),
    Series(
        "vllm:request_time_per_output_token_seconds",
        "histogram",
        "Histogram of time_per_output_token_seconds per request.",
        lambda engine: engine.observations.request_time_per_output_token,
    ),
    Series(
        "vllm:e2e_request_latency_seconds",
        "histogram",
        "Histogram of e2e request latency in seconds.",
        lambda engine: engine.observations.e2e_request_latency,
    ),
    Series(
        "vllm:request_queue_time_seconds",
        "histogram",
        "Histogram of time spent in WAITING phase for request.",
        lambda engine: engine.observations.request_queue_time,
    ),
    Series(
        "vllm:request_inference_time_seconds",
        "histogram",
        "Histogram of time spent in RUNNING phase for request.",
        lambda engine: engine.observations.request_inference_time,
    ),
    Series(
        "vllm:request_prefill_time_seconds",
        "histogram",
        "Histogram of time spent in PREFILL phase for request.",
        lambda engine: engine.observations.request_prefill_time,
    ),
    Series(
        "vllm:request_decode_time_seconds",
        "histogram",
        "Histogram of time spent in DECODE phase for request.",
        lambda engine: engine.observations.request_decode_time,
    ),
    Series(
        "vllm:request_num_preemptions",
        "histogram",
        "Histogram of the number of times a request was preempted.",
        lambda engine: engine.observations.request_num_preemptions,
    ),
    Series(
        "vllm:request_prefill_kv_computed_tokens",
        "histogram",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        lambda engine: engine.observations.request_prefill_kv_computed_tokens,
    ),
    Series(
        "vllm:cache_config_info",
        "gauge",
        "Information of the LLMEngine CacheConfig",
        lambda engine: ((cache_config_labels(engine), 1),),
        model_label=False,
    ),
)
