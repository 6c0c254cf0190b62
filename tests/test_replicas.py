"""Advice on replicas: the worked case, and how it is held steady. Time is a value."""

import pytest

from exporter.engine_schema import Replicas
from exporter.replicas import Advice, Demand, Fleet, exact
from exporter.schema import TargetConfig
from tests.bodies import Body, Fed

SETTINGS = Replicas()


def demand(arrivals, replicas=1, waiting=0.0, output=500.0, rate=6000.0):
    return Demand(replicas, arrivals, output, waiting, rate)


def test_thirty_requests_of_500_tokens_at_6000_a_second_and_seven_tenths_are_four():
    """30 x 500 = 15,000 tokens/s over 6,000 x 0.7 = 4,200 is 3.57, so 4."""
    advice = Advice()
    advice.observe(demand(30), SETTINGS, 0.0)
    assert exact(demand(30), SETTINGS) == pytest.approx(3.5714, rel=1e-4)
    assert advice.replicas == 4


def test_a_queue_that_would_take_longer_than_30_seconds_wants_more_than_the_arrivals():
    """1,080 waiting x 500 = 540,000 tokens over 6,000 x 30 s = 180,000 is 3; 10 requests/s alone would be 1.19."""
    assert exact(demand(10, waiting=1080), SETTINGS) == pytest.approx(3.0)


def test_not_known_without_a_rate_or_without_a_length():
    assert exact(demand(30, rate=None), SETTINGS) is None
    assert exact(demand(30, output=None), SETTINGS) is None
    advice = Advice()
    advice.observe(demand(30, rate=None), SETTINGS, 0.0)
    assert advice.replicas is None


def test_more_at_once_then_not_again_for_60_seconds():
    advice = Advice()
    advice.observe(demand(30), SETTINGS, 0.0)
    advice.observe(demand(60), SETTINGS, 59.0)
    assert advice.replicas == 4
    advice.observe(demand(60), SETTINGS, 60.0)
    assert advice.replicas == 8  # 30,000 / 4,200 = 7.14


def test_a_little_over_raises_nothing():
    """8.5 requests/s are 1.012 replicas."""
    advice = Advice()
    advice.observe(demand(8), SETTINGS, 0.0)
    advice.observe(demand(8.5), SETTINGS, 100.0)
    assert advice.replicas == 1


def test_fewer_only_after_120_seconds_under_half_of_capacity_and_one_at_a_time():
    """4 replicas make 24,000 tokens/s; 10 requests/s are 5,000 of them, and want 2."""
    advice = Advice()
    advice.observe(demand(30), SETTINGS, 0.0)
    seen = []
    for at in range(10, 500, 10):
        advice.observe(demand(10, replicas=4), SETTINGS, float(at))
        seen.append((at, advice.replicas))
    assert [at for (at, now), (_, before) in zip(seen[1:], seen, strict=False) if now != before] == [130, 260]
    assert advice.replicas == 2


def test_a_moment_over_half_begins_the_wait_again():
    advice = Advice()
    advice.observe(demand(30), SETTINGS, 0.0)
    for at, arrivals in ((10, 10), (100, 30), (110, 10), (220, 10)):
        advice.observe(demand(arrivals), SETTINGS, float(at))
    assert advice.replicas == 4
    advice.observe(demand(10), SETTINGS, 230.0)
    assert advice.replicas == 3


def test_between_minimum_and_maximum():
    advice = Advice()
    advice.observe(demand(3000), Replicas(maximum=6), 0.0)
    assert advice.replicas == 6
    advice.observe(demand(0), Replicas(minimum=7, maximum=9), 100.0)
    assert advice.replicas == 7


def test_it_does_not_begin_below_what_runs():
    advice = Advice()
    advice.observe(demand(1, replicas=5), SETTINGS, 0.0)
    assert advice.replicas == 5


def test_the_rate_is_what_an_engine_made_while_requests_waited():
    """An engine of 100 sequences, 50 steps a second: 5,000 tokens/s; 20 requests/s of 250 tokens, and a queue."""
    pipeline = Fed(TargetConfig(model_name="named"))
    body = Body().process()
    for second in range(0, 40, 2):
        pipeline.scrape(second, body)
        body.running(100).waiting(40).decode(100, 100).first_tokens(2.0, times=40).finish(times=40)
        body.observe("vllm:request_generation_tokens", 250.0, times=40, edges=(100.0, 1000.0, float("inf")))
    fleet = Fleet()
    fleet.observe([pipeline.view()], SETTINGS, 0.0)
    advice = fleet.advice["named"]
    assert advice.tokens_per_second == pytest.approx(5000)
    assert advice.output_tokens == pytest.approx(250)
    # Arrivals: 20 a second x 250 = 5,000 over 5,000 x 0.7 = 1.43.
    assert fleet.desired() == {"named": 2}
    fleet.observe([], SETTINGS, 10.0)
    assert fleet.desired() == {}
