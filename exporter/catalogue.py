"""The table of metrics we export: name, type, labels, group, and the signal that fills each and documents it.

A new signal is one row here, one pure function in ``signals``, one test with a worked number.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from exporter.signals import (
    cost,
    decode,
    engine,
    fleet,
    kv_cache,
    kv_transfer,
    latency,
    preemption,
    prefix_cache,
    queue,
    roofline,
    saturation,
    sidecar,
    slo,
    speculation,
    step,
    target,
    traffic,
    use,
    waste,
)
from exporter.signals.histogram import Histogram
from exporter.signals.levels import TimeAtLevel
from exporter.signals.view import EngineView, SelfView, TargetView

PREFIX = "vllm_sidecar_"

Filled = float | None | Mapping[tuple[str, ...], float | None] | Histogram | TimeAtLevel
"""What a signal gives: a number, numbers by the row's own labels, or a histogram."""


class Type(Enum):
    """The exposition type of a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Scope(Enum):
    """What one series of a metric is about, and so which labels stand before the row's own."""

    SELF = "self"
    TARGET = "target"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class Metric:
    """A row: an exported metric. What its signal documents is its help."""

    name: str
    type: Type
    group: str
    scope: Scope
    fill: Callable[..., Filled]
    labels: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """As exposed; a counter's with ``_total``."""
        return PREFIX + self.name

    @property
    def help(self) -> str:
        """One line of what it says and where it comes from."""
        return " ".join((self.fill.__doc__ or "").replace("``", "").split())


def _self(name: str, kind: Type, fill: Callable[[SelfView], Filled], *labels: str) -> Metric:
    return Metric(name, kind, "self", Scope.SELF, fill, labels)


def _target(name: str, kind: Type, fill: Callable[[TargetView], Filled], *labels: str, group: str = "target") -> Metric:
    return Metric(name, kind, group, Scope.TARGET, fill, labels)


def _engine(name: str, kind: Type, fill: Callable[[EngineView], Filled], *labels: str, group: str) -> Metric:
    return Metric(name, kind, group, Scope.ENGINE, fill, labels)


GAUGE, COUNTER, HISTOGRAM = Type.GAUGE, Type.COUNTER, Type.HISTOGRAM

TABLE: tuple[Metric, ...] = (
    _self("build_info", GAUGE, sidecar.build_info, "version", "python_version"),
    _self("config_valid", GAUGE, sidecar.config_valid),
    _self("config_last_reload_timestamp_seconds", GAUGE, sidecar.config_reloaded),
    _self("fleet_targets", GAUGE, fleet.targets, "model_name", "role", "state"),
    _self("fleet_engines", GAUGE, fleet.engines, "model_name", "role"),
    _self("fleet_running_requests", GAUGE, fleet.running, "model_name", "role"),
    _self("fleet_waiting_requests", GAUGE, fleet.waiting, "model_name", "role"),
    _self("desired_replicas", GAUGE, fleet.desired_replicas, "model_name"),
    _self("targets_expected", GAUGE, fleet.expected),
    _self("targets_missing", GAUGE, fleet.fewer),
    _self("discovery_targets", GAUGE, fleet.discovered, "source"),
    _self("discovery_dropped_targets", GAUGE, fleet.dropped, "source"),
    _self("discovery_valid", GAUGE, fleet.valid, "source"),
    _self("discovery_last_success_timestamp_seconds", GAUGE, fleet.last_success, "source"),
    _target("target_info", GAUGE, target.info, "model_name", "role"),
    _target("target_up", GAUGE, target.up),
    _target("target_state", GAUGE, target.state, "state"),
    _target("target_healthy", GAUGE, target.healthy),
    _target("scrape_duration_seconds", GAUGE, target.scrape_seconds),
    _target("scrape_body_bytes", GAUGE, target.body_bytes),
    _target("scrape_interval_seconds", GAUGE, target.interval_seconds),
    _target("last_success_timestamp_seconds", GAUGE, target.last_success),
    _target("scrape_failures_total", COUNTER, target.failures, "reason"),
    _target("parse_errors_total", COUNTER, target.parse_errors),
    _target("dropped_series_total", COUNTER, target.dropped_series),
    _target("source_series_missing", GAUGE, target.missing, "series"),
    _target("offered_requests_total", COUNTER, traffic.offered),
    _target("abandoned_requests_total", COUNTER, traffic.abandoned),
    _target("http_responses_total", COUNTER, traffic.http_responses, "status"),
    _target("admission_rejections_total", COUNTER, traffic.rejections, "model_name", "reason"),
    _target("gpu_cost_dollars_total", COUNTER, cost.cost_dollars, "state", group="cost"),
    _target("gpu_hour_dollars", GAUGE, cost.gpu_hour_dollars, group="cost"),
    _engine("engine_start_timestamp_seconds", GAUGE, engine.started, group="engine"),
    _engine("engine_restarts_total", COUNTER, engine.restarts, group="engine"),
    _engine("engine_stalled", GAUGE, engine.stalled, group="engine"),
    _engine("engine_awake", GAUGE, engine.awake, group="engine"),
    _engine("warmness_ratio", GAUGE, kv_cache.warmness, group="engine"),
    _engine("arrivals_total", COUNTER, traffic.arrivals, group="traffic"),
    _engine("first_tokens_total", COUNTER, traffic.first_tokens, group="traffic"),
    _engine("finished_requests_total", COUNTER, traffic.finished, "reason", group="traffic"),
    _engine("preemptions_total", COUNTER, traffic.preemptions, group="traffic"),
    _engine("prompt_tokens_total", COUNTER, traffic.prompt_tokens, "source", group="traffic"),
    _engine("generation_tokens_total", COUNTER, traffic.generation_tokens, group="traffic"),
    _engine("engine_steps_total", COUNTER, traffic.steps, group="traffic"),
    _engine("decode_sequence_steps_total", COUNTER, traffic.decode_sequence_steps, group="traffic"),
    _engine("decode_sequence_seconds_total", COUNTER, traffic.decode_sequence_seconds, group="traffic"),
    _engine("speculation_drafts_total", COUNTER, traffic.drafts, group="traffic"),
    _engine("speculation_draft_tokens_total", COUNTER, traffic.draft_tokens, group="traffic"),
    _engine("speculation_accepted_tokens_total", COUNTER, traffic.accepted_tokens, group="traffic"),
    _engine("decode_batch_size", GAUGE, decode.batch_size, group="scheduler"),
    _engine("decode_batch_estimator_info", GAUGE, decode.estimator_info, "estimator", group="scheduler"),
    _engine("decode_occupancy_requests", GAUGE, decode.occupancy, group="scheduler"),
    _engine("prefilling_requests", GAUGE, decode.prefilling, group="scheduler"),
    _engine("running_requests", GAUGE, engine.running, group="scheduler"),
    _engine("waiting_requests", GAUGE, queue.waiting_by_reason, "reason", group="scheduler"),
    _engine("queue_growth_requests_per_second", GAUGE, queue.growth, group="scheduler"),
    _engine("predicted_ttft_seconds", GAUGE, queue.predicted_ttft, group="scheduler"),
    _engine("preemptions_per_arrival", GAUGE, preemption.per_arrival, "window", group="scheduler"),
    _engine("time_to_first_token_seconds", HISTOGRAM, latency.ttft_histogram, group="latency"),
    _engine("inter_token_latency_seconds", HISTOGRAM, latency.itl_histogram, group="latency"),
    _engine("time_per_output_token_seconds", HISTOGRAM, latency.tpot_histogram, group="latency"),
    _engine("e2e_seconds", HISTOGRAM, latency.e2e_histogram, group="latency"),
    _engine("latency_quantile_seconds", GAUGE, latency.quantiles, "latency", "q", "window", group="latency"),
    _engine("latency_quantile_bounded", GAUGE, latency.bounded, "latency", "q", "window", group="latency"),
    _engine("ttft_queue_seconds", GAUGE, latency.queue_seconds, group="latency"),
    _engine("ttft_prefill_seconds", GAUGE, latency.mean_prefill_seconds, group="latency"),
    _engine("latency_cause", GAUGE, latency.cause, "cause", group="latency"),
    _engine("slo_events_total", COUNTER, slo.events, "slo", "threshold", group="latency"),
    _engine("slo_misses_total", COUNTER, slo.misses, "slo", "threshold", group="latency"),
    _engine("slo_objective_ratio", GAUGE, slo.objective, "slo", group="latency"),
    _engine("goodput_ratio", GAUGE, slo.goodput, "bound", "window", group="latency"),
    _target(
        "cost_dollars_per_million_tokens", GAUGE, cost.per_million_tokens, "basis", "token_type", "window", group="cost"
    ),
    _target(
        "busy_cost_dollars_per_million_tokens",
        GAUGE,
        cost.busy_per_million_tokens,
        "basis",
        "token_type",
        "window",
        group="cost",
    ),
    _target("requests_per_dollar", GAUGE, cost.requests_per_dollar, "window", group="cost"),
    _target("cost_baseline_dollars_per_million_tokens", GAUGE, cost.baseline, group="cost"),
    _target("busy_cost_baseline_multiple_ratio", GAUGE, cost.baseline_multiple, "window", group="cost"),
    _target("waste_dollars_total", COUNTER, waste.waste_dollars, "kind", group="cost"),
    _engine("step_seconds", GAUGE, step.step_seconds, group="roofline"),
    _engine("step_positions", GAUGE, step.positions, "kind", group="roofline"),
    _engine("positions_per_second", GAUGE, roofline.positions_per_second, group="roofline"),
    _engine("positions_per_second_capacity", GAUGE, roofline.capacity, group="roofline"),
    _engine("crossover_positions", GAUGE, roofline.crossover_positions, group="roofline"),
    _engine("crossover_ratio", GAUGE, roofline.crossover_ratio, group="roofline"),
    _engine("model_flops_utilization_ratio", GAUGE, roofline.model_flops_utilization, group="roofline"),
    _engine("memory_bandwidth_utilization_ratio", GAUGE, roofline.memory_bandwidth_utilization, group="roofline"),
    _engine("efficiency_ceiling_ratio", GAUGE, roofline.ceilings, "resource", "source", group="roofline"),
    _engine("kv_read_bytes_per_step", GAUGE, roofline.kv_read_bytes, group="roofline"),
    _engine("chunk_gap_seconds", GAUGE, roofline.chunk_gap_seconds, group="roofline"),
    _engine("speculation_tokens_per_step", GAUGE, speculation.tokens_per_step, group="speculation"),
    _engine(
        "speculation_expected_speedup_ratio", GAUGE, speculation.expected_speedup, "objective", group="speculation"
    ),
    _engine("speculation_break_even_batch", GAUGE, speculation.break_even, "objective", group="speculation"),
    _engine("speculation_advised", GAUGE, speculation.advised, group="speculation"),
    _engine("kv_capacity_tokens", GAUGE, kv_cache.capacity_tokens, group="kv"),
    _engine("kv_usage_ratio", GAUGE, kv_cache.usage, group="kv"),
    _engine("kv_preemption_point_sequences", GAUGE, kv_cache.preemption_point, group="kv"),
    _engine("kv_headroom_sequences", GAUGE, kv_cache.headroom, group="kv"),
    _engine("kv_full_in_seconds", GAUGE, kv_cache.full_in_seconds, group="kv"),
    _engine("kv_transfer_failures_total", COUNTER, kv_transfer.failures, "kind", group="kv"),
    _engine("prefix_cache_hit_ratio", GAUGE, prefix_cache.hit_ratio, "window", group="kv"),
    _engine("computed_prompt_tokens_per_arrival", GAUGE, prefix_cache.computed_per_arrival, "window", group="kv"),
    _engine("saturation_ratio", GAUGE, saturation.saturation, "resource", group="use"),
    _engine("waiting_requests_time", HISTOGRAM, use.waiting, group="use"),
    _engine("kv_usage_ratio_time", HISTOGRAM, use.kv_usage, group="use"),
    _engine("decode_batch_size_time", HISTOGRAM, use.decode_batch, group="use"),
)

METRICS: dict[str, Metric] = {row.name: row for row in TABLE}
