"""An engine that does everything, so that every metric of the catalogue is shown."""

from exporter.schema import TargetConfig
from tests.bodies import Body, Fed

PRICED = TargetConfig(
    gpu_hour_dollars=2.0,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
    hardware={"profile": "h100-sxm"},
    model={"total_params": 8e9, "layers": 32, "kv_heads": 8, "head_dim": 128},
    baseline={"busy_dollars_per_million_output_tokens": 2.0},
)


def busy_engine(config: TargetConfig = PRICED) -> Fed:
    """Two minutes of an engine that speculates, preempts, queues and rejects, with a client that left.

    One required series of its is missing.
    """
    pipeline = Fed(config)
    body = Body().process().http(0).drop("vllm:prefix_cache_queries_total").running(8)
    body.set("vllm:engine_sleep_state", 1, sleep_state="awake").own(
        "vllm:admission_rejections_total", 0, model_name="m", reason="max_num_queued_reqs"
    )
    body.own("vllm:cache_config_info", 1, engine="0", kv_cache_size_tokens=100_000)
    for name in ("failed_transfers", "kv_expired_reqs"):
        body.set(f"vllm:nixl_num_{name}_total", 0)
    for reason in ("capacity", "deferred"):
        body.set("vllm:num_requests_waiting_by_reason", 0, reason=reason)
    for at in range(0, 122, 2):
        pipeline.scrape(at, body)
        body.first_tokens(0.05, 3.0, times=2).finish(times=3).http(2 * at)
        body.waiting(3).set("vllm:num_requests_waiting_by_reason", 3, reason="capacity")
        body.decode(8, steps=50).tokens(prompt=400).set("vllm:kv_cache_usage_perc", 0.5 + at / 1000)
        for name, value in {"flops": 2e14, "read_bytes": 2e12, "write_bytes": 1e10}.items():
            body.add(f"vllm:estimated_{name}_per_gpu_total", value)
        body.add("vllm:num_preemptions_total", 1)
        body.add("vllm:prompt_tokens_by_source_total", 300, source="local_compute")
        body.add("vllm:prompt_tokens_cached_total", 100)
        for name, value in {"drafts": 400, "draft_tokens": 1600, "accepted_tokens": 900}.items():
            body.add(f"vllm:spec_decode_num_{name}_total", value)
        body.observe("vllm:request_time_per_output_token_seconds", 0.02, times=3)
        body.observe("vllm:e2e_request_latency_seconds", 4.0, times=3)
        body.observe("vllm:request_prefill_time_seconds", 0.2, times=3)
        body.own("vllm:admission_rejections_total", at, model_name="m", reason="max_num_queued_reqs")
    return pipeline
