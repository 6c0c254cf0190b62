"""Settings of what an engine's metrics cannot say: its hardware, its model, its speculation, what its tokens weigh."""

import json
import math
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from exporter.files import read_file
from exporter.hardware import PROFILES, HardwareProfile, hardware_profile
from exporter.model_geometry import (
    BYTES_PER_ELEMENT,
    COMPUTE_PRECISION,
    ModelGeometry,
    Precision,
    geometry_from_config,
)
from exporter.schema_types import Count, Efficiency, NotNegative, Positive, ReadableFile, Strict
from exporter.speculation import Objective

MAX_CONFIG_BYTES = 16 * 2**20
NumberFormat = Literal["bf16", "fp16", "fp8", "int8", "int4", "fp4"]


class Hardware(Strict):
    """The GPU, and what of its peaks the engine reaches at best."""

    profile: str | None = Field(None, description=f"One of {', '.join(PROFILES)}. Without it there is no roofline.")
    peak_flops: Positive | None = Field(None, description="Dense peak of one GPU in FLOP/s, instead of the profile's.")
    bandwidth_bytes_per_second: Positive | None = Field(
        None, description="Memory bandwidth of one GPU, instead of the profile's."
    )
    mbu: Efficiency | None = Field(
        None, description="Ceiling of memory-bandwidth utilisation; null calibrates it where vLLM counts bytes."
    )
    mfu: Efficiency | None = Field(
        None, description="Ceiling of FLOP/s utilisation; null calibrates it where vLLM counts FLOPs."
    )
    step_overhead_seconds: NotNegative = Field(0.0, description="Of every step, whatever is in it.")

    @cached_property
    def gpu(self) -> HardwareProfile | None:
        """One GPU: the profile with its overrides, or the overrides alone; None where neither says enough."""
        peak, bandwidth = self.peak_flops, self.bandwidth_bytes_per_second
        if self.profile is not None:
            return hardware_profile(self.profile, peak_flops=peak, bandwidth_bytes_per_second=bandwidth)
        if peak is not None and bandwidth is not None:
            return HardwareProfile("configured", {"bf16": peak}, bandwidth, math.inf, "settings")
        return None

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.gpu is None and (self.peak_flops is not None or self.bandwidth_bytes_per_second is not None):
            raise ValueError("without a profile both peak_flops and bandwidth_bytes_per_second are needed")
        return self


class Model(Strict):
    """The geometry of a model as it is served: from its config.json, or by hand."""

    config_file: ReadableFile | None = Field(None, description="The model's config.json.")
    total_params: Positive | None = Field(None, description="All weights.")
    active_params: Positive | None = Field(None, description="Weights a position multiplies with; null: all.")
    layers: Count | None = Field(None, description="Layers that hold KV.")
    kv_heads: Count | None = Field(None, description="KV heads per layer.")
    head_dim: Count | None = Field(None, description="Elements per head.")
    mla_elements: Count | None = Field(None, description="Elements per token and layer of a compressed cache.")
    weights: NumberFormat | None = Field(None, description="Format of the weights; null: config.json's, else bf16.")
    compute: Precision | None = Field(None, description="Format they are multiplied in; null: as the weights imply.")
    kv_cache: NumberFormat = Field("bf16", description="Format of the KV cache.")

    @cached_property
    def geometry(self) -> ModelGeometry | None:
        """What decides step time and memory; None where nothing is said of the model."""
        given: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("total_params", "active_params", "layers", "kv_heads", "head_dim", "mla_elements")
            if getattr(self, name) is not None
        }
        if self.compute is not None:
            given["compute_precision"] = self.compute
        if self.config_file is not None:
            return replace(self._from_file(), **given)
        if not given:
            return None
        missing = [name for name in ("total_params", "layers", "kv_heads", "head_dim") if name not in given]
        if missing:
            raise ValueError(f"needs {', '.join(missing)} too, or a config_file")
        weights = self.weights or "bf16"
        return ModelGeometry(
            **{"active_params": self.total_params, "compute_precision": COMPUTE_PRECISION[weights], **given},
            weight_bytes_per_param=BYTES_PER_ELEMENT[weights],
            kv_bytes_per_element=BYTES_PER_ELEMENT[self.kv_cache],
        )

    def _from_file(self) -> ModelGeometry:
        try:
            config = json.loads(read_file(self.config_file, MAX_CONFIG_BYTES) if self.config_file else b"")
            fields = dict(config)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{self.config_file} is not a JSON object: {error}") from None
        return geometry_from_config(fields, weights=self.weights, kv_cache=self.kv_cache)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        _ = self.geometry
        return self


class Speculation(Strict):
    """Speculative decoding: what is expected of it while it is off, what a draft costs, what it is judged by."""

    alpha: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        None, description="Chance that a draft token is accepted, for an engine that does not speculate now."
    )
    gamma: Count | None = Field(None, description="Draft tokens per request and step, for the same.")
    draft_cost: NotNegative = Field(
        0.0, description="Time of one draft pass over a memory-bound step of the target; 0 for n-grams."
    )
    draft_model: Model = Field(default_factory=Model, description="Geometry of the draft model, if there is one.")
    objective: Objective = Field("throughput", description="What the advice is for: latency or throughput.")


class TokenWeights(Strict):
    """What tokens weigh against each other in the basis weighted."""

    input: NotNegative = Field(1.0, description="A prompt token that is computed.")
    cached_input: NotNegative = Field(0.1, description="A prompt token found in a cache.")
    output: Positive = Field(4.0, description="A generated token.")


class Baseline(Strict):
    """What is normal for this engine, to compare with."""

    busy_dollars_per_million_output_tokens: Positive | None = Field(
        None, description="Busy cost per million output tokens when all is well."
    )
    prefix_cache_hit_ratio: Efficiency | None = Field(None, description="Prefix-cache hit ratio of a warm engine.")


class Replicas(Strict):
    """Advice on how many replicas a model wants. Nothing is scaled by the sidecar."""

    tokens_per_second: Positive | None = Field(
        None, description="Output tokens per second that one replica sustains; as seen while requests queue if null."
    )
    target_utilization_ratio: Efficiency = Field(0.7, description="Share of that to be used at the arrivals of now.")
    drain_seconds: Positive = Field(30.0, description="Time in which the requests that wait should be through.")
    minimum: Count = Field(1, description="Fewest replicas to advise.")
    maximum: Count = Field(100, description="Most replicas to advise.")
    cooldown_seconds: NotNegative = Field(60.0, description="Time between two changes of the advice.")
    low_seconds: NotNegative = Field(120.0, description="Time under half of capacity before one less is advised.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError("minimum is above maximum")
        return self
