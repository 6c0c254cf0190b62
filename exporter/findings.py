"""What can be wrong with one engine or with how it is set: by which evidence, and what to change.

Each is a pure function of a view; what cannot be judged is no finding.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from exporter.signals import histogram, kv_cache, latency, queue, roofline, slo, speculation
from exporter.signals.view import EngineView, Value
from exporter.signals.window import divide
from exporter.upstream import Part

PINNED_USAGE = 0.95
PREEMPTED = 0.01
COLD = 0.5
OVER_PROVISIONED = 0.1
QUEUE_SHARE = 0.5
QUEUE_SHARE_OF_OBJECTIVE = 0.25
"""A queue shorter than this part of the TTFT objective is none to speak of."""
LONG_OUTPUT = 0.95
DEFAULT_CAPTURED = 512
"""vLLM captures CUDA graphs up to this batch by itself (1,024 on Blackwell)."""


class Severity(Enum):
    """How much it matters: requests suffer now, they will, or it is good to know."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: a name that stays, what was seen, what to change. ``engine`` is empty where it is the target's."""

    name: str
    severity: Severity
    evidence: str
    change: str
    engine: str = ""


Say = Callable[[str, Severity, str, str], Finding]
"""Makes a finding on the engine at hand."""


def seats_past_preemption_point(say: Say, view: EngineView) -> Finding | None:
    """``max_num_seqs`` admits more sequences than the KV cache holds."""
    seats, point = view.config.max_num_seqs, kv_cache.preemption_point(view)
    if seats is None or point is None or seats <= point:
        return None
    return say(
        "seats_past_preemption_point",
        Severity.WARNING,
        f"max_num_seqs is {seats}, the KV cache is full at {point:.0f} sequences as they are now",
        f"lower --max-num-seqs to {max(1.0, 0.9 * point):.0f}, or make room: FP8 KV, shorter contexts, more GPUs",
    )


def chunk_gap_past_objective(say: Say, view: EngineView) -> Finding | None:
    """A full chunk makes decodes wait longer than their objective allows."""
    gap, objective, limits = roofline.chunk_gap_seconds(view), view.config.slo.itl_seconds, view.roofline
    if gap is None or objective is None or limits is None or gap <= objective:
        return None
    fits = (objective - limits.step_overhead_seconds) * limits.positions_per_second
    advice = (
        f"lower --max-num-batched-tokens to {int(fits)}"
        if fits >= limits.crossover_positions
        else "no budget meets this objective on this hardware: use more GPUs or a smaller model"
    )
    return say(
        "chunk_gap_past_objective",
        Severity.WARNING,
        f"a full chunk of {view.config.max_num_batched_tokens} takes {gap:.3f} s, the ITL objective is {objective:g} s",
        advice,
    )


def chunk_below_crossover(say: Say, view: EngineView) -> Finding | None:
    """Chunks so small that each pays the whole weight read for less work than it could carry."""
    budget, limits = view.config.max_num_batched_tokens, view.roofline
    if budget is None or limits is None or budget >= limits.crossover_positions:
        return None
    return say(
        "chunk_below_crossover",
        Severity.WARNING,
        f"max_num_batched_tokens is {budget}, steps are memory-bound up to {limits.crossover_positions:.0f} positions",
        f"raise --max-num-batched-tokens to {limits.crossover_positions:.0f} or more: up to there it is free",
    )


def seats_past_graphs(say: Say, view: EngineView) -> Finding | None:
    """Full decode batches are larger than the largest CUDA graph, and run without one.

    A captured size that is set counts drafted tokens too; vLLM's own covers them.
    """
    seats, captured = view.config.max_num_seqs, view.config.max_cudagraph_capture_size
    if seats is None:
        return None
    drafted = divide(view.now.increase("draft_tokens"), view.now.increase("itl", part=Part.COUNT)) or 0.0
    positions_each = 1.0 if captured is None else 1.0 + drafted
    largest = captured or DEFAULT_CAPTURED
    if seats * positions_each <= largest:
        return None
    each = f" x {positions_each:.1f} positions" if positions_each > 1 else ""
    return say(
        "seats_past_graphs",
        Severity.WARNING,
        f"{seats} sequences{each} in a step, CUDA graphs are captured up to {largest}",
        f"lower --max-num-seqs to {int(largest / positions_each)}, or raise max_cudagraph_capture_size",
    )


def speculation_losing(say: Say, view: EngineView) -> Finding | None:
    """Drafts are made and, under the objective set, cost more than they give."""
    objective = view.config.speculation.objective
    gain = speculation.expected_speedup(view).get((objective,))
    if not view.now.increase("draft_tokens") or gain is None or gain >= 1:
        return None
    even = speculation.break_even(view).get((objective,))
    until = "" if even is None else f"; even at {even:.0f} sequences"
    return say(
        "speculation_losing",
        Severity.WARNING,
        f"{objective} is {gain:.2f} of what it is without, at {roofline.positions_per_step(view.now) or 0:.0f} "
        f"positions a step{until}",
        "switch speculation off, draft fewer tokens, or let fewer sequences in",
    )


def draft_model_takes_kv(say: Say, view: EngineView) -> Finding | None:
    """What a draft model's weights and its own KV took from the pool."""
    draft, limits, capacity = view.config.speculation.draft_model.geometry, view.roofline, view.kv_capacity_tokens
    if draft is None or limits is None or capacity is None:
        return None
    own = limits.model.kv_bytes_per_token * limits.model.kv_copies(limits.gpus)
    both = own + draft.kv_bytes_per_token * draft.kv_copies(limits.gpus)
    without = (capacity * both + draft.weight_bytes) / own
    return say(
        "draft_model_takes_kv",
        Severity.INFO,
        f"the draft model takes {1 - capacity / without:.1%} of the KV: {capacity:.0f} of {without:.0f} tokens stay",
        "n-gram drafts take none; weigh it against the speedup",
    )


def kv_pinned(say: Say, view: EngineView) -> Finding | None:
    """The KV cache is full and requests wait for it."""
    level, waiting = view.now.mean_level("kv_usage"), queue.capacity_waiting(view.now)
    if level is None or level < PINNED_USAGE or not waiting:
        return None
    return say(
        "kv_pinned",
        Severity.CRITICAL,
        f"KV usage {level:.0%} with {waiting:.0f} waiting for capacity",
        "add a replica; or make room in the cache: FP8 KV, shorter contexts, lower --max-num-seqs against preemption",
    )


def preempting(say: Say, view: EngineView) -> Finding | None:
    """Requests are thrown out of the KV cache: a capacity fault long before a percentile shows it."""
    share = divide(view.minute.increase("preemptions"), view.minute.increase("arrivals"))
    if share is None or share < PREEMPTED:
        return None
    return say(
        "preempting",
        Severity.WARNING,
        f"{share:.1%} preemptions per arrival",
        "lower --max-num-seqs to the preemption point, or make room in the KV cache",
    )


def e2e_objective_out_of_reach(say: Say, view: EngineView) -> Finding | None:
    """Long outputs alone, at the gap between tokens there is, take longer than the end-to-end objective."""
    objective, outputs = view.config.slo.e2e_seconds, histogram.increases(view.long, "output_tokens")
    gap = divide(view.now.increase("itl", part=Part.SUM), view.now.increase("itl", part=Part.COUNT))
    per_token = divide(gap, speculation.tokens_per_request_step(view.now))
    length = None if outputs is None else outputs.quantile(LONG_OUTPUT)
    if objective is None or per_token is None or length is None or length.value * per_token <= objective:
        return None
    return say(
        "e2e_objective_out_of_reach",
        Severity.WARNING,
        f"p95 of outputs is {length.value:.0f} tokens, at {per_token * 1000:.1f} ms each "
        f"{length.value * per_token:.1f} s: past {objective:g} s before any queue",
        "cap output lengths, judge by time per output token instead, or make steps shorter",
    )


def slo_off_bucket(say: Say, view: EngineView) -> Iterator[Finding]:
    """A threshold between two bucket edges counts by the lower one; below the first it cannot be counted at all."""
    for name in slo.OBJECTIVES:
        threshold, observed = slo.threshold_of(view, name), histogram.totals(view.now, name)
        if threshold is None or observed is None:
            continue
        edge = observed.edge_at_or_below(threshold)
        change = f"set slo.{name}_seconds to an edge of the histogram, or vLLM's --custom-histogram-buckets"
        if edge is None:
            evidence = f"{name} objective of {threshold:g} s lies below the first edge, {observed.edges[0]:g} s"
            yield say("slo_off_bucket", Severity.WARNING, f"{evidence}: it is not counted", change)
        elif edge < threshold * (1 - 1e-9):
            evidence = f"{name} objective of {threshold:g} s is counted at {edge:g} s, the nearest edge below"
            yield say("slo_off_bucket", Severity.INFO, evidence, change)


def several_api_servers(say: Say, view: EngineView) -> Finding | None:
    """Metrics in multiprocess mode: what that hides."""
    if not view.several_api_servers:
        return None
    return say(
        "several_api_servers",
        Severity.INFO,
        "several API servers share the metrics: no step time, no positions per step, so no crossover ratio and no "
        "advice on speculation; the filter does not work, gauges are absent before the first step",
        "run with --api-server-count 1 where one API server keeps up",
    )


def queue_dominates_ttft(say: Say, view: EngineView) -> Finding | None:
    """More than half of the time to first token is waiting."""
    waited, computed = latency.queue_seconds(view), latency.mean_prefill_seconds(view)
    objective = view.config.slo.ttft_seconds
    if waited is None or computed is None or objective is None or waited < QUEUE_SHARE_OF_OBJECTIVE * objective:
        return None
    if waited < QUEUE_SHARE * (waited + computed):
        return None
    return say(
        "queue_dominates_ttft",
        Severity.WARNING,
        f"of a mean TTFT of {waited + computed:.2f} s the queue is {waited:.2f} s",
        "add a replica or raise what limits admission (seats, KV cache); faster prefill will not help",
    )


def over_provisioned(say: Say, view: EngineView) -> Finding | None:
    """Served, and hardly any of the compute was needed for it."""
    used = _compute_utilization(view)
    if not used or used >= OVER_PROVISIONED:
        return None
    return say(
        "over_provisioned",
        Severity.INFO,
        f"compute utilisation {used:.1%} of the peak while it was looked at",
        "if that is a usual hour: fewer replicas, fewer or smaller GPUs, or more work for these",
    )


def _compute_utilization(view: EngineView) -> Value:
    counted, limits, rate = roofline.model_flops_utilization(view), view.roofline, roofline.positions_per_second(view)
    if counted is not None or limits is None or rate is None:
        return counted
    return rate * limits.model.flops_per_position / limits.peak_flops


def cold(say: Say, view: EngineView) -> Finding | None:
    """The prefix cache has not been filled yet, or hits far less than it does when warm."""
    warmth = kv_cache.warmness(view)
    if warmth is None or warmth >= COLD:
        return None
    return say(
        "cold",
        Severity.WARNING,
        f"warmness {warmth:.0%}: the KV cache was not filled since the start, or hits less than its baseline",
        "send it traffic by degrees; compare its latency with others only when it is warm",
    )


CHECKS: tuple[Callable[[Say, EngineView], Finding | None], ...] = (
    kv_pinned,
    preempting,
    queue_dominates_ttft,
    seats_past_preemption_point,
    chunk_gap_past_objective,
    chunk_below_crossover,
    seats_past_graphs,
    speculation_losing,
    draft_model_takes_kv,
    e2e_objective_out_of_reach,
    several_api_servers,
    over_provisioned,
    cold,
)
