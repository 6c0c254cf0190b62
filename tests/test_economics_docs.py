"""docs/economics.md says what the code does."""

import re
import shlex
from pathlib import Path

import pytest

from exporter.hardware import PROFILES
from exporter.lab.plan import main

TEXT = (Path(__file__).parents[1] / "docs" / "economics.md").read_text(encoding="utf-8")


def leading_number(cell):
    return float(re.match(r"[\d.,]+", cell)[0].replace(",", ""))


def test_every_profile_is_in_the_table_with_its_figures():
    """A changed profile changes the page."""
    rows = {
        name: [leading_number(cell) for cell in cells.split(" | ")]
        for name, cells in re.findall(r"^\| `([\w-]+)` \| (.+) \|$", TEXT, re.MULTILINE)
    }
    figures = {
        name: [
            profile.peak("bf16") / 1e12,
            profile.peak_flops.get("fp8", profile.peak("int8")) / 1e12,
            profile.bandwidth_bytes_per_second / 1e12,
            profile.capacity_bytes / 1e9,
        ]
        for name, profile in PROFILES.items()
    }

    assert rows.keys() == figures.keys()
    assert {name: pytest.approx(values) for name, values in figures.items()} == rows


def test_the_printed_command_runs(tmp_path, monkeypatch, capsys):
    """And its plan has the crossover and the batch the page states."""
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^vllm-sidecar plan (.*?)^```", TEXT, re.MULTILINE | re.DOTALL)

    assert main(shlex.split(command.replace("\\\n", ""))) == 0
    assert re.search(r"crossover positions +182\.3", capsys.readouterr().out)
    assert (tmp_path / "plan.png").exists()
