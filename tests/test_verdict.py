"""The verdict on an engine: every kind by its own worked numbers, and which of two goes first."""

import pytest
import yaml

from exporter.schema import TargetConfig
from exporter.signals import firing, preemption
from exporter.signals.firing import conditions
from exporter.signals.verdict import Kind, seconds, verdict
from exporter.unknown import reasons
from tests.bodies import Body, Fed
from tests.live import FOUR_H100, steps
from tests.programs import ROOT

ALERTS = ROOT / "alerts"


def fed(**settings):
    """An engine of one API server and its pipeline, scraped once so far."""
    body = Body().process().http(0)
    pipeline = Fed(TargetConfig(**settings), windows={"15s": 15.0})
    pipeline.scrape(0, body)
    return pipeline, body


def said(pipeline, at=None):
    view = pipeline.view(at)
    return verdict(view, view.engines[0] if view.engines else None)


def alerts(pipeline):
    view = pipeline.view()
    return [one.alert for one in conditions(view, view.engines[0] if view.engines else None)]


def run(pipeline, body, each_scrape, scrapes=10):
    """So many scrapes, two seconds apart."""
    for number in range(1, scrapes + 1):
        each_scrape(body)
        pipeline.scrape(2 * number, body)


def serve(body, *, running=4, first_tokens=2, ttft=0.2, gap=0.02):
    """Two seconds of an engine: 100 steps at 20 ms."""
    body.running(running).first_tokens(ttft, times=first_tokens).decode(running, 100, gap).finish(times=first_tokens)
    body.add("http_requests_total", 0)


def test_an_engine_at_ease_is_fine():
    pipeline, body = fed()
    run(pipeline, body, serve)
    assert said(pipeline).sentence == "fine: 4 running, 0 waiting, KV cache 0% used"
    assert alerts(pipeline) == []


def test_an_engine_without_requests_is_fine_and_idle():
    pipeline, body = fed()
    run(pipeline, body, lambda _: None)
    assert said(pipeline).sentence == "fine: idle"


def test_a_cold_engine_is_one_that_serves():
    """1,000 tokens written of 100,000 that fit. While nobody comes the rule would not fire."""
    pipeline, body = fed()
    body.own("vllm:cache_config_info", 1, engine="0", kv_cache_size_tokens=100_000).tokens(generated=1000)
    run(pipeline, body, lambda _: None)
    assert alerts(pipeline) == []
    body.first_tokens(0.2).tokens(generated=10)
    pipeline.scrape(22, body)
    assert alerts(pipeline) == ["VLLMEngineCold"]


def test_before_a_third_of_the_window_nothing_is_said_of_its_service():
    pipeline, _ = fed()
    assert said(pipeline).kind is Kind.MEASURING


def test_queueing_says_the_time_to_first_token_predicted():
    """120 wait and two first tokens a second are 60 s, and the queue is all of the time to first token."""
    pipeline, body = fed()

    def queue(one):
        serve(one, first_tokens=4, ttft=30.0)
        one.waiting(120)

    run(pipeline, body, queue)
    assert said(pipeline).sentence == "queueing: TTFT is the queue, 60 s predicted"
    assert "VLLMTTFTBudgetBurn" in alerts(pipeline)


def test_a_queue_that_nothing_leaves_is_said_to_be_one():
    pipeline, body = fed()
    run(pipeline, body, lambda one: one.running(4).waiting(7).decode(4, 100))
    assert said(pipeline).sentence == "queueing: 7 wait for capacity and none has left the queue"


def test_batch_pressure_is_gaps_past_the_objective():
    """Every gap takes 0.5 s, the objective is 0.2 s; four sequences decode in each step."""
    pipeline, body = fed()
    run(pipeline, body, lambda one: serve(one, gap=0.5))
    assert said(pipeline).sentence == "batch pressure: 100% of gaps past 200 ms with 4 in decode"
    assert "VLLMITLBudgetBurn" in alerts(pipeline)


def test_batch_pressure_is_preemption_too():
    """One preemption in each two seconds with two arrivals: 0.5 an arrival."""
    pipeline, body = fed()

    def thrash(one):
        serve(one)
        one.add("vllm:num_preemptions_total", 1)

    run(pipeline, body, thrash)
    assert said(pipeline).sentence == "batch pressure: the KV cache is full, 0.5 preemptions per arrival"


def test_prefill_that_makes_first_tokens_late_is_named():
    """No queue, and 4 s to a first token against an objective of 2.5 s."""
    pipeline, body = fed()
    run(pipeline, body, lambda one: serve(one, ttft=4.0))
    assert said(pipeline).sentence == "batch pressure: TTFT is the prefill, 4 s on average"


def test_clients_that_leave_come_before_the_queue_they_leave():
    """Of ten requests in two seconds eight are answered 2xx and finished by no engine: 80 %."""
    pipeline, body = fed()
    answered = 0

    def leave(one):
        nonlocal answered
        answered += 10
        serve(one, first_tokens=2)
        one.http(answered)

    run(pipeline, body, leave)
    found = said(pipeline)
    assert found.kind is Kind.LEAVING
    assert "56 of 70 requests in 15s were given up" in found.reason
    assert "VLLMRequestsAbandoned" in alerts(pipeline)


def test_a_stall_is_work_and_no_movement():
    pipeline, body = fed(stall_after_seconds=4.0)
    serve(body)
    pipeline.scrape(2, body)
    for at in range(4, 12, 2):
        pipeline.scrape(at, body)
    assert said(pipeline).sentence == "stalled: 4 running, 0 waiting, nothing has moved for 4 s"
    assert alerts(pipeline)[0] == "VLLMEngineStalled"


def test_blind_names_three_of_the_series_that_are_missing():
    pipeline, body = fed()
    for name in ("num_preemptions_total", "prefix_cache_hits_total", "prefix_cache_queries_total"):
        body.drop(f"vllm:{name}")
    body.drop("vllm:request_success_total")
    run(pipeline, body, lambda one: one.running(4).decode(4, 100))
    assert said(pipeline).sentence == (
        "blind: series missing: vllm:num_preemptions_total, vllm:prefix_cache_hits_total, "
        "vllm:prefix_cache_queries_total and 1 more"
    )
    assert "VLLMSidecarBlind" in alerts(pipeline)


def test_asleep():
    pipeline, body = fed()
    pipeline.scrape(2, body.set("vllm:engine_sleep_state", 0, sleep_state="awake"))
    assert said(pipeline).kind is Kind.ASLEEP


def test_lost_at_the_first_scrape_that_fails():
    pipeline, _ = fed()
    pipeline.fail(2)
    assert said(pipeline).sentence == "lost: no good scrape for 2 s"
    assert alerts(pipeline) == ["VLLMEngineLost"]


def test_lost_where_metrics_answer_and_health_does_not():
    pipeline, body = fed()
    run(pipeline, body, serve)
    pipeline.pipeline.observe_health(healthy=False)
    assert said(pipeline).kind is Kind.LOST


def test_loading_before_first_contact():
    pipeline = Fed()
    assert said(pipeline).sentence == "loading: nothing has answered yet"
    assert alerts(pipeline) == ["VLLMEngineLost"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "an unknown time"), (0.12, "120 ms"), (2.5, "2.5 s"), (65.4, "65 s"), (86_400, "86,400 s")],
)
def test_seconds_are_written_as_people_say_them(value, text):
    assert seconds(value) == text


def test_kinds_are_ranked_worst_first():
    assert [kind.value for kind in sorted(Kind, key=lambda kind: kind.rank)] == [
        *("lost", "stalled", "blind", "clients are leaving", "queueing", "batch pressure"),
        *("loading", "measuring", "asleep", "fine"),
    ]


def test_what_is_not_known_says_why_in_the_order_in_which_it_can_be_mended():
    """An idle engine without a price, a GPU or a model in the settings."""
    pipeline, body = fed()
    run(pipeline, body, lambda _: None)
    view = pipeline.view()
    found = reasons(view, view.engines[0])
    assert found["cost_dollars_per_million_tokens"] == "no price: set gpu_hour_dollars"
    assert found["crossover_positions"] == "no GPU: set hardware"
    assert found["decode_batch_size"] == "nothing decodes"
    assert found["latency_quantile_seconds"] == "no first token in the window"
    assert "kv_usage_ratio" not in found


def test_what_a_long_window_needs_is_not_blamed_on_the_engine_while_it_begins():
    """Ten seconds are a third of 15 s, and not of the minute that these are taken over."""
    body, pipeline = Body().process(), Fed(TargetConfig(gpu_hour_dollars=2.0))
    pipeline.scrape(0, body)
    run(pipeline, body, serve, scrapes=5)
    view = pipeline.view()
    found = reasons(view, view.engines[0])
    assert {
        found[name]
        for name in (
            "latency_quantile_seconds",
            "preemptions_per_arrival",
            "prefix_cache_hit_ratio",
            "goodput_ratio",
            "cost_dollars_per_million_tokens",
            "busy_cost_dollars_per_million_tokens",
        )
    } == {"watched for too short"}
    assert "decode_batch_size" not in found


def test_the_prefill_part_is_not_known_while_more_wait_than_were_served():
    """Ten wait all along and one is served each second: the queue's part is 10 s, and no first token took over 1 s."""
    pipeline, body = fed()
    run(pipeline, body, lambda each: serve(each.waiting(10), ttft=1.0))
    view = pipeline.view()
    assert reasons(view, view.engines[0])["ttft_prefill_seconds"] == "those still waiting outweigh those served"


def test_a_first_token_is_not_predicted_while_more_waited_than_were_served():
    """The same, when the queue has just drained: what a new request's prefill will take cannot be told from it."""
    pipeline, body = fed()
    run(pipeline, body, lambda each: serve(each.waiting(10), ttft=1.0))
    pipeline.scrape(22, body.waiting(0))
    view = pipeline.view()
    assert reasons(view, view.engines[0])["predicted_ttft_seconds"] == "those still waiting outweigh those served"


@pytest.mark.parametrize(("scrapes", "why"), [(5, "watched for too short"), (10, None)])
def test_advice_is_taken_over_a_minute_a_third_of_which_must_have_been(scrapes, why):
    """Drafts are made, and what they gain is known after ten seconds; the advice is after twenty."""
    pipeline, body = fed(**FOUR_H100)
    run(pipeline, body, lambda each: steps(each, 100, sequences=8, drafted=16, accepted=8), scrapes)
    view = pipeline.view()
    found = reasons(view, view.engines[0])
    assert "speculation_expected_speedup_ratio" not in found
    assert found.get("speculation_advised") == why


def test_what_the_settings_leave_out_is_not_blamed_on_the_engine():
    """Both objectives of requests switched off, and no quantiles."""
    body, off = Body().process(), {"ttft_seconds": None, "tpot_seconds": None}
    pipeline = Fed(TargetConfig(slo=off), windows={"15s": 15.0}, quantiles=())
    pipeline.scrape(0, body)
    run(pipeline, body, serve)
    view = pipeline.view()
    found = reasons(view, view.engines[0])
    assert found["goodput_ratio"] == "no objective: set slo.ttft_seconds or slo.tpot_seconds"
    assert found["latency_quantile_seconds"] == "no quantiles: set quantiles"


def test_what_is_not_known_of_a_lost_engine_is_so_for_one_reason():
    pipeline, _ = fed()
    pipeline.fail(2)
    view = pipeline.view(30)
    assert set(reasons(view, view.engines[0]).values()) == {"no good scrape lately"}


def test_conditions_are_those_of_the_rules_that_are_shipped():
    """Thresholds, how long each rule waits, and a runbook for each."""
    held = {name: row["value"] for name, row in yaml.safe_load((ALERTS / "thresholds.yaml").read_text()).items()}
    waits: dict[str, set[str]] = {}
    for file in (ALERTS / "rules" / "sidecar").glob("*.yaml"):
        for group in yaml.safe_load(file.read_text())["groups"]:
            for rule in group["rules"]:
                waits.setdefault(rule.get("alert"), set()).add(rule.get("for"))

    assert (
        held["preemptions_ratio"],
        held["preemptions_count"],
    ) == (preemption.PREEMPTED_RATIO, firing.PREEMPTIONS_COUNT)
    assert (held["abandoned_ratio"], held["abandoned_count"]) == (firing.ABANDONED_RATIO, firing.ABANDONED_COUNT)
    assert (held["rejections_ratio"], held["rejections_count"]) == (firing.REJECTIONS_RATIO, firing.REJECTIONS_COUNT)
    assert (held["kv_pinned_ratio"], held["cold_ratio"]) == (firing.KV_PINNED_RATIO, firing.COLD_RATIO)
    assert held["burn_2_factor"] == firing.GAP_BURN_FACTOR
    assert (held["burn_1_factor"], held["burn_count"]) == (firing.BURN_FACTOR, firing.BURN_COUNT)
    assert held["cost_factor"] == firing.COST_FACTOR
    assert [(alert, lasting) for alert, lasting, _ in firing.RULES if lasting not in waits.get(alert, ())] == []
    assert [alert for alert, *_ in firing.RULES if not (ALERTS / "runbooks" / f"{alert}.md").is_file()] == []
