"""The API as its readers see it: every answer, every refusal, and that it keeps to its own description."""

import asyncio
import weakref
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error

import exporter.readings
from exporter.api import add_api
from exporter.engine_schema import Replicas
from exporter.page_state import add_page
from exporter.readings import Readings
from exporter.recent import POINTS, STEP_SECONDS, Recent
from exporter.replicas import Fleet
from exporter.schema import TargetConfig
from exporter.signals.view import TargetView
from tests.bodies import UNIX, Body, Fed
from tests.rich import PRICED, busy_engine

MARKUP = "<img src=x onerror=alert(1)>\"'&"


class Shown:
    """A target as the API reads it: the view of a pipeline at a time."""

    def __init__(self, pipeline: Fed, at: float | None = None) -> None:
        self.pipeline = pipeline
        self.version = 0
        self.at = at

    def view(self) -> TargetView:
        return self.pipeline.view(self.at)


class Api:
    """The application over these targets."""

    def __init__(self, *targets: Shown) -> None:
        self.targets = list(targets)
        self.history = Recent()
        self.fleet = Fleet()
        self.app = FastAPI(title="vLLM Sidecar")
        readings = Readings(self.targets, clock=lambda: 0.0)  # type: ignore[arg-type]
        add_api(self.app, readings, self.history, self.fleet)
        add_page(self.app, readings)

    async def get(self, path: str, **query: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
            return await client.get(path if path.startswith("/page") else f"/api/v1/{path}", params=query)


def one(name: str = "one", model: str = "m", engine: str = "0", usage: float = 0.5) -> Shown:
    """A minute of an engine whose KV cache of 100,000 tokens is half full, with 30,000 tokens written."""
    pipeline = Fed(TargetConfig(name=name), windows={"15s": 15.0})
    body = Body(engine, model).process().http(0)
    body.own("vllm:cache_config_info", 1, engine=engine, kv_cache_size_tokens=100_000)
    for at in range(0, 62, 2):
        pipeline.scrape(at, body.set("vllm:kv_cache_usage_perc", usage))
        body.running(4).decode(4, 100).first_tokens(0.2, times=2).finish(times=2)
        body.tokens(prompt=200)
        body.observe("vllm:request_generation_tokens", 200.0, times=2, edges=(100.0, 1000.0, float("inf")))
        body.add("vllm:prompt_tokens_by_source_total", 200, source="local_compute")
    return Shown(pipeline)


ENDPOINTS = ("signals", "engines", "engines/0", "speculation", "saturation", "warmth", "history", "replicas")


async def test_every_answer_says_how_old_it_is_and_must_not_be_kept() -> None:
    """Three seconds after the last scrape."""
    shown = one()
    shown.at = shown.pipeline.at + 3.0
    api = Api(shown)
    for path in ENDPOINTS:
        answer = await api.get(path)
        assert answer.status_code == 200
        assert answer.json()["age_seconds"] == pytest.approx(3.0)
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda shown: setattr(shown, "at", shown.pipeline.at + 31), "one was last seen 31 s ago"),
        (lambda shown: shown.pipeline.fail(shown.pipeline.at + 2), "one is lost"),
        (lambda shown: shown.pipeline.pipeline.observe_health(healthy=False), "one fails its health check"),
    ],
    ids=["stale", "lost", "sick"],
)
async def test_what_somebody_acts_on_fails_closed(change: Callable[[Shown], object], reason: str) -> None:
    """503 with the reason, and when to come again."""
    shown = one()
    change(shown)
    api = Api(shown)
    for path in ("signals", "engines/0", "speculation", "saturation", "warmth", "replicas"):
        answer = await api.get(path)
        assert answer.status_code == 503
        assert answer.json()["error"] == reason
        assert answer.headers["retry-after"] == "2"


async def test_the_list_and_the_past_go_on_when_an_engine_is_lost() -> None:
    """That it is lost is what they tell."""
    shown = one()
    shown.pipeline.fail(shown.pipeline.at + 2)
    api = Api(shown)
    assert (await api.get("engines")).json()["engines"][0]["verdict"]["sentence"] == "lost: no good scrape for 2 s"
    assert (await api.get("history")).status_code == 200


async def test_an_engine_that_is_not_there_is_404_and_names_those_that_are() -> None:
    api = Api(one("a"), one("b", engine="1"))
    for answer in (await api.get("engines/7"), await api.get("saturation", engine="7"), await api.get("engines/ ")):
        assert answer.status_code == 404
        assert answer.json()["error"] == "there is no such engine"
        assert [known["target"] for known in answer.json()["known"]] == ["a", "b"]


async def test_a_name_that_two_engines_have_asks_for_more() -> None:
    api = Api(one("a"), one("b"))
    answer = await api.get("engines/0")
    assert answer.status_code == 409
    assert answer.json()["error"] == "2 engines are called 0: say target or model_name"
    assert (await api.get("engines/0", target="b")).json()["target"] == "b"


@pytest.mark.parametrize(
    ("path", "query", "words"),
    [
        ("warmth", {"min": "2"}, "min: input should be less than or equal to 1, not '2'"),
        ("warmth", {"min": "warm"}, "min: input should be a valid number"),
        ("history", {"since": "-1"}, "since: input should be greater than or equal to 0, not '-1'"),
        ("saturation", {"engin": "0"}, "there is no parameter engin"),
    ],
)
async def test_bad_values_are_refused_in_plain_words(path: str, query: dict[str, str], words: str) -> None:
    answer = await Api(one()).get(path, **query)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith(words)


async def test_saturation_is_the_fullest_engine_and_what_binds_it() -> None:
    """KV at 0.3 and at 0.8; no other resource is known without settings but the queue, which is empty: 0.2 s of 2.5."""
    api = Api(one("a", usage=0.3), one("b", usage=0.8))
    found = (await api.get("saturation")).json()
    assert (found["saturation_ratio"], found["resource"]) == (0.8, "kv")
    assert found["predicted_ttft_seconds"] == pytest.approx(0.2)
    assert [each["saturation_ratio"] for each in found["engines"]] == [0.3, 0.8]
    assert (await api.get("saturation", target="a")).json()["saturation_ratio"] == 0.3


async def test_an_engine_that_is_lost_is_left_out_and_named() -> None:
    lost = one("lost", usage=0.9)
    lost.pipeline.fail(lost.pipeline.at + 2)
    found = (await Api(one("there"), lost).get("saturation")).json()
    assert found["saturation_ratio"] == 0.5
    assert found["left_out"] == [{"target": "lost", "model_name": "m", "engine": "0", "reason": "lost is lost"}]


async def test_warmth_is_what_has_been_written_of_the_cache() -> None:
    """Thirty times 200 prompt and 400 output tokens are 18,000 of 100,000: 0.18."""
    api = Api(one())
    assert (await api.get("warmth")).json()["weight"] == pytest.approx(0.18)
    assert (await api.get("warmth", min=0.18)).status_code == 200
    refused = await api.get("warmth", min=0.2)
    assert refused.status_code == 503
    assert refused.json()["error"] == "the weight 0.180 is below 0.2"


async def test_speculation_is_advised_by_the_decode_batch() -> None:
    """Four drafts a sequence at a batch of eight, and no token more comes of them: less than without."""
    found = (await Api(Shown(busy_engine())).get("speculation")).json()["engines"][0]
    assert found["advised"] is False
    assert found["decode_batch_size"] == 8
    assert found["gamma"] == 4
    assert found["objective"] == "throughput"
    assert found["expected_speedup_ratio"]["throughput"] < 1
    assert found["reason"].startswith("it does not pay for throughput")


async def test_speculation_says_why_it_gives_no_advice() -> None:
    found = (await Api(one()).get("speculation")).json()["engines"][0]
    assert found["advised"] is None
    assert found["reason"] == "no GPU: set hardware"


async def test_history_holds_ten_minutes_and_not_more() -> None:
    """A point every five seconds: 120 of them, of an hour."""
    shown = one()
    api = Api(shown)
    for number in range(720):
        api.history.add(shown.view(), UNIX + number * STEP_SECONDS)
    series = (await api.get("history")).json()["engines"][0]["series"]
    assert POINTS == 120
    assert {len(values) for values in series.values()} == {120}
    assert series["unix_seconds"][-1] == UNIX + 719 * 5
    assert set(series["decode_batch_size"]) == {4.0}
    later = (await api.get("history", since=UNIX + 717 * 5)).json()["engines"][0]["series"]
    assert len(later["unix_seconds"]) == 2
    api.history.forget(UNIX + 10_000)
    assert (await api.get("history")).json()["engines"][0]["series"]["unix_seconds"] == []


async def test_history_begins_anew_when_the_clock_is_set_back() -> None:
    """Else who asks for what is later than its last point gets the points of a time to come again and again."""
    shown = one()
    api = Api(shown)
    for at in (UNIX, UNIX + 5, UNIX - 3600, UNIX - 3595):
        api.history.add(shown.view(), at)
    series = (await api.get("history")).json()["engines"][0]["series"]
    assert series["unix_seconds"] == [UNIX - 3600, UNIX - 3595]


async def test_history_has_a_gap_where_an_engine_was_lost() -> None:
    shown = one()
    api = Api(shown)
    shown.pipeline.fail(shown.pipeline.at + 2)
    api.history.add(shown.view(), UNIX)
    assert (await api.get("history")).json()["engines"][0]["series"]["kv_usage_ratio"] == [None]


async def test_replicas_are_advice_by_model() -> None:
    """The fed engine makes 4 x 50 = 200 tokens/s; nothing waits, so that its rate must be set to be known.

    One that is lost serves nobody, and is named.
    """
    shown, lost = one(model="wanted"), one("lost", model="wanted")
    lost.pipeline.fail(lost.pipeline.at + 2)
    api = Api(shown, lost)
    api.fleet.observe([shown.view(), lost.view()], Replicas(), 0.0)
    answer = (await api.get("replicas")).json()
    assert [each["target"] for each in answer["left_out"]] == ["lost"]
    [model] = answer["models"]
    assert model["model_name"] == "wanted"
    assert model["replicas"] == 1
    assert model["desired_replicas"] is None
    assert model["reason"].startswith("no replica has been seen at work with a queue")


async def test_worst_first() -> None:
    lost = one("z")
    lost.pipeline.fail(lost.pipeline.at + 2)
    api = Api(one("a"), lost, Shown(Fed(TargetConfig(name="new"))))
    engines = (await api.get("engines")).json()["engines"]
    assert [each["target"] for each in engines] == ["z", "new", "a"]
    state = (await api.get("/page/state")).json()
    assert state["selected"]["target"] == "z"
    assert state["engines_total"] == 3


async def test_signals_are_a_json_object_whatever_engines_are_called() -> None:
    answer = await Api(one(model=MARKUP.replace('"', r"\""))).get("signals")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["targets"][0]["engines"][0]["model_name"] == MARKUP


async def test_files_of_the_page_are_asked_for_again_and_not_sent_again() -> None:
    api = Api(one())
    transport = httpx.ASGITransport(api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
        first = await client.get("/")
        again = await client.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert (first.status_code, again.status_code) == (200, 304)
    assert again.content == b""
    assert "unsafe" not in first.headers["content-security-policy"]
    assert "default-src 'none'" in first.headers["content-security-policy"]


async def test_a_fleet_is_read_with_pauses_in_which_scrapes_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty targets, a pause after each: others have their turn as often."""
    monkeypatch.setattr(exporter.readings, "SLICE_SECONDS", 0.0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    readings = Readings([Shown(Fed(TargetConfig(name=str(number)))) for number in range(20)])  # type: ignore[misc]
    taking_turns = asyncio.create_task(others())
    await readings.ahead(lambda each: each.verdict)
    taking_turns.cancel()
    assert turns >= 20
    assert len(readings.all()) == 20


def test_what_nobody_reads_any_more_is_let_go() -> None:
    """A reading holds five minutes of scrapes. It is used again within 2 s, and gone soon after, as is its target."""
    now, targets = 0.0, [one()]
    readings = Readings(targets, clock=lambda: now)  # type: ignore[arg-type]
    first = readings.all()
    now = 1.9
    readings.forget()
    assert readings.all() == first
    held = weakref.ref(first[0]), weakref.ref(targets[0])
    first.clear()
    targets.clear()
    now = 2.0
    readings.forget()
    assert [each() for each in held] == [None, None]


schemathesis_schema = schemathesis.openapi.from_asgi("/openapi.json", Api(one("a"), Shown(busy_engine(PRICED))).app)


@schemathesis_schema.parametrize()
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_api_keeps_to_its_description(case: schemathesis.Case) -> None:
    """Whatever is asked: statuses, types and bodies are those it describes, and nothing makes it fail."""
    answer = case.call_and_validate(excluded_checks=[not_a_server_error])  # 503 is an answer, and described
    assert answer.status_code != 500
