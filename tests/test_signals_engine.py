"""Steps, KV and prefix cache, time at level, the engine's life. By hand."""

import pytest

from exporter.schema import TargetConfig
from exporter.signals.levels import TimeAtLevel
from tests.bodies import UNIX, Body, Fed, over

# Steps


def test_step_time_of_a_busy_engine():
    """15 s with requests running at every scrape, 750 steps: 20 ms. Whatever the gaps between tokens say."""
    pipeline, body = Fed(), Body().process().running(4)
    for at in (0, 5, 10, 15):
        pipeline.scrape(at, body.decode(4, steps=250, step_seconds=0.3))

    assert pipeline.get("step_seconds") == pytest.approx(0.02)


def test_step_time_does_not_count_idle_time():
    """Busy for 10 s at 20 ms a step, then 1 step in 5 s with nothing running at its end: 10.02 s over 501 steps."""
    pipeline, body = Fed(), Body().process().running(4)
    pipeline.scrape(0, body)
    pipeline.scrape(5, body.decode(4, steps=250))
    pipeline.scrape(10, body.decode(4, steps=250))
    pipeline.scrape(15, body.decode(4, steps=1).running(0))

    assert pipeline.get("step_seconds") == pytest.approx(10.02 / 501)


def test_step_time_is_absent_without_steps_and_with_several_api_servers():
    """0/0; and a count of steps that is not the engine's."""
    assert over(15, lambda b: b.running(1)).get("step_seconds") is None
    assert over(15, lambda b: b.decode(4, steps=100), body=Body()).get("step_seconds") is None


def test_positions_per_step():
    """3,000 prompt tokens computed over 100 steps: 30. 8 sequences decode, and 4 tokens are drafted for each: 40."""
    pipeline = over(
        15,
        lambda b: (
            b.decode(8, steps=100)
            .tokens(prompt=9000)
            .add("vllm:prompt_tokens_by_source_total", 3000, source="local_compute")
            .add("vllm:spec_decode_num_draft_tokens_total", 8 * 4 * 100)
        ),
    )

    assert pipeline.get("step_positions", kind="prefill") == 30
    assert pipeline.get("step_positions", kind="decode") == 40


def test_prefill_positions_before_the_source_was_told():
    """All prompt tokens less the prefix cache's hits: (9000 - 6000) / 100."""
    pipeline = over(15, lambda b: b.decode(8, steps=100).tokens(prompt=9000).add("vllm:prefix_cache_hits_total", 6000))

    assert pipeline.get("step_positions", kind="prefill") == 30
    assert pipeline.get("step_positions", kind="decode") == 8


def test_positions_are_absent_without_steps_and_with_several_api_servers():
    assert over(15, lambda b: b.tokens(prompt=9)).get("step_positions", kind="decode") is None
    assert over(15, lambda b: b.decode(4, steps=100), body=Body()).get("step_positions", kind="decode") is None


# KV and prefix cache


def test_kv_usage_is_a_ratio():
    """The name says perc, the value is 0 to 1."""
    assert over(15, lambda b: b.set("vllm:kv_cache_usage_perc", 0.42)).get("kv_usage_ratio") == 0.42


def test_kv_usage_is_absent_where_no_name_of_it_is():
    pipeline = over(15, lambda b: b, body=Body().process().drop("vllm:kv_cache_usage_perc"))

    assert pipeline.get("kv_usage_ratio") is None


def test_prefix_cache_hit_ratio():
    """From 0.16 cached over prompt tokens: 30 of 100, external hits included. Before: hits over queries, 40 of 100."""
    new = over(60, lambda b: b.tokens(prompt=100).add("vllm:prompt_tokens_cached_total", 30))
    old = over(60, lambda b: b.add("vllm:prefix_cache_queries_total", 100).add("vllm:prefix_cache_hits_total", 40))

    assert new.get("prefix_cache_hit_ratio", window="1m") == 0.3
    assert old.get("prefix_cache_hit_ratio", window="1m") == 0.4


def test_prefix_cache_hit_ratio_is_absent_without_prompts():
    assert over(60, lambda b: b).get("prefix_cache_hit_ratio") is None


def test_computed_prompt_tokens_per_arrival():
    """6,000 computed, 12 came: 500. Absent when none came."""
    pipeline = over(
        60,
        lambda b: (
            b.first_tokens(0.2, times=12)
            .tokens(prompt=9000)
            .add("vllm:prompt_tokens_by_source_total", 6000, source="local_compute")
        ),
    )

    assert pipeline.get("computed_prompt_tokens_per_arrival", window="1m") == 500
    assert over(60, lambda b: b.tokens(prompt=9)).get("computed_prompt_tokens_per_arrival") is None


# Time at level


def test_time_at_level_counts_whole_seconds():
    """1.5 s at 2, then 1.5 s at 20: one second is whole after the first, two more after the second."""
    spent = TimeAtLevel((1.0, 4.0))
    spent.observe(2.0, 1.5)
    first = list(spent.counts), spent.total
    spent.observe(20.0, 1.5)

    assert first == ([0, 1, 1], 2.0)
    assert (spent.counts, spent.total) == ([0, 1, 3], 2.0 + 2 * 20.0)


def test_time_at_level_of_queue_kv_and_batch():
    """10 s with 5 waiting, KV at 0.95 and a batch of 8, scraped each 2 s."""
    pipeline, body = Fed(), Body().process()
    pipeline.scrape(0, body)
    body.waiting(5).set("vllm:kv_cache_usage_perc", 0.95).running(8)
    for at in (2, 4, 6, 8, 10):
        pipeline.scrape(at, body.decode(8, steps=100))

    assert pipeline.get("waiting_requests_time_bucket", le="4.0") == 0
    assert pipeline.get("waiting_requests_time_bucket", le="16.0") == 10
    assert pipeline.get("waiting_requests_time_sum") == 50
    assert pipeline.get("kv_usage_ratio_time_bucket", le="0.9") == 0
    assert pipeline.get("kv_usage_ratio_time_bucket", le="0.95") == 10
    assert pipeline.get("kv_usage_ratio_time_count") == 10
    assert pipeline.get("decode_batch_size_time_bucket", le="4.0") == 0
    assert pipeline.get("decode_batch_size_time_bucket", le="8.0") == 10
    assert pipeline.get("decode_batch_size_time_sum") == pytest.approx(80)


def test_time_at_level_leaves_out_what_it_did_not_see():
    """Over failed scrapes the level is not known: 100 s of them are no time at any level."""
    pipeline, body = Fed(), Body().process().waiting(5)
    pipeline.scrape(0, body)
    pipeline.scrape(2, body)
    pipeline.fail(50)
    pipeline.scrape(102, body)
    pipeline.scrape(104, body)

    assert pipeline.get("waiting_requests_time_count") == 4


def test_an_idle_engine_spends_its_time_at_a_batch_of_zero():
    """Nothing running and no step: the batch is known to be 0. Requests running without a step: it is not known."""
    pipeline, body = Fed(), Body().process()
    pipeline.scrape(0, body)
    pipeline.scrape(4, body)
    pipeline.scrape(8, body.running(1))

    assert pipeline.get("decode_batch_size_time_bucket", le="0.0") == 4
    assert pipeline.get("decode_batch_size_time_count") == 4


def test_the_batch_at_level_behind_several_api_servers_is_by_littles_law():
    """8 sequences, 100 steps of 20 ms in 2 s; each of two API servers counts a step for the 4 it has, 200 in all. 800
    gaps are 16 s of sequences in 2 s: 8, where gaps per step are 4.
    """
    pipeline, body = Fed(), Body().running(8)
    for at in range(0, 12, 2):
        pipeline.scrape(at, body)
        body.decode(4, steps=200)

    assert pipeline.get("decode_batch_size_time_bucket", le="4.0") == 0
    assert pipeline.get("decode_batch_size_time_sum") == pytest.approx(8 * 10)


# An engine's life


def test_the_start_of_the_engine():
    """As its process says; where it does not, when it was first seen."""
    assert over(2, lambda b: b, body=Body().process(1.7e9)).get("engine_start_timestamp_seconds") == 1.7e9
    assert over(2, lambda b: b, body=Body()).get("engine_start_timestamp_seconds") == UNIX


def test_restarts():
    """Two new processes; a reset of the counters alone is none."""
    pipeline = Fed()
    counted = []
    for at, body in enumerate(
        [
            Body().process(1.0).decode(1, steps=100),
            Body().process(2.0),
            Body().process(3.0).decode(1, steps=100),
            Body().process(3.0),
        ]
    ):
        pipeline.scrape(2 * at, body)
        counted.append(pipeline.get("engine_restarts_total"))

    assert counted == [0, 1, 2, 2]


def test_a_restart_shows_in_the_counters_where_the_process_does_not_tell():
    """Several API servers: all of the engine's counters fell."""
    pipeline = Fed()
    pipeline.scrape(0, Body().decode(1, steps=100))
    pipeline.scrape(2, Body().decode(1, steps=1))

    assert pipeline.get("engine_restarts_total") == 1
    assert pipeline.get("engine_start_timestamp_seconds") == UNIX + 2
    assert pipeline.get("generation_tokens_total") == 1


def test_awake():
    """As the engine says; absent before 0.11.1, which does not."""
    sleep = "vllm:engine_sleep_state"
    asleep = over(2, lambda b: b.set(sleep, 0, sleep_state="awake").set(sleep, 1, sleep_state="weights_offloaded"))

    assert asleep.get("engine_awake") == 0
    assert over(2, lambda b: b.set(sleep, 1, sleep_state="awake")).get("engine_awake") == 1
    assert over(2, lambda b: b).get("engine_awake") is None


# Stalls


def stalled_at(times, body=None, config=None, warm=True):
    """engine_stalled at these times, of an engine with work that does not move."""
    pipeline, body = Fed(config), body or Body().process()
    pipeline.scrape(-10, body)
    pipeline.scrape(0, body.decode(4, steps=1000 if warm else 1).running(4))
    found = {}
    for at in times:
        pipeline.scrape(at, body)
        found[at] = pipeline.get("engine_stalled")
    return found


def test_a_stall_is_work_without_movement():
    """No sooner than 60 s after the last movement."""
    assert stalled_at([2, 58, 60, 62]) == {2: 0, 58: 0, 60: 1, 62: 1}


def test_the_first_steps_may_take_longer():
    """They compile and capture: five times the patience, 300 s, during the first 100 steps."""
    assert stalled_at([60, 298, 300], warm=False) == {60: 0, 298: 0, 300: 1}


def test_patience_can_be_set():
    assert stalled_at([18, 20], config=TargetConfig(stall_after_seconds=20)) == {18: 0, 20: 1}


def test_a_stall_ends_with_any_movement_and_with_the_work():
    """One token; or nothing left to do."""
    pipeline, body = Fed(), Body().process().running(4)
    pipeline.scrape(0, body)
    pipeline.scrape(1, body.decode(4, steps=1000))
    pipeline.scrape(100, body)
    during = pipeline.get("engine_stalled")
    pipeline.scrape(102, body.tokens(generated=1))
    moved = pipeline.get("engine_stalled")
    pipeline.scrape(200, body)
    again = pipeline.get("engine_stalled")
    pipeline.scrape(202, body.running(0))

    assert (during, moved, again, pipeline.get("engine_stalled")) == (1, 0, 1, 0)


def test_a_queue_that_does_not_move_is_a_stall_too():
    """473 deferred, none running, nothing moves: visible."""
    pipeline, body = Fed(), Body().process().decode(1, steps=1000).waiting(473)
    pipeline.scrape(0, Body().process())
    pipeline.scrape(2, body)
    pipeline.scrape(70, body)

    assert pipeline.get("engine_stalled") == 1


def test_a_stall_is_not_judged_without_gauges_of_work():
    """Absent before the first step behind several API servers."""
    body = Body().drop("vllm:num_requests_running").drop("vllm:num_requests_waiting")

    assert over(100, lambda b: b, body=body).get("engine_stalled") is None


def test_a_sleeping_engine_does_not_stall():
    """Requests it holds will move when it wakes."""
    body = Body().process().set("vllm:engine_sleep_state", 0, sleep_state="awake")

    assert set(stalled_at([60, 600], body=body).values()) == {0}


def test_a_restarted_engine_warms_up_again():
    """It had taken 1,000 steps; the new process compiles anew, and has 300 s again."""
    pipeline = Fed()
    pipeline.scrape(0, Body().process(1.0))
    pipeline.scrape(2, Body().process(1.0).decode(4, steps=1000))
    pipeline.scrape(4, Body().process(2.0).running(1))
    found = []
    for at in (64, 302, 304):
        pipeline.scrape(at, Body().process(2.0).running(1))
        found.append(pipeline.get("engine_stalled"))

    assert found == [0, 0, 1]


def test_an_engine_that_hung_before_the_sidecar_came_has_had_its_first_steps():
    """1,000 steps since its own start, none of which we saw: 60 s, not 300."""
    pipeline, body = Fed(), Body().process().decode(4, steps=1000).running(4)
    found = []
    for at in (0, 58, 60):
        pipeline.scrape(at, body)
        found.append(pipeline.get("engine_stalled"))

    assert found == [0, 0, 1]


def test_work_that_came_while_nothing_was_scraped_is_given_its_time():
    """Idle, then out of reach for 10 minutes, then with a prompt in prefill: when that came is not known."""
    pipeline, body = Fed(), Body().process().decode(4, steps=1000)
    pipeline.scrape(0, body)
    pipeline.fail(300)
    found = []
    for at in (600, 658, 660):
        pipeline.scrape(at, body.running(1))
        found.append(pipeline.get("engine_stalled"))

    assert found == [0, 0, 1]


def test_an_engine_that_began_again_after_a_long_outage_is_given_its_time():
    """Lost for 10 minutes, then up with a first request in prefill: not stalled for want of movement before."""
    pipeline, body = Fed(), Body().process(1.0)
    pipeline.scrape(0, body)
    pipeline.scrape(2, body.decode(4, steps=1000).running(4))
    pipeline.fail(300)
    pipeline.scrape(602, Body().process(2.0).running(1))
    at_first = pipeline.get("engine_stalled")
    pipeline.scrape(604, Body().process(2.0).running(1))

    assert (at_first, pipeline.get("engine_stalled")) == (0, 0)
