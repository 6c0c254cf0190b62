"""docs/economics.md says what the code does."""

import re
import shlex
from pathlib import Path

import pytest

from exporter.hardware import DEFAULT_MBU, DEFAULT_MFU, PROFILES
from exporter.lab.plan import main
from exporter.settings import load
from exporter.signals import waste

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


def test_the_printed_settings_are_taken(tmp_path):
    """The YAML of the live part, with a model there, is valid and has a roofline."""
    (text,) = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    model = tmp_path / "config.json"
    model.write_text(
        '{"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80,'
        '"num_key_value_heads": 8, "vocab_size": 128256}'
    )
    settings = tmp_path / "sidecar.yaml"
    settings.write_text(text.replace("/models/llama/config.json", str(model)))
    (target,) = load(settings).all_targets()

    assert target.roofline.crossover_positions == pytest.approx(182.3, abs=0.1)
    assert target.roofline.model.kv_bytes_per_token == 163_840


def test_kinds_of_waste_and_default_ceilings_are_those_of_the_code():
    """A renamed kind or another default changes the page."""
    for kind in (waste.IDLE, waste.REJECTED, waste.RECOMPUTED):
        assert f"`{kind}`" in TEXT
    assert f"else {DEFAULT_MBU} and {DEFAULT_MFU}" in TEXT
