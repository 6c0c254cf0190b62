"""Bodies of engines made by hand, and a pipeline fed with them at times made by hand."""

import math
from collections.abc import Iterable
from dataclasses import replace

from exporter import collect
from exporter.exposition import Failure, Reason, Scraped
from exporter.pipeline import Pipeline
from exporter.schema import Options, TargetConfig
from exporter.signals.view import SelfView, SourceView

UNIX = 1_795_949_866.0
"""Unix time at the monotonic time 0 of a pipeline fed by hand."""

TTFT = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, math.inf)
ITL = (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, math.inf)
LATENCY = (0.3, 1.0, 5.0, 60.0, 960.0, math.inf)
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": TTFT,
    "vllm:inter_token_latency_seconds": ITL,
    "vllm:request_time_per_output_token_seconds": ITL,
    "vllm:e2e_request_latency_seconds": LATENCY,
    "vllm:request_prefill_time_seconds": LATENCY,
    "vllm:iteration_tokens_total": (1.0, 64.0, 4096.0, math.inf),
}
COUNTERS = ("num_preemptions", "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
FINISHED = ("stop", "length", "abort", "error", "repetition")


class Body:
    """What one engine exposes. A new one says what a vLLM 0.32 says before its first request: everything at zero."""

    def __init__(self, engine="0", model_name="m", *, bare=False):
        self.labels = {"engine": engine, "model_name": model_name}
        self.samples = {}
        if bare:
            return
        for name in GAUGES:
            self.set(f"vllm:{name}", 0)
        for name in COUNTERS:
            self.set(f"vllm:{name}_total", 0)
        for reason in FINISHED:
            self.set("vllm:request_success_total", 0, finished_reason=reason)
        for name in HISTOGRAMS:
            self.observe(name)

    def set(self, name, value, **labels):
        """Set a sample of the engine's."""
        self.samples[name, _render({**self.labels, **labels})] = value
        return self

    def add(self, name, value, **labels):
        """Add to a sample of the engine's; a new one begins at zero."""
        key = name, _render({**self.labels, **labels})
        self.samples[key] = self.samples.get(key, 0) + value
        return self

    def own(self, name, value, **labels):
        """Set a sample of the frontend's own, without the engine's labels."""
        self.samples[name, _render(labels)] = value
        return self

    def drop(self, name):
        """Take away every sample of a name."""
        self.samples = {key: value for key, value in self.samples.items() if key[0] != name}
        return self

    def observe(self, name, *observations, times=1, edges=None):
        """Add observations to a histogram, each so many times; without any it is created at zero."""
        for edge in edges or HISTOGRAMS[name]:
            le = "+Inf" if edge == math.inf else repr(float(edge))
            self.add(f"{name}_bucket", times * sum(value <= edge for value in observations), le=le)
        self.add(f"{name}_count", times * len(observations))
        self.add(f"{name}_sum", times * math.fsum(observations))
        return self

    def running(self, value):
        return self.set("vllm:num_requests_running", value)

    def waiting(self, value):
        return self.set("vllm:num_requests_waiting", value)

    def tokens(self, generated=0, prompt=0):
        """Tokens that came out and went in."""
        self.add("vllm:generation_tokens_total", generated)
        return self.add("vllm:prompt_tokens_total", prompt)

    def first_tokens(self, *seconds, times=1):
        """Requests that got a first token so long after they arrived."""
        return self.observe("vllm:time_to_first_token_seconds", *seconds, times=times)

    def decode(self, sequences, steps, step_seconds=0.02):
        """So many steps, each with an output for so many sequences past their first."""
        self.observe("vllm:iteration_tokens_total", float(sequences), times=steps)
        self.observe("vllm:inter_token_latency_seconds", step_seconds, times=sequences * steps)
        return self.tokens(generated=sequences * steps)

    def finish(self, reason="stop", times=1):
        return self.add("vllm:request_success_total", times, finished_reason=reason)

    def process(self, started=1000.0):
        """One API server: the client library's own series of its process."""
        return self.own("process_start_time_seconds", started)

    def http(self, answered=None, route="/v1/completions", status="2xx"):
        """vLLM's HTTP middleware; without a number no response was sent yet."""
        self.own("http_request_duration_highr_seconds_count", answered or 0)
        if answered is not None:
            self.own("http_requests_total", answered, handler=route, method="POST", status=status)
        return self

    def text(self):
        return "".join(f"{name}{labels} {value!r}\n" for (name, labels), value in self.samples.items()).encode()


def _render(labels):
    inside = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    return f"{{{inside}}}" if inside else ""


class Fed:
    """A pipeline, its scrapes made by hand. Times are monotonic seconds; unix time runs along from ``UNIX``."""

    def __init__(self, config=None, *, windows=None, quantiles=(0.5, 0.9, 0.99), at=0.0):
        options = Options({"1m": 60.0} if windows is None else windows, quantiles)
        self.pipeline = Pipeline(config or TargetConfig(), options, at=at)
        self.at = at

    def scrape(self, at, *bodies, openmetrics=False):
        """A good scrape of these bodies, behind one port; returns the failure it turned out to be, if any."""
        text = b"".join(body if isinstance(body, bytes) else body.text() for body in bodies)
        self.at = at
        return self.pipeline.observe(Scraped(text, openmetrics, 0.01), at=at, unix=UNIX + at)

    def fail(self, at, reason=Reason.CONNECT):
        """A scrape that failed."""
        self.at = at
        return self.pipeline.observe(Failure(reason, "made by hand"), at=at, unix=UNIX + at)

    def view(self, at=None):
        return self.pipeline.view(self.at if at is None else at)

    def families(self, at=None):
        view = self.view(at)
        return list(collect.families(replace(NOBODY, targets=[view]), [view]))

    def shown(self, at=None):
        """Every exported sample: its name without our prefix, with its labels as sorted pairs, to its value."""
        return samples(self.families(at))

    def get(self, name, at=None, **labels):
        """The one exported sample of a name with these labels among its own; None where there is none."""
        found = [
            value
            for (shown, pairs), value in self.shown(at).items()
            if shown == name and labels.items() <= dict(pairs).items()
        ]
        assert len(found) <= 1, f"{name} {labels}: {len(found)} samples"
        return found[0] if found else None


def over(seconds, *stages, config=None, body=None):
    """A pipeline after a fresh engine and stages so many seconds apart."""
    pipeline, body = Fed(config), body or Body().process()
    pipeline.scrape(0, body)
    for turn, stage in enumerate(stages, start=1):
        stage(body)
        pipeline.scrape(turn * seconds, body)
    return pipeline


NOBODY = SelfView(
    "1.2.3",
    "3.11.2",
    config_valid=True,
    config_reload_unix_seconds=UNIX,
    expected_targets=2,
    sources=(SourceView("file:targets.yaml", valid=True, targets=1, dropped=0, good_unix_seconds=UNIX),),
    desired_replicas={"m": 4},
)


def samples(families: Iterable) -> dict:
    """Exported samples by name without our prefix and labels as sorted pairs. No sample may come twice."""
    found = {}
    for family in families:
        for sample in family.samples:
            key = sample.name.removeprefix("vllm_sidecar_"), tuple(sorted(sample.labels.items()))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found
