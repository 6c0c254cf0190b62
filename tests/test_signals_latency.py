"""Latency: histograms, quantiles and their bounds, the queue's and the prefill's part, causes, objectives. By hand."""

import math

import pytest

from exporter.schema import Slo, TargetConfig
from tests.bodies import Body, Fed, over

TTFT, ITL = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
TPOT, E2E = "vllm:request_time_per_output_token_seconds", "vllm:e2e_request_latency_seconds"


# Histograms and quantiles


@pytest.mark.parametrize(
    ("metric", "series"),
    [
        ("time_to_first_token_seconds", TTFT),
        ("inter_token_latency_seconds", ITL),
        ("time_per_output_token_seconds", TPOT),
        ("e2e_seconds", E2E),
    ],
)
def test_a_histogram_counts_from_the_first_scrape(metric, series):
    """5 observations of before do not count; of 3 since the highest is above every finite edge."""
    pipeline, body = Fed(), Body().process().observe(series, 0.01, times=5)
    pipeline.scrape(0, body)
    pipeline.scrape(2, body.observe(series, 0.25, 0.45, 1e5))

    assert pipeline.get(f"{metric}_bucket", le="+Inf") == pipeline.get(f"{metric}_count") == 3
    assert pipeline.get(f"{metric}_sum") == pytest.approx(0.7 + 1e5)


def test_a_histogram_has_the_engines_edges():
    """Read from the scrape: cumulative counts at each of them."""
    pipeline = over(15, lambda b: b.first_tokens(0.25, 0.45, 3.0))
    buckets = {
        dict(labels)["le"]: value
        for (name, labels), value in pipeline.shown().items()
        if name == "time_to_first_token_seconds_bucket"
    }

    assert buckets == {"0.1": 0, "0.5": 2, "1.0": 2, "2.5": 2, "5.0": 3, "10.0": 3, "+Inf": 3}


def test_a_quantile_over_a_window():
    """TTFT in the minute: 5 in (0.1, 0.5], 5 in (0.5, 1.0]. p50 is 0.5, p90 the 4th of 5 in the second: 0.9."""
    pipeline = over(60, lambda b: b.first_tokens(0.3, 0.8, times=5))

    assert pipeline.get("latency_quantile_seconds", latency="ttft", q="0.5", window="1m") == pytest.approx(0.5)
    assert pipeline.get("latency_quantile_seconds", latency="ttft", q="0.9") == pytest.approx(0.9)
    assert pipeline.get("latency_quantile_bounded") is None


def test_a_quantile_forgets_what_left_its_window():
    """Slow requests an hour ago are no latency of now: lifetime buckets would say 5 s."""
    pipeline = over(60, lambda b: b.first_tokens(5.0, times=1000), lambda b: b.first_tokens(0.3, times=2))

    assert pipeline.get("latency_quantile_seconds", latency="ttft", q="0.99") < 0.5


@pytest.mark.parametrize(
    ("seconds", "value", "bounded"),
    [(0.004, 0.0099, 1), (0.02, 0.02485, None), (3.0, 0.5, 1)],
    ids=["below the first edge", "inside", "above the last"],
)
def test_a_quantile_that_is_only_a_bound_is_flagged(seconds, value, bounded):
    """ITL's first edge is 10 ms: 4 ms reads up to 9.9. Its last here is 0.5 s: 3 s reads 0.5."""
    pipeline = over(60, lambda b: b.observe(ITL, seconds, times=100))

    assert pipeline.get("latency_quantile_seconds", latency="itl", q="0.99") == pytest.approx(value)
    assert pipeline.get("latency_quantile_bounded", latency="itl", q="0.99", window="1m") == bounded


def test_quantiles_are_absent_without_observations():
    """0/0; and a V0 engine has no TPOT histogram at all."""
    assert over(60, lambda b: b.tokens(generated=1)).get("latency_quantile_seconds") is None


def test_the_gap_between_tokens_is_not_the_time_per_token():
    """3 tokens a step of 60 ms, speculated: a gap of 60 ms and 20 ms a token. Each has its own name."""
    pipeline = over(60, lambda b: b.observe(ITL, 0.06, times=100).observe(TPOT, 0.02, times=10))

    assert 0.05 < pipeline.get("latency_quantile_seconds", latency="itl", q="0.5") <= 0.1
    assert 0.01 < pipeline.get("latency_quantile_seconds", latency="tpot", q="0.5") <= 0.025


# Where the time to first token goes


def test_the_queues_part_of_ttft():
    """20 wait at each of three scrapes, 30 first tokens in 15 s are 2/s: 10 s of queue, 2 of the mean 12 s left."""
    pipeline = over(5, *[lambda b: b.waiting(20).first_tokens(12.0, times=10)] * 3)

    assert pipeline.get("ttft_queue_seconds") == pytest.approx(10)
    assert pipeline.get("ttft_prefill_seconds") == pytest.approx(2)


def test_the_parts_of_ttft_are_absent_without_first_tokens():
    """Mean waiting over 0 a second is not infinity."""
    pipeline = over(5, *[lambda b: b.waiting(20)] * 3)

    assert pipeline.get("ttft_queue_seconds") is None
    assert pipeline.get("ttft_prefill_seconds") is None


def test_the_prefill_part_is_absent_where_the_sum_cannot_be_true():
    """A mean of minus the uptime is no latency."""
    pipeline = over(5, *[lambda b: b.waiting(1).first_tokens(0.2, -1e6)] * 3)

    assert pipeline.get("ttft_queue_seconds") is not None
    assert pipeline.get("ttft_prefill_seconds") is None


def causes(pipeline):
    return {cause: pipeline.get("latency_cause", cause=cause) for cause in ("queue", "prefill", "batch", "preemption")}


def test_cause_queue():
    """All TTFTs are 9 s of 2.5 allowed, and 20 waiting over 2/s is 10 s of queue: the queue. ITL is fine."""
    pipeline = over(5, *[lambda b: b.waiting(20).first_tokens(9.0, times=10).decode(2, steps=10)] * 3)

    assert causes(pipeline) == {"queue": 1, "prefill": 0, "batch": 0, "preemption": 0}


def test_cause_prefill():
    """The same TTFTs with an empty queue."""
    pipeline = over(5, *[lambda b: b.first_tokens(9.0, times=10).decode(2, steps=10)] * 3)

    assert causes(pipeline) == {"queue": 0, "prefill": 1, "batch": 0, "preemption": 0}


def test_cause_batch():
    """TTFT is fine, every gap is 0.3 s of 0.2 allowed: too many share a step."""
    pipeline = over(5, *[lambda b: b.first_tokens(0.2, times=10).decode(50, steps=10, step_seconds=0.3)] * 3)

    assert causes(pipeline) == {"queue": 0, "prefill": 0, "batch": 1, "preemption": 0}


def test_cause_preemption_is_on_both():
    """Both objectives missed and a preemption for each tenth arrival."""
    pipeline = over(
        5,
        *[
            lambda b: (
                b.waiting(20)
                .first_tokens(9.0, times=10)
                .decode(50, steps=10, step_seconds=0.3)
                .add("vllm:num_preemptions_total", 1)
            )
        ]
        * 3,
    )

    assert causes(pipeline) == {"queue": 1, "prefill": 0, "batch": 0, "preemption": 1}


def test_no_cause_within_the_objective_and_none_known_without_traffic():
    """1 of 200 late is within 1 %. Without requests nothing is judged: absent, not 0."""
    fine = over(15, lambda b: b.first_tokens(0.2, times=199).first_tokens(9.0).decode(2, steps=10))
    idle = over(15, lambda b: b)

    assert causes(fine) == {"queue": 0, "prefill": 0, "batch": 0, "preemption": 0}
    assert causes(idle) == dict.fromkeys(("queue", "prefill", "batch", "preemption"))


# Objectives


def test_slo_events_and_misses():
    """10 TTFTs, 2 above 2.5 s; 4 TPOTs, 1 above 0.1; 100 gaps, none above 0.2. Those of before do not count."""
    pipeline, body = Fed(), Body().process().first_tokens(9.0, times=50)
    pipeline.scrape(0, body)
    body.first_tokens(0.2, times=8).first_tokens(9.0, times=2)
    body.observe(TPOT, 0.02, times=3).observe(TPOT, 0.3).observe(ITL, 0.02, times=100)
    pipeline.scrape(2, body)

    assert pipeline.get("slo_events_total", slo="ttft", threshold="2.5") == 10
    assert pipeline.get("slo_misses_total", slo="ttft", threshold="2.5") == 2
    assert pipeline.get("slo_events_total", slo="tpot", threshold="0.1") == 4
    assert pipeline.get("slo_misses_total", slo="tpot", threshold="0.1") == 1
    assert pipeline.get("slo_events_total", slo="itl", threshold="0.2") == 100
    assert pipeline.get("slo_misses_total", slo="itl", threshold="0.2") == 0
    assert pipeline.get("slo_objective_ratio", slo="ttft") == 0.99


def test_a_threshold_between_edges_is_judged_at_the_edge_below_and_says_so():
    """3.0 s lies between 2.5 and 5: judged at 2.5, which the label says. 3.5 s is then a miss."""
    config = TargetConfig(slo=Slo(ttft_seconds=3.0))
    pipeline = over(15, lambda b: b.first_tokens(3.5), config=config)

    assert pipeline.get("slo_misses_total", slo="ttft", threshold="2.5") == 1
    assert pipeline.get("slo_misses_total", threshold="3") is None


@pytest.mark.parametrize("threshold", [0.05, None], ids=["below the first edge", "switched off"])
def test_an_objective_that_cannot_be_judged_is_absent(threshold):
    """Not 0 misses."""
    config = TargetConfig(slo=Slo(ttft_seconds=threshold))
    pipeline = over(15, lambda b: b.first_tokens(3.5), config=config)

    for metric in ("slo_events_total", "slo_misses_total", "slo_objective_ratio"):
        assert pipeline.get(metric, slo="ttft") is None
        assert pipeline.get(metric, slo="itl") is not None


def test_a_changed_threshold_starts_a_new_series():
    """So that the old counter does not jump."""
    pipeline = over(15, lambda b: b.first_tokens(0.7, 3.5, 7.0))
    pipeline.pipeline.config = TargetConfig(slo=Slo(ttft_seconds=5.0))

    assert pipeline.get("slo_misses_total", slo="ttft", threshold="5") == 1
    assert pipeline.get("slo_misses_total", slo="ttft", threshold="2.5") is None


def test_no_quantile_is_infinite():
    """An engine whose buckets are all one: nothing can be said."""
    body = Body(bare=True).set("vllm:num_requests_running", 1).process()
    pipeline = over(60, lambda b: b.observe(TTFT, 1.0, edges=(math.inf,)), body=body)

    assert pipeline.get("latency_quantile_seconds") is None
    assert all(math.isfinite(value) for value in pipeline.shown().values())
