"""Counters as the sidecar integrates them: from the first scrape, over restarts, never down."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.history import History
from exporter.snapshot import TARGET, Engine, Layout, Snapshot
from exporter.upstream import Column, Part
from tests.bodies import Body, Fed

ENGINE = Engine("m", "0")
TOKENS, PROMPT, PREEMPTIONS = Column("generation_tokens"), Column("prompt_tokens"), Column("preemptions")
STARTED = Column("process_start")


class Fill:
    """A history filled column by column, a scrape every 10 s."""

    def __init__(self, keep_seconds=1000):
        self.layout = Layout()
        self.history = History(self.layout, keep_seconds)
        self.at = -10

    def scrape(self, values, owner=ENGINE, started=None):
        """Take in a scrape of these columns of one owner, and of the process if it says when it started."""
        slots = {self.layout.slot(owner, column): value for column, value in values.items()}
        if started is not None:
            slots[self.layout.slot(TARGET, STARTED)] = started
        self.at += 10
        return self.history.observe(Snapshot([slots.get(n) for n in range(len(self.layout.slots))]), self.at)

    def total(self, column, owner=ENGINE):
        return self.history.last_two(owner).last_of(column)


def totals(*values, column=TOKENS):
    """The exported totals of a counter that stands at these values."""
    fill, found = Fill(), []
    for value in values:
        fill.scrape({column: value})
        found.append(fill.total(column))
    return found


def test_the_first_scrape_is_no_increase():
    """An engine with 1e9 tokens behind it gives no spike: our counters start at 0 with our first scrape."""
    assert totals(1e9, 1e9 + 7) == [0, 7]


def test_a_small_dip_is_held_until_it_is_passed():
    """1000, 1001, 999, 1002: one core counter alone, by less than half, is no reset. In all 2 came."""
    assert totals(1000, 1001, 999, 1002) == [0, 1, 1, 2]


def test_a_fall_below_half_is_a_reset():
    """100 to 30: the engine began again, and 30 came since."""
    assert totals(100, 150, 30, 40) == [0, 50, 80, 90]


def test_half_is_not_below_half():
    """100 to 50 is held; 49.9 would be a reset."""
    assert totals(100, 50, 120) == [0, 0, 20]
    assert totals(100, 49.9, 120) == [0, 49.9, 120]


def test_two_core_counters_that_fall_together_are_a_reset():
    """By however little: prompt 100 to 99 and generation 100 to 98 mean 99 and 98 came since."""
    fill = Fill()
    fill.scrape({TOKENS: 100, PROMPT: 100})
    restarts = fill.scrape({TOKENS: 98, PROMPT: 99})

    assert (fill.total(TOKENS), fill.total(PROMPT)) == (98, 99)
    assert restarts.owners == {ENGINE}
    assert restarts.process is None


def test_a_reset_is_of_all_counters_of_the_engine():
    """Also of one that stands higher than before: 3 preemptions, restart, 5 preemptions are 5 more, not 2."""
    fill = Fill()
    fill.scrape({TOKENS: 100, PREEMPTIONS: 3})
    fill.scrape({TOKENS: 10, PREEMPTIONS: 5})

    assert fill.total(PREEMPTIONS) == 5


def test_a_counter_that_is_not_core_does_not_show_a_reset():
    """Only what moves with every served request does. Preemptions from 10 to 0 alone are held."""
    fill = Fill()
    fill.scrape({TOKENS: 100, PREEMPTIONS: 10})
    restarts = fill.scrape({TOKENS: 101, PREEMPTIONS: 0})

    assert restarts.owners == frozenset()
    assert (fill.total(TOKENS), fill.total(PREEMPTIONS)) == (1, 0)


def test_another_start_of_the_process_is_a_restart_though_no_counter_fell():
    """Down for minutes and busy since: 100 then 250 with a new start time is 250, not 150."""
    fill = Fill()
    fill.scrape({TOKENS: 100}, started=1000.0)
    restarts = fill.scrape({TOKENS: 250}, started=2000.0)

    assert restarts.process is True
    assert ENGINE in restarts.owners
    assert fill.total(TOKENS) == 250


def test_elastic_scaling_is_a_reset_but_no_restart():
    """vLLM zeroes all counters in a live process when it scales: the start time stays."""
    fill = Fill()
    fill.scrape({TOKENS: 100, PROMPT: 1000}, started=1000.0)
    restarts = fill.scrape({TOKENS: 0, PROMPT: 0}, started=1000.0)
    fill.scrape({TOKENS: 5, PROMPT: 50}, started=1000.0)

    assert restarts == (frozenset({ENGINE}), False)
    assert (fill.total(TOKENS), fill.total(PROMPT)) == (5, 50)


def test_a_start_time_that_is_no_time_is_no_restart():
    """NaN differs from everything, itself too. Neither it nor -5 may count every scrape's totals anew."""
    fill = Fill()
    for started in (1000.0, math.nan, math.nan, math.inf, -5.0, -5.0, 1e308, 1e308, 1000.0):
        restarts = fill.scrape({TOKENS: 100}, started=started)
        assert not restarts.process

    assert fill.total(TOKENS) == 0


@pytest.mark.parametrize("broken", [-5.0, math.nan, math.inf, -math.inf, 1e308])
def test_a_counter_that_is_no_count_is_left_out_and_resets_nothing(broken):
    """Neither itself nor its neighbours: 1e9 tokens of before are not counted because prompt tokens read -5."""
    fill = Fill()
    fill.scrape({TOKENS: 1e9, PROMPT: 100})
    for _ in range(3):
        restarts = fill.scrape({TOKENS: 1e9 + 1, PROMPT: broken})
        assert restarts.owners == frozenset()
        assert fill.total(PROMPT) is None
    fill.scrape({TOKENS: 1e9 + 2, PROMPT: 130})

    assert (fill.total(TOKENS), fill.total(PROMPT)) == (2, 30)


@pytest.mark.parametrize("broken", [-5.0, math.nan, math.inf, 1e308])
def test_a_gauge_that_is_no_level_is_absent(broken):
    """-5 requests do not wait."""
    fill = Fill()
    fill.scrape({TOKENS: 1, Column("waiting"): 5})
    fill.scrape({TOKENS: 1, Column("waiting"): broken})

    assert fill.total(Column("waiting")) is None


@pytest.mark.parametrize(("usage", "known"), [(0.0, 0.0), (1.0, 1.0), (1.01, None), (1e20, None)])
def test_no_more_of_the_kv_cache_is_used_than_there_is(usage, known):
    """1 is full. What an engine says beyond is not known: it would be full in minus 20 s."""
    fill = Fill()
    fill.scrape({TOKENS: 1, Column("kv_usage"): 0.5})
    fill.scrape({TOKENS: 1, Column("kv_usage"): usage})

    assert fill.total(Column("kv_usage")) == known


def test_a_series_that_comes_late_on_a_known_engine_began_at_zero():
    """A labelled counter appears with its first event: that event counts."""
    fill = Fill()
    fill.scrape({TOKENS: 100})
    fill.scrape({TOKENS: 100, PREEMPTIONS: 1})

    assert fill.total(PREEMPTIONS) == 1


def test_an_engine_that_comes_late_starts_at_zero_like_the_first():
    """A second engine behind the port with 500 tokens of its own: no spike."""
    fill = Fill()
    fill.scrape({TOKENS: 100})
    fill.scrape({TOKENS: 500}, owner=Engine("m", "1"))

    assert fill.total(TOKENS, owner=Engine("m", "1")) == 0


def test_a_series_that_is_away_for_a_scrape_goes_on_from_where_it_was():
    """Absent while away, then 150 - 100 = 50."""
    fill = Fill()
    fill.scrape({TOKENS: 100, PROMPT: 1})
    fill.scrape({PROMPT: 1})
    away = fill.total(TOKENS)
    fill.scrape({TOKENS: 150, PROMPT: 1})

    assert (away, fill.total(TOKENS)) == (None, 50)


def test_a_series_missing_where_the_engine_began_again_began_at_zero():
    """50 before the restart, not there at the first scrape after it, then 3: those 3 came since, and are not held."""
    fill = Fill()
    fill.scrape({TOKENS: 100, PREEMPTIONS: 50})
    fill.scrape({TOKENS: 1})
    fill.scrape({TOKENS: 2, PREEMPTIONS: 3})

    assert fill.total(PREEMPTIONS) == 3


def test_a_reset_of_one_engine_is_not_one_of_its_neighbour():
    """Engine 1 falls, engine 0 does not."""
    fill = Fill()
    other = Engine("m", "1")
    slots = [fill.layout.slot(ENGINE, TOKENS), fill.layout.slot(other, TOKENS)]
    fill.history.observe(Snapshot([100.0, 100.0]), 0)
    restarts = fill.history.observe(Snapshot([101.0, 7.0]), 10)

    assert slots == [0, 1]
    assert restarts.owners == {other}
    assert (fill.total(TOKENS), fill.total(TOKENS, owner=other)) == (1, 7)


# Sums


SUM = Column("prefill_time", Part.SUM)


def test_a_sum_is_never_taken_for_a_reset():
    """vLLM moves a sum by the host's uptime, up or down, without a restart: no other counter is touched by it."""
    fill = Fill()
    fill.scrape({TOKENS: 100, SUM: 50.0})
    restarts = fill.scrape({TOKENS: 101, SUM: 50.0 - 1e6})

    assert restarts.owners == frozenset()
    assert (fill.total(TOKENS), fill.total(SUM)) == (1, 0)


def test_after_a_poisoned_sum_it_goes_on():
    """From the lower value: 50, -999,950, -999,940 is 10 more."""
    fill = Fill()
    for value in (50.0, 50.0 - 1e6, 60.0 - 1e6):
        fill.scrape({TOKENS: 100, SUM: value})

    assert fill.total(SUM) == 10


def test_a_sum_begins_again_with_its_engine():
    """A reset that the counters show is one of the sums too: 5 s since."""
    fill = Fill()
    fill.scrape({TOKENS: 100, SUM: 50.0})
    fill.scrape({TOKENS: 10, SUM: 5.0})

    assert fill.total(SUM) == 5


@pytest.mark.parametrize("poisoned", [math.inf, -math.inf, math.nan, 1e308, -1e308])
def test_a_sum_that_is_no_sum_is_left_out(poisoned):
    """50, something that is no time, 60: 10, however often it comes."""
    fill = Fill()
    for value in (50.0, poisoned, poisoned, 60.0):
        fill.scrape({TOKENS: 100, SUM: value})

    assert fill.total(SUM) == 10


def test_a_queue_of_1e308_requests_spends_no_time_at_any_level():
    """2 s with 3 waiting, then 1e308 for 10 s, whose integral would be infinite for ever, then 2 s with 4: 6 + 8."""
    fed, body = Fed(), Body().process()
    for at, waiting in ((0, 3), (2, 3), (12, 1e308), (14, 4)):
        fed.scrape(at, body.waiting(waiting))

    assert fed.get("waiting_requests_time_count") == 4
    assert fed.get("waiting_requests_time_sum") == 14


def test_steps_too_few_to_divide_by_spend_no_time_at_any_batch():
    """80 sequences in 1e-320 of a step would be an infinite batch: not known. Then 2 s of 8 a step: 16."""
    fed, body = Fed(), Body().process().running(8)
    fed.scrape(0, body)
    broken = Body().process().running(8).decode(8, 10)
    fed.scrape(2, broken.set("vllm:iteration_tokens_total_count", 1e-320))
    fed.scrape(4, broken.decode(8, 100).set("vllm:iteration_tokens_total_count", 100))

    assert fed.get("decode_batch_size_time_count") == 2
    assert fed.get("decode_batch_size_time_sum") == 16


# Windows


def test_a_window_begins_at_the_scrape_nearest_its_length():
    """Scrapes at 0, 10, 20, 30: a window of 14 s begins at 20 (10 s), one of 16 s at 10 (20 s)."""
    fill = Fill()
    for value in (0, 10, 20, 30):
        fill.scrape({TOKENS: value})

    assert fill.history.window(ENGINE, 14, 30).seconds == 10
    assert fill.history.window(ENGINE, 16, 30).seconds == 20
    assert fill.history.window(ENGINE, 16, 30).increase("generation_tokens") == 20
    assert fill.history.window(ENGINE, 16, 30).rate("generation_tokens") == 1
    assert fill.history.window(ENGINE, 1e9, 30).seconds == 30


def test_an_increase_needs_both_ends():
    """A counter unknown at the baseline has none, unless it was born within the window."""
    fill = Fill()
    fill.scrape({TOKENS: 1, PROMPT: 1})
    fill.scrape({PROMPT: 2})
    fill.scrape({TOKENS: 9, PROMPT: 3, PREEMPTIONS: 4})

    assert fill.history.window(ENGINE, 10, 20).increase("generation_tokens") is None
    assert fill.history.window(ENGINE, 20, 20).increase("generation_tokens") == 8
    assert fill.history.window(ENGINE, 10, 20).increase("preemptions") == 4
    assert fill.history.window(ENGINE, 10, 20).increase("finished", "stop") is None


def test_what_is_kept_is_bounded_by_the_longest_window():
    """1,000 scrapes of 10 s keep 100 s and the baseline before it."""
    fill = Fill(keep_seconds=100)
    for value in range(1000):
        fill.scrape({TOKENS: value})

    assert fill.history.window(ENGINE, 1e9, fill.at).seconds == 100


def test_before_the_first_scrape_there_is_no_window():
    assert Fill().history.window(ENGINE, 60, 0) is None


# Histograms whose edges change


def test_edges_that_change_at_a_restart_begin_the_histogram_anew():
    """Custom buckets since 0.32. Counts at other edges cannot be compared, so no quantile mixes them."""
    fed = Fed(windows={"15s": 15.0})
    body = Body().process(1.0)
    fed.scrape(0, body)
    fed.scrape(10, body.first_tokens(0.3, 0.3, 0.3, 0.3))
    again = Body().process(2.0).drop("vllm:time_to_first_token_seconds_bucket")
    again.drop("vllm:time_to_first_token_seconds_sum").drop("vllm:time_to_first_token_seconds_count")
    edges = (0.2, 0.4, 0.5, math.inf)
    fed.scrape(20, again.observe("vllm:time_to_first_token_seconds", 0.15, edges=edges))
    at_restart = fed.get("latency_quantile_seconds", latency="ttft", q="0.5")
    fed.scrape(30, again.observe("vllm:time_to_first_token_seconds", 0.3, 0.3, edges=edges))

    # No window reaches over the change; then two in (0.2, 0.4]: the median is the middle of that bucket.
    assert at_restart is None
    assert fed.get("latency_quantile_seconds", latency="ttft", q="0.5") == pytest.approx(0.3)
    assert ttft_buckets(fed) == {"0.2": 1, "0.4": 3, "0.5": 3, "+Inf": 3}
    assert fed.get("first_tokens_total") == 4 + 3  # a plain counter, and goes on


TWO_SETS = (0.1, 0.5, 2.5, math.inf), (0.2, 0.5, 2.0, math.inf)


def with_edges(edges, *observations, started=1.0):
    """An engine with its first tokens so late, in buckets of its own."""
    body = Body().process(started)
    for part in ("bucket", "sum", "count"):
        body.drop(f"vllm:time_to_first_token_seconds_{part}")
    return body.observe("vllm:time_to_first_token_seconds", *observations, edges=edges)


def ttft_buckets(fed):
    return {
        dict(labels)["le"]: value
        for (name, labels), value in fed.shown().items()
        if name == "time_to_first_token_seconds_bucket"
    }


def test_edges_that_change_and_change_back_at_restarts_begin_the_histogram_anew_each_time():
    """A, B, A by three processes with 4, 2 and 3 requests: at the end the buckets of A hold the last 3 alone."""
    fed = Fed(windows={"15s": 15.0})
    one, other = TWO_SETS
    fed.scrape(0, with_edges(one))
    fed.scrape(10, with_edges(one, 0.05, 0.3, 0.3, 0.3))
    fed.scrape(20, with_edges(other, 0.1, 0.3, started=2.0))
    between = ttft_buckets(fed)
    fed.scrape(30, with_edges(one, 0.05, 0.3, 1.0, started=3.0))

    assert between == {"0.2": 1, "0.5": 2, "2.0": 2, "+Inf": 2}
    assert ttft_buckets(fed) == {"0.1": 1, "0.5": 2, "2.5": 3, "+Inf": 3}
    assert fed.get("first_tokens_total") == 4 + 2 + 3
    assert fed.get("latency_quantile_seconds", latency="ttft", q="0.5") is None  # the window reaches over a change


def test_edges_that_change_and_change_back_in_a_living_process_count_from_where_they_stand():
    """Behind an endpoint that answers for one engine or another: 1,000 and 2,000 requests of before are no increase."""
    fed = Fed()
    one, other = TWO_SETS
    fed.scrape(0, with_edges(one, *[0.3] * 1000))
    fed.scrape(10, with_edges(other, *[0.3] * 2000))
    fed.scrape(20, with_edges(one, *[0.3] * 2000))
    back = ttft_buckets(fed)
    fed.scrape(30, with_edges(one, *[0.3] * 2000, 0.05))

    assert back == dict.fromkeys(("0.1", "0.5", "2.5", "+Inf"), 0)
    assert ttft_buckets(fed) == dict.fromkeys(("0.1", "0.5", "2.5", "+Inf"), 1)


def test_fewer_edges_after_a_restart_are_other_edges():
    """Four edges, then two of them, then four: what the second process counted is not at 0.1, so it is nowhere."""
    fed = Fed(windows={"15s": 15.0})
    four, two = TWO_SETS[0], (0.5, math.inf)
    fed.scrape(0, with_edges(four))
    fed.scrape(10, with_edges(two, 0.05, 0.05, started=2.0))
    fewer = ttft_buckets(fed)
    # Of the window's 10 s it is not known what came at these edges before the restart.
    assert fed.get("latency_quantile_seconds", latency="ttft", q="0.5") is None
    fed.scrape(20, with_edges(four, 0.05, started=3.0))

    assert fewer == {"0.5": 2, "+Inf": 2}
    assert ttft_buckets(fed) == dict.fromkeys(("0.1", "0.5", "2.5", "+Inf"), 1)


def test_a_bucket_whose_line_is_lost_once_does_not_begin_its_histogram_anew():
    """One malformed line: 2 requests before, 1 while it is away, 1 after are 4 in every bucket."""
    fed, body = Fed(), Body().process()
    fed.scrape(0, body)
    fed.scrape(10, body.first_tokens(0.05, 0.05))
    lost = body.first_tokens(0.05).text().replace(b'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5"', b"{")
    fed.scrape(20, lost)
    away = ttft_buckets(fed)
    fed.scrape(30, body.first_tokens(0.05))

    assert "0.5" not in away
    assert away["0.1"] == away["+Inf"] == 3
    assert set(ttft_buckets(fed).values()) == {4}


def test_edges_that_change_leave_the_windows_of_all_else_as_they_are():
    """10 tokens each 10 s, and other edges in the middle: the minute still holds 60."""
    fed = Fed()
    one, other = TWO_SETS
    for turn in range(8):
        fed.scrape(10 * turn, with_edges(one if turn < 4 else other).tokens(generated=10 * turn))

    assert fed.view().engines[0].windows["1m"].increase("generation_tokens") == 60


def test_a_histogram_that_comes_late_does_not_cut_the_others_short():
    """The first appearance of a family is not a change of edges: the minute before it stays."""
    fed = Fed()
    body = Body().drop("vllm:request_time_per_output_token_seconds_bucket")
    for at in range(0, 60, 10):
        fed.scrape(at, body.tokens(generated=10, prompt=10))
    fed.scrape(60, body.observe("vllm:request_time_per_output_token_seconds", 0.02))

    assert fed.view().engines[0].windows["1m"].seconds == 60


# Whatever the engine does

COUNT = st.one_of(
    st.none(), st.integers(0, 50), st.integers(0, 10**9), st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.5])
)
SCRAPES = st.lists(
    st.fixed_dictionaries(
        {
            "generation_tokens_total": COUNT,
            "prompt_tokens_total": COUNT,
            "num_preemptions_total": COUNT,
            "time_to_first_token_seconds_count": COUNT,
            "inter_token_latency_seconds_sum": COUNT,
            "inter_token_latency_seconds_count": COUNT,
            "iteration_tokens_total_count": COUNT,
            "num_requests_waiting": COUNT,
            "num_requests_running": COUNT,
            "request_success_total": COUNT,
            "http_requests_total": COUNT,
            "process_start_time_seconds": st.sampled_from([None, 1.0, 2.0, math.nan]),
        }
    ),
    min_size=2,
    max_size=8,
)


def rendered(numbers):
    engine, own = Body(bare=True).set("vllm:kv_cache_usage_perc", 0), Body(bare=True)
    for name, value in numbers.items():
        if value is None:
            continue
        if name == "process_start_time_seconds":
            own.own(name, value)
        elif name == "http_requests_total":
            own.http(value)
        elif name == "request_success_total":
            engine.finish(times=value)
        else:
            engine.set(f"vllm:{name}", value)
    return engine.text() + own.text()


@given(SCRAPES)
@settings(max_examples=100, deadline=None)
def test_no_exported_counter_ever_goes_down(scrapes):
    """Whatever an engine exposes: falls, restarts, gaps, NaN, infinities, negatives. All start at 0, none is NaN."""
    fed = Fed()
    highest = {}
    for turn, numbers in enumerate(scrapes):
        fed.scrape(2.0 * turn, rendered(numbers))
        for family in fed.families():
            if family.type != "counter":
                continue
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                assert sample.value >= highest.get(key, 0)
                assert turn or sample.value == 0
                highest[key] = sample.value


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=12))
@settings(max_examples=200, deadline=None)
def test_a_counter_that_only_rises_is_exported_exactly(increases):
    """From its first scrape: the sum of what came since."""
    fill, value = Fill(), 12_345
    fill.scrape({TOKENS: value})
    for increase in increases:
        value += increase
        fill.scrape({TOKENS: value})

    assert fill.total(TOKENS) == sum(increases)
