"""What is the matter with an engine, in one sentence that a person can act on."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from exporter.signals import decode, kv_cache, latency, queue, roofline
from exporter.signals.preemption import PREEMPTED_RATIO, per_arrival_in
from exporter.signals.slo import share_missed
from exporter.signals.view import EngineView, State, TargetView, Value
from exporter.signals.window import divide

LEAVING_RATIO, LEAVING_REQUESTS = 0.1, 5.0
"""A tenth of the requests given up is people giving up; of fewer than five, it is one client."""
SERIES_NAMED = 3


class Kind(Enum):
    """What an engine can be, worst first."""

    LOST = "lost"
    STALLED = "stalled"
    BLIND = "blind"
    LEAVING = "clients are leaving"
    QUEUEING = "queueing"
    BATCH = "batch pressure"
    LOADING = "loading"
    MEASURING = "measuring"
    ASLEEP = "asleep"
    FINE = "fine"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Kind).index(self)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A kind, and the reason for it in words."""

    kind: Kind
    reason: str

    @property
    def sentence(self) -> str:
        """``queueing: TTFT is the queue, 65 s predicted``."""
        return f"{self.kind.value}: {self.reason}" if self.reason else self.kind.value


def verdict(target: TargetView, engine: EngineView | None) -> Verdict:
    """What is to be said first of an engine.

    Args:
        target: the port it is behind.
        engine: the engine; None where the target has shown none yet.
    """
    found = _of_state(target)
    if found is not None:
        return found
    if engine is None or not engine.fresh:
        return Verdict(Kind.LOST, _silence(target))
    if engine.stalled:
        return Verdict(
            Kind.STALLED,
            f"{_count(engine, 'running')} running, {_count(engine, 'waiting')} waiting, "
            f"nothing has moved for {seconds(target.config.stall_after_seconds)}",
        )
    if target.missing:
        return Verdict(Kind.BLIND, f"series missing: {_few(target.missing)}")
    return _leaving(target, engine) or _queueing(engine) or _batch(engine) or _quiet(engine)


def _of_state(target: TargetView) -> Verdict | None:
    if target.state is State.LOST:
        return Verdict(Kind.LOST, _silence(target))
    if target.state is State.LOADING:
        answers = target.age_seconds is not None or target.body_bytes is not None
        return Verdict(Kind.LOADING, "it answers, but shows no engine" if answers else "nothing has answered yet")
    if target.healthy is False:
        return Verdict(Kind.LOST, "its metrics answer, its health check does not: the engine behind them is dead")
    if target.state is State.ASLEEP:
        return Verdict(Kind.ASLEEP, "put to sleep, serves nobody until it is woken")
    return None


def _silence(target: TargetView) -> str:
    return "it never answered" if target.age_seconds is None else f"no good scrape for {seconds(target.age_seconds)}"


def _leaving(target: TargetView, engine: EngineView) -> Verdict | None:
    for name, window in target.windows.items():
        gone, offered = window.increase("abandoned"), window.increase("offered")
        share = divide(gone, offered)
        if gone is None or offered is None or share is None:
            continue
        if gone >= LEAVING_REQUESTS and share >= LEAVING_RATIO:
            predicted = queue.predicted_ttft(engine)
            ahead = "" if predicted is None else f", TTFT {seconds(predicted)} predicted"
            given_up = f"{gone:.0f} of {max(gone, offered):.0f} requests in {name} were given up"
            return Verdict(Kind.LEAVING, given_up + ahead)
    return None


def _queueing(engine: EngineView) -> Verdict | None:
    objective = engine.config.slo.ttft_seconds
    predicted, waiting = queue.predicted_ttft(engine), queue.capacity_waiting(engine.now)
    if waiting and predicted is None and engine.minute.increase("queued_seconds"):
        return Verdict(Kind.QUEUEING, f"{waiting:.0f} wait for capacity and none has left the queue")
    over = bool(waiting) and predicted is not None and objective is not None and predicted > objective
    caused = latency.cause(engine).get(("queue",)) == 1.0
    if not over and not caused:
        return None
    if predicted is not None and over:
        return Verdict(Kind.QUEUEING, f"TTFT is the queue, {seconds(predicted)} predicted")
    return Verdict(Kind.QUEUEING, f"TTFT is the queue, {seconds(latency.queue_seconds(engine))} of it lately")


def _batch(engine: EngineView) -> Verdict | None:
    causes, preempted = latency.cause(engine), per_arrival_in(engine.now) or 0.0
    if preempted > PREEMPTED_RATIO:
        return Verdict(Kind.BATCH, f"the KV cache is full, {preempted:.2g} preemptions per arrival")
    if causes.get(("batch",)) == 1.0:
        missed = share_missed(engine.now, "itl", engine.config.slo.itl_seconds)
        return Verdict(Kind.BATCH, f"{missed:.0%} of gaps past {_itl(engine)}{_size(engine)}")
    if causes.get(("prefill",)) == 1.0:
        return Verdict(Kind.BATCH, f"TTFT is the prefill, {seconds(latency.mean_prefill_seconds(engine))} on average")
    return None


def _itl(engine: EngineView) -> str:
    return seconds(engine.config.slo.itl_seconds)


def _size(engine: EngineView) -> str:
    batch, crossover = decode.batch_size(engine), roofline.crossover_positions(engine)
    if batch is None:
        return ""
    against = "" if crossover is None else f", crossover at {crossover:.0f}"
    return f" with {batch:.0f} in decode{against}"


def _quiet(engine: EngineView) -> Verdict:
    if engine.now.seconds <= 0:
        return Verdict(Kind.MEASURING, "watched for too short to tell")
    if not engine.now.last("running") and not engine.now.last("waiting"):
        return Verdict(Kind.FINE, "idle")
    usage = kv_cache.usage(engine)
    used = "" if usage is None else f", KV cache {usage:.0%} used"
    return Verdict(Kind.FINE, f"{_count(engine, 'running')} running, {_count(engine, 'waiting')} waiting{used}")


def _count(engine: EngineView, gauge: str) -> str:
    level = engine.now.last(gauge)
    return "unknown" if level is None else f"{level:.0f}"


def _few(names: Sequence[str]) -> str:
    more = len(names) - SERIES_NAMED
    return ", ".join(names[:SERIES_NAMED]) + (f" and {more} more" if more > 0 else "")


def seconds(value: Value) -> str:
    """``65 s``, ``2.5 s``, ``120 ms``; a day is ``86,400 s``."""
    if value is None:
        return "an unknown time"
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.2g} s" if value < 10 else f"{value:,.0f} s"
