"""A fleet as a Prometheus would have stored it: recordings of a real engine through the exporter's own path.

Five minutes, one sample every 15 s, in both layouts at once: a sidecar in each pod (job ``vllm-sidecar``), and one
sidecar for all targets (job ``vllm-fleet``). Only model names, the labels that Prometheus adds and the time are ours.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from prometheus_client.samples import Sample

from exporter import collect
from exporter.exposition import Failure, Reason, Scraped
from exporter.pipeline import Pipeline
from exporter.recording import Entry, read_log
from exporter.replay import interval_seconds, render_labels
from exporter.schema import Config
from exporter.signals.view import SelfView, SourceView
from tests.live import TINY
from tests.recordings import BURST, DATA

BEGAN = 1_795_954_000
SECONDS = 300
EVERY_SECONDS = 15
ENDED = BEGAN + SECONDS
LOOKBACK = (f"--query.lookback-delta={EVERY_SECONDS + 5}s",)
"""For a Prometheus over it: what its last scrape did not bring is gone, as where a scrape marks it stale."""
SIDECAR = SelfView("1.0.0", "3.13.0", config_valid=True, config_reload_unix_seconds=float(BEGAN))
RECORDED_MODEL = b'model_name="tiny"'
STARTED = re.compile(rb"^(process_start_time_seconds )(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Replica:
    """A pod, the model it serves, the recording that its engine repeats, and the model of its engine 1 if another."""

    pod: str
    model: str
    recording: str
    lost_after: float = math.inf
    idle: bool = False
    second: str = ""

    def entries(self) -> list[Entry]:
        """What scraping it gave."""
        if not self.recording:
            return [Entry(BEGAN + at, Failure(Reason.CONNECT, "loading")) for at in range(SECONDS + 1)]
        path = BURST if self.recording == "burst" else DATA / f"{self.recording}.scrapes.xz"
        recorded = [one for one in read_log(path) if isinstance(one.outcome, Scraped)][::4]
        if self.idle:
            first = recorded[0]
            recorded = [first._replace(unix_seconds=first.unix_seconds + at) for at in range(0, SECONDS + 60, 2)]
        period = recorded[-1].unix_seconds - recorded[0].unix_seconds + interval_seconds(recorded)
        shifts = [BEGAN - recorded[0].unix_seconds + turn * period for turn in range(math.ceil(SECONDS / period))]
        return [self._entry(one, shift) for shift in shifts for one in recorded]

    def _entry(self, recorded: Entry, shift: float) -> Entry:
        """A scrape at another time, its process begun as much later: each turn of a recording is a restart."""
        at = recorded.unix_seconds + shift
        if at > BEGAN + self.lost_after:
            return Entry(at, Failure(Reason.CONNECT, "gone"))
        assert isinstance(recorded.outcome, Scraped)
        body = STARTED.sub(lambda found: found[1] + repr(float(found[2]) + shift).encode(), recorded.outcome.body)
        return Entry(at, recorded.outcome._replace(body=self._renamed(body)))

    def _renamed(self, body: bytes) -> bytes:
        first, second = (f'model_name="{model}"'.encode() for model in (self.model, self.second or self.model))
        return b"".join(
            line.replace(RECORDED_MODEL, second if b'engine="1"' in line else first)
            for line in body.splitlines(keepends=True)
        )


REPLICAS = (
    Replica("llama-0", "llama", "burst"),
    Replica("llama-1", "llama", "giveup"),
    Replica("pair-0", "llama", "dp", second="qwen"),
    Replica("llama-3", "llama", "burst", lost_after=150),
    Replica("qwen-0", "qwen", "spec"),
    Replica("qwen-1", "qwen", "mfu"),
    Replica("qwen-2", "qwen", ""),
    Replica("spare-0", "spare", "burst", idle=True),
)


def config(replica: Replica) -> Config:
    """Settings as somebody would give them who wants every signal."""
    return Config(
        gpu_hour_dollars=2.0,
        model_name=None if replica.second else replica.model,
        max_num_seqs=64,
        max_num_batched_tokens=2048,
        baseline={"busy_dollars_per_million_output_tokens": 1.0},
        speculation={"alpha": 0.7, "gamma": 4},
        **TINY,
    )


def openmetrics(replicas: tuple[Replica, ...] = REPLICAS) -> str:
    """The whole store, for ``promtool tsdb create-blocks-from openmetrics``."""
    lines = [_line(sample, at) for at, samples in _scrapes(replicas) for sample in samples]
    return "\n".join([*lines, "# EOF", ""])


def _line(sample: Sample, at: int) -> str:
    return f"{sample.name}{{{render_labels(sample)}}} {float(sample.value)!r} {at}"


def _scrapes(replicas: tuple[Replica, ...]) -> Iterator[tuple[int, Iterator[Sample]]]:
    settings = [config(replica) for replica in replicas]
    pipelines = [Pipeline(one, one.options(), at=float(BEGAN)) for one in settings]
    waiting = [iter(replica.entries()) for replica in replicas]
    heads = [next(entries) for entries in waiting]
    for at in range(BEGAN, ENDED + 1, EVERY_SECONDS):
        for position, pipeline in enumerate(pipelines):
            while heads[position].unix_seconds <= at:
                unix_seconds, outcome = heads[position]
                pipeline.observe(outcome, at=unix_seconds, unix=unix_seconds)
                heads[position] = next(waiting[position], Entry(math.inf, outcome))
        yield at, _stored(replicas, pipelines, at)


def _stored(replicas: tuple[Replica, ...], pipelines: list[Pipeline], at: int) -> Iterator[Sample]:
    views = [pipeline.view(float(at)) for pipeline in pipelines]
    for replica, view in zip(replicas, views, strict=True):
        added = {"job": "vllm-sidecar", "namespace": "inference", "pod": replica.pod, "instance": f"{replica.pod}:9400"}
        yield from _scraped(added, collect.families(SIDECAR, [view]))
    named = [replace(view, label=f"{replica.pod}:8000") for replica, view in zip(replicas, views, strict=True)]
    added = {"job": "vllm-fleet", "namespace": "monitoring", "pod": "watcher-0", "instance": "watcher-0:9400"}
    source = SourceView("file", valid=True, targets=9, dropped=1, good_unix_seconds=float(at - 5))
    watcher = replace(SIDECAR, targets=named, expected_targets=9, sources=[source])
    yield from _scraped(added, collect.families(watcher, named, several=True))
    gone = {"job": "vllm-sidecar", "namespace": "inference", "pod": "llama-4", "instance": "llama-4:9400"}
    yield Sample("up", gone, 0.0)
    yield Sample("up", {"job": "node-exporter", "namespace": "monitoring", "instance": "10.0.0.9:9100"}, 0.0)
    yield Sample("ALERTS", {"alertname": "VLLMWatchdog", "alertstate": "firing", "severity": "info"}, 1.0)
    yield Sample("DCGM_FI_DEV_GPU_UTIL", {"namespace": "inference", "pod": "llama-0", "gpu": "0"}, 87.0)
    if at >= BEGAN + 180:
        where = {"job": "vllm-sidecar", "namespace": "inference", "pod": "llama-1"}
        yield Sample(
            "ALERTS", {"alertname": "VLLMPreemptions", "alertstate": "firing", "severity": "warning", **where}, 1.0
        )
        whole = {"alertname": "VLLMTTFTBudgetBurn", "alertstate": "firing", "severity": "critical"}
        yield Sample("ALERTS", {**whole, "namespace": "inference", "model_name": "llama"}, 1.0)


def _scraped(added: dict[str, str], families: Iterator[object]) -> Iterator[Sample]:
    yield Sample("up", added, 1.0)
    for family in families:
        for sample in family.samples:  # type: ignore[attr-defined]
            yield Sample(sample.name, {**sample.labels, **added}, sample.value)
