"""Traffic: requests that came, were answered, rejected or abandoned; tokens, steps, drafts. By hand."""

import pytest

from tests.bodies import Body, Fed


def fed(*stages, every=15.0, **options):
    """A pipeline after a scrape of a fresh engine and of each stage of it."""
    pipeline, body = Fed(**options), Body().process()
    pipeline.scrape(0, body)
    for turn, stage in enumerate(stages, start=1):
        stage(body)
        pipeline.scrape(turn * every, body)
    return pipeline


# Arrivals


def test_an_arrival_counts_while_it_waits_and_once():
    """3 wait: 3 arrived. Then they get their first tokens: still 3. Then 2 more wait: 5."""
    waiting = Fed()
    body = Body().process()
    counted = []
    for at, stage in enumerate(
        [
            lambda: body,
            lambda: body.waiting(3),
            lambda: body.waiting(0).first_tokens(0.2, times=3),
            lambda: body.waiting(2),
        ]
    ):
        waiting.scrape(2.0 * at, stage())
        counted.append(waiting.get("arrivals_total"))

    assert counted == [0, 3, 3, 5]


def test_requests_that_were_there_at_the_first_scrape_did_not_arrive_since():
    """4 waiting and 90 served before us: base 0."""
    started = Fed()
    body = Body().process().waiting(4).first_tokens(0.2, times=90)
    started.scrape(0, body)
    at_first = started.get("arrivals_total")
    started.scrape(2, body.waiting(5))

    assert (at_first, started.get("arrivals_total")) == (0, 1)


def test_a_client_that_leaves_while_queued_still_arrived():
    """6 came: 2 run, 4 wait. 3 of those leave and 1 new one comes: 7 arrived, though first tokens + waiting is 4.

    The frontend answered 3 (it logs them 2xx), 2 run and 2 wait: 3 + 2 + 2 = 7. Offered 7, abandoned 3.
    """
    pipeline = Fed()
    body = Body().process().http()
    pipeline.scrape(0, body)
    pipeline.scrape(2, body.running(2).waiting(4).first_tokens(0.2, times=2))
    pipeline.scrape(4, body.waiting(2).http(3))
    arrived = pipeline.get("arrivals_total")
    pipeline.scrape(6, body)

    assert arrived == 7
    assert pipeline.get("offered_requests_total") == 7
    assert pipeline.get("abandoned_requests_total") == 3


def test_an_answer_whose_finish_is_not_counted_yet_is_not_abandoned():
    """vLLM counts a finish after the last token has gone out: one scrape may see the answer alone."""
    pipeline = Fed()
    body = Body().process().http(10).finish(times=10)
    pipeline.scrape(0, body)
    pipeline.scrape(2, body.http(11))
    between = pipeline.get("abandoned_requests_total")
    pipeline.scrape(4, body.finish())

    assert (between, pipeline.get("abandoned_requests_total")) == (0, 0)


def test_with_several_engines_arrivals_are_net_of_those_abandoned_while_queued():
    """Nobody says whose the answer was: engine 0 had 4 waiting of whom 3 left; 4 it stays until passed."""
    pipeline = Fed()
    zero, one = Body(engine="0").http(), Body(engine="1")
    pipeline.scrape(0, zero, one)
    pipeline.scrape(2, zero.waiting(4), one)
    pipeline.scrape(4, zero.waiting(2).http(3), one)

    assert pipeline.get("arrivals_total", engine="0") == 4
    assert pipeline.get("arrivals_total", engine="1") == 0
    assert pipeline.get("offered_requests_total") == 5  # 3 answered, 2 waiting


def test_with_several_engines_a_request_in_prefill_has_arrived():
    """2 run on engine 0, without a first token yet: 2 arrived. They finish and 1 more is in prefill: 3."""
    pipeline = Fed()
    zero, one = Body(engine="0").http(), Body(engine="1")
    pipeline.scrape(0, zero, one)
    pipeline.scrape(2, zero.running(2), one)
    in_prefill = pipeline.get("arrivals_total", engine="0")
    pipeline.scrape(4, zero.running(1).first_tokens(0.2, times=2).finish(times=2).http(2), one)

    assert (in_prefill, pipeline.get("arrivals_total", engine="0")) == (2, 3)
    assert pipeline.get("arrivals_total", engine="1") == 0


def test_with_several_engines_arrivals_go_on_over_a_restart():
    """5 came to engine 0 and finished; the new process finished 1 and has 1 in prefill: 7."""
    pipeline = Fed()
    one = Body(engine="1")
    pipeline.scrape(0, Body(engine="0").process(1.0), one)
    pipeline.scrape(2, Body(engine="0").process(1.0).first_tokens(0.2, times=5).finish(times=5), one)
    pipeline.scrape(4, Body(engine="0").process(2.0).running(1).first_tokens(0.2).finish(), one)

    assert pipeline.get("arrivals_total", engine="0") == 7


def test_arrivals_go_on_over_a_restart():
    """6 before; then a new process with 2 first tokens and 1 waiting: 9."""
    pipeline = Fed()
    body = Body().process(1.0).http()
    pipeline.scrape(0, body)
    pipeline.scrape(2, body.first_tokens(0.2, times=6).http(6).finish(times=6))
    pipeline.scrape(4, Body().process(2.0).http(2).waiting(1).first_tokens(0.2, times=2).finish(times=2))

    assert pipeline.get("arrivals_total") == 9
    assert pipeline.get("offered_requests_total") == 9
    assert pipeline.get("engine_restarts_total") == 1


@pytest.mark.parametrize("starts", [(1.0, 2.0), None], ids=["one API server", "several"])
def test_requests_in_flight_when_the_engine_died_stay_counted(starts):
    """20 answered, then 5 running when it dies; the new one answers 2: 7 since the second scrape, not held at 5."""
    before, after = Body().http(20), Body().http(2)
    if starts:
        before.process(starts[0])
        after.process(starts[1])
    pipeline = Fed()
    pipeline.scrape(0, before.first_tokens(0.2, times=20).finish(times=20))
    pipeline.scrape(2, before.running(5).first_tokens(0.2, times=5))
    at_death = pipeline.get("offered_requests_total"), pipeline.get("arrivals_total")
    pipeline.scrape(4, after.first_tokens(0.2, times=2).finish(times=2))

    assert at_death == (5, 5)
    assert (pipeline.get("offered_requests_total"), pipeline.get("arrivals_total")) == (7, 7)


def before_its_first_step(engine):
    """Behind several API servers gauges come with an engine's first step."""
    body = Body(engine=engine)
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        body.drop(f"vllm:{name}")
    return body


def test_an_engine_before_its_first_step_hides_nobody_that_another_serves():
    """Engine 0 answered 30 and runs 1, then answered that; engine 1 never had any. Both restart, and engine 0 has
    answered 2 and runs 1: 31, 31 before its first step, 34.
    """
    zero, one, pipeline = Body(engine="0"), before_its_first_step("1"), Fed()
    pipeline.scrape(0, zero.http(0), one)
    pipeline.scrape(2, zero.http(30).running(1).first_tokens(0.2, times=31).finish(times=30), one)
    found = [pipeline.get("offered_requests_total")]
    pipeline.scrape(4, zero.http(31).running(0).finish(), one)
    pipeline.scrape(6, before_its_first_step("0").http(), one)
    found.append(pipeline.get("offered_requests_total"))
    pipeline.scrape(8, Body(engine="0").http(2).running(1).first_tokens(0.2, times=3).finish(times=2), one)

    assert [*found, pipeline.get("offered_requests_total")] == [31, 31, 34]


@pytest.mark.parametrize(
    "route", ["/v1/responses", "/v1/messages", "/cohere/v2/chat", "/v1/chat/completions/batch", "/generative_scoring"]
)
def test_requests_are_offered_by_every_route_that_generates(route):
    """As vLLM 0.32 has them. 5 answered on completions and 3 on the other, of whom 2 left while queued."""
    pipeline, body = Fed(), Body().process().http(0)
    pipeline.scrape(0, body)
    for at in (2, 4):
        pipeline.scrape(at, body.http(5).http(3, route=route).first_tokens(0.2, times=3).finish(times=3))

    assert pipeline.get("offered_requests_total") == 8
    assert pipeline.get("abandoned_requests_total") == 2


@pytest.mark.parametrize("route", ["/v1/chat/completions/render", "/v1/messages/count_tokens", "/v1/embeddings"])
def test_requests_are_not_offered_by_routes_that_do_not(route):
    pipeline, body = Fed(), Body().process().http(0)
    pipeline.scrape(0, body)
    pipeline.scrape(2, body.http(5).http(3, route=route))

    assert pipeline.get("offered_requests_total") == 5


def test_offered_counts_rejections_and_server_errors():
    """5 answered, 2 running, 1 waiting, 4 failed, of which 3 were turned away with a 503: 12. Other routes and 4xx are
    none of it.
    """
    pipeline = Fed()
    body = Body().process().http(0).http(0, status="5xx").http(0, status="4xx").http(0, route="/v1/models")
    rejection = {"model_name": "m", "reason": "max_num_queued_reqs"}
    pipeline.scrape(0, body.own("vllm:admission_rejections_total", 0, **rejection))
    body.http(4, status="5xx").http(7, status="4xx").http(99, route="/v1/models").http(5)
    pipeline.scrape(2, body.running(2).waiting(1).own("vllm:admission_rejections_total", 3, **rejection))

    assert pipeline.get("offered_requests_total") == 12
    assert pipeline.get("http_responses_total", status="2xx") == 5
    assert pipeline.get("http_responses_total", status="4xx") == 7
    assert pipeline.get("http_responses_total", status="5xx") == 4
    assert pipeline.get("admission_rejections_total", reason="max_num_queued_reqs", model_name="m") == 3


def test_without_http_metrics_nothing_is_said_of_offered_and_abandoned():
    """A frontend without the middleware: absent, not 0."""
    pipeline = fed(lambda body: body.first_tokens(0.2).finish())

    assert pipeline.get("arrivals_total") == 1
    assert pipeline.get("offered_requests_total") is None
    assert pipeline.get("abandoned_requests_total") is None
    assert pipeline.get("admission_rejections_total") is None


def test_routes_by_names_that_we_do_not_know_say_nothing_of_offered():
    """Some installs file every route under ``none``: finished requests without an answer show it."""
    pipeline = Fed()
    body = Body().process().http(0, route="none")
    pipeline.scrape(0, body)
    pipeline.scrape(2, body.http(5, route="none").finish(times=5).first_tokens(0.2, times=5))

    assert pipeline.get("arrivals_total") == 5
    assert pipeline.get("offered_requests_total") is None
    assert pipeline.get("abandoned_requests_total") is None


# Counters as vLLM has them, from our first scrape


@pytest.mark.parametrize(
    ("metric", "labels", "stage", "expected"),
    [
        ("first_tokens_total", {}, lambda b: b.first_tokens(0.2, times=3), 3),
        ("finished_requests_total", {"reason": "length"}, lambda b: b.finish("length", times=4), 4),
        ("finished_requests_total", {"reason": "stop"}, lambda b: b.finish("length"), 0),
        ("preemptions_total", {}, lambda b: b.add("vllm:num_preemptions_total", 5), 5),
        ("generation_tokens_total", {}, lambda b: b.tokens(generated=600), 600),
        ("engine_steps_total", {}, lambda b: b.decode(8, steps=100), 100),
        ("decode_sequence_steps_total", {}, lambda b: b.decode(8, steps=100), 800),
        ("decode_sequence_seconds_total", {}, lambda b: b.decode(8, steps=100, step_seconds=0.02), 16),
        ("speculation_drafts_total", {}, lambda b: b.add("vllm:spec_decode_num_drafts_total", 7), 7),
        ("speculation_draft_tokens_total", {}, lambda b: b.add("vllm:spec_decode_num_draft_tokens_total", 28), 28),
        ("speculation_accepted_tokens_total", {}, lambda b: b.add("vllm:spec_decode_num_accepted_tokens_total", 9), 9),
    ],
)
def test_a_counter_counts_from_the_first_scrape(metric, labels, stage, expected):
    """What came since, in base units."""
    assert fed(stage).get(metric, **labels) == pytest.approx(expected)


def test_generation_tokens_move_at_each_step_not_at_the_end_of_a_request():
    """500 tokens of requests that still run: ``request_generation_tokens_sum`` has not moved."""
    pipeline = fed(lambda b: b.tokens(generated=500).set("vllm:request_generation_tokens_sum", 0))

    assert pipeline.get("generation_tokens_total") == 500


def test_speculation_counters_are_absent_without_speculation():
    assert fed(lambda b: b.decode(1, steps=1)).get("speculation_drafts_total") is None


def test_prompt_tokens_by_source():
    """100 came: 40 from a cache, 60 computed. Before 0.16 the source is unknown, and said to be."""
    new = fed(
        lambda b: (
            b.tokens(prompt=100)
            .add("vllm:prompt_tokens_cached_total", 40)
            .add("vllm:prompt_tokens_by_source_total", 60, source="local_compute")
        )
    )
    old = fed(lambda b: b.tokens(prompt=100))

    assert (new.get("prompt_tokens_total", source="cached"), new.get("prompt_tokens_total", source="computed")) == (
        40,
        60,
    )
    assert new.get("prompt_tokens_total", source="unknown") is None
    assert old.get("prompt_tokens_total", source="unknown") == 100
