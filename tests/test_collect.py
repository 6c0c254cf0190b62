"""Values to families and to JSON, through the catalogue."""

import json
import math

import pytest

from exporter.catalogue import TABLE, Scope, Type
from exporter.collect import families, signals, values
from exporter.schema import TargetConfig
from exporter.signals.histogram import Histogram
from tests.bodies import NOBODY, Body, Fed, samples
from tests.rich import PRICED, busy_engine


def test_what_is_not_known_is_no_sample():
    """None, NaN and infinities never leave; a zero does."""
    assert values(None) == {}
    assert values(0.0) == {(): 0.0}
    assert values({("a",): None, ("b",): math.nan, ("c",): math.inf, ("d",): 1.0}) == {("d",): 1.0}
    assert values(Histogram((math.inf,), (1.0,), None)) == {}


def test_families_come_in_the_catalogues_order_and_only_where_they_have_a_series():
    found = [family.name for family in busy_engine().families()]
    order = [row.full_name.removesuffix("_total") for row in TABLE]

    assert found == [name for name in order if name in found]
    assert all(family.samples for family in busy_engine().families())


def test_a_histogram_is_whole():
    """Cumulative buckets up to +Inf, whose count is the count; the sum where it is known."""
    pipeline = Fed()
    body = Body().process()
    pipeline.scrape(0, body)
    pipeline.scrape(2, body.first_tokens(0.3, 0.7, 0.7, 20.0))
    found = [s for f in pipeline.families() for s in f.samples if s.name.startswith("vllm_sidecar_time_to_first")]
    buckets = [(s.labels["le"], s.value) for s in found if s.name.endswith("_bucket")]

    assert buckets == [("0.1", 0), ("0.5", 1), ("1.0", 3), ("2.5", 3), ("5.0", 3), ("10.0", 3), ("+Inf", 4)]
    assert [s.value for s in found if s.name.endswith("_count")] == [4]
    assert [s.value for s in found if s.name.endswith("_sum")] == [pytest.approx(21.7)]


def test_engines_carry_the_targets_label_only_where_there_are_several():
    """One sidecar beside one engine needs none; it can be asked for all the same."""
    view = busy_engine().view()
    alone = samples(families(NOBODY, [view]))
    asked = samples(families(NOBODY, [view], several=True))

    assert ("arrivals_total", (("engine", "0"), ("model_name", "m"))) in alone
    assert ("arrivals_total", (("engine", "0"), ("model_name", "m"), ("target", "localhost:8000"))) in asked


def test_signals_say_null_for_what_is_not_known():
    """A target not asked yet: every name of its own is there, and says null; it has no engines."""
    (found,) = signals([Fed().view()])

    assert found["target"] == "localhost:8000"
    assert found["age_seconds"] is None
    assert found["target_up"] is None
    assert found["gpu_cost_dollars_total"] is None
    assert found["engines"] == []
    assert {row.name for row in TABLE if row.scope is Scope.TARGET and row.type is not Type.HISTOGRAM} <= found.keys()


def test_signals_are_the_exported_values():
    """The same numbers as in the exposition, as JSON: labels become keys, one level a label."""
    pipeline = busy_engine()
    (found,) = signals([pipeline.view(pipeline.at + 3)])
    (engine,) = found["engines"]

    assert found["age_seconds"] == 3
    assert found["target_state"] == {"loading": 0, "up": 1, "asleep": 0, "lost": 0}
    assert (engine["model_name"], engine["engine"]) == ("m", "0")
    assert engine["decode_batch_size"] == pipeline.get("decode_batch_size") == 8
    assert engine["waiting_requests"] == {"capacity": 3, "deferred": 0}
    assert engine["latency_quantile_seconds"]["ttft"]["0.5"]["1m"] == pipeline.get(
        "latency_quantile_seconds", latency="ttft", q="0.5"
    )
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_signals_of_a_stale_engine_keep_its_counters_and_lose_its_gauges():
    """As /metrics does; the age says how old it is."""
    pipeline = busy_engine()
    (found,) = signals([pipeline.view(pipeline.at + 60)])
    (engine,) = found["engines"]

    assert found["age_seconds"] == 60
    assert engine["decode_batch_size"] is None
    assert engine["latency_quantile_seconds"] is None
    assert engine["arrivals_total"] > 0


def test_signals_of_several_targets_are_one_object_each():
    views = [busy_engine(PRICED.model_copy(update={"name": name})).view() for name in ("a", "b")]

    assert [found["target"] for found in signals(views)] == ["a", "b"]


def test_no_lora_list_becomes_a_label():
    """Lists of adapters are a series a mix, for ever: ours stay as many as they were after 200 mixes."""
    pipeline, body, counted = Fed(TargetConfig()), Body().process(), set()
    for turn in range(200):
        body.own("vllm:lora_requests_info", 1.7e9 + turn, running_lora_adapters=f"a{turn},b{turn % 50}")
        pipeline.scrape(2.0 * turn, body.tokens(generated=1))
        if turn > 40:
            counted.add(len(pipeline.shown()))
        assert not any("a1,b1" in str(labels) for _, labels in pipeline.shown())

    assert len(counted) == 1
