"""The table of vLLM series we read: canonical name, exposition names by version, kind, labels.

Everything that reads an engine is driven by these rows, and a name is matched whole: ``vllm:num_requests_waiting``
never swallows ``vllm:num_requests_waiting_by_reason``, and ``vllm:iteration_tokens_total`` is the histogram it is.
"""

import math
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple

PREFIXES = ("vllm:", "ray_vllm:", "ray_vllm_", "kserve_vllm:")
"""What may stand before an engine's own name: vLLM itself, Ray Serve's two spellings, KServe's aggregated endpoint."""


class Kind(Enum):
    """How a series accumulates."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Part(StrEnum):
    """Which samples of a family a column holds. A counter or a gauge has one sample, its value."""

    VALUE = ""
    COUNT = "_count"
    SUM = "_sum"
    BUCKET = "_bucket"


class Column(NamedTuple):
    """One number of one engine, or of the target itself: a series, a part of it, the values of the row's labels."""

    series: str
    part: Part = Part.VALUE
    labels: tuple[str, ...] = ()


WHOLE = (Part.BUCKET, Part.SUM, Part.COUNT)
TOTALS = (Part.SUM, Part.COUNT)


@dataclass(frozen=True, slots=True)
class Alias:
    """An older exposition name. ``v1_only``: a V0 engine, which has no ``engine`` label, means something else by it."""

    name: str
    v1_only: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """A row: what we call it, what engines call it, and what it may be used for.

    Attributes:
        key: our canonical name, used throughout.
        kind: counter, gauge or histogram.
        name: the newest exposition name, without prefix: a counter's sample name, a histogram's base name.
        aliases: older names of the same thing, newest first. Where two are present the newer one counts.
        labels: labels whose values tell samples of this series apart, besides ``engine`` and ``model_name``.
        parts: which samples of a histogram we keep.
        scope_engine: belongs to an engine; otherwise to the target.
        core: moves with every served request; resets and stalls are judged by these.
        required: its absence is a fault worth naming. What depends on version or configuration is not required.
        prefixed: carries ``vllm:``, in any of its spellings.
        most: the most a gauge can mean; more is not known, as what is below 0.
        since: the vLLM version that introduced the newest name.
    """

    key: str
    kind: Kind
    name: str
    aliases: tuple[Alias, ...] = ()
    labels: tuple[str, ...] = ()
    parts: tuple[Part, ...] = (Part.VALUE,)
    scope_engine: bool = True
    core: bool = False
    required: bool = False
    prefixed: bool = True
    most: float = math.inf
    since: str = "0.8"


TABLE: tuple[Series, ...] = (
    Series("running", Kind.GAUGE, "num_requests_running", required=True),
    Series("waiting", Kind.GAUGE, "num_requests_waiting", required=True),
    Series("waiting_by_reason", Kind.GAUGE, "num_requests_waiting_by_reason", labels=("reason",), since="0.20"),
    # 0.9.2 to 0.10.2 expose both names, 0.12 only the new one.
    Series(
        "kv_usage",
        Kind.GAUGE,
        "kv_cache_usage_perc",
        (Alias("gpu_cache_usage_perc"),),
        required=True,
        most=1.0,
        since="0.9.2",
    ),
    Series("sleep_state", Kind.GAUGE, "engine_sleep_state", labels=("sleep_state",), since="0.11.1"),
    Series("preemptions", Kind.COUNTER, "num_preemptions_total", required=True),
    Series("prompt_tokens", Kind.COUNTER, "prompt_tokens_total", core=True, required=True),
    Series("prompt_tokens_by_source", Kind.COUNTER, "prompt_tokens_by_source_total", labels=("source",), since="0.16"),
    Series("prompt_tokens_cached", Kind.COUNTER, "prompt_tokens_cached_total", since="0.16"),
    Series("generation_tokens", Kind.COUNTER, "generation_tokens_total", core=True, required=True),
    Series("finished", Kind.COUNTER, "request_success_total", labels=("finished_reason",), required=True),
    # The old name counted blocks in 0.8.5 and tokens since: hits over queries are right, prompts less hits too high.
    Series(
        "prefix_queries",
        Kind.COUNTER,
        "prefix_cache_queries_total",
        (Alias("gpu_prefix_cache_queries_total"),),
        required=True,
        since="0.9.2",
    ),
    Series(
        "prefix_hits",
        Kind.COUNTER,
        "prefix_cache_hits_total",
        (Alias("gpu_prefix_cache_hits_total"),),
        required=True,
        since="0.9.2",
    ),
    Series("drafts", Kind.COUNTER, "spec_decode_num_drafts_total"),
    Series("draft_tokens", Kind.COUNTER, "spec_decode_num_draft_tokens_total"),
    Series("accepted_tokens", Kind.COUNTER, "spec_decode_num_accepted_tokens_total"),
    # All three stand at 0 unless vLLM runs with --enable-mfu-metrics.
    Series("flops_per_gpu", Kind.COUNTER, "estimated_flops_per_gpu_total", since="0.17"),
    Series("read_bytes_per_gpu", Kind.COUNTER, "estimated_read_bytes_per_gpu_total", since="0.17"),
    Series("write_bytes_per_gpu", Kind.COUNTER, "estimated_write_bytes_per_gpu_total", since="0.17"),
    # Only with a NIXL connector. Failed notifications are among the failed transfers.
    Series("kv_failed_transfers", Kind.COUNTER, "nixl_num_failed_transfers_total", since="0.11.1"),
    Series("kv_expired_requests", Kind.COUNTER, "nixl_num_kv_expired_reqs_total", since="0.15"),
    Series("ttft", Kind.HISTOGRAM, "time_to_first_token_seconds", parts=WHOLE, core=True, required=True),
    # One observation a request a step that is not its first. V0's series of the old name means another thing.
    Series(
        "itl",
        Kind.HISTOGRAM,
        "inter_token_latency_seconds",
        (Alias("time_per_output_token_seconds", v1_only=True),),
        parts=WHOLE,
        core=True,
        required=True,
        since="0.10.2",
    ),
    Series("tpot", Kind.HISTOGRAM, "request_time_per_output_token_seconds", parts=WHOLE, since="0.11"),
    Series("e2e", Kind.HISTOGRAM, "e2e_request_latency_seconds", parts=WHOLE, required=True),
    Series("output_tokens", Kind.HISTOGRAM, "request_generation_tokens", parts=WHOLE),
    Series("prefill_time", Kind.HISTOGRAM, "request_prefill_time_seconds", parts=WHOLE, required=True),
    # A histogram in spite of its name: one observation a step that produced output.
    Series("steps", Kind.HISTOGRAM, "iteration_tokens_total", parts=TOTALS, core=True, required=True),
    # Has the engine's label but no model's, so it is kept with the target. num_gpu_blocks is the sum over all engines.
    Series(
        "cache_config",
        Kind.GAUGE,
        "cache_config_info",
        labels=("engine", "kv_cache_size_tokens", "num_gpu_blocks", "block_size"),
        scope_engine=False,
    ),
    Series(
        "rejections",
        Kind.COUNTER,
        "admission_rejections_total",
        labels=("model_name", "reason"),
        scope_engine=False,
        since="0.32",
    ),
    Series(
        "http_requests",
        Kind.COUNTER,
        "http_requests_total",
        labels=("handler", "method", "status"),
        scope_engine=False,
        core=True,
        prefixed=False,
    ),
    # Present from the first scrape wherever the HTTP middleware is: tells "no request yet" from "not measured".
    Series(
        "http_seen",
        Kind.HISTOGRAM,
        "http_request_duration_highr_seconds",
        parts=(Part.COUNT,),
        scope_engine=False,
        prefixed=False,
    ),
    Series("process_start", Kind.GAUGE, "process_start_time_seconds", scope_engine=False, prefixed=False),
)

SERIES: dict[str, Series] = {row.key: row for row in TABLE}
REQUIRED: tuple[Series, ...] = tuple(row for row in TABLE if row.required)


class Sample(NamedTuple):
    """What an exact sample name stands for. ``rank`` 0 is the newest name of the series, higher is older."""

    series: Series
    part: Part
    rank: int
    v1_only: bool


def _samples() -> dict[str, Sample]:
    found: dict[str, Sample] = {}
    for row in TABLE:
        for rank, alias in enumerate((Alias(row.name), *row.aliases)):
            for prefix in PREFIXES if row.prefixed else ("",):
                for part in row.parts:
                    name = prefix + alias.name + part.value
                    if name in found:
                        raise ValueError(f"two rows claim the sample name {name}")
                    found[name] = Sample(row, part, rank, alias.v1_only)
    return found


SAMPLES: dict[str, Sample] = _samples()
"""Exact sample name -> what it stands for, for every prefix, alias and part."""


def filter_names() -> tuple[str, ...]:
    """The sample names to ask for with ``name[]``: every name under vLLM's own prefix, and the unprefixed ones."""
    return tuple(name for name, sample in SAMPLES.items() if not sample.series.prefixed or name.startswith(PREFIXES[0]))
