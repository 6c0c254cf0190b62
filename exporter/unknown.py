"""Why a number of an engine is not known: the first reason that holds, in words for the person who misses it."""

from collections.abc import Callable, Mapping

from exporter.catalogue import METRICS, Scope
from exporter.collect import values
from exporter.pipeline import MINUTE_SECONDS
from exporter.schema import Role
from exporter.signals import latency
from exporter.signals.engine import has_work
from exporter.signals.view import EngineView, State, TargetView
from exporter.upstream import Part

Reason = Callable[[TargetView, EngineView], bool]

NO_PRICE = ("no price: set gpu_hour_dollars", lambda target, _: target.config.gpu_hour_dollars is None)
NO_HARDWARE = ("no GPU: set hardware", lambda target, _: target.config.hardware.gpu is None)
NO_MODEL = ("no model: set model", lambda target, _: target.config.model.geometry is None)
SEVERAL = (
    "several API servers, none counts the steps",
    lambda _, one: one.several_api_servers,
)
NO_WINDOW = ("watched for too short", lambda _, one: one.now.seconds <= 0)
NO_MINUTE = ("watched for too short", lambda _, one: one.minute.seconds < MINUTE_SECONDS / 3)
NO_WINDOWS = ("watched for too short", lambda _, one: not one.windows)
IDLE = ("nothing decodes", lambda _, one: not one.now.increase("itl", part=Part.COUNT))
NO_FIRST = ("no first token lately", lambda _, one: not one.now.increase("ttft", part=Part.COUNT))
NO_FIRST_IN_WINDOWS = (
    "no first token in the window",
    lambda _, one: not any(each.increase("ttft", part=Part.COUNT) for each in one.windows.values()),
)
NO_QUANTILES = ("no quantiles: set quantiles", lambda _, one: not one.options.quantiles)
NO_OBJECTIVES = (
    "no objective: set slo.ttft_seconds or slo.tpot_seconds",
    lambda target, _: target.config.slo.ttft_seconds is None and target.config.slo.tpot_seconds is None,
)
STILL_WAITING = ("those still waiting outweigh those served", lambda _, one: latency.queue_seconds(one) is not None)
NO_ARRIVALS = ("nothing arrives", lambda _, one: not any(each.increase("arrivals") for each in one.windows.values()))
ONLY_PREFILLS = ("role prefill: price the pool", lambda target, _: target.config.role is Role.PREFILL)
NO_OUTPUT = (
    "no output in the window",
    lambda _, one: not any(each.increase("generation_tokens") for each in one.windows.values()),
)
NO_FINISHED = (
    "no request finished in the window",
    lambda _, one: not any(each.increase("e2e", part=Part.COUNT) for each in one.windows.values()),
)
NO_CAPACITY = ("the engine does not say how large its KV cache is", lambda _, one: one.kv_capacity_tokens is None)
NO_BASELINE = (
    "no baseline set",
    lambda target, _: target.config.baseline.busy_dollars_per_million_output_tokens is None,
)
NOTHING_LEAVES = ("requests wait and none has left the queue", lambda _, one: bool(one.now.last("waiting")))
NOT_DRAFTING = (
    "off, and speculation.alpha, gamma not set",
    lambda target, one: (
        not one.now.increase("draft_tokens")
        and (target.config.speculation.alpha is None or target.config.speculation.gamma is None)
    ),
)
IDLE_KV = ("nothing runs", lambda _, one: not has_work(one.now))
GAINS = ("it gains at every batch", lambda _, one: one.speculation_advised is True)
NOT_RISING = ("not filling up", lambda _, __: True)

REASONS: Mapping[str, tuple[tuple[str, Reason], ...]] = {
    "decode_batch_size": (NO_WINDOW, IDLE),
    "decode_occupancy_requests": (NO_WINDOW, IDLE),
    "prefilling_requests": (NO_WINDOW, NO_FINISHED),
    "crossover_positions": (NO_HARDWARE, NO_MODEL),
    "crossover_ratio": (NO_HARDWARE, NO_MODEL, SEVERAL, NO_WINDOW, IDLE),
    "step_seconds": (SEVERAL, NO_WINDOW, IDLE),
    "predicted_ttft_seconds": (NO_WINDOW, NOTHING_LEAVES, NO_FIRST, STILL_WAITING),
    "ttft_queue_seconds": (NO_WINDOW, NO_FIRST),
    "ttft_prefill_seconds": (NO_WINDOW, NO_FIRST, STILL_WAITING),
    "queue_growth_requests_per_second": (NO_WINDOW,),
    "latency_quantile_seconds": (NO_QUANTILES, NO_WINDOWS, NO_FIRST_IN_WINDOWS),
    "preemptions_per_arrival": (NO_WINDOWS, NO_ARRIVALS),
    "kv_preemption_point_sequences": (NO_WINDOW, IDLE_KV, NO_CAPACITY),
    "kv_headroom_sequences": (NO_WINDOW, IDLE_KV, NO_CAPACITY),
    "kv_capacity_tokens": (NO_CAPACITY,),
    "kv_full_in_seconds": (NO_WINDOW, NOT_RISING),
    "warmness_ratio": (NO_CAPACITY,),
    "prefix_cache_hit_ratio": (NO_WINDOWS, NO_ARRIVALS),
    "goodput_ratio": (NO_OBJECTIVES, NO_WINDOWS, NO_FINISHED),
    "cost_dollars_per_million_tokens": (NO_PRICE, ONLY_PREFILLS, NO_WINDOWS, NO_OUTPUT),
    "busy_cost_dollars_per_million_tokens": (NO_PRICE, ONLY_PREFILLS, NO_WINDOWS, NO_OUTPUT),
    "cost_baseline_dollars_per_million_tokens": (NO_BASELINE,),
    "busy_cost_baseline_multiple_ratio": (NO_PRICE, ONLY_PREFILLS, NO_BASELINE, NO_WINDOWS, NO_OUTPUT),
    "gpu_cost_dollars_total": (NO_PRICE,),
    "speculation_advised": (NO_HARDWARE, NO_MODEL, SEVERAL, NO_WINDOW, IDLE, NOT_DRAFTING, NO_MINUTE),
    "speculation_expected_speedup_ratio": (NO_HARDWARE, NO_MODEL, SEVERAL, NO_WINDOW, IDLE, NOT_DRAFTING),
    "speculation_break_even_batch": (NO_HARDWARE, NO_MODEL, SEVERAL, NO_WINDOW, IDLE, NOT_DRAFTING, GAINS),
    "saturation_ratio": (NO_WINDOW,),
}
"""What can keep a metric unknown, in the order in which it is to be mended."""

OTHERWISE = "the engine does not expose what it is made from"


def reasons(target: TargetView, engine: EngineView) -> dict[str, str]:
    """By metric: why it has no value now, for those that have a list of reasons."""
    found = {}
    for name, known in REASONS.items():
        row = METRICS[name]
        view = target if row.scope is Scope.TARGET else engine
        if not engine.fresh or target.state in (State.LOST, State.LOADING):
            found[name] = "no good scrape lately"
        elif not values(row.fill(view)):
            found[name] = next((text for text, holds in known if holds(target, engine)), OTHERWISE)
    return found
