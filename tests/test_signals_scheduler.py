"""The scheduler: decode batch, prefilling, the queue and what it predicts, preemptions. By hand."""

import pytest

from exporter.schema import TargetConfig
from tests.bodies import Body, Fed, over

# Decode batch


def test_decode_batch_is_sequences_per_step():
    """800 gaps in 100 steps: 8 sequences a step."""
    pipeline = over(15, lambda b: b.decode(8, steps=100).running(8))

    assert pipeline.get("decode_batch_size") == 8
    assert pipeline.get("decode_batch_estimator_info", estimator="per_step") == 1
    assert pipeline.get("decode_batch_estimator_info", estimator="per_second") is None


def test_decode_batch_does_not_count_tokens_of_speculation():
    """Each step of each sequence puts out 3 tokens: still 8 sequences."""
    assert over(15, lambda b: b.decode(8, steps=100).tokens(generated=1600)).get("decode_batch_size") == 8


@pytest.mark.parametrize(
    ("config", "body"),
    [
        (TargetConfig(), Body()),
        (TargetConfig(api_servers=2), Body().process()),
        (TargetConfig(pipeline_parallel_size=2), Body().process()),
    ],
    ids=["no process start", "two API servers set", "pipeline"],
)
def test_decode_batch_where_steps_are_counted_more_than_once_is_littles_law(config, body):
    """8 sequences, 500 steps of 0.02 s: 80 s of gaps in 15 s are 5.33 sequences over time. The info says so."""
    pipeline = over(15, lambda b: b.decode(8, steps=500, step_seconds=0.02), config=config, body=body)

    assert pipeline.get("decode_batch_size") == pytest.approx(80 / 15)
    assert pipeline.get("decode_batch_estimator_info", estimator="per_second") == 1


def test_one_api_server_can_be_set_where_the_process_does_not_tell():
    """The Rust frontend exposes no process_start_time_seconds."""
    pipeline = over(15, lambda b: b.decode(8, steps=100), config=TargetConfig(api_servers=1), body=Body())

    assert pipeline.get("decode_batch_size") == 8


def test_decode_batch_is_absent_where_nothing_decodes():
    """A prefill-only or pooling engine: first tokens but never a gap. Not 0."""
    pipeline = over(15, lambda b: b.first_tokens(0.2, times=9))

    assert pipeline.get("decode_batch_size") is None
    assert pipeline.get("decode_batch_estimator_info") is None


@pytest.mark.parametrize("body", [Body().process(), Body()], ids=["one API server", "several"])
def test_decode_batch_is_absent_in_a_lull(body):
    """It did decode, but took no step in the last 15 s: 0/0, and no batch of 0 by the other estimator either."""
    pipeline = Fed()
    pipeline.scrape(0, body)
    pipeline.scrape(15, body.decode(8, steps=100))
    pipeline.scrape(30, body)

    assert pipeline.get("decode_batch_size") is None
    assert pipeline.get("decode_batch_estimator_info") is None
    assert pipeline.get("decode_occupancy_requests") == 0


def test_a_now_window_a_third_covered_is_enough_and_less_is_not():
    """4 s after the first scrape nothing is said; 5 s after it is."""
    pipeline, body = Fed(), Body().process()
    pipeline.scrape(0, body)
    pipeline.scrape(4, body.decode(8, steps=100))
    early = pipeline.get("decode_batch_size")
    pipeline.scrape(5, body.decode(8, steps=100))

    assert early is None
    assert pipeline.get("decode_batch_size") == 8


def test_occupancy_is_littles_law():
    """30 s of gaps in 15 s: 2 requests between first and last token, preempted ones included."""
    pipeline = over(15, lambda b: b.decode(4, steps=100, step_seconds=0.075))

    assert pipeline.get("decode_occupancy_requests") == pytest.approx(2)


# Prefilling


PREFILL = "vllm:request_prefill_time_seconds"


def test_prefilling_is_prefill_time_times_first_token_rate():
    """10 requests finished with 0.5 s of prefill each; 30 first tokens in 15 s are 2/s: 1 request in prefill."""
    pipeline = over(15, lambda b: b.observe(PREFILL, 0.5, times=10).first_tokens(0.6, times=30))

    assert pipeline.get("prefilling_requests") == pytest.approx(1)


def test_prefilling_takes_five_minutes_where_few_finished():
    """9 finished lately with 2 s, 91 before with 0.9 s: (18 + 81.9) / 100 = 0.999 s, times 2/s."""
    pipeline, body = Fed(), Body().process()
    pipeline.scrape(0, body)
    pipeline.scrape(60, body.observe(PREFILL, 0.9, times=91))
    pipeline.scrape(75, body.observe(PREFILL, 2.0, times=9).first_tokens(2.1, times=30))

    assert pipeline.get("prefilling_requests") == pytest.approx(2 * 0.999)


def test_prefilling_is_zero_without_first_tokens_and_unknown_without_a_prefill_time():
    """No request got through: none is known to prefill. Some did but none finished: unknown."""
    assert over(15, lambda b: b.decode(1, steps=1)).get("prefilling_requests") == 0
    assert over(15, lambda b: b.first_tokens(0.6)).get("prefilling_requests") is None


@pytest.mark.parametrize("poison", [1e6, 900.0, -1e6])
def test_prefilling_is_absent_where_vllm_reports_the_uptime_as_a_prefill_time(poison):
    """A request ended before it was scheduled moves the sum by the host's uptime: the window is dropped. That of a node
    15 minutes old lies between finite edges, but no first token took longer than 1 s.
    """
    pipeline = over(
        15, lambda b: b.observe(PREFILL, 0.5, times=10).observe(PREFILL, poison).first_tokens(0.6, times=30)
    )

    assert pipeline.get("prefilling_requests") is None


# The queue


def queue(pipeline, body, waiting, *, at, served=0, seconds=10.0):
    """So many scrapes, every so many seconds, with this many waiting and this many first tokens in each stretch."""
    for turn, now in enumerate(waiting):
        pipeline.scrape(at + seconds * turn, body.waiting(now).first_tokens(2.0, times=served))


def test_running_is_the_gauge():
    assert over(15, lambda b: b.running(7)).get("running_requests") == 7


def test_waiting_by_reason():
    """473 deferred for an adapter or a transfer are visible as such, and the total is not shown beside its parts."""
    reason = "vllm:num_requests_waiting_by_reason"
    pipeline = over(15, lambda b: b.waiting(475).set(reason, 2, reason="capacity").set(reason, 473, reason="deferred"))

    assert pipeline.get("waiting_requests", reason="capacity") == 2
    assert pipeline.get("waiting_requests", reason="deferred") == 473
    assert pipeline.get("waiting_requests", reason="unknown") is None


def test_waiting_before_the_reason_was_told():
    """Before 0.20."""
    assert over(15, lambda b: b.waiting(5)).get("waiting_requests", reason="unknown") == 5


def test_waiting_is_not_derived_where_the_gauge_is_absent():
    """Not 0, nor all less running."""
    pipeline = over(15, lambda b: b, body=Body().process().drop("vllm:num_requests_waiting"))

    assert pipeline.get("waiting_requests") is None
    assert pipeline.get("queue_growth_requests_per_second") is None
    assert pipeline.get("ttft_queue_seconds") is None
    assert pipeline.get("predicted_ttft_seconds") is None


def test_queue_growth_is_the_slope():
    """0, 10, 20, 30 waiting at 0, 5, 10, 15 s: 2 more a second."""
    pipeline = Fed()
    queue(pipeline, Body().process(), [0, 10, 20, 30], at=0, seconds=5)

    assert pipeline.get("queue_growth_requests_per_second") == pytest.approx(2)


def test_queue_growth_needs_two_scrapes():
    pipeline = Fed()
    pipeline.scrape(0, Body().process().waiting(3))

    assert pipeline.get("queue_growth_requests_per_second") is None


def test_predicted_ttft_is_the_queue_over_the_service_rate():
    """463 waiting, 71 first tokens every 10 s: 463 / 7.1 = 65.2 s. All of TTFT is the queue's, so no prefill on top."""
    pipeline = Fed()
    queue(pipeline, Body().process(), [463] * 7, at=0, served=71)

    assert pipeline.get("predicted_ttft_seconds") == pytest.approx(463 / 7.1)


def test_the_service_rate_counts_only_seconds_with_a_queue():
    """30 s without one at their beginning and 10 a second, then 30 s with one and 2 a second: it drains at 2."""
    pipeline, body = Fed(), Body().process()
    queue(pipeline, body, [0, 0, 0, 40], at=0, served=100)
    queue(pipeline, body, [40, 40, 40], at=40, served=20)

    assert pipeline.get("predicted_ttft_seconds") == pytest.approx(40 / 2)


def test_the_service_rate_is_that_of_the_last_minute():
    """A queue for 90 s: at first 9 a second, for 45 s 2 a second, for 15 s 8: (90 + 120) / 60 = 3.5 a second."""
    pipeline, body = Fed(), Body().process()
    queue(pipeline, body, [70, 70, 70], at=0, served=135, seconds=15)
    queue(pipeline, body, [70, 70, 70], at=45, served=30, seconds=15)
    queue(pipeline, body, [70], at=90, served=120)

    assert pipeline.get("predicted_ttft_seconds") == pytest.approx(70 / 3.5)


def test_predicted_ttft_without_a_queue_is_the_prefill_part():
    """Nothing waits and the mean TTFT is 2 s."""
    pipeline = Fed()
    queue(pipeline, Body().process(), [0, 0], at=0, served=10)

    assert pipeline.get("predicted_ttft_seconds") == pytest.approx(2)


def test_deferred_requests_do_not_make_a_newcomer_wait():
    """The one that waits is deferred: a newcomer finds room at once. Mean TTFT 2 s less 1 waiting over 1/s: 1 s."""
    reason = "vllm:num_requests_waiting_by_reason"
    body = Body().process().set(reason, 0, reason="capacity").set(reason, 1, reason="deferred")
    pipeline = Fed()
    queue(pipeline, body, [1, 1], at=0, served=10)

    assert pipeline.get("predicted_ttft_seconds") == pytest.approx(1)


def test_seconds_in_which_requests_were_only_deferred_are_no_queue():
    """3 wait for an adapter while 1 a second comes and is served. A burst leaves 40 without room and 20 a second are
    served: 2 s, not 60. Before the first seconds of that queue are over its rate is not known, and 1/s is not it.
    """
    reason, fed, body = "vllm:num_requests_waiting_by_reason", Fed(), Body().process().running(4)
    found = []
    for at in range(0, 64, 2):
        short = 40 if at >= 60 else 0
        body.waiting(3 + short).set(reason, 3, reason="deferred").set(reason, short, reason="capacity")
        fed.scrape(at, body.first_tokens(0.1, times=40 if at == 62 else 2))
        found.append(fed.get("predicted_ttft_seconds"))

    assert found[-2:] == [None, pytest.approx(40 / 20)]


def test_no_prefill_part_while_those_who_wait_outweigh_those_served():
    """Mean TTFT is 2 s, but 50 waiting over 1/s is 50 s of queue: what the rest would be is not known, and not 0."""
    pipeline = Fed()
    queue(pipeline, Body().process(), [50, 50], at=0, served=10)

    assert pipeline.get("ttft_queue_seconds") == pytest.approx(50)
    assert pipeline.get("ttft_prefill_seconds") is None


def test_predicted_ttft_is_absent_with_a_queue_that_nothing_leaves():
    """x/0 is not infinity: it is a stall alert's business."""
    pipeline = Fed()
    queue(pipeline, Body().process(), [10, 20, 30], at=0)

    assert pipeline.get("predicted_ttft_seconds") is None


# Preemptions


def test_preemptions_per_arrival():
    """3 preemptions, 12 arrivals in the minute: 0.25. Events: 3 and 2 arrivals would be 1.5."""
    pipeline, body = Fed(), Body().process()
    pipeline.scrape(0, body)
    pipeline.scrape(60, body.add("vllm:num_preemptions_total", 3).first_tokens(0.2, times=12))

    assert pipeline.get("preemptions_per_arrival", window="1m") == 0.25


def test_preemptions_without_arrivals_have_no_ratio():
    """3/0: absent. And before a third of the window is covered nothing is said."""
    pipeline, body = Fed(), Body().process()
    pipeline.scrape(0, body)
    pipeline.scrape(10, body.first_tokens(0.2, times=12))
    early = pipeline.get("preemptions_per_arrival")
    pipeline.scrape(20, body.add("vllm:num_preemptions_total", 3))
    covered = pipeline.get("preemptions_per_arrival")
    pipeline.scrape(80, body)
    pipeline.scrape(140, body.add("vllm:num_preemptions_total", 3))

    assert (early, covered) == (None, 0.25)
    assert pipeline.get("preemptions_total") == 6
    assert pipeline.get("preemptions_per_arrival") is None
