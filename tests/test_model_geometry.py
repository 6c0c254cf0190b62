"""Geometry from a config.json: shapes as published by the models' makers, totals as their makers state them."""

from dataclasses import replace

import pytest

from exporter.model_geometry import ModelGeometry, geometry_from_config

LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXTRAL_8X7B = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "quantization_config": {"quant_method": "fp8"},
}
QWEN3_235B = {
    "model_type": "qwen3_moe",
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
}
APERTUS_8B = {
    "model_type": "apertus",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 21504,
    "vocab_size": 131072,
    "tie_word_embeddings": False,
}


def without(config, *names):
    return {name: value for name, value in config.items() if name not in names}


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        # Each pair is the maker's own rounded count.
        (LLAMA_70B, 70.6e9, 70.6e9),
        (MIXTRAL_8X7B, 46.7e9, 12.9e9),
        (DEEPSEEK_V3, 671e9, 37e9),
        (QWEN3_235B, 235e9, 22e9),
        (APERTUS_8B, 8.05e9, 8.05e9),
    ],
    ids=["Llama 3.1 70B", "Mixtral 8x7B", "DeepSeek-V3", "Qwen3-235B-A22B", "Apertus 8B, without gates"],
)
def test_parameters_counted_from_shapes(config, total, active):
    """Within 2 % of what the maker states (makers differ in whether embeddings are active)."""
    model = geometry_from_config(config)

    assert model.total_params == pytest.approx(total, rel=0.005)
    assert model.active_params == pytest.approx(active, rel=0.02)


def test_grouped_heads_make_the_kv():
    """Llama 70B in bf16: 2 x 80 layers x 8 heads x (8192 / 64) x 2 bytes = 327,680; fp8 KV half of it."""
    assert geometry_from_config(LLAMA_70B).kv_bytes_per_token == 327_680
    assert geometry_from_config(LLAMA_70B, kv_cache="fp8").kv_bytes_per_token == 163_840


def test_heads_without_grouping_are_all_kv_heads():
    """A file without num_key_value_heads is multi-head attention: 64 of them."""
    assert geometry_from_config(without(LLAMA_70B, "num_key_value_heads")).kv_heads == 64


def test_head_dim_wins_over_the_quotient():
    """Qwen3-235B has heads of 128 although 4096 / 64 is 64; a null is as good as none."""
    assert geometry_from_config(QWEN3_235B).head_dim == 128
    assert geometry_from_config({**LLAMA_70B, "head_dim": None}).head_dim == 128


def test_compressed_cache_is_latent_and_rotary():
    """512 + 64 elements per token and layer."""
    model = geometry_from_config(DEEPSEEK_V3)

    assert model.mla_elements == 576
    assert model.head_dim == (128 + 64 + 128) / 2
    assert model.kv_bytes_per_token == 61 * 576 * 2


def test_query_projection_without_compression():
    """DeepSeek-V2-Lite's q_lora_rank null: one matrix of hidden x heads x (128 + 64) instead of two thinner ones."""
    compressed = geometry_from_config(DEEPSEEK_V3).total_params
    plain = geometry_from_config({**DEEPSEEK_V3, "q_lora_rank": None}).total_params

    assert plain - compressed == 61 * (7168 * 128 * 192 - 1536 * (7168 + 128 * 192))


@pytest.mark.parametrize(
    ("quantization", "bytes_per_param", "precision"),
    [
        ({"quant_method": "fp8"}, 1, "fp8"),
        ({"quant_method": "awq", "bits": 4}, 0.5, "bf16"),
        ({"quant_method": "gptq", "bits": 8}, 1, "int8"),
        ({"quant_method": "mxfp4"}, 0.5, "fp4"),
    ],
)
def test_stored_format_from_the_file(quantization, bytes_per_param, precision):
    """What the checkpoint is stored in, and what it multiplies in: AWQ is unpacked to bf16."""
    model = geometry_from_config({**LLAMA_70B, "quantization_config": quantization})

    assert model.weight_bytes_per_param == bytes_per_param
    assert model.compute_precision == precision


def test_served_format_wins_over_the_file():
    """vLLM quantises a bf16 checkpoint on load with --quantization fp8."""
    model = geometry_from_config(LLAMA_70B, weights="fp8")

    assert model.weight_bytes == model.total_params
    assert model.compute_precision == "fp8"


def test_tied_embeddings_count_once():
    """128,256 x 8,192 parameters less."""
    tied = geometry_from_config({**LLAMA_70B, "tie_word_embeddings": True})

    assert geometry_from_config(LLAMA_70B).total_params - tied.total_params == 128256 * 8192


def test_multi_modal_models_keep_theirs_under_text_config():
    """The language model decides the step."""
    wrapped = {"model_type": "wrapper", "vision_config": {}, "text_config": LLAMA_70B}

    assert geometry_from_config(wrapped) == geometry_from_config(LLAMA_70B)


@pytest.mark.parametrize(
    "name", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]
)
def test_missing_field_is_named(name):
    """One line that says which."""
    with pytest.raises(ValueError, match=f"config.json has no {name}"):
        geometry_from_config(without(LLAMA_70B, name))


@pytest.mark.parametrize("value", [0, -1, "80", True, 80.5])
def test_field_that_is_no_count(value):
    """A string or a negative number is refused, not computed with."""
    with pytest.raises(ValueError, match="num_hidden_layers must be a positive whole number"):
        geometry_from_config({**LLAMA_70B, "num_hidden_layers": value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["linear_attention", "full_attention"]}, "layers of kind linear_attention"),
        # Qwen3-Next says so instead of layer_types: one layer in four holds KV.
        ({"full_attention_interval": 4, "linear_conv_kernel_dim": 4}, "has full_attention_interval"),
        # MiniMax-Text-01: 1 is full attention, 0 linear.
        ({"attn_type_list": [0, 0, 1]}, "has attn_type_list"),
        # Jamba, Falcon-H1, and Gemma 4 E2B, whose later layers use the KV of others.
        ({"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16}, "has attn_layer_period"),
        ({"mamba_d_ssm": 1024, "mamba_d_state": 256}, "has mamba_d_state"),
        ({"num_kv_shared_layers": 20}, "has num_kv_shared_layers"),
        # ERNIE 4.5: a mixture of experts that would pass for dense.
        ({"moe_num_experts": 64, "moe_k": 6}, "has moe_num_experts"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 2}, "interleaves dense and expert"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "name the format"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "unknown number format"),
        ({"torch_dtype": "float64"}, "unknown number format 'float64'"),
    ],
)
def test_what_cannot_be_counted_is_refused(change, message):
    """A wrong count would look like a right one."""
    with pytest.raises(ValueError, match=message):
        geometry_from_config({**LLAMA_70B, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total_params": 0.0}, "total_params must be above 0"),
        ({"active_params": 2e9}, "more than total_params"),
        ({"weight_bytes_per_param": 8.0}, r"weight_bytes_per_param must be in \(0, 4\]"),
        ({"mla_elements": 0}, "mla_elements must be above 0"),
    ],
)
def test_geometry_by_hand_is_checked(change, message):
    """Settings give the same values; the message names the field."""
    with pytest.raises(ValueError, match=message):
        replace(ModelGeometry(1e9, 1e9, layers=16, kv_heads=8, head_dim=64), **change)


def test_float32_checkpoints_are_served_in_16_bits():
    """vLLM's dtype auto casts them, so they weigh two bytes a parameter."""
    assert geometry_from_config({**LLAMA_70B, "torch_dtype": "float32"}).weight_bytes_per_param == 2


def test_full_attention_said_in_other_words_is_counted():
    """MiniMax-M2 lists its layers, all of them with attention; a period of 1 and 0 shared layers say the same."""
    said = {"attn_type_list": [1] * 80, "full_attention_interval": 1, "num_kv_shared_layers": 0}

    assert geometry_from_config({**LLAMA_70B, **said}) == geometry_from_config(LLAMA_70B)


def test_shared_experts_and_dense_layers_by_either_name():
    """DeepSeek's names and those of Ling, EXAONE and Trinity; without the shared expert 58 x 3 x 7168 x 2048 fewer."""
    renamed = without(DEEPSEEK_V3, "n_shared_experts", "first_k_dense_replace")
    other = geometry_from_config({**renamed, "num_shared_experts": 1, "num_dense_layers": 3})
    none = geometry_from_config({**renamed, "num_dense_layers": 3})

    assert other == geometry_from_config(DEEPSEEK_V3)
    assert other.active_params - none.active_params == 58 * 3 * 7168 * 2048
