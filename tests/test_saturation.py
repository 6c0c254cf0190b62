"""How near each resource is to its limit, and how many requests meet both latency objectives."""

import pytest

from tests.live import FOUR_H100, busy, engine, fed, steps


def saturation(body, second, running=16, seconds=30, **settings):
    """saturation_ratio by resource."""
    one = busy(fed(**settings), body, seconds, second, running)
    return {
        dict(labels)["resource"]: value for (name, labels), value in one.shown().items() if name == "saturation_ratio"
    }


def test_kv_and_seats():
    """40 % of the blocks, 16 of 64 seats."""
    found = saturation(
        engine().set("vllm:kv_cache_usage_perc", 0.4),
        lambda body: steps(body, 10, sequences=16),
        max_num_seqs=64,
    )

    assert found["kv"] == 0.4
    assert found["seats"] == 0.25


def test_compute_is_positions_against_the_ceiling():
    """10 steps of 16 + 578 positions are 5,940 a second of 11,868."""
    found = saturation(engine(), lambda body: steps(body, 10, sequences=16, prefill=578), **FOUR_H100)

    assert found["compute"] == pytest.approx(5940 / 11_868)


def test_bandwidth_is_weights_and_kv_once_a_step():
    """140 GB + 0.5 x 100,000 x 163,840 B = 148.2 GB, 30 times a second, of 4 x 3.35 TB/s x 0.68 = 9.112 TB/s."""
    found = saturation(
        engine(capacity_tokens=100_000).set("vllm:kv_cache_usage_perc", 0.5),
        lambda body: steps(body, 30, sequences=16),
        **FOUR_H100,
    )

    assert found["bandwidth"] == pytest.approx(30 * 148.192e9 / 9.112e12, rel=1e-6)


def test_bandwidth_as_counted_where_vllm_counts():
    """1.139 of 3.35 TB/s on each GPU is 0.34: half of the ceiling of 0.68."""

    def second(body):
        steps(body, 30, sequences=16).add("vllm:estimated_read_bytes_per_gpu_total", 1.139e12)
        body.add("vllm:estimated_write_bytes_per_gpu_total", 0)

    assert saturation(engine(), second, **FOUR_H100)["bandwidth"] == pytest.approx(0.5)


def test_queue_is_the_predicted_ttft_over_its_objective():
    """12 wait while 4 a second get a first token after 3 s of queue: 3 s more than once the objective of 2.5 s."""

    def second(body):
        steps(body.waiting(12), 10, sequences=4).first_tokens(3.0, times=4)

    assert saturation(engine(), second, seconds=70)["queue"] == pytest.approx(3.0 / 2.5)


def test_past_twice_the_limit_it_says_two():
    """An autoscaler needs no more, and infinity breaks it."""

    def second(body):
        steps(body.waiting(400), 10, sequences=4).first_tokens(100.0, times=4)

    assert saturation(engine(), second, seconds=70)["queue"] == 2.0


def test_what_is_not_known_is_absent():
    """No hardware, no model, no max_num_seqs, no step: only KV usage is left."""
    assert saturation(engine(), lambda body: body, running=0) == {"kv": 0.0}


# Goodput


def goodput(second, **settings):
    one = busy(fed(slo={"ttft_seconds": 1.0, "tpot_seconds": 0.05, **settings}), engine(), 70, second)
    return {dict(labels)["bound"]: value for (name, labels), value in one.shown().items() if name == "goodput_ratio"}


def finishing(body, ttft, tpot):
    """Ten requests a second: so many meet their TTFT, so many their TPOT."""
    body.first_tokens(0.3, times=ttft).first_tokens(4.0, times=10 - ttft)
    name = "vllm:request_time_per_output_token_seconds"
    body.observe(name, 0.03, times=tpot).observe(name, 0.3, times=10 - tpot).finish(times=10)


def test_goodput_bounds():
    """0.9 meet TTFT, 0.7 TPOT: both at least 0.6, where the misses fall on different requests, and at most 0.7."""
    found = goodput(lambda body: finishing(body, 9, 7))

    assert found == {"lower": pytest.approx(0.6), "upper": pytest.approx(0.7)}


def test_goodput_is_never_below_nothing():
    """0.3 and 0.4: perhaps nobody meets both."""
    assert goodput(lambda body: finishing(body, 3, 4)) == {"lower": 0.0, "upper": pytest.approx(0.3)}


def test_a_threshold_between_two_edges_widens_the_bounds():
    """0.8 s lies between the edges 0.5 and 1.0: the 0.2 of requests in there may or may not meet it."""

    def second(body):
        body.first_tokens(0.3, times=7).first_tokens(0.7, times=2).first_tokens(4.0, times=1)
        body.observe("vllm:request_time_per_output_token_seconds", 0.03, times=10)

    assert goodput(second, ttft_seconds=0.8) == {"lower": pytest.approx(0.7), "upper": pytest.approx(0.9)}


def test_a_threshold_below_the_first_edge_bounds_from_above_only():
    """At 10 ms nothing can be shown to meet it; what lies above 100 ms certainly does not."""

    def second(body):
        body.first_tokens(0.05, times=4).first_tokens(4.0, times=6)
        body.observe("vllm:request_time_per_output_token_seconds", 0.03, times=10)

    assert goodput(second, ttft_seconds=0.01) == {"lower": 0.0, "upper": pytest.approx(0.4)}


def test_one_objective_switched_off_leaves_the_other():
    assert goodput(lambda body: finishing(body, 9, 7), tpot_seconds=None) == {
        "lower": pytest.approx(0.9),
        "upper": pytest.approx(0.9),
    }


@pytest.mark.parametrize("off", [{"ttft_seconds": None, "tpot_seconds": None}, {}], ids=["no objective", "no requests"])
def test_no_objective_or_no_requests(off):
    """Nothing to judge by, or nothing to judge."""
    second = (lambda body: finishing(body, 9, 7)) if off else (lambda body: body)

    assert goodput(second, **off) == {}
