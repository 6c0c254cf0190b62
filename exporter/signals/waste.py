"""Which share of an engine's busy time was spent on work that came to nothing. Of one stretch between two scrapes."""

from exporter.signals.step import positions_in, steps_in
from exporter.signals.view import Labelled, TargetView, Value
from exporter.signals.window import Window, divide

IDLE, REJECTED, RECOMPUTED = "idle", "rejected_drafts", "preemption_recompute_at_most"


def waste_dollars(view: TargetView) -> Labelled:
    """Dollars that bought nothing, by kind: idle; rejected_drafts, only what they lengthened compute-bound steps by;
    preemption_recompute_at_most, an upper bound: every preempted sequence as long as the mean resident and computed
    again in full. Kinds overlap nowhere. Absent without a price; rejected_drafts also without drafts or without
    hardware and model in the settings, the bound without a known KV capacity.
    """
    return {} if view.waste is None else {(kind,): dollars for kind, dollars in view.waste.items()}


def rejected_share(step: Window, crossover_positions: float) -> Value:
    """Share of the stepping time that rejected drafts took: ``1 - max(P, n - rejected) / n`` for n positions a step.

    Steps up to the crossover P take as long without them, so there they were free. None without drafts to judge.
    """
    drafted, accepted = step.increase("draft_tokens"), step.increase("accepted_tokens")
    steps = steps_in(step)
    positions = divide(positions_in(step), steps)
    if drafted is None or accepted is None or positions is None:
        return None
    rejected = max(0.0, drafted - accepted) / (steps or 1.0)
    return max(0.0, 1.0 - max(crossover_positions, positions - rejected) / positions) if positions else 0.0


def recomputed_share(step: Window, capacity_tokens: float) -> Value:
    """At most this share of the stepping time went into computing preempted sequences again.

    The victim is the sequence that came last, and what it held is often still cached, so the mean resident is more
    than it loses. None where preemptions are not counted.
    """
    events = step.increase("preemptions")
    if events is None:
        return None
    if not events:
        return 0.0
    ends = ((step.first("kv_usage"), step.first("running")), (step.last("kv_usage"), step.last("running")))
    held = [capacity_tokens * used / running for used, running in ends if used is not None and running and used > 0]
    tokens = events * max(held, default=capacity_tokens)
    return divide(tokens, tokens + (positions_in(step) or 0.0))
