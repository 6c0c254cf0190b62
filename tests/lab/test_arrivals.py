"""Arrival processes, lengths and traces."""

from itertools import islice, pairwise
from pathlib import Path
from random import Random
from statistics import fmean, pstdev
from typing import Any

import pytest

from exporter.lab.arrivals import Pattern, arrivals, read_trace, times
from exporter.lab.load_report import dispersion


def test_gaps_have_the_rate_and_the_variation_asked_for() -> None:
    """20,000 gaps: the mean is known to CV/sqrt(n) = 1.3 %, the CV to a few per cent."""
    found = list(islice(times(Pattern(4, cv=1.8), Random(1)), 20_001))
    gaps = [later - earlier for earlier, later in pairwise(found)]
    assert fmean(gaps) == pytest.approx(1 / 4, rel=0.04)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1.8, rel=0.08)


def test_a_burst_window_has_its_own_rate() -> None:
    """11/s for 1,000 s between 4/s: counts are known to CV x sqrt(n), below 2 % of 11,000."""
    found = list(arrivals(Pattern(4, 11, burst_window=(1000, 2000), cv=1.8), 3000, seed=2))
    inside = sum(1000 <= each.at < 2000 for each in found)
    assert inside == pytest.approx(11_000, rel=0.06)
    assert len(found) - inside == pytest.approx(8_000, rel=0.06)


def test_two_states_share_the_time_by_their_dwell_times() -> None:
    """2/s for 30 s and 10/s for 10 s in the mean: (2 x 30 + 10 x 10) / 40 = 4/s."""
    pattern = Pattern(2, 10, base_dwell_seconds=30, burst_dwell_seconds=10)
    counts = [len(list(arrivals(pattern, 4000, seed=seed))) for seed in range(5)]
    assert fmean(counts) / 4000 == pytest.approx(4, rel=0.06)


def test_counts_of_a_gamma_process_are_level_from_five_seconds_on() -> None:
    """Renewal theory: variance over mean of counts tends to CV² = 3.24 once a window holds many gaps (20 in 5 s)."""
    found = [dispersion(list(_until(Pattern(4, cv=1.8), seed, 8000)), 8000) for seed in range(6)]
    levels = {window: fmean(each[window] for each in found) for window in ("5", "10", "20", "30")}
    assert all(level == pytest.approx(3.24, rel=0.2) for level in levels.values())
    assert max(levels.values()) / min(levels.values()) < 1.25


def test_counts_of_a_modulated_process_go_on_rising_past_five_seconds() -> None:
    """Rates 2 and 10 with dwell times of 60 and 20 s: windows of 20 s still see one state at a time, so the variance
    of the rate (12/s²) adds window x 12 / 4 to the gamma level, less what the changes of state average out."""
    pattern = Pattern(2, 10, base_dwell_seconds=60, burst_dwell_seconds=20, cv=1.8)
    found = [dispersion(list(_until(pattern, seed, 8000)), 8000) for seed in range(6)]
    levels = [fmean(each[window] for each in found) for window in ("1", "5", "10", "20", "30", "60")]
    assert levels == sorted(levels)
    assert levels[3] > 2 * levels[1]


def test_poisson_counts_have_a_dispersion_of_one() -> None:
    found = [dispersion(list(_until(Pattern(4), seed, 8000)), 8000) for seed in range(6)]
    assert all(fmean(each[window] for each in found) == pytest.approx(1, rel=0.15) for window in ("1", "5", "20"))


def _until(pattern: Pattern, seed: int, seconds: float) -> list[float]:
    found = []
    for at in times(pattern, Random(seed)):
        if at >= seconds:
            return found
        found.append(at)
    return found


def test_the_mixture_has_the_lengths_it_says() -> None:
    """0.7 exp(5.5 + 0.125) + 0.3 exp(8.2 + 0.08) = 1,377 in; 0.7 exp(4.18) + 0.3 exp(6.625) = 272 out."""
    found = list(arrivals(Pattern(100), 400, seed=4))
    assert fmean(each.prompt_tokens for each in found) == pytest.approx(1377, rel=0.03)
    assert fmean(each.output_tokens for each in found) == pytest.approx(272, rel=0.03)
    assert sum(each.label == "short" for each in found) / len(found) == pytest.approx(0.7, abs=0.02)


def test_no_request_is_longer_than_allowed() -> None:
    found = list(arrivals(Pattern(50), 60, seed=5, longest=1000))
    assert max(each.prompt_tokens + each.output_tokens for each in found) == 1000
    assert min(each.output_tokens for each in found) >= 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"base_rate": 0}, "the rate must be above 0, not 0"),
        ({"base_rate": 1, "cv": 0}, "the coefficient of variation must be above 0, not 0"),
        ({"base_rate": 1, "cv": -1}, "the coefficient of variation must be above 0, not -1"),
        ({"base_rate": 1, "burst_rate": -1}, "the burst rate cannot be below 0: -1"),
        ({"base_rate": 1, "base_dwell_seconds": 0}, "mean dwell times must be above 0"),
        ({"base_rate": 1, "burst_window": (5, 5)}, "the burst window must start at 0 or later"),
    ],
)
def test_a_pattern_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        Pattern(**fields)


def test_a_trace_is_read_in_order_of_time(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("seconds,prompt_tokens,output_tokens,class\n2.5,10,20,chat\n1,30,40,\n")
    found = read_trace(trace)
    assert [(each.at, each.label, each.prompt_tokens, each.output_tokens) for each in found] == [
        (1.0, "trace", 30, 40),
        (2.5, "chat", 10, 20),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("seconds,prompt_tokens,output_tokens\n1,2,3\n1,two,3\n", "line 3: '1,two,3'"),
        ("seconds,prompt_tokens,output_tokens\n1,2\n", "line 2"),
        ("seconds,prompt_tokens,output_tokens\n-1,2,3\n", "line 2: times start at 0"),
        ("seconds,prompt_tokens,output_tokens\nnan,2,3\n", "line 2: times start at 0"),
        ("seconds,prompt_tokens,output_tokens\n1,0,3\n", "line 2: times start at 0, token counts at 1"),
        ("seconds,prompt\n1,2\n", "line 1: no column output_tokens, prompt_tokens"),
        ("seconds,prompt_tokens,output_tokens\n", "no arrivals"),
    ],
)
def test_a_bad_trace_is_refused_by_line(tmp_path: Path, content: str, message: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_trace(trace)
