"""Money live: each basis adds up to the bill, waste by kind, the baseline on busy cost."""

import itertools
import math
import re

import pytest

from exporter.exposition import Failure, Reason
from exporter.recording import Entry
from exporter.replay import replay
from exporter.schema import Config
from exporter.signals import waste
from exporter.snapshot import Engine
from tests.bodies import Fed, samples
from tests.live import FOUR_H100, busy, engine, fed, named, steps, target
from tests.recordings import entries

HITS = "vllm:prefix_cache_hits_total"
TOKEN_TYPES = ("input", "cached_input", "output")


def served(**settings):
    """A busy minute at $3.60 an hour, so $0.001 a second: 600 computed, 400 cached and 250 output tokens a second."""

    def second(body):
        steps(body, 50, sequences=5, prefill=12)
        body.tokens(prompt=400).add("vllm:prompt_tokens_cached_total", 400)

    return busy(fed(gpu_hour_dollars=3.6, **settings), engine(), 70, second)


def price(one, basis, token_type):
    return one.get("cost_dollars_per_million_tokens", basis=basis, token_type=token_type, window="1m")


def test_the_three_bases():
    """$0.001 on 250 output tokens is $4 per million, on all 1,250 $0.80; weighted 600 + 0.1 x 400 + 4 x 250 = 1,640."""
    one = served()

    assert price(one, "output", "output") == pytest.approx(4.0)
    assert price(one, "all", "all") == pytest.approx(0.8)
    assert price(one, "weighted", "input") == pytest.approx(1000 / 1640)
    assert price(one, "weighted", "cached_input") == pytest.approx(100 / 1640)
    assert price(one, "weighted", "output") == pytest.approx(4000 / 1640)


def test_weights_are_settings():
    """Cached input for nothing, output like input: 850 weighted tokens."""
    one = served(token_weights={"cached_input": 0, "output": 1})

    assert price(one, "weighted", "cached_input") == 0
    assert price(one, "weighted", "input") == pytest.approx(1000 / 850)


def test_without_sources_the_prefix_cache_tells_cached_input():
    """Before vLLM 0.16: of 1,000 prompt tokens a second 400 are hits."""

    def second(body):
        body.decode(5, 50).tokens(prompt=1000).add("vllm:prefix_cache_hits_total", 400)

    body = engine().drop("vllm:prompt_tokens_by_source_total").drop("vllm:prompt_tokens_cached_total")
    one = busy(fed(gpu_hour_dollars=3.6), body, 70, second)

    assert price(one, "weighted", "input") == pytest.approx(1000 / 1640)


def test_hits_counted_again_and_again_under_queueing_leave_no_trace():
    """Before vLLM 0.16, 1,000 prompt tokens a second. 1,400 hits counted while a request waits to be admitted: no more
    than all is cached, 0.1 x 1,000 + 4 x 250 = 1,100. With 400 again a minute later it is 1,640 again.
    """
    body = engine().drop("vllm:prompt_tokens_by_source_total").drop("vllm:prompt_tokens_cached_total")
    one, found = fed(gpu_hour_dollars=3.6), []
    for seconds, hits in ((70, 400), (200, 1400), (62, 400)):
        busy(one, body, seconds, lambda b, h=hits: b.decode(5, 50).tokens(prompt=1000).add(HITS, h))
        found += [price(one, "weighted", "input"), price(one, "weighted", "cached_input")]

    assert found == pytest.approx([1000 / 1640, 100 / 1640, 1000 / 1100, 100 / 1100, 1000 / 1640, 100 / 1640])


def test_engines_behind_one_port_share_one_price():
    """Two engines that do the same cost twice as much for twice the tokens."""
    one = fed(gpu_hour_dollars=3.6, api_servers=1)
    bodies = [engine(), engine()]
    bodies[1].samples = {
        (name, labels.replace('engine="0"', 'engine="1"')): value
        for (name, labels), value in bodies[1].samples.items()
        if name != "process_start_time_seconds"
    }
    bodies[1].labels = {"engine": "1", "model_name": "m"}
    for second in range(71):
        for body in bodies:
            steps(body.running(5), 50, sequences=5, prefill=12)
        one.scrape(second, *bodies)

    assert [view.engine for view in one.view().engines] == [Engine("m", "0"), Engine("m", "1")]
    assert price(one, "output", "output") == pytest.approx(4.0)
    assert price(one, "weighted", "input") == pytest.approx(1000 / 1600)


@pytest.mark.parametrize("left_out", ["price", "output"])
def test_no_price_and_no_output_mean_no_cost_per_token(left_out):
    """Absent, not zero or infinite."""
    if left_out == "price":
        one = busy(fed(), engine(), 70, lambda body: steps(body, 50, sequences=5))
    else:
        one = busy(fed(gpu_hour_dollars=3.6), engine(), 70, lambda body: steps(body, 50, prefill=12))

    assert not {name for name, _ in one.shown()} & {
        "cost_dollars_per_million_tokens",
        "busy_cost_dollars_per_million_tokens",
        "busy_cost_baseline_multiple_ratio",
    }


def test_the_baseline_is_judged_on_busy_cost():
    """$4 per million busy where $2 is normal is 2, and half a minute of lull does not move it."""
    one = served(baseline={"busy_dollars_per_million_output_tokens": 2.0})
    assert one.get("cost_baseline_dollars_per_million_tokens") == 2.0
    assert one.get("busy_cost_baseline_multiple_ratio", window="1m") == pytest.approx(2.0)

    body, at = engine(), 0
    one = fed(gpu_hour_dollars=3.6, baseline={"busy_dollars_per_million_output_tokens": 2.0})
    for at in range(91):
        running = at < 60
        if running:
            steps(body, 50, sequences=5)
        one.scrape(at, body.running(5 if running else 0))
    assert one.get("busy_cost_baseline_multiple_ratio", window="1m") == pytest.approx(2.0, rel=0.05)
    assert price(one, "output", "output") > 7.5


# Waste


def wasted(kind, batch, drafted, accepted, seconds=60, **settings):
    """Dollars of a kind and the busy ones, of an engine that drafts."""
    one = busy(
        fed(**{**FOUR_H100, "gpu_hour_dollars": 0.9, **settings}),  # four GPUs: $0.001 a second
        engine(capacity_tokens=10_000),
        seconds,
        lambda body: steps(body, 20, sequences=batch, drafted=drafted, accepted=accepted),
    )
    return one.get("waste_dollars_total", kind=kind), one.get("gpu_cost_dollars_total", state="busy")


def test_rejected_drafts_in_memory_bound_steps_were_free():
    """20 sequences with 4 drafts are 100 positions, under the crossover of 182."""
    assert wasted("rejected_drafts", 20, 80, 40) == (0.0, pytest.approx(0.06))


def test_rejected_drafts_in_compute_bound_steps_cost_what_they_lengthened():
    """100 sequences with 4 drafts are 500 positions, 200 rejected: without them 300, so 0.4 of the time."""
    spent, bill = wasted("rejected_drafts", 100, 400, 200)

    assert bill == pytest.approx(0.06)
    assert spent == pytest.approx(0.4 * 0.06)


def test_across_the_crossover_only_the_compute_bound_part_counts():
    """50 sequences with 4 drafts are 250 positions, 150 rejected: without them the weight read stays, 182 of 250."""
    spent, _ = wasted("rejected_drafts", 50, 200, 50)

    assert spent == pytest.approx((1 - 182.344 / 250) * 0.06, rel=1e-4)


@pytest.mark.parametrize(
    "settings",
    [{"hardware": {}}, {"gpu_hour_dollars": None}, {"api_servers": 2}],
    ids=["no hardware", "no price", "api servers"],
)
def test_rejected_drafts_are_absent_where_they_cannot_be_priced(settings):
    assert wasted("rejected_drafts", 100, 400, 200, **settings)[0] is None


def test_idle_is_waste():
    """Half a minute of nothing at $0.001 a second."""
    one = busy(fed(gpu_hour_dollars=3.6), engine(), 30, lambda body: body, running=0)

    assert one.get("waste_dollars_total", kind="idle") == pytest.approx(0.03)
    assert one.get("waste_dollars_total", kind="rejected_drafts") is None


def test_recompute_is_an_upper_bound():
    """One preemption a second of 8 at 80 % of 10,000: 1,000 tokens each, beside 1,000 positions, so at most half."""

    def second(body):
        steps(body, 10, sequences=8, prefill=92)
        body.add("vllm:num_preemptions_total", 1)

    body = engine(capacity_tokens=10_000).set("vllm:kv_cache_usage_perc", 0.8)
    one = busy(fed(gpu_hour_dollars=3.6), body, 60, second, running=8)

    assert one.get("waste_dollars_total", kind="preemption_recompute_at_most") == pytest.approx(0.03)


def test_a_preemption_reported_when_nothing_is_left_is_bounded_by_the_whole_cache():
    """An idle, empty engine at both scrapes: at most all of 10,000 tokens, beside 1,000 positions."""
    one, body = fed(gpu_hour_dollars=3.6), engine(capacity_tokens=10_000)
    one.scrape(0, body)
    one.scrape(1, steps(body, 10, sequences=8, prefill=92).add("vllm:num_preemptions_total", 1))
    step = one.pipeline._history.last_two(Engine("m", "0"))

    assert waste.recomputed_share(step, 10_000) == pytest.approx(10 / 11)


def test_without_a_known_capacity_there_is_no_bound():
    one = busy(fed(gpu_hour_dollars=3.6), engine(), 60, lambda body: steps(body, 10, sequences=8))

    assert one.get("waste_dollars_total", kind="preemption_recompute_at_most") is None


def test_the_bound_holds_on_a_recording():
    """Tokens thrown away by the engine's own log are fewer than what the bound assumes, and not by an order."""
    lost = 65 * 336.6  # in burst.events.csv: 65 times preempt, 336.6 computed tokens each on the mean
    one = Fed(target())
    assumed = 0.0
    for at, outcome in entries("burst"):
        one.pipeline.observe(outcome, at=at, unix=at)
        for view in one.pipeline.view(at).engines:
            step = one.pipeline._history.last_two(view.engine)
            share = waste.recomputed_share(step, view.kv_capacity_tokens)
            positions = waste.positions_in(step) or 0.0
            assumed += positions * share / (1 - share) if share else 0.0

    assert lost <= assumed <= 4 * lost


# The bill


def with_trouble(name):
    """A recording whose engine loads for 20 s first, is lost for 30 s in the middle, idles, and begins again."""
    good = [entry for entry in entries(name) if not isinstance(entry.outcome, Failure)]
    start, period = good[0].unix_seconds, good[-1].unix_seconds - good[0].unix_seconds
    refused = Failure(Reason.CONNECT, "made by hand")
    loading = [Entry(start - 20 + second, refused) for second in range(20)]
    lost = [Entry(good[-1].unix_seconds + 1 + second, refused) for second in range(30)]
    again = [Entry(at + period + 32, restarted(outcome)) for at, outcome in good]
    idle = [Entry(again[-1].unix_seconds + 1 + second, again[-1].outcome) for second in range(90)]
    return [*loading, *good, *lost, *again, *idle]


def restarted(outcome):
    """The same scrape of a process that began later."""
    body = re.sub(rb"(?m)^(process_start_time_seconds) .*$", rb"\1 1.9e+09", outcome.body)
    return outcome._replace(body=body)


@pytest.fixture(scope="module", params=["burst", "mfu", "spec"])
def billed(request):
    """(unix seconds, samples) of a troubled recording at $3.60 an hour for two GPUs, $0.002 a second."""
    config = Config(gpu_hour_dollars=3.6, gpus_per_engine=2)
    return [
        (at, samples(families))
        for at, families in replay(with_trouble(request.param), config.all_targets()[0], config.options())
    ]


def total(shown, name="gpu_cost_dollars_total", **labels):
    found = [value for (each, pairs), value in shown.items() if each == name and labels.items() <= dict(pairs).items()]
    return math.fsum(found)


def test_busy_idle_and_unavailable_are_price_times_time(billed):
    """At every scrape, through loading, loss and restart; and each of the three has its share."""
    began = billed[0][0]
    for at, shown in billed:
        assert total(shown) == pytest.approx(0.002 * (at - began), abs=1e-9)

    assert named(billed[-1][1], "engine_restarts_total") == 1
    assert named(billed[-1][1], "gpu_cost_dollars_total", state="unavailable") >= 0.002 * 48.9
    assert named(billed[-1][1], "gpu_cost_dollars_total", state="idle") >= 0.002 * 85
    assert named(billed[-1][1], "gpu_cost_dollars_total", state="busy") > 0.002 * 60


def test_no_part_of_the_bill_ever_falls(billed):
    for (_, before), (_, after) in itertools.pairwise(billed):
        for key, value in before.items():
            if key[0] in ("gpu_cost_dollars_total", "waste_dollars_total"):
                assert after[key] >= value


@pytest.mark.parametrize("states", [("busy", "idle", "unavailable"), ("busy",)], ids=["all", "busy"])
def test_each_basis_adds_up_to_the_bill_of_its_window(billed, states):
    """Prices x tokens of a basis, over every window in which there is a price, to a millionth of a cent."""
    name = "cost_dollars_per_million_tokens" if len(states) > 1 else "busy_cost_dollars_per_million_tokens"
    good = [(at, shown) for at, shown in billed if named(shown, "target_up")]
    checked = 0
    for at, shown in good:
        _, before = min(good, key=lambda each: (round(abs(each[0] - (at - 60.0)), 6), -each[0]))
        if at - billed[20][0] < 60 or named(shown, name, basis="weighted", token_type="input") is None:
            continue
        spent = sum(total(shown, state=state) - total(before, state=state) for state in states)
        tokens = {
            "output": total(shown, "generation_tokens_total") - total(before, "generation_tokens_total"),
            "input": total(shown, "prompt_tokens_total", source="computed")
            - total(before, "prompt_tokens_total", source="computed"),
            "cached_input": total(shown, "prompt_tokens_total", source="cached")
            - total(before, "prompt_tokens_total", source="cached"),
        }
        weighted = sum(named(shown, name, basis="weighted", token_type=kind) * tokens[kind] for kind in TOKEN_TYPES)
        everything = named(shown, name, basis="all") * sum(tokens.values())
        output = named(shown, name, basis="output") * tokens["output"]
        for priced in (weighted, everything, output):
            assert priced / 1e6 == pytest.approx(spent, abs=1e-8)
        checked += 1

    assert checked > 100


def test_waste_is_part_of_the_bill(billed):
    """Idle waste is the idle part; the rest lies within the busy one."""
    _, shown = billed[-1]

    assert named(shown, "waste_dollars_total", kind="idle") == named(shown, "gpu_cost_dollars_total", state="idle")
    assert (
        0
        <= named(shown, "waste_dollars_total", kind="preemption_recompute_at_most")
        < named(shown, "gpu_cost_dollars_total", state="busy")
    )
