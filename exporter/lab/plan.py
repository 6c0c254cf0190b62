"""``vllm-sidecar plan``: what a model on some hardware will do under some traffic and cost, before it runs."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from exporter.hardware import (
    DEFAULT_ATTENTION_MFU,
    DEFAULT_GPU_MEMORY_UTILIZATION,
    DEFAULT_MBU,
    DEFAULT_MFU,
    DEFAULT_RESERVE_BYTES_PER_GPU,
    PROFILES,
    Roofline,
    hardware_profile,
)
from exporter.lab.economics import RequestClass, Traffic
from exporter.lab.plan_inputs import Draft, PlanInputs
from exporter.lab.planning import make_plan
from exporter.model_geometry import BYTES_PER_ELEMENT, COMPUTE_PRECISION, ModelGeometry, geometry_from_config

BAD_INPUT = 2
SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would print its usage and exit, so that bad input is one line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def main(argv: list[str]) -> int:
    """Plan, print, and return the exit code: 0, or 2 with one line on stderr for bad input."""
    try:
        args = _parser().parse_args(argv)
        inputs = _inputs(args)
        plan = make_plan(inputs)
        if args.picture is not None:
            from exporter.lab.plan_picture import draw_plan  # noqa: PLC0415 - matplotlib is slow to import

            draw_plan(inputs, plan, args.picture)
        if args.json:
            sys.stdout.write(json.dumps(plan, indent=2) + "\n")
        else:
            from exporter.lab.plan_report import print_plan  # noqa: PLC0415 - JSON needs no terminal library

            print_plan(plan)
    except ModuleNotFoundError as error:
        return _refuse(f"{error.name} is not installed: pip install 'vllm-sidecar[lab]'")
    except OSError as error:
        if error.filename is None:  # what we write to, which is not ours to tell of
            raise
        return _refuse(f"{error.filename}: {error.strerror}")
    except ValueError as error:
        return _refuse(str(error))
    return 0


def _refuse(message: str) -> int:
    sys.stderr.write(f"vllm-sidecar plan: {' '.join(message.split())}\n")
    return BAD_INPUT


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="vllm-sidecar plan", description=__doc__, allow_abbrev=False)
    hardware = parser.add_argument_group("hardware")
    hardware.add_argument("--gpu", required=True, metavar="NAME", help=f"profile: {', '.join(PROFILES)}")
    hardware.add_argument(
        "--gpus", type=int, default=1, help="GPUs per engine, one tensor-parallel group (%(default)s)"
    )
    hardware.add_argument("--peak-flops", type=_number, help="dense peak per GPU in FLOP/s, instead of the profile's")
    hardware.add_argument("--bandwidth", type=_number, help="bytes/s per GPU, instead of the profile's")
    hardware.add_argument("--capacity", type=_number, help="bytes per GPU, instead of the profile's")
    hardware.add_argument("--mbu", type=_number, default=DEFAULT_MBU, help="bandwidth ceiling (%(default)s)")
    hardware.add_argument("--mfu", type=_number, default=DEFAULT_MFU, help="compute ceiling (%(default)s)")
    hardware.add_argument(
        "--attention-mfu", type=_number, default=DEFAULT_ATTENTION_MFU, help="of prompts' attention (%(default)s)"
    )
    hardware.add_argument("--step-overhead", type=_number, default=0.0, help="seconds per step (%(default)s)")
    hardware.add_argument(
        "--gpu-memory-utilization", type=_number, default=DEFAULT_GPU_MEMORY_UTILIZATION, help="as vLLM's (%(default)s)"
    )
    hardware.add_argument(
        "--reserve",
        type=_number,
        default=DEFAULT_RESERVE_BYTES_PER_GPU,
        help="bytes per GPU for activations and graphs (%(default)g)",
    )
    _add_model(parser.add_argument_group("model"), "")

    traffic = parser.add_argument_group("traffic")
    traffic.add_argument("--rate", type=_number, required=True, help="requests/s over all engines")
    traffic.add_argument("--peak-rate", type=_number, help="requests/s GPUs are bought for (the mean rate)")
    traffic.add_argument(
        "--mix",
        type=_request_class,
        required=True,
        action="append",
        metavar="WEIGHT:PROMPT:OUTPUT",
        help="one part of the length mixture, in tokens; repeat",
    )
    traffic.add_argument("--cached-share", type=_number, default=0.0, help="prompt tokens from the prefix cache, 0-1")
    traffic.add_argument("--burst-rate", type=_number, help="requests/s over all engines: adds the burst section")
    traffic.add_argument("--burst-seconds", type=_number, help="how long the burst lasts")
    traffic.add_argument("--preemptions-per-minute", type=_number, help="observed: adds the recompute section")
    traffic.add_argument("--thinking-tokens", type=_number, help="of the mean output: adds the thinking section")

    limits = parser.add_argument_group("limits and price")
    limits.add_argument("--max-num-seqs", type=int, default=256, help="as vLLM's (%(default)s)")
    limits.add_argument("--max-num-batched-tokens", type=int, default=8192, help="as vLLM's (%(default)s)")
    limits.add_argument("--itl-slo", type=_number, help="seconds; the batch is kept within it")
    limits.add_argument("--target-utilization", type=_number, default=0.8, help="of capacity, at peak (%(default)s)")
    limits.add_argument("--gpu-hour", type=_number, metavar="DOLLARS", help="price of one GPU for an hour")

    draft = parser.add_argument_group("speculation")
    draft.add_argument("--alpha", type=_number, help="acceptance rate per draft token: adds the speculation sections")
    draft.add_argument("--gamma", type=int, default=4, help="draft tokens per step (%(default)s)")
    draft.add_argument(
        "--draft-cost", type=_number, help="draft pass over target step (by weight bytes, 0 without model)"
    )
    _add_model(draft, "draft-")

    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="instead of text")
    output.add_argument(
        "--picture", type=Path, metavar="FILE", help="also draw batch against throughput, latency, cost"
    )
    return parser


def _add_model(group: argparse._ArgumentGroup, prefix: str) -> None:
    group.add_argument(f"--{prefix}config", type=Path, metavar="FILE", help="HuggingFace config.json, or by hand:")
    group.add_argument(f"--{prefix}params", type=_number, help="total parameters, as 70e9 or 70B")
    group.add_argument(f"--{prefix}active-params", type=_number, help="per position, for mixtures of experts")
    group.add_argument(f"--{prefix}layers", type=int)
    group.add_argument(f"--{prefix}kv-heads", type=int)
    group.add_argument(f"--{prefix}head-dim", type=int)
    group.add_argument(f"--{prefix}query-heads", type=int, help="counts the attention of prompts, too")
    group.add_argument(f"--{prefix}mla-elements", type=int, help="elements per token and layer of a compressed cache")
    group.add_argument(f"--{prefix}weights", choices=BYTES_PER_ELEMENT, help="format served (the file's, or bf16)")
    group.add_argument(f"--{prefix}kv-cache", choices=BYTES_PER_ELEMENT, help="format (bf16; a draft's: the target's)")


def _number(text: str) -> float:
    """A finite number, with a suffix K, M, B, T or as a fraction."""
    scale = SUFFIXES.get(text[-1:].upper(), 1.0)
    digits = text[:-1] if scale != 1.0 else text
    try:
        value = float(Fraction(digits)) if "/" in digits else float(digits)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value * scale


def _request_class(text: str) -> RequestClass:
    parts = text.split(":")
    if len(parts) != len(("weight", "prompt", "output")):
        raise argparse.ArgumentTypeError(f"{text!r} is not WEIGHT:PROMPT:OUTPUT")
    try:
        return RequestClass(*(_number(part) for part in parts))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _inputs(args: argparse.Namespace) -> PlanInputs:
    model = _model(vars(args), "")
    if model is None:
        raise ValueError("name a model: --config FILE, or --params, --layers, --kv-heads and --head-dim")
    profile = hardware_profile(
        args.gpu,
        peak_flops=args.peak_flops,
        bandwidth_bytes_per_second=args.bandwidth,
        capacity_bytes=args.capacity,
    )
    return PlanInputs(
        roofline=Roofline(profile, model, args.gpus, args.mbu, args.mfu, args.step_overhead, args.attention_mfu),
        traffic=Traffic(
            args.rate, args.rate if args.peak_rate is None else args.peak_rate, tuple(args.mix), args.cached_share
        ),
        gpu_hour_dollars=args.gpu_hour,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        itl_slo_seconds=args.itl_slo,
        gpu_memory_utilization=args.gpu_memory_utilization,
        reserve_bytes_per_gpu=args.reserve,
        target_utilization=args.target_utilization,
        draft=_draft(args, model),
        burst_requests_per_second=args.burst_rate,
        burst_seconds=args.burst_seconds,
        preemptions_per_minute=args.preemptions_per_minute,
        thinking_tokens=args.thinking_tokens,
    )


def _draft(args: argparse.Namespace, target: ModelGeometry) -> Draft | None:
    if args.alpha is None:
        return None
    model = _model({**vars(args), "draft_kv_cache": args.draft_kv_cache or args.kv_cache}, "draft_")
    by_weight = 0.0 if model is None else model.weight_bytes / target.weight_bytes
    return Draft(args.alpha, args.gamma, by_weight if args.draft_cost is None else args.draft_cost, model)


def _model(args: Mapping[str, Any], prefix: str) -> ModelGeometry | None:
    path, weights, kv_cache = args[f"{prefix}config"], args[f"{prefix}weights"], args[f"{prefix}kv_cache"]
    if path is not None:
        return geometry_from_config(_read_config(path), weights=weights, kv_cache=kv_cache)
    needed: Sequence[str] = ("params", "layers", "kv_heads", "head_dim")
    given = {name: args[prefix + name] for name in needed}
    if all(value is None for value in given.values()):
        return None
    for name, value in given.items():
        if value is None:
            raise ValueError(f"a model by hand also needs --{(prefix + name).replace('_', '-')}")
    active = args[f"{prefix}active_params"]
    return ModelGeometry(
        total_params=given["params"],
        active_params=given["params"] if active is None else active,
        layers=given["layers"],
        kv_heads=given["kv_heads"],
        head_dim=given["head_dim"],
        weight_bytes_per_param=BYTES_PER_ELEMENT[weights or "bf16"],
        kv_bytes_per_element=BYTES_PER_ELEMENT[kv_cache or "bf16"],
        compute_precision=COMPUTE_PRECISION[weights or "bf16"],
        mla_elements=args[f"{prefix}mla_elements"],
        query_heads=args[f"{prefix}query_heads"],
    )


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not a JSON object")  # noqa: TRY004 - the file is wrong, not an argument's type
    return config
