"""One target, from outcomes of scrapes to what is exported: states, freshness, what is missing, which engines."""

import pytest

from exporter.accrual import Accrual
from exporter.exposition import Reason
from exporter.schema import Options, Role, Scrape, TargetConfig
from tests.bodies import UNIX, Body, Fed

STATES = ("loading", "up", "asleep", "lost")


def state(pipeline, at=None):
    shown = {each: pipeline.get("target_state", at=at, state=each) for each in STATES}
    (found,) = (each for each, value in shown.items() if value == 1)
    assert sum(shown.values()) == 1
    return found


def asleep(body, *, sleeping):
    return body.set("vllm:engine_sleep_state", float(not sleeping), sleep_state="awake")


# States


def test_a_scrape_reads_the_same_whenever_it_is_read():
    """A window ends at the last scrape: 7 s later its baseline is the same, and so is every value."""
    fed, body = Fed(windows={"15s": 15.0}), Body().process()
    for second in range(30):
        fed.scrape(second, body)
        body.running(4).decode(4 + second, 10)

    assert fed.shown(29.0) == fed.shown(36.0)
    assert fed.get("decode_batch_size", 36.0) == sum(range(4 + 14, 4 + 29)) / 15


def test_states_of_a_life():
    """Loading for minutes, up, asleep, awake, lost, up again: state and target_up at each scrape."""
    pipeline, body = Fed(), Body().process()
    found = [(state(pipeline), pipeline.get("target_up"))]
    for at, stage in enumerate(
        [
            pipeline.fail,
            lambda at: pipeline.fail(at, Reason.HTTP_STATUS),
            lambda at: pipeline.scrape(at, body),
            lambda at: pipeline.scrape(at, asleep(body, sleeping=True)),
            lambda at: pipeline.scrape(at, asleep(body, sleeping=False)),
            lambda at: pipeline.fail(at, Reason.TIMEOUT),
            lambda at: pipeline.scrape(at, body),
        ]
    ):
        stage(2.0 * at)
        found.append((state(pipeline), pipeline.get("target_up")))

    assert found == [
        ("loading", None),  # not asked yet: not known
        ("loading", 0),
        ("loading", 0),
        ("up", 1),
        ("asleep", 1),
        ("up", 1),
        ("lost", 0),
        ("up", 1),
    ]


@pytest.mark.parametrize(
    "body", [b"", b"process_start_time_seconds 2\nup 1\n"], ids=["empty", "a frontend without an engine"]
)
def test_a_target_that_answers_without_series_is_loading_again(body):
    """It was up, restarted, and its port answers before the engine is there: not lost."""
    pipeline = Fed()
    pipeline.scrape(0, Body().process())
    pipeline.scrape(2, body)

    assert (state(pipeline), pipeline.get("target_up")) == ("loading", 0)


@pytest.mark.parametrize("reason", list(Reason))
def test_failures_are_counted_by_reason(reason):
    """All reasons exist at 0, so that a rate over the first failure is seen."""
    pipeline = Fed()
    before = pipeline.get("scrape_failures_total", reason=reason.value)
    pipeline.fail(0, reason)
    pipeline.fail(2, reason)

    assert (before, pipeline.get("scrape_failures_total", reason=reason.value)) == (0, 2)
    assert sum(v for (name, _), v in pipeline.shown().items() if name == "scrape_failures_total") == 2


def test_a_body_that_cannot_be_used_is_a_failure():
    """An HTML page from a proxy: counted as a parse failure, the target is lost, and nothing of it is read."""
    pipeline = Fed()
    pipeline.scrape(0, Body().process().running(3))
    failure = pipeline.scrape(2, b"<html><body>502</body></html>\n")

    assert failure.reason is Reason.PARSE
    assert pipeline.get("scrape_failures_total", reason="parse") == 1
    assert state(pipeline) == "lost"


def test_bad_lines_are_counted():
    pipeline = Fed()
    pipeline.scrape(0, Body().process(), b"nonsense\n")
    pipeline.scrape(2, Body().process(), b"nonsense\nmore nonsense\n")

    assert pipeline.get("parse_errors_total") == 3


def test_health_is_what_was_last_heard():
    """A good scrape without anything suspicious is healthy; work without movement for 6 s makes us ask."""
    pipeline, body = Fed(), Body().process()
    before = pipeline.get("target_healthy")
    pipeline.scrape(0, body.running(1))
    calm = pipeline.pipeline.suspicious, pipeline.get("target_healthy")
    pipeline.scrape(6, body)
    suspicious = pipeline.pipeline.suspicious
    pipeline.pipeline.observe_health(healthy=False)
    pipeline.scrape(8, body)
    sick = pipeline.get("target_healthy")
    pipeline.scrape(10, body.tokens(generated=1))

    assert before is None
    assert calm == (False, 1)
    assert suspicious is True
    assert sick == 0
    assert (pipeline.pipeline.suspicious, pipeline.get("target_healthy")) == (False, 1)


def test_a_failed_scrape_is_suspicious_and_not_healthy():
    pipeline = Fed()
    pipeline.fail(0)

    assert pipeline.pipeline.suspicious
    assert pipeline.get("target_healthy") == 0


# Freshness


def test_gauges_go_after_10_seconds_and_counters_stay_for_an_hour():
    """The last good scrape at 0; all scrapes since failed. Nothing is shown as if it were of now."""
    pipeline, body = Fed(), Body().process()
    pipeline.scrape(-2, body)
    pipeline.scrape(0, body.running(3).tokens(generated=50))
    pipeline.fail(2)
    shown = {
        at: (pipeline.get("running_requests", at=at), pipeline.get("generation_tokens_total", at=at))
        for at in (2, 10, 10.5, 3600, 3601)
    }

    assert shown == {2: (3, 50), 10: (3, 50), 10.5: (None, 50), 3600: (None, 50), 3601: (None, None)}


def test_gauges_stay_for_two_intervals_where_those_are_longer():
    """Scraped each 30 s: 60 s."""
    pipeline = Fed(TargetConfig(scrape=Scrape(interval_seconds=30)))
    pipeline.scrape(0, Body().process().running(3))

    assert pipeline.get("running_requests", at=60) == 3
    assert pipeline.get("running_requests", at=61) is None


def test_every_gauge_of_an_engine_goes_when_it_is_stale():
    """And cost per token and the windows of the target with them."""
    pipeline, body = Fed(TargetConfig(gpu_hour_dollars=2.0)), Body().process().running(1)
    for at in range(0, 70, 2):
        pipeline.scrape(at, body.decode(4, steps=50).first_tokens(0.3).tokens(prompt=9))
    fresh = {family.name for family in pipeline.families() if family.type == "gauge"}
    stale = {family.name for family in pipeline.families(at=68 + 11) if family.type == "gauge"}

    assert "vllm_sidecar_decode_batch_size" in fresh
    assert "vllm_sidecar_cost_dollars_per_million_tokens" in fresh
    assert {name.removeprefix("vllm_sidecar_") for name in stale} == {
        *("build_info", "config_valid", "config_last_reload_timestamp_seconds"),
        *("fleet_targets", "targets_expected", "targets_missing", "discovery_targets", "discovery_dropped_targets"),
        *("discovery_valid", "discovery_last_success_timestamp_seconds", "desired_replicas"),
        *("target_info", "target_up", "target_state", "target_healthy"),
        *("scrape_interval_seconds", "scrape_duration_seconds", "scrape_body_bytes", "last_success_timestamp_seconds"),
        "gpu_hour_dollars",
    }


def test_last_success_is_absent_before_there_was_one_and_stays_after():
    pipeline = Fed()
    pipeline.fail(0)
    before = pipeline.get("last_success_timestamp_seconds")
    pipeline.scrape(2, Body())
    pipeline.fail(4)

    assert (before, pipeline.get("last_success_timestamp_seconds")) == (None, UNIX + 2)


def test_size_and_duration_of_a_scrape():
    """With the interval in force. Before the first scrape and after a failed one there is neither."""
    pipeline, body = Fed(), Body()
    found = [(pipeline.get("scrape_body_bytes"), pipeline.get("scrape_duration_seconds"))]
    pipeline.scrape(0, body)
    found.append((pipeline.get("scrape_body_bytes"), pipeline.get("scrape_duration_seconds")))
    pipeline.fail(2)
    found.append((pipeline.get("scrape_body_bytes"), pipeline.get("scrape_duration_seconds")))

    assert found == [(None, None), (len(body.text()), 0.01), (None, None)]
    assert pipeline.get("scrape_interval_seconds") == 2


def test_a_model_that_was_replaced_goes_at_once():
    """The same port, another model: the old one's series would be stale."""
    pipeline = Fed()
    pipeline.scrape(0, Body(model_name="old").process(1.0))
    pipeline.scrape(2, Body(model_name="new").process(2.0))

    assert pipeline.get("arrivals_total", model_name="old") is None
    assert pipeline.get("arrivals_total", model_name="new") == 0
    assert pipeline.get("target_info", model_name="new", role="both") == 1
    assert pipeline.get("target_info", model_name="old") is None


def test_no_spike_and_no_dip_over_an_outage():
    """Killed and absent for minutes, then a fresh process: counters go on by what the new one did."""
    pipeline, body = Fed(), Body().process(1.0)
    pipeline.scrape(0, body)
    pipeline.scrape(2, body.decode(10, steps=10))
    counted = [pipeline.get("generation_tokens_total")]
    for at in (4, 60, 300):
        pipeline.fail(at)
        counted.append(pipeline.get("generation_tokens_total"))
    pipeline.scrape(302, Body().process(2.0))
    counted.append(pipeline.get("generation_tokens_total"))
    pipeline.scrape(304, Body().process(2.0).decode(10, steps=1))
    counted.append(pipeline.get("generation_tokens_total"))

    assert counted == [100, 100, 100, 100, 100, 110]


def test_a_longer_window_that_is_set_while_running_becomes_as_long_as_it_says():
    """From 1m to 15m: 15 minutes later it holds 900 s of tokens at 10 a second, at $1 a second."""
    pipeline, body = Fed(TargetConfig(gpu_hour_dollars=3600.0)), Body().process()
    for at in range(0, 2000, 10):
        if at == 900:
            pipeline.pipeline.options = Options({"15m": 900.0}, (0.5,))
        pipeline.scrape(at, body.tokens(generated=100))

    assert pipeline.view().engines[0].windows["15m"].seconds == 900
    assert pipeline.get("cost_dollars_per_million_tokens", window="15m", basis="output") == pytest.approx(1e6 / 10)


# What is missing


def served(body):
    return body.first_tokens(0.2).tokens(generated=5, prompt=5)


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("vllm:num_preemptions_total", "vllm:num_preemptions_total"),
        ("vllm:kv_cache_usage_perc", "vllm:kv_cache_usage_perc"),
        ("vllm:num_requests_waiting", "vllm:num_requests_waiting"),
    ],
)
def test_a_series_that_signals_need_and_that_is_not_there_is_named(gone, said):
    """One series a name; others go on."""
    pipeline = Fed()
    pipeline.scrape(0, served(Body().process()).drop(gone))

    assert pipeline.get("source_series_missing", series=said) == 1
    assert pipeline.get("source_series_missing") == 1
    assert pipeline.get("arrivals_total") == 0


def test_nothing_is_missing_before_the_engine_has_served_while_it_is_down_or_of_what_is_optional():
    """Gauges come with the first step behind several API servers. LoRA, speculation, sleep: optional."""
    fresh, down, whole = Fed(), Fed(), Fed()
    fresh.scrape(0, Body().drop("vllm:num_requests_waiting"))
    down.scrape(0, served(Body()).drop("vllm:num_requests_waiting"))
    down.fail(2)
    whole.scrape(0, served(Body()))

    assert [pipeline.get("source_series_missing") for pipeline in (fresh, down, whole)] == [None] * 3


def test_an_old_name_is_not_missing():
    """gpu_cache_usage_perc is the KV usage of older engines."""
    pipeline = Fed()
    pipeline.scrape(0, served(Body()).drop("vllm:kv_cache_usage_perc").set("vllm:gpu_cache_usage_perc", 0.1))

    assert pipeline.get("source_series_missing") is None
    assert pipeline.get("kv_usage_ratio") == 0.1


# Who is behind the port


def test_engines_and_models_behind_one_port_stay_apart():
    """Engine 0 is idle, 7 run on engine 1: both are visible."""
    pipeline = Fed()
    zero, one = Body(engine="0"), Body(engine="1")
    pipeline.scrape(0, zero, one, Body(model_name="other"))
    pipeline.scrape(2, zero.tokens(generated=100), one.tokens(generated=50).running(7), Body(model_name="other"))

    assert pipeline.get("running_requests", engine="0", model_name="m") == 0
    assert pipeline.get("running_requests", engine="1") == 7
    assert pipeline.get("generation_tokens_total", engine="0", model_name="m") == 100
    assert pipeline.get("generation_tokens_total", engine="1") == 50
    assert pipeline.get("generation_tokens_total", model_name="other") == 0
    assert pipeline.get("target_info", model_name="other") == 1


def test_an_engine_filter_keeps_what_it_names():
    """Engines 1, 10, 11 and the filter 1."""
    pipeline = Fed(TargetConfig(engines=("1",)))
    pipeline.scrape(0, *(Body(engine=engine).running(int(engine)) for engine in ("1", "10", "11")))

    assert pipeline.get("running_requests") == 1


def test_what_engines_that_are_left_out_answer_is_nobodys_arrival_and_nobodys_leaving():
    """Two engines that serve 10 each; 3 clients more leave while queued, and the port has answered 23. Of engine 0
    alone 10 are known to have come, and whose clients left cannot be told.
    """
    one, both = Fed(TargetConfig(engines=("0",))), Fed(TargetConfig(engines=("0", "1")))
    zero, other = Body(engine="0").process().http(0), Body(engine="1")
    for at, answered in ((0, 0), (2, 20), (4, 23), (6, 23)):
        for body in (zero, other) if at == 2 else ():
            body.first_tokens(0.1, times=10).finish(times=10)
        for pipeline in (one, both):
            pipeline.scrape(at, zero.http(answered), other)

    assert (one.get("arrivals_total"), both.get("arrivals_total", engine="0")) == (10, 10)
    assert (one.get("abandoned_requests_total"), both.get("abandoned_requests_total")) == (None, 3)
    assert one.get("offered_requests_total") == 23  # of the port, as the responses are


def test_an_engine_that_is_asked_for_by_name_and_alone_has_all_that_the_port_answers():
    """The setting changes nothing where it leaves nothing out: 10 served, 3 clients left while queued."""
    pipeline, body = Fed(TargetConfig(engines=("0",))), Body().process().http(0)
    pipeline.scrape(0, body)
    pipeline.scrape(2, body.first_tokens(0.1, times=10).finish(times=10).http(10))
    for at in (4, 6):
        pipeline.scrape(at, body.http(13))

    assert (pipeline.get("arrivals_total"), pipeline.get("abandoned_requests_total")) == (13, 3)


def test_an_engine_filter_that_matches_nothing_is_a_failure_that_says_so():
    """Triton's backend has no engine label: not zeros."""
    pipeline = Fed(TargetConfig(engines=("0",)))
    failure = pipeline.scrape(0, b'vllm:num_requests_running{model="m",version="1"} 3\n')

    assert (failure.reason, failure.detail) == (Reason.NO_SERIES, "no series match engine=0")
    assert pipeline.get("running_requests") is None


def test_engines_asked_for_that_are_not_there_are_named():
    """Only the last of four shows: the other three are said to be missing, and no zero is invented for them."""
    pipeline = Fed(TargetConfig(engines=("0", "1", "2", "3")))
    pipeline.scrape(0, Body(engine="3").running(2))
    missing = {dict(labels)["series"] for name, labels in pipeline.shown() if name == "source_series_missing"}

    assert missing == {'{engine="0"}', '{engine="1"}', '{engine="2"}'}
    assert pipeline.get("running_requests") == 2


def test_triton_labels_the_model_differently():
    pipeline = Fed()
    pipeline.scrape(0, b'vllm:num_requests_running{model="m",version="1"} 3\n')

    assert pipeline.get("running_requests", model_name="m", engine="") == 3


def test_the_model_can_be_known_before_the_engine_answers():
    pipeline = Fed(TargetConfig(model_name="m", role=Role.DECODE))
    pipeline.fail(0)

    assert pipeline.get("target_info", model_name="m", role="decode") == 1


def test_more_series_than_allowed_are_refused_not_cut():
    pipeline = Fed(TargetConfig(scrape=Scrape(max_series=10)))
    failure = pipeline.scrape(0, Body())

    assert failure.reason is Reason.TOO_LARGE
    assert pipeline.get("scrape_failures_total", reason="too_large") == 1


def test_a_recorded_clock_that_was_set_back_costs_nothing_and_breaks_nothing():
    """10 s, back to 4, on to 12: billed for 12 s, no negative time at any level."""
    pipeline, body = Fed(TargetConfig(gpu_hour_dollars=3600.0)), Body().process().waiting(1)
    for at in (0, 10, 4, 6, 12):
        pipeline.scrape(at, body)

    assert sum(v for (name, _), v in pipeline.shown().items() if name == "gpu_cost_dollars_total") == pytest.approx(12)
    assert pipeline.get("waiting_requests_time_count") == 12


def test_a_fault_of_ours_in_the_midst_of_a_scrape_leaves_what_can_be_shown(monkeypatch):
    """A second engine comes, and what we make of it fails: the target is down, as after any failed scrape, and the next
    good one shows both. Else one such target would leave a whole fleet without its /metrics.
    """
    fed = Fed()
    fed.scrape(0, Body().running(1))
    with monkeypatch.context() as broken:
        broken.setattr(Accrual, "put", None)
        with pytest.raises(TypeError):
            fed.scrape(2, Body().running(1), Body("1").running(2))
        fed.fail(2)
        assert fed.get("target_up") == 0
    fed.scrape(4, Body().running(1), Body("1").running(2))

    assert fed.get("target_up") == 1
    assert (fed.get("running_requests", engine="0"), fed.get("running_requests", engine="1")) == (1, 2)
