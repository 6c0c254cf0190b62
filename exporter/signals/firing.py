"""Which of the shipped alerts' conditions hold now. Only Prometheus knows how long they have held."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from exporter.signals import cost, histogram, kv_cache, preemption, queue, slo
from exporter.signals.view import EngineView, State, TargetView
from exporter.signals.window import divide

RUNBOOKS = "https://github.com/vllm-sidecar/vllm-sidecar/blob/main/alerts/runbooks"
PREEMPTIONS_COUNT = 10.0
ABANDONED_RATIO, ABANDONED_COUNT = 0.1, 10.0
REJECTIONS_RATIO, REJECTIONS_COUNT = 0.01, 10.0
KV_PINNED_RATIO = 0.9
COLD_RATIO = 0.5
COST_FACTOR = 2.0
BURN_FACTOR, GAP_BURN_FACTOR, BURN_COUNT = 14.4, 6.0, 10.0
"""As in alerts/thresholds.yaml, each with its reason there."""


@dataclass(frozen=True, slots=True)
class Condition:
    """An alert that fires if this lasts.

    Attributes:
        alert: its name, which is its runbook's.
        lasting: how long the rule waits.
        summary: what holds.
    """

    alert: str
    lasting: str
    summary: str

    @property
    def runbook_url(self) -> str:
        """Where to read what to do."""
        return f"{RUNBOOKS}/{self.alert}.md"


Check = Callable[[TargetView, EngineView], str | None]


def conditions(target: TargetView, engine: EngineView | None) -> list[Condition]:
    """Every condition that holds for an engine now, the most urgent first."""
    found = []
    if target.state is State.LOADING:
        found.append(Condition("VLLMEngineLost", "30m", "is loading"))
    elif target.state is State.LOST or target.healthy is False:
        found.append(Condition("VLLMEngineLost", "5m", "served before and does not now"))
    if engine is not None and engine.fresh and target.state is State.UP:
        found += _of_engine(target, engine)
    return found


def _of_engine(target: TargetView, engine: EngineView) -> Iterator[Condition]:
    for alert, lasting, check in RULES:
        summary = check(target, engine)
        if summary is not None:
            yield Condition(alert, lasting, summary)


def _stalled(_: TargetView, engine: EngineView) -> str | None:
    return "work, and nothing moves" if engine.stalled else None


def _predicted(_: TargetView, engine: EngineView) -> str | None:
    predicted, objective = queue.predicted_ttft(engine), engine.config.slo.ttft_seconds
    growing = (queue.growth(engine) or 0.0) > 0
    if predicted is None or objective is None or predicted <= objective or not growing:
        return None
    return f"TTFT {predicted:.3g} s predicted, objective {objective:g} s, and the queue grows"


def _burning(series: str, factor: float) -> Check:
    def check(_: TargetView, engine: EngineView) -> str | None:
        budget, threshold = 1.0 - engine.config.slo.objective_ratio, slo.threshold_of(engine, series)
        for window in engine.windows.values():
            missed, observed = slo.share_missed(window, series, threshold), histogram.increases(window, series)
            if missed is None or observed is None:
                continue
            if missed > factor * budget and missed * observed.count >= BURN_COUNT:
                return f"{missed:.0%} miss {threshold:g} s"
        return None

    return check


def _preempting(_: TargetView, engine: EngineView) -> str | None:
    ratio = max((value or 0.0 for value in preemption.per_arrival(engine).values()), default=0.0)
    count = max((window.increase("preemptions") or 0.0 for window in engine.windows.values()), default=0.0)
    return (
        f"{ratio:.2g} preemptions per arrival"
        if ratio > preemption.PREEMPTED_RATIO and count >= PREEMPTIONS_COUNT
        else None
    )


def _pinned(_: TargetView, engine: EngineView) -> str | None:
    usage, waiting = kv_cache.usage(engine), queue.capacity_waiting(engine.now)
    return (
        f"KV cache {usage:.0%} full and a queue" if usage is not None and usage > KV_PINNED_RATIO and waiting else None
    )


def _cold(_: TargetView, engine: EngineView) -> str | None:
    warm, serves = kv_cache.warmness(engine), bool(engine.minute.increase("arrivals"))
    return f"warmness {warm:.0%}" if warm is not None and warm < COLD_RATIO and serves else None


def _past_the_point(_: TargetView, engine: EngineView) -> str | None:
    point, seats = kv_cache.preemption_point(engine), engine.config.max_num_seqs
    if point is None or seats is None or seats <= point:
        return None
    return f"max_num_seqs {seats} is past the preemption point, {point:.0f} sequences"


def _abandoned(target: TargetView, _: EngineView) -> str | None:
    for window in target.windows.values():
        gone = window.increase("abandoned") or 0.0
        share = divide(gone, window.increase("offered"))
        if share is not None and share > ABANDONED_RATIO and gone >= ABANDONED_COUNT:
            return f"{share:.0%} of requests given up by their clients"
    return None


def _rejected(target: TargetView, _: EngineView) -> str | None:
    for window in target.windows.values():
        turned = sum(window.increase("rejections", *labels) or 0.0 for labels in window.labelled("rejections"))
        share = divide(turned, window.increase("offered"))
        if share is not None and share > REJECTIONS_RATIO and turned >= REJECTIONS_COUNT:
            return f"{share:.0%} of requests turned away"
    return None


def _blind(target: TargetView, _: EngineView) -> str | None:
    return f"{len(target.missing)} series missing" if target.missing else None


def _dear(target: TargetView, _: EngineView) -> str | None:
    multiple = max((value or 0.0 for value in cost.baseline_multiple(target).values()), default=0.0)
    return f"busy cost {multiple:.2g} times its baseline" if multiple > COST_FACTOR else None


def _losing(_: TargetView, engine: EngineView) -> str | None:
    drafting = bool(engine.now.increase("draft_tokens"))
    return "speculation is on and does not pay" if drafting and engine.speculation_advised is False else None


RULES: tuple[tuple[str, str, Check], ...] = (
    ("VLLMEngineStalled", "1m", _stalled),
    ("VLLMPredictedTTFTTooLong", "5m", _predicted),
    ("VLLMTTFTBudgetBurn", "2m", _burning("ttft", BURN_FACTOR)),
    ("VLLMTPOTBudgetBurn", "2m", _burning("tpot", BURN_FACTOR)),
    ("VLLMITLBudgetBurn", "15m", _burning("itl", GAP_BURN_FACTOR)),
    ("VLLMRequestsAbandoned", "5m", _abandoned),
    ("VLLMAdmissionRejections", "15m", _rejected),
    ("VLLMPreemptions", "5m", _preempting),
    ("VLLMKVCachePinned", "10m", _pinned),
    ("VLLMSidecarBlind", "15m", _blind),
    ("VLLMEngineCold", "5m", _cold),
    ("VLLMMaxNumSeqsPastPreemptionPoint", "30m", _past_the_point),
    ("VLLMCostAboveBaseline", "30m", _dear),
    ("VLLMSpeculationLosing", "30m", _losing),
)
"""Alert, how long its rule waits, and its condition; in the order of urgency."""
