"""The inputs that fuzzing kept, once more, without a fuzzer. ``make fuzz`` looks for new ones."""

import pytest

from fuzz.checks import CHECKS
from tests.programs import ROOT


@pytest.mark.parametrize("name", CHECKS)
def test_what_was_found_stays_mended(name: str) -> None:
    """Each kept input passes; what a check asks for is in fuzz/checks.py."""
    inputs = sorted((ROOT / "fuzz/corpus" / name).iterdir())

    assert len(inputs) >= 5
    for each in inputs:
        CHECKS[name](each.read_bytes())


@pytest.mark.parametrize("name", CHECKS)
def test_real_scrapes_pass(name: str) -> None:
    scrapes = sorted((ROOT / "tests/data/scrapes").glob("*.txt"))

    assert len(scrapes) > 10
    for each in scrapes:
        CHECKS[name](each.read_bytes())
