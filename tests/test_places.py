"""Series that come and go for ever: the oldest give up their places and are counted, all others go on as before."""

from itertools import pairwise

import pytest

from exporter.exposition import Parser, Reason
from exporter.schema import Scrape, TargetConfig
from exporter.snapshot import MAX_ENGINES, Layout
from tests.bodies import Body, Fed

TTFT = "vllm:time_to_first_token_seconds"


def room_for(max_series):
    return TargetConfig(scrape=Scrape(max_series=max_series))


def places(fed):
    return len(fed.pipeline._layout.slots)


def rejected(reason, count=1):
    """A labelled counter of the target, as an engine with a new label at each turn would show it."""
    return f'vllm:admission_rejections_total{{model_name="m",reason="{reason}"}} {count}\n'.encode()


@pytest.fixture(scope="module")
def flooded():
    """300 scrapes a second apart, 10 fresh labels in each, room for 200 series; what is steady was noted each time."""
    fed, body, shown = Fed(room_for(200), windows={"15s": 15.0}), Body().process(), []
    for turn in range(300):
        labels = b"".join(rejected(f"{turn}-{number}") for number in range(10))
        assert fed.scrape(turn, body, labels) is None
        shown.append(fed.shown())
        assert places(fed) <= 200
        body.running(2).decode(2, 5).first_tokens(0.3)
    return fed, shown


def test_a_flood_of_labels_leaves_the_counters_of_what_is_steady_exact(flooded):
    """2 sequences x 5 steps, one first token and one arrival a scrape: after 299 of them 2,990, 299 and 299."""
    _, shown = flooded
    found = {name: value for (name, labels), value in shown[-1].items() if dict(labels).get("engine") == "0"}

    assert found["generation_tokens_total"] == 299 * 10
    assert found["engine_steps_total"] == 299 * 5
    assert found["first_tokens_total"] == found["arrivals_total"] == 299
    assert found["time_to_first_token_seconds_count"] == 299
    assert found["engine_restarts_total"] == 0


def test_a_flood_of_labels_breaks_no_window(flooded):
    """The decode batch is 2 and 75 tokens come in 15 s in every scrape from the first full window on."""
    fed, shown = flooded
    batches = {value for turn in shown[15:] for (name, _), value in turn.items() if name == "decode_batch_size"}

    assert batches == {2}
    assert fed.view().engines[0].windows["15s"].seconds == 15
    assert fed.view().engines[0].windows["15s"].increase("generation_tokens") == 150


def test_a_flood_of_labels_makes_no_exported_counter_fall(flooded):
    """Each turn against the one before, series by series."""
    _, shown = flooded
    for before, now in pairwise(shown):
        fallen = {key for key, value in now.items() if key[0].endswith("_total") and value < before.get(key, 0.0)}
        assert fallen == set()


def test_what_was_dropped_is_counted_and_what_is_left_is_the_newest(flooded):
    """Of 3,000 labels the last n are kept, whole turns but for the oldest, and the counter says 3,000 - n."""
    fed, shown = flooded
    kept = [slot.column.labels[1] for slot in fed.pipeline._layout.slots if slot.column.series == "rejections"]
    came = [f"{turn}-{number}" for turn in range(300) for number in range(10)]

    assert kept == came[-len(kept) :]
    assert 10 <= len(kept) < 200
    assert fed.get("dropped_series_total") == 3000 - len(kept)
    assert [turn["dropped_series_total", (("target", fed.view().label),)] for turn in shown[:2]] == [0, 0]


def test_a_series_that_is_there_is_never_dropped_however_old():
    """``steady`` is the oldest of all labels and grows by 1 a scrape: 99 since the first."""
    fed = Fed(room_for(200))
    for turn in range(100):
        fed.scrape(turn, Body().process(), rejected("steady", 7 + turn), *(rejected(f"{turn}-{n}") for n in range(20)))

    assert fed.get("dropped_series_total") > 1000
    assert fed.get("admission_rejections_total", reason="steady") == 99


def test_a_series_that_goes_later_stays_longer_though_it_came_first():
    """``first`` was there until turn 50, the labels of turn 40 only then: it outlives them."""
    fed = Fed(room_for(200))
    for turn in range(53):
        first = [rejected("first", 5)] if turn < 51 else []
        fed.scrape(turn, Body().process(), *first, *(rejected(f"{turn}-{n}") for n in range(20)))
    kept = {slot.column.labels[1] for slot in fed.pipeline._layout.slots if slot.column.series == "rejections"}

    assert "first" in kept
    assert not any(reason.startswith("40-") for reason in kept)


def test_a_dropped_series_that_comes_back_is_not_counted_twice():
    """It stood at 1,000 when it went, and comes back at 1,005 long after: no 1,005 rejections came just then."""
    fed = Fed(room_for(200))
    fed.scrape(0, Body().process(), rejected("old", 900))
    fed.scrape(1, Body().process(), rejected("old", 1000))
    before = fed.get("admission_rejections_total", reason="old")
    for turn in range(2, 50):
        fed.scrape(turn, Body().process(), *(rejected(f"{turn}-{n}") for n in range(20)))
    fed.scrape(50, Body().process(), rejected("old", 1005))
    back = fed.get("admission_rejections_total", reason="old")
    fed.scrape(51, Body().process(), rejected("old", 1007))

    assert (before, back, fed.get("admission_rejections_total", reason="old")) == (100, 0, 2)


def test_after_a_restart_what_is_new_counts_from_zero_again():
    """Dropped or not, nothing of the process before can come back: 3 rejections at the first scrape are 3."""
    fed = Fed(room_for(200))
    for turn in range(50):
        fed.scrape(turn, Body().process(1.0), *(rejected(f"{turn}-{n}") for n in range(20)))
    fed.scrape(50, Body().process(2.0))
    fed.scrape(51, Body().process(2.0), rejected("new", 3))

    assert fed.get("dropped_series_total") > 0
    assert fed.get("admission_rejections_total", reason="new") == 3


def test_engines_renamed_for_ever_are_dropped_whole_and_the_one_that_stays_goes_on():
    """40 models in turn beside engine 0 of ``m``, in room for 300 series: the last is shown, ``m`` counts 39 x 10."""
    fed, steady = Fed(room_for(300)), Body().process()
    for turn in range(40):
        assert fed.scrape(2.0 * turn, steady, Body(model_name=f"m{turn}")) is None
        steady.running(1).decode(1, 10)

    engines = fed.pipeline._layout.engines
    assert places(fed) <= 300
    assert set(fed.pipeline._accruals) == set(fed.pipeline._judgements) == set(engines)
    assert {len(columns) for columns in engines.values()} == {len(next(iter(engines.values())))}
    assert fed.get("generation_tokens_total", model_name="m") == 39 * 10
    assert fed.get("running_requests", model_name="m39") == 0


def test_an_engine_that_comes_back_after_it_was_dropped_starts_as_at_first_contact():
    """It went with 500 tokens and comes back with 700: its counters are at 0, and rise by what comes from then on."""
    fed = Fed(room_for(300))
    fed.scrape(0, Body(model_name="m").tokens(generated=500).first_tokens(0.3, times=50))
    for turn in range(1, 20):
        fed.scrape(turn, Body(model_name=f"m{turn}"))
    back = Body(model_name="m").tokens(generated=700).first_tokens(0.3, times=70)
    fed.scrape(20, back)
    found = [(fed.get("generation_tokens_total"), fed.get("arrivals_total"))]
    fed.scrape(21, back.tokens(generated=5).first_tokens(0.3))
    found.append((fed.get("generation_tokens_total"), fed.get("arrivals_total")))

    assert found == [(0, 0), (5, 1)]


def test_more_engines_over_time_than_a_port_may_have_at_once():
    """One after the other, each with a single series: places are left, but not for a 257th engine.

    Engines alone make room then, a quarter of 256 at a time: of 768 the last 193 to 256 are left.
    """
    fed = Fed()
    fed.scrape(-1, rejected("old"), Body(bare=True).running(0))
    for turn in range(3 * MAX_ENGINES):
        assert fed.scrape(turn, Body(model_name=f"m{turn}", bare=True).running(turn)) is None
        assert len(fed.pipeline._layout.engines) <= MAX_ENGINES

    left = len(fed.pipeline._layout.engines)
    assert 192 < left <= 256
    assert fed.get("running_requests") == 3 * MAX_ENGINES - 1
    assert fed.get("dropped_series_total") == 1 + 3 * MAX_ENGINES - left
    assert any(slot.column.labels == ("m", "old") for slot in fed.pipeline._layout.slots)


def test_edges_that_are_others_at_each_scrape_touch_no_other_histogram_and_no_window():
    """One engine shows a fresh edge each time. The other's median of (0.1, 0.5] stays 0.3, and places suffice."""
    fed = Fed(room_for(400), windows={"15s": 15.0})
    steady, other = Body(engine="0").process(), Body(engine="1")
    for turn in range(200):
        edge = f'{TTFT}_bucket{{engine="1",le="{100 + turn}",model_name="m"}} 0\n'.encode()
        assert fed.scrape(turn, steady, other, edge) is None
        steady.first_tokens(0.3, 0.3)

    assert places(fed) <= 400
    assert fed.get("latency_quantile_seconds", latency="ttft", q="0.5", engine="0") == pytest.approx(0.3)
    assert fed.view().engines[0].windows["15s"].seconds == 15
    assert fed.get("time_to_first_token_seconds_count", engine="0") == 2 * 199


def test_a_refused_body_leaves_nothing_behind():
    """400 labels, where 300 series may be: refused, and a good body after it is read as if that had not been."""
    fed = Fed(room_for(300))
    flood = Body().process().text() + b"".join(rejected(f"{n}") for n in range(400))
    refused = [fed.scrape(turn, flood) for turn in range(3)]
    left = places(fed)

    assert {failure.reason for failure in refused} == {Reason.TOO_LARGE}
    assert left == 0
    assert fed.scrape(3, Body().process()) is None


def test_a_body_that_is_refused_again_is_let_in_once_it_is_small_enough():
    """One label too many, the same with other numbers, two fewer, as before, all others, two fewer again."""
    fed, body = Fed(room_for(400)), Body().process().text()
    room = 400 - len(Parser(Layout()).parse(body).values)
    many = [rejected(f"{n}") for n in range(room + 1)]
    outcomes = [
        fed.scrape(0, body, *many),
        fed.scrape(1, body, *(line.replace(b" 1", b" 2") for line in many)),
        fed.scrape(2, body, *many[:-2]),
        fed.scrape(3, body, *many),
        fed.scrape(4, body, *(rejected(f"other-{n}") for n in range(room + 1))),
        fed.scrape(5, body, *many[2:]),
    ]

    assert [outcome is None for outcome in outcomes] == [False, False, True, False, False, True]
    assert fed.get("scrape_failures_total", reason="too_large") == 4


def test_a_refused_body_between_good_ones_costs_the_good_ones_nothing():
    """10 tokens before, 10 after: 20, over the same window."""
    fed, body = Fed(room_for(300)), Body().process()
    fed.scrape(0, body)
    fed.scrape(10, body.tokens(generated=10))
    refused = fed.scrape(20, body.text() + b"".join(rejected(f"{n}") for n in range(400)))
    fed.scrape(30, body.tokens(generated=10))

    assert refused.reason is Reason.TOO_LARGE
    assert fed.get("generation_tokens_total") == 20
    assert fed.view().engines[0].minute.increase("generation_tokens") == 20
    assert fed.get("dropped_series_total") == 0


def test_what_a_reader_holds_stays_as_it_was_when_places_are_given_up():
    """The page reads a fleet with pauses: what it took before a drop is not another series after it."""
    fed, body = Fed(room_for(200)), Body().process()
    for turn in range(7):
        fed.scrape(turn, body.running(3), rejected("a", turn), *(rejected(f"{turn}-{n}") for n in range(10)))
    held, before = fed.view(), fed.get("dropped_series_total")
    for turn in range(7, 30):
        fed.scrape(turn, body.running(4), *(rejected(f"{turn}-{n}") for n in range(20)))

    assert before == 0 < fed.get("dropped_series_total")
    assert held.last.last("rejections", "m", "a") == 6
    assert held.engines[0].now.last("running") == 3
