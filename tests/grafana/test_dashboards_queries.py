"""Every query of every panel on a real Prometheus that holds what the exporter makes of a real engine's recordings."""

import contextlib
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grafana.render.ask import filled
from tests.grafana.asked import Asked, dashboard, queries
from tests.grafana.stored_fleet import BEGAN, ENDED, EVERY_SECONDS, LOOKBACK, REPLICAS, SECONDS
from tests.programs import newer
from tests.prometheus import Prometheus, blocks_of, serving
from tests.recordings import BURST
from tests.sidecar import ENVIRONMENT, eventually, free_port, sidecar

Series = list[dict[str, Any]]

FIRST = BEGAN + 60
"""From here on a range of ``$__rate_interval`` is full."""

EMPTY = {
    "on-call / Errors per minute / C": "the recorded engine is sent no KV by another",
}
"""Queries that have no data here, with the reason."""

ABOVE_ONE = {"Preemptions per arrival", "Replicas / Preempted"}
"""Events over requests: no shares."""

OF_FLEETS = {
    "Targets by source",
    "Targets missing",
    "Sources that cannot be read",
    "Time since a source's last good answer",
}
"""Only a sidecar that watches many engines discovers them."""

BELOW_ZERO = {"Queue growth"}


def over_time(prometheus: Prometheus, asked: Asked, **chosen: str) -> Series:
    expr = asked.expr(range_seconds=SECONDS - 60, **chosen)
    return prometheus.range(expr, FIRST, ENDED, EVERY_SECONDS)


def values(found: Series) -> list[float]:
    return [float(value) for one in found for _, value in one["values"]]


def side_by_side(prometheus: Prometheus, asked: Asked) -> tuple[Series, Series]:
    """The answers with a sidecar in each pod, and with one for the fleet."""
    return (
        over_time(prometheus, asked, job="vllm-sidecar", replica="pod"),
        over_time(prometheus, asked, job="vllm-fleet", replica="target"),
    )


def without_replica(found: Series) -> dict[tuple[tuple[str, str], ...], dict[float, float]]:
    """Values by the labels that do not depend on how the sidecar runs."""
    dropped = {"pod", "namespace", "target", "instance", "job"}
    return {
        tuple(sorted((name, value) for name, value in one["metric"].items() if name not in dropped)): {
            at: float(value) for at, value in one["values"]
        }
        for one in found
    }


def test_queries_return_what_they_should(stored: Prometheus) -> None:
    """Each query answers where there is traffic; no value is NaN, infinite, negative or over 100 %; both ways agree."""
    silent, wrong, different = set(), [], []
    for asked in queries():
        ours, fleet = side_by_side(stored, asked)
        for found in [fleet] if asked.title in OF_FLEETS else [ours, fleet]:
            seen = values(found)
            if not seen:
                silent.add(str(asked))
            name = {asked.title, f"{asked.title} / {asked.target['legendFormat']}"}
            lowest = -math.inf if name & BELOW_ZERO else 0.0
            highest = 1 + 1e-9 if asked.unit == "percentunit" and not name & ABOVE_ONE else math.inf
            wrong += [
                f"{asked}: {value}" for value in seen if not (math.isfinite(value) and lowest <= value <= highest)
            ]
        if asked.title not in {"Sidecars down", "Replicas", *OF_FLEETS}:
            one, other = without_replica(ours), without_replica(fleet)
            if one.keys() != other.keys() or any(one[key] != pytest.approx(other[key]) for key in one):
                different.append(str(asked))
    assert silent == set(EMPTY)
    assert wrong == []
    assert different == []


def test_nothing_of_what_is_not_there(stored: Prometheus) -> None:
    """A namespace without sidecars is no data on every panel, never a zero."""
    answered = {str(asked) for asked in queries() if over_time(stored, asked, namespace="nowhere")}
    assert answered == set()


NOTHING_WHEN_IDLE = (
    "Time to first token",
    "Time between outputs",
    "Time per output token",
    "Preemptions per arrival",
    "Mean time to first token, by part",
    "Error budget burn",
    "Cost of 1M output tokens",
    "Of busy time only",
    "Cost of 1M tokens, by basis",
    "Prompt tokens computed per arrival",
    "Step time",
    "Tokens per step of a request",
    "Load of the busiest replica over the mean",
)


def test_no_ratio_of_an_idle_engine(stored: Prometheus) -> None:
    """An engine without traffic has counts of zero, and no quantile, ratio or price."""
    answered = {
        asked.title
        for asked in queries()
        if asked.title in NOTHING_WHEN_IDLE and over_time(stored, asked, pod="spare-0", job="vllm-sidecar")
    }
    assert answered == set()
    arrivals = next(asked for asked in queries("on-call") if str(asked) == "on-call / Requests / B")
    assert set(values(over_time(stored, arrivals, pod="spare-0", job="vllm-sidecar"))) == {0.0}


def test_what_is_down_and_firing_is_ours(stored: Prometheus) -> None:
    """With nothing chosen: the one sidecar that is down, no other target of this Prometheus; not what always fires."""
    asked = {one.title: one for one in queries("on-call")}
    [down] = stored.instant(asked["Sidecars down"].expr(), ENDED)
    assert float(down["value"][1]) == 1
    firing = stored.instant(asked["Firing alerts"].expr(), ENDED)
    assert {one["metric"]["alertname"] for one in firing} == {"VLLMPreemptions", "VLLMTTFTBudgetBurn"}


def test_the_bill_adds_up_over_models(stored: Prometheus) -> None:
    """Four minutes of 8 targets at 2 dollars a GPU-hour, one of them with two engines, are 9 GPUs: 1.20 dollars."""
    spent = next(asked for asked in queries("economics") if asked.target["legendFormat"] == "Spent")
    expr = spent.expr(range_seconds=SECONDS - 60, job="vllm-sidecar")
    found = stored.instant(expr, ENDED)
    bill = sum(float(one["value"][1]) for one in found)
    assert {one["metric"]["model_name"] for one in found} == {"llama", "qwen", "spare", "several"}
    assert len(REPLICAS) == 8
    assert bill == pytest.approx(9 * 2.0 * 240 / 3600, rel=0.02)


@contextlib.contextmanager
def storing(directory: Path, lines: list[str]) -> Iterator[Prometheus]:
    """A Prometheus over these samples, with times."""
    text = directory / "samples.om"
    text.write_text("\n".join([*lines, "# EOF", ""]))
    blocks = blocks_of(text, directory / "blocks")
    with serving(directory, program=newer("prometheus"), blocks=blocks, flags=LOOKBACK) as prometheus:
        yield prometheus


def test_each_model_burns_a_budget_of_its_own(tmp_path: Path) -> None:
    """All of one model's requests miss, 100 times the 1 % allowed; of the other's, 99 times as many, none does."""
    lines = []
    for model, rate, missed in (("small", 1, 1), ("large", 99, 0)):
        own = f'job="vllm-sidecar",instance="{model}:10077",model_name="{model}",engine="0",slo="ttft"'
        for at in range(0, SECONDS + 1, EVERY_SECONDS):
            lines += [
                f"vllm_sidecar_slo_objective_ratio{{{own}}} 0.99 {BEGAN + at}",
                f'vllm_sidecar_slo_events_total{{{own},threshold="1"}} {at * rate} {BEGAN + at}',
                f'vllm_sidecar_slo_misses_total{{{own},threshold="1"}} {at * rate * missed} {BEGAN + at}',
            ]
    burn = next(asked for asked in queries("on-call") if asked.title == "Error budget burn")
    with storing(tmp_path, lines) as prometheus:
        found = prometheus.instant(burn.expr(), ENDED)
    assert {one["metric"]["model_name"]: float(one["value"][1]) for one in found} == {
        "small": pytest.approx(100),
        "large": 0,
    }


def test_pods_that_are_gone_have_their_part_in_the_bill(tmp_path: Path) -> None:
    """Two pods at a cent and a hundred tokens a second each, 100 dollars a million tokens, one gone after half of the
    time and one loading at first: what they cost is in the sum as their tokens are.
    """
    lines = []
    for pod, loaded, gone in (("a", 60, 300), ("b", 0, 150)):
        own = f'job="vllm-sidecar",instance="{pod}:10077",pod="{pod}"'
        for at in range(0, gone + 1, EVERY_SECONDS):
            model = "llama" if at >= loaded else ""
            target = f'{own},target="localhost:8000"'
            lines += [
                f'vllm_sidecar_target_info{{{target},model_name="{model}",role="both"}} 1 {BEGAN + at}',
                f'vllm_sidecar_gpu_cost_dollars_total{{{target},state="busy"}} {at / 100} {BEGAN + at}',
                f'vllm_sidecar_generation_tokens_total{{{own},model_name="llama",engine="0"}} {at * 100} {BEGAN + at}',
            ]
    found = {}
    with storing(tmp_path, lines) as prometheus:
        for asked in queries("economics"):
            if asked.title == "Cost by model, in the time chosen":
                found[asked.target["legendFormat"]] = prometheus.instant(asked.expr(range_seconds=SECONDS), ENDED)
    [spent], [price] = found["Spent"], found["$ per 1M output"]
    assert spent["metric"] == {"model_name": "llama"}
    assert float(spent["value"][1]) == pytest.approx(4.5, rel=0.1)
    assert float(price["value"][1]) == pytest.approx(100)


def test_worst_replica_of_a_fleet(stored: Prometheus) -> None:
    """Lost and loading replicas stand in the table with their state, though their engines say nothing."""
    state = next(asked for asked in queries("fleet") if asked.target["legendFormat"] == "State")
    found = stored.instant(state.expr(job="vllm-sidecar"), ENDED)
    assert {one["metric"]["pod"]: float(one["value"][1]) for one in found} == {
        **dict.fromkeys(("llama-0", "llama-1", "pair-0", "qwen-0", "qwen-1", "spare-0"), 0.0),
        "qwen-2": 2.0,
        "llama-3": 3.0,
    }
    fleet = stored.instant(state.expr(job="vllm-fleet", replica="target"), ENDED)
    assert sorted(float(one["value"][1]) for one in fleet) == [0, 0, 0, 0, 0, 0, 2, 3]
    assert {one["metric"]["target"] for one in fleet} == {f"{one.pod}:8000" for one in REPLICAS}


@pytest.mark.parametrize(("job", "label"), [("vllm-sidecar", "pod"), ("vllm-fleet", "target")])
def test_what_tells_replicas_apart_is_found_out(stored: Prometheus, job: str, label: str) -> None:
    """The variable ``replica`` is the pod with a sidecar in each, the target with one for all."""
    assert replica_labels(stored, job=job) == [label]


def test_prices_hold_the_whole_bill(stored: Prometheus) -> None:
    """On the basis output, the price is all dollars over output tokens: those of idle, loading and lost targets too.

    The two are taken over different minutes, the sidecar's and Prometheus's; over the whole time they are the same.
    """
    ask = {str(asked): asked for asked in queries("economics")}
    by_basis = over_time(stored, ask["economics / Cost of 1M tokens, by basis / A"], job="vllm-sidecar")
    output = [one for one in by_basis if one["metric"] == {"basis": "output", "token_type": "output"}]
    direct = over_time(stored, ask["economics / Cost of 1M output tokens against the baseline / A"], job="vllm-sidecar")
    assert sum(values(output)) == pytest.approx(sum(values(direct)), rel=0.05)


def raw(prometheus: Prometheus, series: str) -> list[float]:
    return [float(one["value"][1]) for one in prometheus.instant(f"vllm_sidecar_{series}", ENDED)]


def test_roll_ups_of_a_replica(stored: Prometheus) -> None:
    """Of two engines in a pod: the fuller cache, the sum of the queues, the p99 of the buckets of both."""
    pod, of_pod = "pair-0", '{job="vllm-sidecar", pod="pair-0"}'
    table = {
        asked.target["legendFormat"]: float(found[0]["value"][1])
        for asked in queries("fleet")
        if asked.title == "Replicas" and (found := stored.instant(asked.expr(job="vllm-sidecar", pod=pod), ENDED))
    }
    usage = raw(stored, f"kv_usage_ratio{of_pod}")
    assert len(usage) == 2
    assert table["KV in use"] == max(usage)
    assert table["Running"] == sum(raw(stored, f"running_requests{of_pod}"))
    assert table["Waiting"] == sum(raw(stored, f"waiting_requests{of_pod}"))
    buckets = f"rate(vllm_sidecar_time_to_first_token_seconds_bucket{of_pod}[60s])"
    each = stored.instant(f"histogram_quantile(0.99, {buckets})", ENDED)
    low, high = sorted(float(one["value"][1]) for one in each)
    assert low <= table["TTFT p99"] <= high


def replica_labels(prometheus: Prometheus, at: float | None = ENDED, **chosen: str) -> list[str]:
    variable = next(one for one in dashboard("fleet")["templating"]["list"] if one["name"] == "replica")
    query = filled(variable["query"]["query"], chosen, 0)
    found = prometheus.instant(query.removeprefix("query_result(").removesuffix(")"), at)
    return [one["metric"]["by"] for one in found]


def test_annotations(stored: Prometheus) -> None:
    """Restarts are marked with the engine that restarted; alerts as those that fire on what is chosen."""
    restarts, alerts = (one["expr"] for one in dashboard("on-call")["annotations"]["list"])
    everything = {"job": "vllm-sidecar"}
    found = stored.range(filled(restarts, everything, 0), FIRST, ENDED, EVERY_SECONDS)
    assert {"llama-0", "qwen-0"} <= {one["metric"]["pod"] for one in found}
    assert "spare-0" not in {one["metric"]["pod"] for one in found}
    firing = stored.instant(filled(alerts, everything, 0), ENDED)
    assert {one["metric"]["alertname"] for one in firing} == {"VLLMPreemptions", "VLLMTTFTBudgetBurn"}
    of_qwen = stored.instant(filled(alerts, everything | {"model_name": "qwen", "pod": "qwen-0"}, 0), ENDED)
    assert of_qwen == []


SHOWN_LIVE = {
    "Targets by state",
    "Queue depth",
    "KV cache in use",
    "Requests",
    "Time to first token",
    "Decode batch",
    "GPU cost per hour",
    "Step time",
    "Replicas",
    "Models",
}


def test_a_live_sidecar(tmp_path: Path) -> None:
    """Prometheus scrapes the sidecar, the sidecar an engine played back, without Kubernetes: only job and instance."""
    engine, price = free_port(), {"VLLM_SIDECAR_GPU_HOUR_DOLLARS": "2"}
    play = [sys.executable, "-m", "exporter", "replay", str(BURST), "--serve", f"127.0.0.1:{engine}"]
    with subprocess.Popen(play, env=ENVIRONMENT, stderr=subprocess.DEVNULL) as playing:
        try:
            url = f"http://127.0.0.1:{engine}"
            with sidecar(VLLM_SIDECAR_URL=url, VLLM_SIDECAR_SCRAPE__INTERVAL_SECONDS="0.5", **price) as running:
                config = SCRAPING.format(address=running.url.removeprefix("http://"))
                with serving(tmp_path, config) as prometheus:
                    eventually(lambda: answers_live(prometheus) >= SHOWN_LIVE, seconds=90)
                    assert replica_labels(prometheus, at=None) == ["instance"]
        finally:
            playing.kill()


SCRAPING = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: vllm-sidecar
    static_configs: [{{targets: ["{address}"]}}]
"""


def answers_live(prometheus: Prometheus) -> set[str]:
    """Titles of panels all of whose queries answered; every value is a number that can be."""
    silent, titles = set(), set()
    for asked in queries():
        found = prometheus.instant(asked.expr(replica="instance"))
        numbers = [float(one["value"][1]) for one in found]
        assert all(math.isfinite(number) for number in numbers), asked
        assert asked.title in BELOW_ZERO or all(number >= 0 for number in numbers), asked
        titles.add(asked.title)
        silent |= {asked.title} if not found and asked.title not in ("Replicas", "Models") else set()
    return titles - silent
