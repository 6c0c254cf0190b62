"""What of a model decides its step time and its memory: parameters, KV heads, bytes. Pure.

A wrong value raises ``ValueError`` with one line for a person, so that settings and argument parsers can show it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Precision = Literal["bf16", "fp8", "int8", "fp4"]
"""Arithmetic precision of the matrix multiplications; fp16 runs at the rate of bf16."""

BYTES_PER_ELEMENT: Final[Mapping[str, float]] = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "fp4": 0.5,
}
"""Stored bytes per element. The scales of block formats (3 to 13 % for 4-bit ones) are left out."""

MAX_BYTES_PER_ELEMENT: Final = 4.0
"""fp32; more is a slip of the units."""

COMPUTE_PRECISION: Final[Mapping[str, Precision]] = {
    "bf16": "bf16",
    "fp16": "bf16",
    "fp8": "fp8",
    "int8": "int8",
    "int4": "bf16",
    "fp4": "fp4",
}
"""The precision weights of a format are multiplied in: int4 is weight-only, unpacked to bf16."""

UNGATED_MLP: Final = frozenset(
    {"apertus", "arcee", "fuyu", "gpt_neox", "jais2", "nanochat", "nemotron", "persimmon", "phi", "starcoder2"}
)
"""``model_type`` values whose MLP has two matrices instead of three (no gate)."""

UNCOUNTED: Final = (
    "attn_layer_indices",
    "attn_layer_period",
    "conv_L_cache",
    "full_attention_interval",
    "hybrid_override_pattern",
    "linear_attn_config",
    "lru_width",
    "mamba_d_state",
    "hidden_size_per_layer_input",
    "num_kv_shared_layers",
    "moe_num_experts",
)
"""Fields of models with layers that hold no KV of their own or other matrices, said by other means than layer_types."""


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """One model as it is served.

    Attributes:
        total_params: all weights; what is read from memory.
        active_params: weights one position multiplies with; equal to ``total_params`` but for mixtures of experts.
        layers: layers that hold KV.
        kv_heads: KV heads per layer (grouped-query attention: fewer than query heads).
        head_dim: elements per head; where keys and values differ, their mean.
        weight_bytes_per_param: 2 for bf16, 1 for fp8 or int8, 0.5 for 4 bits.
        kv_bytes_per_element: 2 for bf16, 1 for fp8.
        compute_precision: which of the hardware's peaks holds; weight-only quantisation computes in bf16.
        mla_elements: elements per token and layer of a compressed (multi-head latent attention) cache, or None.
        query_heads: heads that attend; None leaves the attention of prompts out of every time.
    """

    total_params: float
    active_params: float
    layers: int
    kv_heads: int
    head_dim: int
    weight_bytes_per_param: float = 2.0
    kv_bytes_per_element: float = 2.0
    compute_precision: Precision = "bf16"
    mla_elements: int | None = None
    query_heads: int | None = None

    def __post_init__(self) -> None:
        for name in ("total_params", "active_params", "layers", "kv_heads", "head_dim"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.active_params > self.total_params:
            raise ValueError(f"active_params {self.active_params:g} is more than total_params {self.total_params:g}")
        for name in ("weight_bytes_per_param", "kv_bytes_per_element"):
            if not 0 < getattr(self, name) <= MAX_BYTES_PER_ELEMENT:
                raise ValueError(f"{name} must be in (0, 4], not {getattr(self, name)}")
        for name in ("mla_elements", "query_heads"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be above 0, not {value}")

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights."""
        return self.total_params * self.weight_bytes_per_param

    @property
    def flops_per_position(self) -> float:
        """``2 x active``: a multiply and an add per weight (Kaplan et al. 2020, 2.1); attention comes apart."""
        return 2.0 * self.active_params

    def attention_flops(self, new_tokens: float, context_tokens: float = 0.0) -> float:
        """Of a prompt of ``new_tokens`` behind ``context_tokens``: scores and values, 4 FLOPs per element and pair.

        Causal, so a new token meets the context and half of the new ones. 0 where the query heads are not known.
        """
        pairs = new_tokens * (context_tokens + new_tokens / 2)
        return 4.0 * self.layers * (self.query_heads or 0) * self.head_dim * pairs

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of KV a token takes, once: ``2 x layers x kv_heads x head_dim x bytes``, or the compressed cache."""
        per_layer = 2 * self.kv_heads * self.head_dim if self.mla_elements is None else self.mla_elements
        return self.layers * per_layer * self.kv_bytes_per_element

    def kv_copies(self, gpus: int) -> float:
        """How often tensor parallelism stores a token's KV: a head is not cut, MLA's cache counts as one."""
        heads = self.kv_heads if self.mla_elements is None else 1
        return max(1.0, gpus / heads)


def geometry_from_config(
    config: Mapping[str, Any], *, weights: str | None = None, kv_cache: str | None = None
) -> ModelGeometry:
    """Read the geometry from a HuggingFace ``config.json``, counting its parameters from the matrix shapes.

    Args:
        config: the parsed file; the ``text_config`` of a multi-modal model is used where there is one.
        weights: the format served, a key of `BYTES_PER_ELEMENT`; by default what the file says.
        kv_cache: format of the KV cache; by default bf16, as vLLM's ``auto`` has it for a bf16 model.

    Raises:
        ValueError: a field is missing or not a positive number, or the layers are of a kind this cannot count.
    """
    text = config.get("text_config")
    fields = {**config, **text} if isinstance(text, Mapping) else config
    kinds = {str(kind) for kind in fields.get("layer_types") or ()}
    if unknown := sorted(kinds - {"full_attention", "sliding_attention"}):
        raise ValueError(f"config.json has layers of kind {unknown[0]}: give parameters and KV geometry by hand")
    linear = ["attn_type_list"] if 0 in (fields.get("attn_type_list") or ()) else []
    if uncounted := [name for name in UNCOUNTED if fields.get(name) not in (None, 0, 1)] + linear:
        raise ValueError(f"config.json has {uncounted[0]}: give parameters and KV geometry by hand")
    total, active = _parameters(fields)
    served = weights or _stored_format(fields)
    for name in (served, kv_cache or "bf16"):
        if name not in BYTES_PER_ELEMENT:
            raise ValueError(f"unknown number format {name!r}; known: {', '.join(BYTES_PER_ELEMENT)}")
    heads = _count(fields, "num_attention_heads")
    latent = fields.get("kv_lora_rank")
    return ModelGeometry(
        total_params=total,
        active_params=active,
        layers=_count(fields, "num_hidden_layers"),
        kv_heads=_count(fields, "num_key_value_heads", heads),
        head_dim=_head_dim(fields, heads),
        weight_bytes_per_param=BYTES_PER_ELEMENT[served],
        kv_bytes_per_element=BYTES_PER_ELEMENT[kv_cache or "bf16"],
        compute_precision=COMPUTE_PRECISION[served],
        query_heads=heads,
        mla_elements=None if latent is None else _count(fields, "kv_lora_rank") + _count(fields, "qk_rope_head_dim"),
    )


def _count(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if value is None:
        raise ValueError(f"config.json has no {name}")
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ValueError(f"config.json: {name} must be a positive whole number, not {value!r}")
    return value


def _optional(fields: Mapping[str, Any], name: str) -> int:
    """The count, or 0 where the file leaves it out or says 0."""
    return _count(fields, name) if fields.get(name) else 0


def _head_dim(fields: Mapping[str, Any], heads: int) -> int:
    if fields.get("kv_lora_rank") is not None:
        parts = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return sum(_count(fields, name) for name in parts) // 2
    if fields.get("head_dim") is not None:
        return _count(fields, "head_dim")
    return max(1, _count(fields, "hidden_size") // heads)


def _stored_format(fields: Mapping[str, Any]) -> str:
    quantisation = fields.get("quantization_config")
    if isinstance(quantisation, Mapping):
        method = str(quantisation.get("quant_method"))
        by_method = {"fp8": "fp8", "fbgemm_fp8": "fp8", "awq": "int4", "mxfp4": "fp4"}
        if method in by_method:
            return by_method[method]
        if method == "gptq":
            return {4: "int4", 8: "int8"}.get(quantisation.get("bits", 4), "unknown gptq width")
        raise ValueError(f"config.json has quantization {method!r}: name the format the weights are served in")
    # vLLM serves a float32 checkpoint in 16 bits unless told otherwise.
    dtype = str(fields.get("torch_dtype") or fields.get("dtype") or "bfloat16")
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "bf16"}.get(dtype, dtype)


def _parameters(fields: Mapping[str, Any]) -> tuple[float, float]:
    """Total and active parameters: matrices only; norms and biases are under 0.1 %."""
    hidden = _count(fields, "hidden_size")
    layers = _count(fields, "num_hidden_layers")
    tied = fields.get("tie_word_embeddings", str(fields.get("model_type")).startswith("gemma"))
    embedding = _count(fields, "vocab_size") * hidden * (1 if tied else 2)
    matrix = hidden * (2 if fields.get("model_type") in UNGATED_MLP else 3)
    shared = layers * _attention_params(fields, hidden) + embedding
    named = next((name for name in ("num_local_experts", "n_routed_experts", "num_experts") if fields.get(name)), None)
    if named is None:
        total = shared + layers * matrix * _count(fields, "intermediate_size")
        return total, total
    if fields.get("mlp_only_layers") or any(
        (fields.get(name) or 1) != 1 for name in ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq")
    ):
        raise ValueError("config.json interleaves dense and expert layers: give the parameters by hand")
    experts, chosen = _count(fields, named), _count(fields, "num_experts_per_tok")
    expert = matrix * (_optional(fields, "moe_intermediate_size") or _count(fields, "intermediate_size"))
    dense_layers = min(layers, _optional(fields, "first_k_dense_replace") or _optional(fields, "num_dense_layers"))
    expert_layers = layers - dense_layers
    common = _optional(fields, "n_shared_experts") or _optional(fields, "num_shared_experts")
    every_position = common * expert + hidden * experts
    every_position += matrix * _optional(fields, "shared_expert_intermediate_size")
    dense = dense_layers * matrix * _count(fields, "intermediate_size") if dense_layers else 0
    base = shared + dense + expert_layers * every_position
    return base + expert_layers * experts * expert, base + expert_layers * min(chosen, experts) * expert


def _attention_params(fields: Mapping[str, Any], hidden: int) -> int:
    heads = _count(fields, "num_attention_heads")
    if fields.get("kv_lora_rank") is None:
        width = _head_dim(fields, heads)
        return 2 * hidden * width * (heads + _count(fields, "num_key_value_heads", heads))
    latent, rope = _count(fields, "kv_lora_rank"), _count(fields, "qk_rope_head_dim")
    nope, value = _count(fields, "qk_nope_head_dim"), _count(fields, "v_head_dim")
    query_width = heads * (nope + rope)
    rank = fields.get("q_lora_rank")
    query = hidden * query_width if rank is None else (hidden + query_width) * _count(fields, "q_lora_rank")
    return query + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
