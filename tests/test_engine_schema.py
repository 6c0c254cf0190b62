"""Settings of hardware, model, speculation and weights: what is taken, and the one line for what is not."""

import json

import pytest

from exporter.cli import main
from exporter.settings import BadSettingsError, load
from tests.live import DENSE_70B

MIXTRAL = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


def roofline(**settings):
    return load(**settings).all_targets()[0].roofline


def test_geometry_by_hand():
    """The running example: 140 GB of weights, 163,840 bytes of KV per token."""
    paper = roofline(hardware={"profile": "h100-sxm"}, model=DENSE_70B, gpus_per_engine=4)

    assert paper.model.weight_bytes == 140e9
    assert paper.model.kv_bytes_per_token == 163_840
    assert paper.gpus == 4


def test_geometry_from_a_config_file(tmp_path):
    """46.7 B in all, 12.9 B active; served in fp8."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MIXTRAL))
    paper = roofline(hardware={"profile": "h200"}, model={"config_file": path, "weights": "fp8"})

    assert paper.model.total_params == pytest.approx(46.7e9, rel=0.001)
    assert paper.model.active_params == pytest.approx(12.9e9, rel=0.002)
    assert paper.model.compute_precision == "fp8"


def test_what_is_set_overrides_the_file(tmp_path):
    """Fewer layers than the file says, computed in bf16 though stored in fp8."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MIXTRAL))
    model = {"config_file": path, "weights": "fp8", "compute": "bf16", "layers": 16}
    paper = roofline(hardware={"profile": "h200"}, model=model)

    assert (paper.model.layers, paper.model.compute_precision) == (16, "bf16")


def test_hardware_that_is_no_profile():
    """Both peaks by hand are enough."""
    hardware = {"peak_flops": 2e12, "bandwidth_bytes_per_second": 1e11}

    assert roofline(hardware=hardware, model=DENSE_70B).ridge_flops_per_byte == 20


def test_overrides_lie_over_a_profile():
    hardware = {"profile": "h100-sxm", "bandwidth_bytes_per_second": 3e12}

    assert roofline(hardware=hardware, model=DENSE_70B).peak_bandwidth == 3e12


def test_each_target_has_its_own(monkeypatch):
    """By environment for all, by file for one."""
    monkeypatch.setenv("VLLM_SIDECAR_HARDWARE__PROFILE", "h100-sxm")
    one, other = load(
        model=DENSE_70B,
        targets=[{"url": "http://a"}, {"url": "http://b", "hardware": {"profile": "h200"}}],
    ).all_targets()

    assert (one.roofline.hardware.name, other.roofline.hardware.name) == ("h100-sxm", "h200")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"hardware": {"profile": "h900"}},
            "hardware: unknown hardware profile 'h900'; known: h100-sxm, h100-pcie, h200",
        ),
        ({"hardware": {"mbu": 0}}, "hardware.mbu: Input should be greater than 0"),
        ({"hardware": {"mfu": 1.01}}, "hardware.mfu: Input should be less than or equal to 1"),
        ({"hardware": {"peak_flops": 1e12}}, "hardware: without a profile both peak_flops and bandwidth"),
        ({"hardware": {"step_overhead_seconds": -1}}, "hardware.step_overhead_seconds: Input should be greater"),
        ({"speculation": {"alpha": 1}}, "speculation.alpha: Input should be less than 1"),
        ({"speculation": {"alpha": -0.1}}, "speculation.alpha: Input should be greater than or equal to 0"),
        ({"speculation": {"gamma": 0}}, "speculation.gamma: Input should be greater than or equal to 1"),
        ({"speculation": {"objective": "fun"}}, "speculation.objective: Input should be 'latency' or 'throughput'"),
        (
            {"speculation": {"draft_model": {"layers": 2}}},
            "speculation.draft_model: needs total_params, kv_heads, head_dim",
        ),
        ({"model": {"layers": 80, "kv_heads": 8}}, "model: needs total_params, head_dim too, or a config_file"),
        ({"model": {**DENSE_70B, "active_params": 80e9}}, "model: active_params 8e+10 is more than total_params 7e+10"),
        ({"model": {"weights": "int3"}}, "model.weights: Input should be 'bf16', 'fp16', 'fp8'"),
        ({"model": {"config_file": "/does/not/exist"}}, "model.config_file: cannot read /does/not/exist: No such file"),
        ({"token_weights": {"output": 0}}, "token_weights.output: Input should be greater than 0"),
        ({"token_weights": {"input": -1}}, "token_weights.input: Input should be greater than or equal to 0"),
        (
            {"baseline": {"prefix_cache_hit_ratio": 1.5}},
            "baseline.prefix_cache_hit_ratio: Input should be less than or",
        ),
        ({"hardware": {"gpu": "h100"}}, "hardware.gpu: unknown setting"),
    ],
)
def test_what_is_refused(settings, line):
    """One line that names the setting."""
    with pytest.raises(BadSettingsError) as refused:
        load(**settings)

    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("{", "is not a JSON object"),
        ("[1, 2]", "is not a JSON object"),
        ("{}", "config.json has no hidden_size"),
        (json.dumps({**MIXTRAL, "vocab_size": -1}), "config.json: vocab_size must be a positive whole number, not -1"),
    ],
)
def test_a_config_file_that_says_too_little(tmp_path, capsys, content, line):
    """One line and exit code 2."""
    model, settings = tmp_path / "config.json", tmp_path / "sidecar.yaml"
    model.write_text(content)
    settings.write_text(f"model:\n  config_file: {model}\n")

    assert main(["--config.file", str(settings), "--config.check"]) == 2
    assert line in capsys.readouterr().err
