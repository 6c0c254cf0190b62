"""Roofline and speculation: what a step is made of, what bounds it, whether drafting pays."""

from grafana.dashboard import Dashboard
from grafana.panels import ORANGE, Panel, Query, Row, chart, stat
from grafana.queries import aggregate, quantile, rate, ratio, series, total, weighted_mean, worst

MODEL = "model_name"


def dashboard() -> Dashboard:
    """What a step is made of."""
    return Dashboard(
        "roofline",
        "Roofline and speculation",
        "What a step is made of and what bounds it, whether speculation pays, how many sequences the cache holds.",
        (
            Row("Which side of the roofline?", _roofline()),
            Row("Does speculation pay?", _speculation()),
            Row("How many sequences fit?", _sequences()),
            Row("GPUs, where the DCGM exporter runs", _gpus(), collapsed=True),
        ),
    )


def _per_step(name: str, own: str = "", ignoring: str = "") -> str:
    """The mean of a per-step value over engines, weighted by their steps."""
    return weighted_mean(MODEL, series(name, own), rate("engine_steps_total"), ignoring)


def _positions(kind: str) -> str:
    return _per_step("step_positions", f'kind="{kind}"', ignoring="kind")


def _roofline() -> list[Panel]:
    return [
        chart(
            "Decode batch",
            "Mean and p99 over time, and of what the raw gauge of running requests says. Prefilling requests are not "
            "in it.",
            Query(
                ratio(
                    total(MODEL, rate("decode_batch_size_time_sum")), total(MODEL, rate("decode_batch_size_time_count"))
                ),
                "mean {{model_name}}",
            ),
            Query(quantile(0.99, "decode_batch_size_time", MODEL), "p99 {{model_name}}"),
            Query(f"avg by ({MODEL}) ({series('running_requests')})", "running {{model_name}}"),
        ),
        chart(
            "Positions per step",
            "Prompt tokens, and decode sequences with the tokens drafted for them. Above the crossover a step is "
            "compute-bound: more positions take more time.",
            Query(_positions("prefill"), "prefill {{model_name}}"),
            Query(_positions("decode"), "decode {{model_name}}"),
            Query(f"avg by ({MODEL}) ({series('crossover_positions')})", "crossover {{model_name}}"),
        ),
        chart(
            "Positions over the crossover",
            "Of the engine furthest to the right. Below 1 the weights' reading bounds the step, and more sequences are "
            "nearly free; above 1 arithmetic does.",
            Query(worst(MODEL, series("crossover_ratio")), "{{model_name}}"),
            steps=((1, ORANGE),),
        ),
        chart(
            "Step time",
            "Busy time over steps that produced output.",
            Query(_per_step("step_seconds"), "{{model_name}}"),
            unit="s",
        ),
        chart(
            "KV cache read per step",
            "Grows with the contexts in the batch; the part of a step that more sequences do not share.",
            Query(worst(MODEL, series("kv_read_bytes_per_step")), "{{model_name}}"),
            unit="bytes",
        ),
        chart(
            "Longest gap a prefill chunk makes",
            "Time between two outputs of a request while a full chunk of prompt is computed beside it.",
            Query(worst(MODEL, series("chunk_gap_seconds")), "{{model_name}}"),
            unit="s",
            alerts=("VLLMITLBudgetBurn",),
        ),
        chart(
            "Positions per second",
            "All work the steps do, drafts and prefills included, and what the hardware could do.",
            Query(total(MODEL, series("positions_per_second")), "done {{model_name}}"),
            Query(total(MODEL, series("positions_per_second_capacity")), "capacity {{model_name}}"),
        ),
        chart(
            "Compute and bandwidth in use",
            "Of the busiest engine, of the hardware's peak, under what an engine reaches at best.",
            Query(worst(MODEL, series("model_flops_utilization_ratio")), "compute {{model_name}}"),
            Query(worst(MODEL, series("memory_bandwidth_utilization_ratio")), "bandwidth {{model_name}}"),
            Query(aggregate("max", "resource", series("efficiency_ceiling_ratio")), "ceiling of {{resource}}"),
            unit="percentunit",
            ceiling=1,
            alerts=("VLLMOverProvisioned",),
        ),
        chart(
            "Requests in prefill and in decode",
            "Occupancy counts preempted requests that wait to resume; well above the decode batch it is a sign of "
            "stalls.",
            Query(total(MODEL, series("prefilling_requests")), "prefilling {{model_name}}"),
            Query(total(MODEL, rate("decode_sequence_seconds_total")), "in decode {{model_name}}"),
            Query(total(MODEL, series("decode_batch_size")), "decode batch {{model_name}}"),
        ),
    ]


def _speculation() -> list[Panel]:
    accepted = ratio(
        total(MODEL, rate("speculation_accepted_tokens_total")), total(MODEL, rate("speculation_draft_tokens_total"))
    )
    drafted = ratio(
        total(MODEL, rate("speculation_draft_tokens_total")), total(MODEL, rate("speculation_drafts_total"))
    )
    return [
        chart(
            "Expected speedup, by objective",
            "Below 1 speculation costs more than it gives. Latency is per request; throughput counts the prefill that "
            "faster decoding needs.",
            Query(
                aggregate("min", f"{MODEL}, objective", series("speculation_expected_speedup_ratio")),
                "{{objective}} {{model_name}}",
            ),
            steps=((1, ORANGE),),
            alerts=("VLLMSpeculationLosing",),
        ),
        chart(
            "Decode batch against the break-even",
            "Above its objective's line, drafting loses.",
            Query(worst(MODEL, series("decode_batch_size")), "batch {{model_name}}"),
            Query(
                aggregate("min", f"{MODEL}, objective", series("speculation_break_even_batch")),
                "break-even, {{objective}} {{model_name}}",
            ),
            alerts=("VLLMSpeculationLosing",),
        ),
        chart(
            "Tokens per step of a request",
            "1 without speculation.",
            Query(
                ratio(
                    total(MODEL, f"{rate('generation_tokens_total')} - {rate('first_tokens_total')}"),
                    total(MODEL, rate("decode_sequence_steps_total")),
                ),
                "{{model_name}}",
            ),
        ),
        chart(
            "Drafted tokens accepted",
            "Of all tokens drafted.",
            Query(accepted, "{{model_name}}"),
            unit="percentunit",
            ceiling=1,
        ),
        chart("Tokens per draft", "As drafted, accepted or not.", Query(drafted, "{{model_name}}")),
        stat(
            "Engines that should speculate",
            "By the objective set, with hysteresis.",
            Query(total(MODEL, series("speculation_advised")), "{{model_name}}"),
            width=8,
        ),
    ]


def _sequences() -> list[Panel]:
    seats = series("saturation_ratio", 'resource="seats"')
    max_num_seqs = f"{series('running_requests')} / ignoring (resource) ({seats} > 0)"
    return [
        chart(
            "Running sequences against the preemption point",
            "Past the point the cache is full and requests are preempted. max_num_seqs above it admits more than fit.",
            Query(worst(MODEL, series("running_requests")), "running {{model_name}}"),
            Query(aggregate("min", MODEL, series("kv_preemption_point_sequences")), "preemption point {{model_name}}"),
            Query(worst(MODEL, max_num_seqs), "max_num_seqs {{model_name}}"),
            alerts=("VLLMMaxNumSeqsPastPreemptionPoint", "VLLMPreemptions"),
        ),
        chart(
            "Sequences that still fit",
            "Of the fullest engine.",
            Query(aggregate("min", MODEL, series("kv_headroom_sequences")), "{{model_name}}"),
            alerts=("VLLMPreemptions",),
        ),
        chart(
            "KV cache in use, over time",
            "Median and p99 of the seconds at each level, of all engines.",
            Query(quantile(0.5, "kv_usage_ratio_time", MODEL), "p50 {{model_name}}"),
            Query(quantile(0.99, "kv_usage_ratio_time", MODEL), "p99 {{model_name}}"),
            unit="percentunit",
            ceiling=1,
            alerts=("VLLMKVCachePinned",),
        ),
    ]


def _gpus() -> list[Panel]:
    chosen = '{namespace=~"$namespace|", pod=~"$pod|"}'
    return [
        chart(
            "GPU utilisation",
            "From NVIDIA's DCGM exporter, if Prometheus scrapes one; the sidecar does not measure GPUs. Share of time "
            "with any kernel running, so near 100 % for a busy engine of any batch.",
            Query(f"DCGM_FI_DEV_GPU_UTIL{chosen} / 100", "{{pod}} GPU {{gpu}}"),
            unit="percentunit",
            ceiling=1,
            width=24,
            empty="No DCGM series in this Prometheus",
        ),
    ]
