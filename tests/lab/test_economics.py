"""Traffic and money: the worked numbers of docs/economics.md."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.engine_schema import TokenWeights
from exporter.lab.economics import (
    DEFAULT_WEIGHTS,
    RequestClass,
    Traffic,
    cost_per_million,
    cost_per_token_ratio,
    fluid_burst,
    output_dollars,
    preemptions_per_request,
    worst_extra_prefill_ratio,
)

SHORT_AND_LONG = (RequestClass(1, 100, 100), RequestClass(1, 900, 300))


def test_tokens_weigh_on_paper_what_they_weigh_live():
    assert TokenWeights().model_dump() == DEFAULT_WEIGHTS


def test_fluid_burst():
    """11/s for 120 s onto 7.143/s (one each 0.14 s) over a base of 4/s.

    (11 - 7.143) x 120 = 463 queued; the last waits 463 / 7.143 = 65 s; it drains in 463 / (7.143 - 4) = 147 s.
    """
    burst = fluid_burst(4, 11, 120, 1 / 0.14)

    assert round(burst.queued_requests) == 463
    assert round(burst.last_wait_seconds) == 65
    assert round(burst.drain_seconds) == 147


def test_burst_within_capacity_queues_nothing():
    """The fluid model has no randomness: below the service rate there is no queue."""
    burst = fluid_burst(4, 7, 60, 8)

    assert (burst.queued_requests, burst.last_wait_seconds, burst.drain_seconds) == (0, 0, 0)


def test_burst_over_a_full_base_never_drains():
    """There is no drain time, which is not the same as a long one."""
    assert fluid_burst(8, 11, 60, 8).drain_seconds is None


def test_preemptions_per_request():
    """18 a minute are 0.3/s of 7.1/s: 4.2 %."""
    assert round(preemptions_per_request(18, 7.1) * 100, 1) == 4.2


def test_worst_extra_prefill():
    """Each of the 4.225 % recomputes 4,700 tokens where the mean request computes 1,377: 14.4 %."""
    extra = worst_extra_prefill_ratio(preemptions_per_request(18, 7.1), 4_700, 1_377)

    assert round(extra * 100) == 14


def test_wider_tensor_parallel_costs_more_per_token():
    """Twice the price for 1.81 times the tokens: 2 / 1.81 = 1.105."""
    assert round((cost_per_token_ratio(2, 1.81) - 1) * 100, 1) == 10.5


def test_fp8_costs_less_per_token():
    """The same price for 1.76 times the tokens: 1 - 1 / 1.76 = 43 %."""
    assert round((1 - cost_per_token_ratio(1, 1.76)) * 100) == 43


def test_thinking_tokens_are_paid_as_output():
    """(2,000 + 200) x 1,000 x $3/1M = $6.60; the answers alone $0.60."""
    assert output_dollars(2_200, 3, 1_000) == pytest.approx(6.60)
    assert output_dollars(200, 3, 1_000) == pytest.approx(0.60)


@given(st.floats(0.01, 1e4), st.floats(1, 1e6), st.floats(0, 1e6), st.floats(1, 1e6))
def test_every_basis_adds_up_to_the_bill(dollars_per_hour, fresh, cached, output):
    """Rates times prices over an hour are the bill, whatever basis it is spread on."""
    prices = cost_per_million(dollars_per_hour, fresh, cached, output)
    rates = {"input": fresh, "cached_input": cached, "output": output}

    for basis in ("output", "all", "weighted"):
        billed = sum(price * rates[kind] * 3600 / 1e6 for (name, kind), price in prices.items() if name == basis)
        assert billed == pytest.approx(dollars_per_hour)


def test_weighted_prices_keep_their_weights():
    """Output costs four times, cached input a tenth of computed input."""
    prices = cost_per_million(10, 1000, 500, 200)

    assert prices["weighted", "output"] == pytest.approx(4 * prices["weighted", "input"])
    assert prices["weighted", "cached_input"] == pytest.approx(0.1 * prices["weighted", "input"])


def test_cost_per_million_output_tokens():
    """$10/h at 1,000 tokens/s: 3.6M tokens an hour, $2.78 per million."""
    assert cost_per_million(10, 100, 0, 1000)["output", "output"] == pytest.approx(10 / 3.6)


def test_types_without_tokens_have_no_price():
    """No cached tokens: no price for them, on any basis."""
    assert not [kind for _, kind in cost_per_million(10, 100, 0, 1000) if kind == "cached_input"]


def test_mixture_means():
    """Half 100/100, half 900/300: 500 in, 200 out; 40 % cached leaves 300 computed, 1.5 per output token."""
    traffic = Traffic(1, 1, SHORT_AND_LONG, cached_share=0.4)

    assert (traffic.prompt_tokens, traffic.output_tokens) == (500, 200)
    assert traffic.computed_prompt_tokens == pytest.approx(300)
    assert traffic.prefill_per_decode == pytest.approx(1.5)


def test_residents_are_length_biased():
    """The long ones stay three times as long, so three in four found running are long: (150 + 3 x 1,050) / 4 = 825.

    The mean of arrivals, (150 + 1,050) / 2 = 600, is too hopeful.
    """
    assert Traffic(1, 1, SHORT_AND_LONG).resident_tokens == pytest.approx(825)


def test_weights_are_relative():
    """7:3 and 0.7:0.3 are one mixture."""
    tenths = Traffic(1, 1, (RequestClass(0.7, 100, 100), RequestClass(0.3, 900, 300)))
    wholes = Traffic(1, 1, (RequestClass(7, 100, 100), RequestClass(3, 900, 300)))

    assert tenths.resident_tokens == pytest.approx(wholes.resident_tokens)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0, SHORT_AND_LONG), "rate must be above 0"),
        ((2, 1, SHORT_AND_LONG), "peak rate 1 is below the mean 2"),
        ((1, 1, ()), "mixture is empty"),
        ((1, 1, SHORT_AND_LONG, 1.0), r"cached share must be in \[0, 1\)"),
    ],
)
def test_traffic_that_is_none(arguments, message):
    """Zero traffic has no cost per token; it is refused, not divided by."""
    with pytest.raises(ValueError, match=message):
        Traffic(*arguments)
