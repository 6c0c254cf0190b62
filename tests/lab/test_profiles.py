"""Profiles: what makes sense, and how long a step takes."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.lab.profiles import PROFILES, Speculation

H100 = PROFILES["h100-tp4-70b"]


@pytest.mark.parametrize(("budget", "milliseconds"), [(8192, 688), (2048, 172), (512, 43)])
def test_the_chunk_budget_bounds_the_gap(budget: int, milliseconds: int) -> None:
    """At 11.9 positions a millisecond a full budget takes budget / 11.9 ms."""
    assert round(H100.step_seconds(budget) * 1000) == milliseconds


def test_a_small_step_takes_the_weight_read() -> None:
    """64 positions are 5.4 ms of compute, hidden behind 15.4 ms of reading weights; the lines meet at 183."""
    assert H100.step_seconds(64) == 0.0154
    assert H100.step_seconds(183) == 0.0154
    assert H100.step_seconds(184) == pytest.approx(184 / 11_900)


def test_extras_add_to_a_step() -> None:
    """15.4 ms + 1 ms overhead + 1000 tokens of context at 1 us + 4 drafts at 0.5 ms = 19.4 ms."""
    profile = replace(
        H100, overhead_seconds=0.001, kv_read_seconds_per_token=1e-6, speculation=Speculation(4, 0.8, 0.0005)
    )
    assert profile.step_seconds(64, 1000) == pytest.approx(0.0194)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_batched_tokens": 15}, "max_num_batched_tokens 15 is below one block of 16 tokens"),
        ({"max_num_batched_tokens": 32}, "max_num_batched_tokens 32 is below max_num_seqs 64"),
        ({"kv_tokens": 20}, "kv_tokens 20 is below two blocks of 16 tokens"),
        ({"weight_read_seconds": 0.0}, "weight_read_seconds must be above 0, not 0.0"),
        ({"overhead_seconds": -1.0}, "overhead_seconds cannot be below 0: -1.0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        replace(H100, **change)


@pytest.mark.parametrize("arguments", [(0, 0.5), (4, 1.5), (4, -0.1), (4, 0.5, -1.0)])
def test_speculation_that_makes_no_sense_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"draft|acceptance|drafting"):
        Speculation(*arguments)
