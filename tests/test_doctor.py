"""Findings: each where it holds, with its evidence, and not where it does not or cannot be judged."""

import pytest

from exporter.doctor import examine, unjudged
from exporter.findings import CHECKS, Severity
from tests.live import DENSE_70B, FOUR_H100, TINY, busy, engine, fed, recorded_view, steps

SETTINGS = {**FOUR_H100, "slo": {"ttft_seconds": 1.0, "tpot_seconds": 0.1, "itl_seconds": 0.2}}


def findings(second=None, body=None, running=16, seconds=70, exposed=(), **settings):
    """Findings by name on an engine that did the same each second."""
    second = second or (lambda each: steps(each, 20, sequences=8))
    body = engine(capacity_tokens=10) if body is None else body
    one = busy(fed(**{**SETTINGS, **settings}), body, seconds, second, running)
    return {each.name: each for each in examine(one.view(), exposed)}


def test_an_engine_in_order_has_nothing_but_spare_compute():
    """Memory-bound decode of 8 uses little compute: good to know, no fault."""
    assert findings().keys() == {"over_provisioned"}


def test_seats_past_the_preemption_point():
    """16 running at 40 % usage are full at 40; 256 seats are too many, 39 are not. Nine tenths of 40 are 36."""
    body = engine(capacity_tokens=10).set("vllm:kv_cache_usage_perc", 0.4)
    found = findings(body=body, max_num_seqs=256)["seats_past_preemption_point"]

    assert "256" in found.evidence
    assert "40 sequences" in found.evidence
    assert "--max-num-seqs to 36" in found.change
    assert "seats_past_preemption_point" not in findings(body=body, max_num_seqs=39)


def test_a_chunk_whose_gap_breaks_the_objective():
    """8,192 at 11,868 positions/s take 0.690 s, past 0.2; 2,373 positions fit. 2,048 does: 0.173 s."""
    found = findings(max_num_batched_tokens=8192)["chunk_gap_past_objective"]

    assert "0.690 s" in found.evidence
    assert "2373" in found.change
    assert "chunk_gap_past_objective" not in findings(max_num_batched_tokens=2048)


def test_an_objective_no_chunk_can_meet():
    """10 ms is less than one weight read of 15.4 ms."""
    found = findings(max_num_batched_tokens=8192, slo={"itl_seconds": 0.01})["chunk_gap_past_objective"]

    assert "no budget meets" in found.change


def test_a_chunk_under_the_crossover():
    """128 positions leave the compute unused up to 182; 256 do not."""
    assert "182" in findings(max_num_batched_tokens=128)["chunk_below_crossover"].change
    assert "chunk_below_crossover" not in findings(max_num_batched_tokens=256)


def drafting(batch, accepted):
    """Four drafts a sequence and step, so many of them accepted."""
    return lambda body: steps(body, 20, sequences=batch, drafted=4 * batch, accepted=accepted * batch)


def test_seats_past_the_cuda_graphs():
    """vLLM captures up to 512 by itself; a size that is set counts the positions of drafts: 64 x 5 are 320."""
    assert "512" in findings(max_num_seqs=600)["seats_past_graphs"].evidence
    assert "seats_past_graphs" not in findings(max_num_seqs=512)
    found = findings(drafting(8, 2), max_num_seqs=64, max_cudagraph_capture_size=256)["seats_past_graphs"]
    assert "64 sequences x 5.0 positions" in found.evidence
    assert "--max-num-seqs to 51" in found.change
    assert "seats_past_graphs" not in findings(drafting(8, 2), max_num_seqs=64)


def test_speculation_that_loses():
    """200 sequences with 2 of 4 accepted: 0.60, even at 109. At 8 it gains 3; without drafts nothing is lost."""
    found = findings(drafting(200, 2))["speculation_losing"]

    assert "0.60" in found.evidence
    assert "even at 109 sequences" in found.evidence
    assert "speculation_losing" not in findings(drafting(8, 2))
    assert "speculation_losing" not in findings(lambda body: steps(body, 20, sequences=200))


def test_what_a_draft_model_took():
    """A 1B draft in bf16 with 16 layers: 32,768 x 2 = 65,536 B of KV a token beside 163,840.

    100,000 tokens are 22.94 GB; with the draft's 2 GB of weights that would hold 152,207 tokens without it: 34.3 %.
    """
    draft = {"total_params": 1e9, "layers": 16, "kv_heads": 8, "head_dim": 128}
    found = findings(body=engine(capacity_tokens=100_000), speculation={"draft_model": draft})["draft_model_takes_kv"]

    assert found.severity is Severity.INFO
    assert "34.3%" in found.evidence
    assert "152207" in found.evidence
    assert "draft_model_takes_kv" not in findings(body=engine(), speculation={"draft_model": draft})


def test_a_pinned_cache_with_a_queue():
    """99 % used and 5 waiting; either alone is no finding."""

    def body(usage, waiting):
        return engine(capacity_tokens=10).set("vllm:kv_cache_usage_perc", usage).waiting(waiting)

    assert findings(body=body(0.99, 5))["kv_pinned"].severity is Severity.CRITICAL
    assert "kv_pinned" not in findings(body=body(0.99, 0))
    assert "kv_pinned" not in findings(body=body(0.9, 5))


def test_waiting_for_an_adapter_is_not_waiting_for_the_cache():
    """Deferred requests need no KV."""
    body = engine(capacity_tokens=10).set("vllm:kv_cache_usage_perc", 0.99).waiting(5)
    for reason, count in (("capacity", 0), ("deferred", 5)):
        body.set("vllm:num_requests_waiting_by_reason", count, reason=reason)

    assert "kv_pinned" not in findings(body=body)


def test_preempting():
    """One preemption for 25 arrivals is 4 %; one for 200 is not worth a word."""

    def second(arrivals):
        return lambda body: (
            steps(body, 20, sequences=8).first_tokens(0.1, times=arrivals).add("vllm:num_preemptions_total", 1)
        )

    assert "4.0%" in findings(second(25))["preempting"].evidence
    assert "preempting" not in findings(second(200))


def test_an_end_to_end_objective_that_outputs_cannot_meet():
    """95 % of outputs have at most 500 tokens: at 20 ms each 10 s, with 2 drafts accepted a third of that."""
    edges = (100.0, 500.0, 1000.0, float("inf"))

    def second(body, **drafts):
        steps(body, 20, sequences=8, **drafts)
        body.observe("vllm:request_generation_tokens", 400.0, times=95, edges=edges)
        body.observe("vllm:request_generation_tokens", 900.0, times=5, edges=edges)

    slo = {**SETTINGS["slo"], "e2e_seconds": 8.0}
    assert "10.0 s" in findings(second, slo=slo)["e2e_objective_out_of_reach"].evidence
    assert "e2e_objective_out_of_reach" not in findings(second, slo={**slo, "e2e_seconds": 11.0})
    assert "e2e_objective_out_of_reach" not in findings(lambda body: second(body, drafted=32, accepted=16), slo=slo)


def test_an_objective_between_two_buckets():
    """TTFT buckets here are 0.1, 0.5, 1, 2.5 …: 2 s counts at 1 s, 0.05 s cannot be counted."""
    found = findings(slo={**SETTINGS["slo"], "ttft_seconds": 2.0})["slo_off_bucket"]
    assert found.severity is Severity.INFO
    assert "counted at 1 s" in found.evidence

    found = findings(slo={**SETTINGS["slo"], "ttft_seconds": 0.05})["slo_off_bucket"]
    assert found.severity is Severity.WARNING
    assert "below the first edge, 0.1 s" in found.evidence


def test_missing_series_are_named_with_what_they_may_be_called_now():
    """A serving engine without its preemption counter; something like it is there."""
    body = engine(capacity_tokens=10).drop("vllm:num_preemptions_total")
    found = findings(body=body, exposed=["vllm:num_preemption_events_total", "vllm:x"])["missing_series"]

    assert found.severity is Severity.CRITICAL
    assert "vllm:num_preemptions_total (is it vllm:num_preemption_events_total now?)" in found.evidence
    assert findings(body=body)["missing_series"].evidence == "not exposed: vllm:num_preemptions_total"


def test_several_api_servers_cost_signals():
    found = findings(api_servers=2)

    assert found["several_api_servers"].severity is Severity.INFO


def test_the_filter_floods_the_access_log():
    found = findings(scrape={"filter": True})["filter_floods_log"]

    assert "--disable-access-log-for-endpoints /metrics,/metrics/,/health" in found.change


def test_a_queue_that_dominates_the_time_to_first_token():
    """4 wait while 2 a second get a first token: 2 s of a mean of 2.4 s. 1 waiting for 20 a second is 0.05 s: none."""

    def second(waiting, served):
        return lambda body: steps(body.waiting(waiting), 20, sequences=8).first_tokens(2.4, times=served)

    assert "the queue is 2.00 s" in findings(second(4, 2))["queue_dominates_ttft"].evidence
    assert "queue_dominates_ttft" not in findings(second(1, 20))


def test_over_provisioned():
    """160 positions/s x 140 GFLOP of 3,956 TFLOP/s is 0.6 %; 2,900 are 10.3 %. An idle engine says nothing."""
    assert "0.6%" in findings()["over_provisioned"].evidence
    assert "over_provisioned" not in findings(lambda body: steps(body, 20, sequences=8, prefill=137))
    assert "over_provisioned" not in findings(lambda body: body, running=0)


def test_over_provisioned_by_what_vllm_counts():
    """20 % counted is enough, whatever the positions say."""

    def second(body):
        steps(body, 20, sequences=8).add("vllm:estimated_flops_per_gpu_total", 0.2 * 989e12)

    assert "over_provisioned" not in findings(second)


def test_cold():
    """70 s x 160 tokens have been written: of 1,000,000 tokens 1 %, of 10,000 all."""
    assert "1%" in findings(body=engine(capacity_tokens=1_000_000))["cold"].evidence
    assert "cold" not in findings(body=engine(capacity_tokens=10_000))


def test_an_engine_whose_health_check_fails():
    """Its metrics are those from before it died."""
    one = busy(fed(), engine(), 10, lambda body: body, running=1)
    one.pipeline.observe_health(healthy=False)

    assert examine(one.view())[0].name == "unhealthy"


def test_the_gravest_come_first():
    body = engine(capacity_tokens=10).set("vllm:kv_cache_usage_perc", 0.99).waiting(5)
    found = list(findings(body=body, max_num_seqs=64, scrape={"filter": True}).values())

    assert [each.severity for each in found] == sorted((each.severity for each in found), key=list(Severity).index)
    assert found[0].severity is Severity.CRITICAL


def test_without_settings_only_what_metrics_say_is_judged():
    """Nothing of hardware, seats or chunks is made up; what is left out is said."""
    one = busy(fed(), engine(), 70, lambda body: steps(body, 20, sequences=8))

    assert examine(one.view()) == []
    assert [each.partition(":")[0] for each in unjudged(one.view())] == [
        "roofline, chunk budget, speculation",
        "seats against the KV cache and the CUDA graphs",
        "chunk budget",
        "end-to-end objective",
    ]


def test_every_finding_of_two_engines_says_which():
    """The evidence of one is not the other's."""
    view = recorded_view("dp", **{**TINY, "gpus_per_engine": 1})

    assert {each.engine for each in examine(view) if each.name == "several_api_servers"} == {"0", "1"}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_an_engine_that_said_nothing_yet_has_no_finding(check):
    """One scrape, no window: what is not known is not judged."""
    one = fed(hardware={"profile": "h100-sxm"}, model=DENSE_70B)
    one.scrape(0, engine())
    names = {each.name for each in examine(one.view())}

    assert check.__name__ not in names
