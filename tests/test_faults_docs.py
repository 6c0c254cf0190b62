"""Every fault that is known of others is kept out by a test that exists, or by a reason."""

import re
from collections.abc import Iterator

import pytest

from tests.programs import ROOT

PAGE = (ROOT / "docs/faults.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))
REPORTS = {"A": 7, "B": 6, "C": 8, "D": 3, "E": 4, "F": 7, "G": 6, "H": 5, "I": 6}


def rows(section: str) -> Iterator[list[str]]:
    """The cells of each row below a heading that begins so."""
    text = PAGE[PAGE.index(section) :].partition("\n")[2].partition("\n#")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:])


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_named_test_exists(file: str, test: str) -> None:
    assert re.search(rf"^(async )?def {test}\(", (ROOT / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_every_fault_of_peers_has_its_row() -> None:
    """F1 to F22, in order, none without an answer."""
    found = list(rows("## In rules"))

    assert [row[0] for row in found] == [f"F{number}" for number in range(1, 23)]
    assert all("::" in row[2] or row[2].startswith("Reason: ") for row in found)


@pytest.mark.parametrize(("group", "count"), REPORTS.items())
def test_every_public_report_has_its_row(group: str, count: int) -> None:
    found = list(rows(f"### {group}. "))

    assert len(found) == count
    assert all("::" in row[1] or row[1].startswith("Reason: ") for row in found)
