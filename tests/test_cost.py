"""Money: dollars by what the GPUs did, per million tokens, requests per dollar. By hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.exposition import Reason
from exporter.schema import Role, TargetConfig
from tests.bodies import Body, Fed

DOLLAR_A_SECOND = TargetConfig(gpu_hour_dollars=3600.0)


def minute(stage, config):
    """A pipeline after a minute with requests running at both ends, in which one thing happened."""
    pipeline, body = Fed(config), Body().process().running(4)
    pipeline.scrape(0, body)
    stage(body)
    pipeline.scrape(60, body)
    return pipeline


def dollars(pipeline):
    return {state: pipeline.get("gpu_cost_dollars_total", state=state) for state in ("busy", "idle", "unavailable")}


@pytest.mark.parametrize(
    ("price", "tokens_per_second", "expected"),
    [(2.0, 100, 5.5556), (5.0, 2000, 0.694), (5.0, 700, 1.984)],
)
def test_dollars_per_million_output_tokens(price, tokens_per_second, expected):
    """$/h over (tokens/s x 3600), times a million: $2 at 100/s is 2 / 360,000 x 1e6 = 5.5556."""
    pipeline = minute(lambda b: b.tokens(generated=60 * tokens_per_second), TargetConfig(gpu_hour_dollars=price))

    assert pipeline.get("cost_dollars_per_million_tokens", basis="output", token_type="output", window="1m") == (
        pytest.approx(expected, abs=5e-4)
    )


def test_basis_all_spreads_the_cost_over_input_too():
    """$2/h, 100 out and 900 in a second: $2 / 3.6e6 tokens is $0.5556 a million, a tenth of the output basis."""
    pipeline = minute(lambda b: b.tokens(generated=6000, prompt=54_000), TargetConfig(gpu_hour_dollars=2.0))

    assert pipeline.get("cost_dollars_per_million_tokens", basis="all") == pytest.approx(0.55556, abs=1e-4)
    assert pipeline.get("cost_dollars_per_million_tokens", basis="output") == pytest.approx(5.5556, abs=1e-4)


def test_both_bases_reconcile_with_the_bill():
    """Price per token times tokens is what was spent in the minute: $2 / 60."""
    pipeline = minute(lambda b: b.tokens(generated=6000, prompt=54_000), TargetConfig(gpu_hour_dollars=2.0))
    output = pipeline.get("cost_dollars_per_million_tokens", basis="output") * 6000 / 1e6
    both = pipeline.get("cost_dollars_per_million_tokens", basis="all") * 60_000 / 1e6

    assert output == pytest.approx(2 / 60)
    assert both == pytest.approx(2 / 60)


def test_two_equal_scrapes_have_no_price():
    """No token, no price per token: absent, not 0, not infinite. The dollars are spent all the same."""
    pipeline = minute(lambda b: b, TargetConfig(gpu_hour_dollars=2.0))

    assert pipeline.get("cost_dollars_per_million_tokens") is None
    assert pipeline.get("busy_cost_dollars_per_million_tokens") is None
    assert pipeline.get("requests_per_dollar", window="1m") == 0
    assert sum(dollars(pipeline).values()) == pytest.approx(2 / 60)


def test_a_prefill_engine_has_no_price_per_token():
    """Its output is KV: price the pool. Of each of 9 requests it makes the one token that it was asked for."""
    baseline = {"busy_dollars_per_million_output_tokens": 1}
    config = TargetConfig(gpu_hour_dollars=2.0, role=Role.PREFILL, baseline=baseline)
    pipeline = minute(lambda b: b.running(1).first_tokens(0.5, times=9).tokens(generated=9, prompt=9000), config)

    assert {name for name, _ in pipeline.shown() if "million" in name or "multiple" in name} == {
        "cost_baseline_dollars_per_million_tokens"
    }


def test_without_a_price_there_is_no_cost_series():
    """Nothing is invented."""
    pipeline = minute(lambda b: b.tokens(generated=6000).finish(times=9), TargetConfig())

    assert [name for name, _ in pipeline.shown() if "dollar" in name] == []


def test_the_price_is_exported():
    assert minute(lambda b: b, TargetConfig(gpu_hour_dollars=2.5)).get("gpu_hour_dollars") == 2.5


def test_requests_per_dollar():
    """30 finished in a minute that cost $2 / 60: 900."""
    pipeline = minute(lambda b: b.finish(times=30), TargetConfig(gpu_hour_dollars=2.0))

    assert pipeline.get("requests_per_dollar", window="1m") == pytest.approx(900)


def test_gpus_of_every_engine_are_billed():
    """Two engines of 4 GPUs at $1 a second each: $8 a second, and the tokens of both share it."""
    config = TargetConfig(gpu_hour_dollars=3600.0, gpus_per_engine=4)
    pipeline = Fed(config)
    one, two = Body(engine="0").running(1), Body(engine="1").running(1)
    pipeline.scrape(0, one, two)
    pipeline.scrape(60, one.tokens(generated=1000), two.tokens(generated=3000))

    assert dollars(pipeline) == pytest.approx({"busy": 480, "idle": 0, "unavailable": 0})
    assert pipeline.get("cost_dollars_per_million_tokens", basis="output") == pytest.approx(480 / 4000 * 1e6)


def test_a_busy_dollar_does_not_move_with_a_lull():
    """30 s busy, 30 s idle, 6,000 tokens: $60 in all and $30 busy."""
    pipeline, body = Fed(DOLLAR_A_SECOND), Body().process().running(4)
    pipeline.scrape(0, body)
    pipeline.scrape(30, body.decode(4, steps=1500))
    pipeline.scrape(32, body.running(0))
    pipeline.scrape(60, body)

    assert pipeline.get("cost_dollars_per_million_tokens", basis="output") == pytest.approx(60 / 6000 * 1e6)
    assert pipeline.get("busy_cost_dollars_per_million_tokens", basis="output") == pytest.approx(30 / 6000 * 1e6)


def short_requests(body, first_token=0.01, gap=0.01):
    """Two requests of 20 tokens, one after the other."""
    body.observe("vllm:iteration_tokens_total", 1.0, times=40)
    body.observe("vllm:inter_token_latency_seconds", gap, times=38)
    return body.first_tokens(first_token, times=2).tokens(generated=40).finish(times=2)


def test_idle_between_short_requests_is_not_busy_because_one_ran_at_each_scrape():
    """Two requests of 0.2 s in each 2 s: 0.4 s towards outputs, and what the one that runs at the scrape has spent
    towards its next, a first token or a gap: 0.02 s more at most. Nothing runs after the last two: 0.4 s.
    """
    pipeline, body = Fed(DOLLAR_A_SECOND), Body().process().running(1)
    for at in range(0, 22, 2):
        pipeline.scrape(at, body)
        short_requests(body)
    running = dollars(pipeline)
    pipeline.scrape(22, body.running(0))

    assert running == pytest.approx({"busy": 10 * 0.42, "idle": 20 - 10 * 0.42, "unavailable": 0})
    assert dollars(pipeline)["busy"] == pytest.approx(10 * 0.42 + 0.4)


def test_a_long_prefill_beside_short_requests_is_busy_throughout():
    """It gives no output for 8 s; the two that come and go beside it in each 2 s were 0.42 s on their way to theirs.
    But three run at each scrape, and two have finished at the next: one of the three has run all the time.
    """
    pipeline, body = Fed(DOLLAR_A_SECOND), Body().process().running(3)
    for at in range(0, 10, 2):
        pipeline.scrape(at, body)
        short_requests(body)

    assert dollars(pipeline) == pytest.approx({"busy": 8, "idle": 0, "unavailable": 0})


def test_steps_whose_gaps_are_counted_later_are_busy():
    """vLLM's Rust frontend counts gaps now and then: steps without as many outputs tell of no idle time."""
    pipeline, body = Fed(DOLLAR_A_SECOND), Body().running(2).first_tokens(0.01, times=2)
    pipeline.scrape(0, body)
    for at in (2, 4, 6):
        pipeline.scrape(at, body.observe("vllm:iteration_tokens_total", 2.0, times=100).tokens(generated=200))
    body.observe("vllm:inter_token_latency_seconds", 0.02, times=600)
    pipeline.scrape(8, body.decode(2, steps=100))

    assert dollars(pipeline) == pytest.approx({"busy": 8, "idle": 0, "unavailable": 0})


def test_dollars_by_state_over_loading_busy_idle_asleep_lost_and_a_restart():
    """A dollar a second over 36 s, each stretch of 2 s by hand; they add up to 36."""
    pipeline, body = Fed(DOLLAR_A_SECOND), Body().process(1.0).set("vllm:engine_sleep_state", 1, sleep_state="awake")
    for at in (2, 4, 6, 8, 10):
        pipeline.fail(at)  # loading: 10 unavailable
    pipeline.scrape(12, body)  # 2 idle
    pipeline.scrape(14, body.running(4))  # nothing ran at its beginning and no step was taken: 2 idle
    for at in (16, 18, 20, 22, 24):
        pipeline.scrape(at, body.decode(4, steps=100))  # running at both ends: 10 busy, 20 ms a step
    pipeline.scrape(26, body.decode(4, steps=50).running(0))  # 50 steps of 20 ms: 1 busy, 1 idle
    pipeline.scrape(28, body.set("vllm:engine_sleep_state", 0, sleep_state="awake"))  # 2 unavailable
    pipeline.scrape(30, body.set("vllm:engine_sleep_state", 1, sleep_state="awake"))  # 2 idle
    pipeline.fail(32)
    pipeline.fail(34, Reason.TIMEOUT)  # lost: 4 unavailable
    pipeline.scrape(36, Body().process(2.0).decode(4, steps=25).running(4))  # 25 steps of 20 ms: 0.5 busy, 1.5 idle

    assert dollars(pipeline) == pytest.approx({"busy": 11.5, "idle": 8.5, "unavailable": 16})


def test_a_gap_in_the_scrapes_is_not_busy_because_both_its_ends_were():
    """Requests run before and after a failed scrape. What is known of the 2 s since it: 25 steps of 20 ms."""
    pipeline, body = Fed(DOLLAR_A_SECOND), Body().process().running(4)
    pipeline.scrape(0, body)
    pipeline.scrape(2, body.decode(4, steps=100))  # 2 busy, 20 ms a step
    pipeline.fail(4)  # 2 unavailable
    pipeline.scrape(6, body.decode(4, steps=25))  # 0.5 busy, 1.5 idle

    assert dollars(pipeline) == pytest.approx({"busy": 2.5, "idle": 1.5, "unavailable": 2})


def test_an_engine_that_fails_its_health_check_is_not_billed_as_busy():
    """A dead engine's metrics go on, frozen, with requests running: 503 from its health check makes it unavailable."""
    pipeline, body = Fed(DOLLAR_A_SECOND), Body().process().running(4)
    for at in (0, 2, 4, 6):
        pipeline.scrape(at, body)
    pipeline.pipeline.observe_health(healthy=False)
    for at in (8, 10):
        pipeline.scrape(at, body)

    assert dollars(pipeline) == pytest.approx({"busy": 6, "idle": 0, "unavailable": 4})
    assert pipeline.get("target_healthy") == 0


def test_a_price_set_while_running_bills_from_then_on():
    """The hour before it had no price; the minute after it has."""
    pipeline, body = Fed(), Body().process().running(1)
    pipeline.scrape(0, body)
    pipeline.scrape(3600, body.tokens(generated=1000))
    pipeline.pipeline.config = DOLLAR_A_SECOND
    for at in range(3602, 3662, 2):
        pipeline.scrape(at, body.tokens(generated=10))

    assert dollars(pipeline) == pytest.approx({"busy": 60, "idle": 0, "unavailable": 0})


OUTCOMES = st.lists(
    st.tuples(st.floats(0, 100), st.sampled_from(["fail", "idle", "busy", "asleep", "restart", "html"])),
    min_size=1,
    max_size=20,
)


@given(OUTCOMES)
@settings(max_examples=50, deadline=None)
def test_dollars_by_state_always_add_up_to_price_times_time(outcomes):
    """Whatever the target does."""
    pipeline, body, at, started = Fed(DOLLAR_A_SECOND), Body(), 0.0, 1.0
    for seconds, outcome in outcomes:
        at += seconds
        body.set("vllm:engine_sleep_state", float(outcome != "asleep"), sleep_state="awake")
        if outcome == "fail":
            pipeline.fail(at)
        elif outcome == "html":
            pipeline.scrape(at, b"<html>\n")
        elif outcome == "restart":
            started += 1
            body = Body()
            pipeline.scrape(at, body.process(started).decode(2, steps=3))
        else:
            pipeline.scrape(at, body.running(4 * (outcome == "busy")).decode(2, steps=3))

    assert sum(dollars(pipeline).values()) == pytest.approx(at)
    assert min(dollars(pipeline).values()) >= 0
