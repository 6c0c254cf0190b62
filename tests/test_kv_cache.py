"""The KV cache: capacity from cache_config_info, preemption point, headroom, seconds to full, warmth."""

import math
import statistics
from bisect import bisect_right

import pytest

from exporter.signals.kv_cache import capacity_of
from exporter.snapshot import TARGET
from tests.bodies import Body
from tests.live import busy, cache, engine, fed, named, recorded, steps
from tests.recordings import events, truth


def capacity(*bodies, **settings):
    """kv_capacity_tokens by engine label after one scrape."""
    one = fed(**settings)
    one.scrape(0, *bodies)
    return {
        dict(labels)["engine"]: value for (name, labels), value in one.shown().items() if name == "kv_capacity_tokens"
    }


def test_capacity_as_the_engine_says_it():
    """From vLLM 0.24: kv_cache_size_tokens, which is right for hybrid models too."""
    assert capacity(engine(capacity_tokens=7680)) == {"0": 7680}


def test_capacity_of_an_older_engine():
    """Before 0.24: 1,000 blocks of 16 tokens are 16,000."""
    assert capacity(cache(engine(), num_gpu_blocks=1000)) == {"0": 16_000}


def test_capacity_of_an_engine_that_is_not_named_there():
    """vLLM 0.8.5 has engine="0" on its series, but none on this one: 1,000 blocks of 16 tokens."""
    body = engine().own("vllm:cache_config_info", 1, block_size="16", num_gpu_blocks="1000")

    assert capacity(body) == {"0": 16_000}


def test_blocks_are_the_sum_over_the_servers_engines():
    """vLLM repeats the sum on every engine: 2,000 blocks behind two engines are 16,000 tokens each."""
    bodies = [cache(Body(engine=name), name, num_gpu_blocks=2000) for name in ("0", "1")]

    assert capacity(*bodies) == {"0": 16_000, "1": 16_000}
    assert capacity(*bodies, engines=["1"]) == {"1": 16_000}


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"num_gpu_blocks": "None"},
        {"num_gpu_blocks": "0"},
        {"kv_cache_size_tokens": "None"},
        {"num_gpu_blocks": "-5"},
        {"kv_cache_size_tokens": "9" * 5000},
        {"kv_cache_size_tokens": "٣"},
    ],
)
def test_an_engine_that_does_not_say(said):
    """None is a legal value of these labels: then capacity is absent, and what needs it."""
    body = cache(engine().running(4).set("vllm:kv_cache_usage_perc", 0.001), **said)
    one = busy(fed(), body, 20, lambda each: steps(each, 10, sequences=4))

    assert one.get("kv_capacity_tokens") is None
    assert one.get("warmness_ratio") is None
    assert one.get("kv_preemption_point_sequences") is None


def test_the_info_series_makes_no_engine_of_its_own():
    """It has the engine's label and no model's."""
    one = fed()
    one.scrape(0, engine(capacity_tokens=7680))

    assert [view.engine for view in one.view().engines] == [("m", "0")]


def test_capacity_changes_with_a_restart():
    """Only what the last scrape says counts."""
    one = fed()
    one.scrape(0, engine(capacity_tokens=7680))
    one.scrape(1, engine(capacity_tokens=9600).process(2000.0))

    assert one.get("kv_capacity_tokens") == 9600


def test_preemption_point_and_headroom():
    """8 running at 40 % usage: the cache is full at 20, so 12 more fit."""
    body = engine().set("vllm:kv_cache_usage_perc", 0.4)
    one = busy(fed(), body, 20, lambda each: steps(each, 10, sequences=8), running=8)

    assert one.get("kv_preemption_point_sequences") == pytest.approx(20)
    assert one.get("kv_headroom_sequences") == pytest.approx(12)


def test_past_the_point_there_is_no_headroom():
    """30 running where a window of 20 at full usage says 20."""
    body = engine().set("vllm:kv_cache_usage_perc", 1.0)
    one = busy(fed(), body, 20, lambda each: steps(each, 10, sequences=8), running=20)
    one.scrape(one.at + 0.01, body.running(30))

    assert one.get("kv_headroom_sequences") == 0.0


def test_at_low_usage_the_point_is_by_requests_that_finished():
    """Under 1 % usage: 50 requests of 100 tokens in and 100 out; 10,000 tokens hold 50 of them."""

    def second(body):
        steps(body, 100, sequences=1, prefill=1)
        body.finish()

    body = engine(capacity_tokens=10_000).set("vllm:kv_cache_usage_perc", 0.005)
    one = busy(fed(), body, 50, second, running=1)

    assert one.get("kv_preemption_point_sequences") == pytest.approx(50)


def test_an_empty_engine_has_no_preemption_point():
    """Nothing runs, nothing finished: not known."""
    one = busy(fed(), engine(capacity_tokens=10_000), 20, lambda body: body, running=0)

    assert one.get("kv_preemption_point_sequences") is None
    assert one.get("kv_headroom_sequences") is None


def rising(start, per_second):
    """Usage that goes up by so much a second for 20 s."""
    one, body = fed(), engine()
    for second in range(21):
        one.scrape(second, body.set("vllm:kv_cache_usage_perc", start + per_second * second))
    return one


def test_seconds_until_full():
    """20 % after 20 s at 1 % a second, from 20 %: 60 s are left of the way."""
    assert rising(0.2, 0.01).get("kv_full_in_seconds") == pytest.approx(60)


@pytest.mark.parametrize(("start", "per_second"), [(0.5, 0.0), (0.5, -0.01), (0.1, 0.0001)])
def test_no_time_until_full(start, per_second):
    """Level, falling, or more than an hour away: absent, not infinity."""
    assert rising(start, per_second).get("kv_full_in_seconds") is None


def test_warmness_is_what_was_written_over_the_capacity():
    """10 steps of 8 sequences and 170 prompt tokens are 1,780 tokens a second: 4 s fill 7,120 of 10,000."""
    one = busy(fed(), engine(capacity_tokens=10_000), 4, lambda body: steps(body, 10, sequences=8, prefill=170))
    assert one.get("warmness_ratio") == pytest.approx(0.712)


def test_warmness_counts_from_the_engines_start_not_ours():
    """A sidecar that comes late sees an engine that has long been filled."""
    one = fed()
    one.scrape(0, engine(capacity_tokens=10_000).tokens(generated=50_000))

    assert one.get("warmness_ratio") == 1.0


@pytest.mark.parametrize("broken", [math.nan, math.inf, -5.0])
def test_a_broken_counter_makes_no_warmth(broken):
    """Not known, rather than warm."""
    one = fed()
    one.scrape(0, engine(capacity_tokens=10_000).set("vllm:generation_tokens_total", broken))

    assert one.get("warmness_ratio") is None


def test_a_restart_is_cold():
    """Counters and cache begin again."""
    one = fed()
    one.scrape(0, engine(capacity_tokens=10_000).tokens(generated=50_000))
    one.scrape(1, engine(capacity_tokens=10_000).tokens(generated=1_000).process(2000.0))

    assert one.get("warmness_ratio") == pytest.approx(0.1)


def test_hits_counted_again_and_again_take_no_warmth_away():
    """vLLM 0.15: 10,000 prompt tokens less 2,000 hits, and 1,000 generated, are 9,000 of 16,000. Then its queue's head
    fails to be admitted 20 times, each time with the same 400 hits: none of what was written has gone.
    """
    one, hits = fed(), "vllm:prefix_cache_hits_total"
    body = cache(Body().process(), num_gpu_blocks=1000).tokens(generated=1_000, prompt=10_000).add(hits, 2_000)
    one.scrape(0, body)
    one.scrape(1, body.add(hits, 20 * 400))

    assert one.get("warmness_ratio") == pytest.approx(9_000 / 16_000)


def test_counters_zeroed_in_a_living_process_are_cold():
    """Elastic scaling makes the engines anew: 1,000 of 10,000 since."""
    one = fed()
    one.scrape(0, engine(capacity_tokens=10_000).tokens(generated=50_000))
    one.scrape(1, engine(capacity_tokens=10_000).tokens(generated=1_000))

    assert one.get("warmness_ratio") == pytest.approx(0.1)


def test_sleep_empties_the_cache():
    """Awake again, warmth begins at nothing: 2,000 tokens since are 0.2 of 10,000."""
    one, body = fed(), engine(capacity_tokens=10_000).tokens(generated=50_000)
    one.scrape(0, body.set("vllm:engine_sleep_state", 1, sleep_state="awake"))
    one.scrape(1, body.set("vllm:engine_sleep_state", 0, sleep_state="awake"))
    one.scrape(2, body.tokens(generated=2_000).set("vllm:engine_sleep_state", 1, sleep_state="awake"))

    assert one.get("warmness_ratio") == pytest.approx(0.2)


def test_warmness_against_the_hit_ratio_of_a_warm_engine():
    """A full cache that hits 0.3 where 0.6 is normal is half warm; above normal it is not more than warm."""

    def hitting(share):
        def second(body):
            steps(body, 10, sequences=8)
            body.tokens(prompt=1000).add("vllm:prompt_tokens_cached_total", 1000 * share)

        body = engine(capacity_tokens=10).tokens(generated=100)
        return busy(fed(baseline={"prefix_cache_hit_ratio": 0.6}), body, 20, second).get("warmness_ratio")

    assert hitting(0.3) == pytest.approx(0.5)
    assert hitting(0.9) == 1.0


def test_the_preemption_point_on_a_recording():
    """Its median lies within 15 % of the running requests at the moments of preemption, by the scheduler's log."""
    log = truth("burst")
    times = [step.at for step in log]
    at_preemption = [log[bisect_right(times, moment) - 1].running for moment in events("burst", "preempt")]
    points = [named(shown, "kv_preemption_point_sequences") for _, shown in recorded("burst")]

    assert statistics.median(at_preemption) == 11
    assert statistics.median(point for point in points if point is not None) == pytest.approx(11, rel=0.15)


def test_capacity_of_two_recorded_engines_is_each_ones_own():
    """By its own label; one that is not there has none."""
    one = fed()
    one.scrape(0, *(cache(Body(engine=name), name, kv_cache_size_tokens=size) for name, size in (("0", 10), ("1", 20))))
    target = one.pipeline._history.last_two(TARGET)

    assert [capacity_of(target, name) for name in ("0", "1", "10")] == [10, 20, None]
    assert math.isfinite(one.get("kv_capacity_tokens", engine="1"))
