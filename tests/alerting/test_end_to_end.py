"""From a simulated engine to the pager, through the real sidecar, both Prometheuses and both Alertmanagers.

The engine runs out of KV cache, queues, loses clients, stalls, is killed and comes back. Every page must arrive with
its labels, and end when its cause does. Times are short: intervals of a second, and thresholds of time to match.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from alerts import build
from tests.alerting.load import clients, engine
from tests.alerting.stack import Stack, stack, wait_for
from tests.programs import PROMETHEUS_VERSIONS
from tests.sidecar import Sidecar, eventually, sidecar

QUICK = dict(
    line.split()
    for line in """
        scrape_interval 1s
        lookback_window 4s
        window 5s
        subquery_step 1s
        model_down_for 1s
        engine_lost_for 4s
        stalled_for 1s
        stalled_hold 10s
        abandoned_for 1s
        abandoned_count 3
        preemptions_for 1s
        preemptions_count 3
        preemptions_window 5s
        burn_count 3
        burn_1_long 10s
        burn_1_for 1s
        burn_2_short 6s
        burn_2_long 12s
        burn_2_for 1s
        burn_3_short 15s
        burn_3_long 20s
        burn_4_long 30s
        deferred_window 5s
        kv_pinned_window 5s
        crash_loop_window 60s
    """.strip().splitlines()
)
PATIENCE = 40.0


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sidecars' rules with times in seconds."""
    directory = tmp_path_factory.mktemp("rules")
    changes = [part for name, value in QUICK.items() for part in ("--set", f"{name}={value}")]
    assert build.main([*changes, "--output", str(directory)]) == 0
    return directory / "rules" / "sidecar"


@contextlib.contextmanager
def stacks(directory: Path, rules: Path, sidecar_url: str) -> Iterator[list[Stack]]:
    """Both versions beside each other, so that each act is played once."""
    labels = {"namespace": "prod", "pod": "engine-0"}
    with contextlib.ExitStack() as open_stacks:
        yield [
            open_stacks.enter_context(stack(version, directory / version, rules, sidecar_url, labels))
            for version in PROMETHEUS_VERSIONS
        ]


def arrives(stacks: list[Stack], receiver: str, status: str, alertname: str, since: float) -> list[dict]:
    """Wait until every stack's receiver has it; gives the alerts' labels."""
    for each in stacks:
        wait_for(
            lambda each=each: each.receiver.of(receiver, status, alertname, since),
            PATIENCE,
            lambda each=each: (alertname, status, each.prometheus.instant("ALERTS"), each.unhealthy_rules()),
        )
    return [each.receiver.of(receiver, status, alertname, since)[0][1] for each in stacks]


def at_work(watching: Sidecar) -> None:
    """Wait until the engine says that it runs something: a hang before that cannot be seen."""
    running = 'vllm_sidecar_running_requests{engine="0",model_name="tiny"}'
    eventually(lambda: watching.values().get(running, 0.0) > 0)


def test_pages_arrive_and_end(tmp_path: Path, rules: Path) -> None:
    """One life of an engine, with all that can befall it."""
    settings = {
        "VLLM_SIDECAR_SCRAPE__INTERVAL_SECONDS": "0.5",
        "VLLM_SIDECAR_STALL_AFTER_SECONDS": "2",
        "VLLM_SIDECAR_SLO__TTFT_SECONDS": "0.5",
    }
    with (
        engine() as one,
        sidecar(VLLM_SIDECAR_URL=one.url, **settings) as watching,
        stacks(tmp_path, rules, watching.url) as both,
    ):
        pod = {"namespace": "prod", "pod": "engine-0"}

        with clients(one.url, number=2, tokens=20, patience_seconds=30):
            arrives(both, "watchdog", "firing", "VLLMWatchdog", 0)
            for each in both:
                burn = "model:vllm_sidecar_slo_burn:ratio10s"
                wait_for(lambda each=each, burn=burn: each.prometheus.instant(burn), PATIENCE, each.unhealthy_rules)
        for each in both:
            assert each.receiver.names("pager") | each.receiver.names("tickets") == set()
            assert each.unhealthy_rules() == {}

        began = time.time()
        with clients(one.url, number=60, tokens=100, patience_seconds=2.5):
            for alert in arrives(both, "tickets", "firing", "VLLMPreemptions", began):
                assert (
                    alert["labels"].items()
                    >= {**pod, "model_name": "tiny", "engine": "0", "severity": "warning"}.items()
                )
                assert "Engine 0 of prod/engine-0, model tiny: " in alert["annotations"]["description"]
            for alert in arrives(both, "pager", "firing", "VLLMRequestsAbandoned", began):
                assert (
                    alert["labels"].items()
                    >= {"namespace": "prod", "model_name": "tiny", "severity": "critical"}.items()
                )
            for alert in arrives(both, "pager", "firing", "VLLMTTFTBudgetBurn", began):
                assert alert["labels"].items() >= {"model_name": "tiny", "slo": "ttft", "threshold": "0.5"}.items()
        ended = time.time()
        for receiver, name in (
            ("tickets", "VLLMPreemptions"),
            ("pager", "VLLMRequestsAbandoned"),
            ("pager", "VLLMTTFTBudgetBurn"),
        ):
            arrives(both, receiver, "resolved", name, ended)

        with clients(one.url, number=4, tokens=600, patience_seconds=120):
            at_work(watching)
            one.switch("hang", on=True)
            hung = time.time()
            for alert in arrives(both, "pager", "firing", "VLLMEngineStalled", hung):
                assert (
                    alert["labels"].items()
                    >= {**pod, "model_name": "tiny", "engine": "0", "severity": "critical"}.items()
                )
            one.switch("hang", on=False)
            arrives(both, "pager", "resolved", "VLLMEngineStalled", hung)

            at_work(watching)
            one.switch("hang", on=True)
            hung = time.time()
            arrives(both, "pager", "firing", "VLLMEngineStalled", hung)
            one.kill()
        for each, alert in zip(both, arrives(both, "pager", "firing", "VLLMModelDown", hung), strict=True):
            assert alert["labels"].items() >= {"namespace": "prod", "model_name": "tiny", "cause": "lost"}.items()
            # The stalled engine's series went with it: its page had to stay until this one came.
            paged = each.receiver.of("pager", "firing", "VLLMModelDown", hung)[0][0]
            assert not [at for at, _ in each.receiver.of("pager", "resolved", "VLLMEngineStalled", hung) if at < paged]
        for each in both:
            wait_for(lambda each=each: ("VLLMEngineLost", "engine-0") in each.inhibited(), PATIENCE, each.inhibited)
            assert "VLLMEngineLost" not in each.receiver.names("tickets")

        one.start()
        back = time.time()
        arrives(both, "pager", "resolved", "VLLMModelDown", back)
        arrives(both, "pager", "resolved", "VLLMEngineStalled", back)
        for each in both:
            assert each.unhealthy_rules() == {}
