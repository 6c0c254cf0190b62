"""Speculation on paper: alpha 0.68, gamma 4, a draft of 1/70 of the target's step, crossover of 183 positions."""

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from exporter.speculation import break_even_batch, expected_tokens_per_step, speedup

GAMMA, COST, CROSSOVER = 4, 1 / 70, 183.0
RATIO = 1377 / 272


def gain(objective, batch, *, alpha=0.68, ratio=0.0):
    return speedup(
        objective,
        batch=batch,
        prefill_positions=ratio * batch,
        gamma=GAMMA,
        tokens_per_step=expected_tokens_per_step(alpha, GAMMA),
        draft_cost=COST,
        crossover_positions=CROSSOVER,
    )


def even(objective, ratio, *, tokens_per_step=None, cost=COST):
    return break_even_batch(
        objective,
        prefill_per_decode=ratio,
        gamma=GAMMA,
        tokens_per_step=expected_tokens_per_step(0.68, GAMMA) if tokens_per_step is None else tokens_per_step,
        draft_cost=cost,
        crossover_positions=CROSSOVER,
    )


def test_expected_tokens_is_the_sum_of_survivals():
    """1 + 0.68 + 0.68^2 + 0.68^3 + 0.68^4 = 2.6706: each draft token counts if all before it were accepted."""
    assert expected_tokens_per_step(0.68, 4) == pytest.approx(sum(0.68**k for k in range(5)))
    assert round(expected_tokens_per_step(0.68, 4), 2) == 2.67


def test_nothing_accepted_still_gives_the_target_token():
    """The verifying pass itself yields one token."""
    assert expected_tokens_per_step(0.0, 4) == 1.0


@pytest.mark.parametrize("batch", [1, 16, 36])
def test_latency_gain_while_drafts_are_free(batch):
    """Up to 183 / 5 = 36.6 sequences five positions each cost no time: 2.6706 / (1 + 4/70) = 2.53."""
    assert round(gain("latency", batch), 2) == 2.53


def test_latency_gain_at_64():
    """2.6706 / (320/183 + 4/70) = 2.6706 / 1.8058 = 1.48."""
    assert round(gain("latency", 64), 2) == 1.48


def test_latency_break_even():
    """5B/183 + 4/70 = 2.6706 gives B = 2.6135 x 36.6 = 95.65."""
    assert round(even("latency", 0.0), 2) == 95.65
    assert gain("latency", 95.6542) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("batch", [183, 400, 10_000])
def test_latency_loss_when_both_are_compute_bound(batch):
    """From 2.6706 / (5 + 4/70) = 0.528 at 183 towards 2.6706 / 5 = 0.534: 0.53."""
    assert round(gain("latency", batch), 2) == 0.53


@pytest.mark.parametrize(("alpha", "ratio"), [(0.90, 0.81), (0.99, 0.97)])
def test_no_acceptance_rate_pays_when_compute_bound(alpha, ratio):
    """E is below gamma + 1 for any alpha below 1: 4.0951 / 5.0571 = 0.81, 4.9010 / 5.0571 = 0.97 at 183."""
    assert round(gain("latency", 183, alpha=alpha), 2) == ratio


def test_throughput_at_64():
    """2.6706 x (64 x 6.0625/183) / ((320 + 2.6706 x 324)/183 + 4/70) = 2.6706 x 2.1202 / 6.534 = 0.87."""
    assert round(gain("throughput", 64, ratio=RATIO), 2) == 0.87


def test_throughput_break_even():
    """(5 + 2.6706 x 5.0625) B / 183 + 4/70 = 2.6706 gives B = 2.6135 x 183 / 18.52 = 25.8, 26 sequences."""
    assert round(even("throughput", RATIO)) == 26


def test_objectives_agree_without_prefill():
    """Pure decode has no prefill to carry faster."""
    assert gain("latency", 64) == gain("throughput", 64)
    assert even("latency", 0.0) == even("throughput", 0.0)


def test_latency_with_much_prefill_never_breaks_even():
    """Beyond the crossover 2.6706 x 6.0625 / (5 + 5.0625) = 1.61: the drafts hardly lengthen a step of prefill."""
    assert even("latency", RATIO) is None
    assert min(gain("latency", batch, ratio=RATIO) for batch in range(1, 600)) > 1


def test_a_draft_dearer_than_its_tokens_gains_at_no_batch():
    """E = 1.2 does not cover 1 + 4 x 0.1 = 1.4 steps."""
    assert even("latency", 0.0, tokens_per_step=1.2, cost=0.1) == 0.0


@given(
    alpha=st.floats(0, 0.99),
    gamma=st.integers(1, 8),
    cost=st.floats(0, 0.5),
    ratio=st.floats(0, 20),
    crossover=st.floats(20, 5000),
    throughput=st.booleans(),
)
def test_break_even_is_where_the_gain_ends(*, alpha, gamma, cost, ratio, crossover, throughput):
    """At the break-even batch the speedup is 1, and at half of it more than 1."""
    objective = "throughput" if throughput else "latency"
    shape = {
        "gamma": gamma,
        "tokens_per_step": expected_tokens_per_step(alpha, gamma),
        "draft_cost": cost,
        "crossover_positions": crossover,
    }
    batch = break_even_batch(objective, prefill_per_decode=ratio, **shape)
    assume(batch)

    at = speedup(objective, batch=batch, prefill_positions=ratio * batch, **shape)
    below = speedup(objective, batch=batch / 2, prefill_positions=ratio * batch / 2, **shape)
    assert at == pytest.approx(1.0)
    assert below >= 1.0


@given(st.floats(0, 0.99))
def test_gain_falls_with_the_batch_until_the_plain_step_fills(alpha):
    """Monotone up to the crossover; a scan that stops at the first loss is then the break-even."""
    gains = [gain("latency", batch, alpha=alpha) for batch in range(1, 184, 7)]

    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(gains))


@pytest.mark.parametrize("alpha", [-0.1, 1.0, 1.5, float("nan")])
def test_alpha_is_a_rate_below_one(alpha):
    """At 1 the sum is gamma + 1 and the formula divides by zero; nothing accepts always."""
    with pytest.raises(ValueError, match=r"alpha is an acceptance rate in \[0, 1\)"):
        expected_tokens_per_step(alpha, 4)


def test_gamma_is_not_negative():
    """No negative drafts."""
    with pytest.raises(ValueError, match="gamma"):
        expected_tokens_per_step(0.5, -1)
