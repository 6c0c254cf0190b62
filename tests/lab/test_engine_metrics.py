"""What a simulated engine exposes, against real scrapes of vLLM 0.32, and what is observed when."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from exporter.exposition import Scraped
from exporter.lab.arrivals import Pattern, arrivals
from exporter.lab.engine import Engine
from exporter.lab.engine_metrics import EngineCollector, registry
from exporter.lab.http_metrics import HttpMetrics
from exporter.lab.observations import token_buckets
from exporter.lab.profiles import PROFILES, Speculation
from exporter.lab.scheduler import Parent, Request
from exporter.lab.virtual import run
from tests.recordings import entries

TINY = replace(PROFILES["demo"], max_model_len=4096)
ONE_STEP = 0.02
"""Seconds of a step that does little in the demo profile."""


def server(engines: list[Engine], *, multiprocess: bool = False) -> tuple[CollectorRegistry, HttpMetrics]:
    http = HttpMetrics(created=1.0, multiprocess=multiprocess)
    return registry(EngineCollector(engines, created=1.0, multiprocess=multiprocess), http, 1.0), http


def scrape(recording: str, when: str) -> str:
    """The first or last body of a recording of a real vLLM 0.32.0."""
    good = [entry.outcome.body for entry in entries(recording) if isinstance(entry.outcome, Scraped)]
    return good[{"first": 0, "last": -1}[when]].decode()


def shape(body: str) -> set[object]:
    """HELP and TYPE lines, and every sample's name, label names and values; values that differ by nature aside."""
    found: set[object] = {line for line in body.splitlines() if line.startswith("#")}
    for family in text_string_to_metric_families(body):
        for sample in family.samples:
            if sample.name == "vllm:cache_config_info":
                found.add((sample.name, tuple(sorted(sample.labels)), sample.labels["engine"]))
            elif not sample.name.startswith("python_"):
                found.add((sample.name, tuple(sorted(sample.labels.items()))))
    return found


@pytest.mark.parametrize("when", ["first", "last"])
@pytest.mark.parametrize(
    ("recording", "engines", "speculation"),
    [("burst", 1, None), ("spec", 1, Speculation(4, 0.8)), ("dp", 2, None)],
)
def test_the_exposition_is_that_of_vllm(
    recording: str, engines: int, speculation: Speculation | None, when: str
) -> None:
    """Names, HELP, TYPE, labels and buckets are the same, before the first request and after the last."""
    real = scrape(recording, when)
    simulated = [Engine(replace(TINY, speculation=speculation), model_name="tiny", index=i) for i in range(engines)]
    found, http = server(simulated, multiprocess=recording == "dp")
    if when == "last":
        for engine in simulated:
            serve(engine, [request(1)])
        http.response_ended("/v1/completions", "POST", 200, seconds=1.0, request_bytes=1, response_bytes=0)
    assert shape(generate_latest(found).decode()) == shape(real)


@pytest.mark.parametrize("recording", ["burst", "spec"])
def test_families_come_in_vllms_order(recording: str) -> None:
    real = scrape(recording, "last")
    speculation = Speculation(4, 0.8) if recording == "spec" else None
    found, http = server([Engine(replace(TINY, speculation=speculation), model_name="tiny")])
    http.response_ended("/v1/completions", "POST", 200, seconds=1.0, request_bytes=1, response_bytes=0)
    assert families(generate_latest(found).decode()) == families(real)


def families(body: str) -> list[str]:
    return [line for line in body.splitlines() if line.startswith("# TYPE")]


def request(number: int, prompt: int = 20, output: int = 3, **fields: object) -> Request:
    return Request(number, 0.0, prompt, output, **fields)


def serve(engine: Engine, requests: list[Request], now: float = 0.0) -> float:
    for each in requests:
        engine.submit(each)
    while (end := engine.begin(now)) is not None:
        engine.finish()
        now = end
    return now


def values(engine: Engine, **kinds: bool) -> CollectorRegistry:
    return server([engine], **kinds)[0]


def read(engine: Engine, name: str, **labels: str) -> float | None:
    return values(engine).get_sample_value(name, {"engine": "0", "model_name": "simulated", **labels})


def step(engine: Engine, now: float) -> float:
    end = engine.begin(now)
    assert end is not None
    engine.finish()
    return end


def test_a_chunked_prompt_counts_at_its_first_output() -> None:
    """1,000 tokens in chunks of 512 and 488: nothing after one step, everything after two; the first message holds
    1,000 computed tokens and one new one."""
    engine = Engine(TINY)
    engine.submit(request(1, prompt=1000))
    now = step(engine, 0.0)
    assert read(engine, "vllm:prompt_tokens_total") == 0
    assert read(engine, "vllm:iteration_tokens_total_count") == 0
    assert read(engine, "vllm:num_requests_running") == 1
    step(engine, now)
    assert read(engine, "vllm:prompt_tokens_total") == 1000
    assert read(engine, "vllm:iteration_tokens_total_count") == 1
    assert read(engine, "vllm:iteration_tokens_total_sum") == 1001
    assert read(engine, "vllm:time_to_first_token_seconds_sum") == pytest.approx((512 + 488) / 4000)


def test_the_gap_is_counted_once_a_request_and_step_under_speculation_too() -> None:
    """Four requests of 1 + 4 x 5 tokens at gamma 4 and certain acceptance: 4 steps of 4 gaps, not 80."""
    engine = Engine(replace(TINY, speculation=Speculation(4, 1.0)))
    serve(engine, [request(number, output=21) for number in range(4)])
    assert read(engine, "vllm:inter_token_latency_seconds_count") == 16
    assert read(engine, "vllm:generation_tokens_total") == 84
    assert read(engine, "vllm:spec_decode_num_drafts_total") == 16
    assert read(engine, "vllm:spec_decode_num_accepted_tokens_per_pos_total", position="3") == 16


def test_the_sum_of_gaps_is_the_time_between_first_and_last_output() -> None:
    """Little's law telescopes: three tokens are two gaps of one step each."""
    engine = Engine(TINY)
    serve(engine, [request(1)])
    assert read(engine, "vllm:inter_token_latency_seconds_sum") == pytest.approx(2 * ONE_STEP)
    assert read(engine, "vllm:request_decode_time_seconds_sum") == pytest.approx(2 * ONE_STEP)
    assert read(engine, "vllm:request_time_per_output_token_seconds_sum") == pytest.approx(ONE_STEP)


def test_finish_histograms_move_together_and_only_at_the_end() -> None:
    names = [
        *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"),
        *("request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens"),
        *("request_generation_tokens", "request_num_preemptions", "request_prefill_kv_computed_tokens"),
    ]
    engine = Engine(TINY)
    engine.submit(request(1))
    step(engine, 0.0)
    assert {read(engine, f"vllm:{name}_count") for name in names} == {0}
    serve(engine, [], ONE_STEP)
    assert {read(engine, f"vllm:{name}_count") for name in names} == {1}
    assert read(engine, "vllm:request_success_total", finished_reason="length") == 1


def totals(body: str) -> dict[str, float]:
    """Sums over labels but `le`, by sample name."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(body):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


@pytest.mark.parametrize("source", ["burst", "dp", "simulated"])
def test_counts_and_sums_are_related_as_on_a_real_engine(source: str) -> None:
    """After every request has finished, through preemptions, without speculation."""
    if source == "simulated":
        engine = Engine(replace(TINY, kv_tokens=6000))
        plan = arrivals(Pattern(3.0), 60, seed=2, longest=2000)
        run([engine], [Request(i, each.at, each.prompt_tokens, each.output_tokens) for i, each in enumerate(plan)])
        assert engine.truth.preemptions
        body = generate_latest(server([engine])[0]).decode()
    else:
        body = scrape(source, "last")
    found = totals(body)
    first, generated = found["vllm:time_to_first_token_seconds_count"], found["vllm:generation_tokens_total"]
    finishes = (
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prompt_tokens",
        "request_params_n",
    )
    assert {found[f"vllm:{name}_count"] for name in finishes} == {found["vllm:request_success_total"]} == {first}
    assert found["vllm:inter_token_latency_seconds_count"] == generated - first
    computed = found["vllm:prompt_tokens_total"] - found["vllm:prompt_tokens_cached_total"]
    assert found["vllm:iteration_tokens_total_sum"] == computed + generated
    assert found["vllm:prompt_tokens_by_source_total"] == found["vllm:prompt_tokens_total"]
    assert found["vllm:prefix_cache_queries_total"] == found["vllm:prompt_tokens_total"]
    assert found["vllm:request_num_preemptions_sum"] == found["vllm:num_preemptions_total"]
    decode, prefill = found["vllm:request_decode_time_seconds_sum"], found["vllm:request_prefill_time_seconds_sum"]
    assert found["vllm:request_inference_time_seconds_sum"] == pytest.approx(prefill + decode)
    assert found["vllm:inter_token_latency_seconds_sum"] == pytest.approx(decode)


def test_a_client_that_leaves_is_invisible() -> None:
    """Neither a finish nor an abort is counted; the gauge returns to 0; its tokens so far stay."""
    engine = Engine(TINY)
    leaver = request(1)
    engine.submit(leaver)
    now = step(engine, 0.0)
    engine.abort(leaver, now)
    assert engine.begin(now) is None
    assert read(engine, "vllm:num_requests_running") == 0
    assert read(engine, "vllm:e2e_request_latency_seconds_count") == 0
    assert {read(engine, "vllm:request_success_total", finished_reason=why) for why in ("length", "abort")} == {0}
    assert read(engine, "vllm:generation_tokens_total") == 1
    assert len(engine.truth.abandoned) == 1


def test_an_engine_that_aborts_its_requests_says_so() -> None:
    engine = Engine(TINY)
    engine.submit(request(1))
    now = step(engine, 0.0)
    engine.abort_all(now)
    assert read(engine, "vllm:request_success_total", finished_reason="abort") == 1
    assert read(engine, "vllm:e2e_request_latency_seconds_count") == 1


def preempting() -> tuple[Engine, Request, Request, float]:
    """Two requests that fill a cache of 40 blocks; the next step preempts the second."""
    engine = Engine(replace(TINY, kv_tokens=41 * 16, max_num_batched_tokens=1024))
    first, second = request(1, prompt=304, output=20), request(2, prompt=304, output=20)
    engine.submit(first)
    engine.submit(second)
    now = 0.0
    for _ in range(18):
        now = step(engine, now)
    assert len(engine.truth.preemptions) == 1
    return engine, first, second, now


def test_a_preemption_is_reported_with_the_next_output() -> None:
    """Nothing until the second request has been resumed; then the wait is one long gap, and its prompt counts once."""
    engine, _first, second, now = preempting()
    assert read(engine, "vllm:num_preemptions_total") == 0
    assert read(engine, "vllm:num_requests_waiting") == 1
    serve(engine, [], now)
    assert read(engine, "vllm:num_preemptions_total") == 1
    assert read(engine, "vllm:request_num_preemptions_sum") == 1
    assert read(engine, "vllm:prompt_tokens_total") == 608
    assert read(engine, "vllm:prefix_cache_queries_total") == 608
    assert read(engine, "vllm:inter_token_latency_seconds_count") == 38
    assert second.preemptions == 1


def test_a_preemption_whose_client_leaves_first_is_never_reported() -> None:
    engine, _first, second, now = preempting()
    engine.abort(second, now)
    serve(engine, [], now)
    assert len(engine.truth.preemptions) == 1
    assert read(engine, "vllm:num_preemptions_total") == 0


def test_cached_prompt_tokens_are_told_from_computed_ones() -> None:
    """320 tokens seen before: 304 hit, 16 computed; queries count both prompts."""
    engine = Engine(TINY)
    for number in (1, 2):
        serve(engine, [request(number, prompt=320, prefix_keys=tuple(range(20)))])
    assert read(engine, "vllm:prefix_cache_queries_total") == 640
    assert read(engine, "vllm:prefix_cache_hits_total") == 304
    assert read(engine, "vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 304
    assert read(engine, "vllm:prompt_tokens_by_source_total", source="local_compute") == 336
    assert read(engine, "vllm:prompt_tokens_cached_by_source_total", source="device") == 304
    assert read(engine, "vllm:request_prefill_kv_computed_tokens_sum") == 336


def test_each_api_server_with_outputs_sees_a_message() -> None:
    """Two requests on two API servers: three steps are six messages, and the steps look twice as many."""
    engine = Engine(TINY)
    serve(engine, [request(number, api_server=number) for number in range(2)])
    assert len(engine.truth.steps) == 3
    assert engine.observations.iteration_tokens.count == 6


def test_parallel_samples_count_once_a_parent() -> None:
    """Two sequences of one request: two finishes, one observation of n, the longest of the two."""
    engine = Engine(TINY)
    parent = Parent(n=2, unfinished=2)
    serve(engine, [request(number, output=number, parent=parent) for number in (3, 5)])
    assert read(engine, "vllm:request_generation_tokens_count") == 2
    assert read(engine, "vllm:request_params_n_sum") == 2
    assert read(engine, "vllm:request_params_n_count") == 1
    assert read(engine, "vllm:request_max_num_generation_tokens_sum") == 5


def test_a_request_that_comes_during_a_step_queues_when_the_step_is_over() -> None:
    """It arrived 15 ms into a step of 20 ms: no gauge saw it, its queue time is 0, its TTFT 5 ms + one step."""
    engine = Engine(TINY)
    engine.submit(request(1, output=2))
    end = engine.begin(0.0)
    assert end == ONE_STEP
    late = Request(2, 0.015, 20, 1)
    engine.submit(late)
    engine.finish()
    assert read(engine, "vllm:num_requests_waiting") == 0
    serve(engine, [], end)
    assert late.scheduled == late.queued == end
    assert late.first_token is not None
    assert late.first_token - late.arrival == pytest.approx(0.005 + ONE_STEP)


def test_the_gauges_of_several_api_servers_are_absent_until_the_first_step() -> None:
    engine = Engine(TINY)
    labels = {"engine": "0", "model_name": "simulated"}
    assert values(engine, multiprocess=True).get_sample_value("vllm:kv_cache_usage_perc", labels) is None
    serve(engine, [request(1)])
    assert values(engine, multiprocess=True).get_sample_value("vllm:kv_cache_usage_perc", labels) == 0


def test_block_counts_are_summed_over_the_engines_of_a_server() -> None:
    engines = [Engine(TINY, index=index) for index in range(2)]
    for engine in engines:
        engine.siblings = 2
    body = generate_latest(server(engines)[0]).decode()
    assert body.count(f'num_gpu_blocks="{2 * TINY.blocks}"') == 2
    assert body.count('kv_cache_size_tokens="24000"') == 2


def test_hostile_model_names_are_escaped() -> None:
    engine = Engine(TINY, model_name='org/mo"del\\x,{a="b"} \nz')
    body = generate_latest(server([engine])[0]).decode()
    assert 'vllm:num_requests_running{engine="0",model_name="org/mo\\"del\\\\x,{a=\\"b\\"} \\nz"} 0.0' in body


def test_a_lost_series_and_frozen_gauges() -> None:
    engine = Engine(TINY)
    collector = EngineCollector([engine], created=1.0)
    found = registry(collector, HttpMetrics(created=1.0), 1.0)
    labels = {"engine": "0", "model_name": "simulated"}
    collector.lost.add("vllm:num_preemptions_total")
    collector.freeze_gauges()
    engine.submit(request(1))
    step(engine, 0.0)
    assert found.get_sample_value("vllm:num_preemptions_total", labels) is None
    assert found.get_sample_value("vllm:num_requests_running", labels) == 0
    assert found.get_sample_value("vllm:generation_tokens_total", labels) == 1
    collector.thaw_gauges()
    assert found.get_sample_value("vllm:num_requests_running", labels) == 1


def test_token_buckets_are_one_two_five_up_to_the_models_length() -> None:
    assert token_buckets(4096) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
    assert token_buckets(5000)[-1] == 5000
