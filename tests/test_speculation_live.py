"""Speculation live: measured while it is on, by the settings while it is off; advice that does not flutter."""

import itertools

import pytest

from exporter.signals.speculation import advise
from exporter.speculation import expected_tokens_per_step
from tests.live import FOUR_H100, TINY, busy, engine, fed, named, recorded, steps
from tests.recordings import truth

P = 182.344


def speculating(batch, prefill=0, **settings):
    """Every sequence drafts 4 tokens a step and gains 2 beyond its own."""
    return busy(
        fed(**FOUR_H100, **settings),
        engine(),
        70,
        lambda body: steps(body, 20, sequences=batch, prefill=prefill, drafted=4 * batch, accepted=2 * batch),
    )


def plain(batch, prefill=0, **settings):
    """The same without drafts."""
    return busy(
        fed(**FOUR_H100, **settings), engine(), 70, lambda body: steps(body, 20, sequences=batch, prefill=prefill)
    )


def test_tokens_per_step():
    """2 accepted and the step's own are 3; without drafts it is 1."""
    assert speculating(8).get("speculation_tokens_per_step") == pytest.approx(3)
    assert plain(8).get("speculation_tokens_per_step") == pytest.approx(1)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_a_memory_bound_batch_gains_all_tokens(objective):
    """8 x 5 positions are under the crossover of 182: a step takes as long as without, and gives 3 tokens."""
    one = speculating(8)

    assert one.get("speculation_expected_speedup_ratio", objective=objective) == pytest.approx(3)
    assert one.get("speculation_advised") == 1


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_a_compute_bound_batch_loses(objective):
    """200 sequences: 5 times the positions for 3 times the tokens is 0.6. Even at 3 P / 5 = 109 sequences."""
    one = speculating(200)

    assert one.get("speculation_expected_speedup_ratio", objective=objective) == pytest.approx(0.6)
    assert one.get("speculation_break_even_batch", objective=objective) == pytest.approx(3 * P / 5, rel=1e-4)
    assert one.get("speculation_advised") == 0


def test_the_objectives_part_where_there_is_prefill():
    """B 40 with 180 prompt tokens a step, which would be p = 60 without speculation.

    Latency: 3 x max(1, 100/P) / max(1, (200 + 60)/P) = 3 x 182.344 / 260 = 2.104.
    Throughput: the prefill as it is, 180: 3 x 182.344 / 380 = 1.4396.
    """
    one = speculating(40, prefill=180)

    assert one.get("speculation_expected_speedup_ratio", objective="latency") == pytest.approx(2.1040, abs=1e-4)
    assert one.get("speculation_expected_speedup_ratio", objective="throughput") == pytest.approx(1.4396, abs=1e-4)


def test_a_draft_model_costs_its_passes():
    """4 passes of 1/40 of a step each: 3 / 1.1."""
    one = speculating(8, speculation={"draft_cost": 0.025})

    assert one.get("speculation_expected_speedup_ratio", objective="latency") == pytest.approx(3 / 1.1)


def test_while_it_is_off_the_settings_say_what_to_expect():
    """alpha 0.68, gamma 4: E = (1 - 0.68^5) / 0.32 = 2.6706; at B 8 all of it is gained, E itself stays measured."""
    one = plain(8, speculation={"alpha": 0.68, "gamma": 4})

    assert one.get("speculation_expected_speedup_ratio", objective="latency") == pytest.approx(2.6706, abs=1e-4)
    assert one.get("speculation_tokens_per_step") == pytest.approx(1)
    assert one.get("speculation_advised") == 1


def test_off_and_on_agree():
    """An engine that speculates, and the same without at the positions that implies: one advice, one speedup.

    gamma 1 and alpha 0.5 make E 1.5: with it on, a third of the prefill rate per step is that of longer sequences.
    """
    on = busy(
        fed(**FOUR_H100),
        engine(),
        70,
        lambda body: steps(body, 20, sequences=100, prefill=150, drafted=100, accepted=50),
    )
    off = plain(100, prefill=100, speculation={"alpha": 0.5, "gamma": 1})

    for name in ("speculation_expected_speedup_ratio", "speculation_break_even_batch"):
        for objective in ("latency", "throughput"):
            assert off.get(name, objective=objective) == pytest.approx(on.get(name, objective=objective))
    # 1.5 x 200 / (100 x 2 + 100) and 1.5 x 200 / (200 + 150), all over the crossover
    assert on.get("speculation_expected_speedup_ratio", objective="latency") == pytest.approx(1.0)
    assert on.get("speculation_expected_speedup_ratio", objective="throughput") == pytest.approx(300 / 350)


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(lambda: plain(8), id="off, and alpha and gamma not set"),
        pytest.param(lambda: plain(8, speculation={"alpha": 0.5}), id="gamma not set"),
        pytest.param(lambda: plain(0, prefill=100, speculation={"alpha": 0.5, "gamma": 4}), id="nothing decodes"),
        pytest.param(lambda: speculating(8, api_servers=2), id="several API servers"),
        pytest.param(
            lambda: busy(fed(), engine(), 70, lambda body: steps(body, 20, sequences=8, drafted=32, accepted=16)),
            id="no hardware, no model",
        ),
    ],
)
def test_where_nothing_can_be_said(one):
    """No speedup, no break-even, no advice."""
    names = {name for name, _ in one().shown()}

    assert not names & {
        "speculation_expected_speedup_ratio",
        "speculation_break_even_batch",
        "speculation_advised",
    }


def test_drafts_that_stopped_are_off():
    """Dynamic speculation may switch itself off: the counters stand, and the settings are asked."""
    one = fed(**FOUR_H100, speculation={"alpha": 0.5, "gamma": 1})
    body = engine()
    busy(one, body, 20, lambda each: steps(each, 20, sequences=8, drafted=32, accepted=16))
    busy(one, body, 70, lambda each: steps(each, 20, sequences=8))

    assert one.get("speculation_expected_speedup_ratio", objective="latency") == pytest.approx(1.5)


def test_tokens_that_do_not_add_up_give_no_advice():
    """Fewer tokens than first tokens cannot be: neither -0.5 tokens a step nor what follows from them."""

    def second(body):
        steps(body, 20, sequences=8, drafted=32, accepted=-20)

    names = {name for name, _ in busy(fed(**FOUR_H100), engine(), 70, second).shown()}

    assert "decode_batch_size" in names
    assert "speculation_tokens_per_step" not in names
    assert "speculation_expected_speedup_ratio" not in names
    assert "speculation_advised" not in names


def test_gaining_at_every_batch_has_no_break_even():
    """Under the latency objective prefill fills the step: B 20, p 1,000 are compute-bound with and without drafts."""
    one = speculating(20, prefill=3000)

    assert one.get("speculation_expected_speedup_ratio", objective="latency") == pytest.approx(3 * 1020 / 1100)
    assert one.get("speculation_break_even_batch", objective="latency") is None
    assert one.get("speculation_break_even_batch", objective="throughput") > 0


@pytest.mark.parametrize(
    ("before", "speedup", "after"),
    [
        (None, 1.001, True),
        (None, 0.999, False),
        (True, 0.951, True),
        (True, 0.95, False),
        (False, 1.049, False),
        (False, 1.05, True),
        (True, None, None),
    ],
)
def test_advice_changes_only_clear_of_one(before, speedup, after):
    """Between 0.95 and 1.05 it stays as it was."""
    assert advise(before, speedup) is after


def test_the_objective_set_decides_the_advice():
    """B 60 with 600 prompt tokens a step: latency gains 3 x 260/500, throughput 3 x 260/900, which is a loss."""
    assert speculating(60, prefill=600, speculation={"objective": "latency"}).get("speculation_advised") == 1
    assert speculating(60, prefill=600).get("speculation_advised") == 0


def with_crossover(positions):
    """The recorded engine with peaks at which the crossover is so many positions."""
    bandwidth = 2e10
    return {
        **TINY,
        "hardware": {"peak_flops": bandwidth * positions, "bandwidth_bytes_per_second": bandwidth, "mbu": 1, "mfu": 1},
    }


def test_tokens_per_step_on_a_recording():
    """By the counters over sequences x steps in the engine's own log, in the longest window both cover: within 1 %."""
    shown = recorded("spec")
    first, last = shown[20][1], shown[-20][1]
    log = [each for each in truth("spec") if shown[20][0] < each.at <= shown[-20][0]]
    gained = sum(
        sign * (named(samples, "generation_tokens_total") - named(samples, "first_tokens_total"))
        for sign, samples in ((1, last), (-1, first))
    )
    per_request_step = gained / sum(each.decode for each in log)
    counted = [value for _, samples in shown[50:-20] if (value := named(samples, "speculation_tokens_per_step"))]

    assert per_request_step == pytest.approx(3.6, abs=0.2)
    assert sum(counted) / len(counted) == pytest.approx(per_request_step, rel=0.03)


@pytest.mark.parametrize("positions", [100, 200, 300, 500])
def test_advice_on_a_recording_is_stable(positions):
    """At 100 the speedup passes 1 nine times, at 150 to 250 once, above never; the advice changes once at most."""
    shown = recorded("spec", **with_crossover(positions))
    advice = [(at, value) for at, samples in shown if (value := named(samples, "speculation_advised")) is not None]
    changes = [later[0] for earlier, later in itertools.pairwise(advice) if earlier[1] != later[1]]

    assert len(advice) > 60
    assert len(changes) <= 1


def test_a_recording_with_speculation_on_and_what_it_implies_off():
    """At each scrape the engine without drafts, at that batch and prefill and told that alpha, has the same speedup."""
    compared = 0
    for _, samples in recorded("spec", **with_crossover(200))[40::15]:
        latency = named(samples, "speculation_expected_speedup_ratio", objective="latency")
        gained, prefill = (
            named(samples, "speculation_tokens_per_step"),
            named(samples, "step_positions", kind="prefill"),
        )
        batch, decode = named(samples, "decode_batch_size"), named(samples, "step_positions", kind="decode")
        gamma = decode / batch - 1
        if latency is None or gained <= 1:
            continue
        alpha = solve_alpha(gained, gamma)
        off = 1 if alpha is None else expected_tokens_per_step(alpha, gamma)
        without = max(1, (batch + prefill / gained) / 200)
        assert latency == pytest.approx(off * without / max(1, (decode + prefill / gained) / 200), rel=1e-6)
        compared += 1

    assert compared >= 3


def solve_alpha(tokens, gamma):
    """The acceptance that makes E so many tokens; None where none does."""
    low, high = 0.0, 1 - 1e-9
    if expected_tokens_per_step(high, gamma) < tokens:
        return None
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens_per_step(middle, gamma) < tokens else (low, middle)
    return low
