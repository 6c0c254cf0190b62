"""The HTTP surface: what it answers whoever asks however, with or without an engine."""

import asyncio
import gzip
import itertools
import json
import re
import time
import weakref
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

import exporter.app
import exporter.readings
from exporter.app import Sidecar, create_app
from exporter.exposition import Failure, Reason, Scraped
from exporter.schema import Config
from exporter.settings import load
from tests.fake_engine import EXPOSITION

CONFIG = Config.model_validate({"url": "http://127.0.0.1:9", "scrape": {"interval_seconds": 60}})
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT = "text/plain; version=0.0.4; charset=utf-8"


@pytest.fixture
async def sidecar() -> AsyncIterator[Sidecar]:
    """A sidecar whose engine is not there, with nothing scraped yet."""
    sidecar = Sidecar()
    sidecar.use(CONFIG)
    yield sidecar
    await sidecar.targets.stop()


@pytest.fixture
async def client(sidecar: Sidecar) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(sidecar))
    async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
        del client.headers["accept"], client.headers["accept-encoding"]
        yield client


def observe(sidecar: Sidecar, outcome: Scraped | Failure) -> None:
    """One scrape of the only target, now."""
    [target] = sidecar.targets
    target.pipeline.observe(outcome, at=time.monotonic(), unix=time.time())


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        pytest.param(None, TEXT, id="none"),
        pytest.param("", TEXT, id="empty"),
        pytest.param("*/*", TEXT, id="anything"),
        pytest.param("text/html,application/xhtml+xml", TEXT, id="a browser"),
        pytest.param("text/plain", TEXT, id="text"),
        pytest.param("text/plain;version=0.0.4", TEXT, id="text 0.0.4"),
        pytest.param("application/json", TEXT, id="what we do not have"),
        pytest.param("text/plain;version=garbage", TEXT, id="a version that is none"),
        pytest.param("application/openmetrics-text;version=;q=0.5", OPENMETRICS, id="no version"),
        pytest.param("application/openmetrics-text;version=1.x.y", TEXT, id="an OpenMetrics version that is none"),
        pytest.param(", ;;=,;version,", TEXT, id="garbage"),
        pytest.param("application/openmetrics-text", OPENMETRICS, id="OpenMetrics"),
        pytest.param("application/openmetrics-text;version=1.0.0;q=0,*/*", TEXT, id="OpenMetrics refused"),
        pytest.param("application/openmetrics-text;q=0.001", OPENMETRICS, id="OpenMetrics at the least weight"),
        pytest.param(
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
            "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=allow-utf-8",
            id="Prometheus 3",
        ),
        pytest.param(
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores",
            id="Prometheus 2.42",
        ),
    ],
)
async def test_format_is_negotiated(client: httpx.AsyncClient, accept: str | None, content_type: str) -> None:
    """Never html, never blank: Prometheus 3 refuses both."""
    headers = {} if accept is None else {"Accept": accept}
    answer = await client.get("/metrics", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"].removesuffix("; escaping=underscores") == content_type.removesuffix(
        "; escaping=underscores"
    )
    reader = openmetrics_parser if content_type.startswith("application/openmetrics-text") else parser
    families = {family.name for family in reader.text_string_to_metric_families(answer.text)}
    assert "vllm_sidecar_config_valid" in families


@pytest.mark.parametrize(
    ("encodings", "compressed"),
    [
        (None, False),
        ("identity", False),
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("zstd", False),
        ("gzip;q=0", False),
        ("identity;q=0.5, gzip ; Q=0.000, br", False),
        ("gzip;q=0.001", True),
    ],
)
async def test_gzip_only_when_asked_for(client: httpx.AsyncClient, encodings: str | None, compressed: bool) -> None:
    """The same exposition either way; the header says which it is. A weight of 0 refuses (RFC 9110, 12.4.2)."""
    headers = {} if encodings is None else {"Accept-Encoding": encodings}
    async with client.stream("GET", "/metrics", headers=headers) as answer:
        raw = b"".join([chunk async for chunk in answer.aiter_raw()])
    assert answer.headers.get("content-encoding") == ("gzip" if compressed else None)
    assert int(answer.headers["content-length"]) == len(raw)
    text = (gzip.decompress(raw) if compressed else raw).decode()
    assert "vllm_sidecar_target_state" in text


@pytest.mark.parametrize("path", ["/metrics", "/metrics/", "/-/healthy", "/-/ready", "/", "/api/v1/engines"])
async def test_head_is_get_without_a_body(client: httpx.AsyncClient, path: str) -> None:
    """Whatever can be read can be asked about; both with the same type."""
    head, get = await client.head(path), await client.get(path)
    assert (head.status_code, get.status_code) == (200, 200)
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("path", ["/metrics", "/metrics/", "/metrics?name[]=x", "/api/v1/engines", "/"])
async def test_nothing_redirects(client: httpx.AsyncClient, path: str) -> None:
    """A scraper that does not follow would read nothing and say up."""
    assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize("path", ["/metrics//", "/Metrics", "/api/v1/signals/", "/-/healthy/", "/docs", "/x"])
async def test_what_is_not_there_is_404(client: httpx.AsyncClient, path: str) -> None:
    """No redirect, no guess."""
    assert (await client.get(path)).status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_written(client: httpx.AsyncClient, method: str) -> None:
    """There is nothing to change from outside."""
    for path in ("/metrics", "/-/healthy", "/-/ready", "/api/v1/signals", "/"):
        assert (await client.request(method, path)).status_code == 405


async def test_readers_share_a_render(
    client: httpx.AsyncClient, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty readers at once: the state is rendered once, and all read the same bytes."""
    collected = itertools.count()
    render = exporter.app.exposition

    def counted(*arguments: Any, **more: Any) -> Any:
        next(collected)
        return render(*arguments, **more)

    monkeypatch.setattr("exporter.app.exposition", counted)
    answers = await asyncio.gather(*(client.get("/metrics") for _ in range(20)))
    assert len({answer.content for answer in answers}) == 1
    assert next(collected) == 1


async def test_healthy_and_ready_whatever_the_engine_does(client: httpx.AsyncClient, sidecar: Sidecar) -> None:
    """Not there yet, there, lost: the sidecar's own health is its timer's, or the pod would be restarted for it."""
    for outcome in (Failure(Reason.CONNECT, ""), Scraped(EXPOSITION, False, 0.01), Failure(Reason.TIMEOUT, "")):
        observe(sidecar, outcome)
        assert (await client.get("/-/healthy")).status_code == 200
        assert (await client.get("/-/ready")).status_code == 200


async def test_not_healthy_when_the_timer_stands_still(client: httpx.AsyncClient, sidecar: Sidecar) -> None:
    """Then a restart does help. No target is named: a probe shows no credential."""
    [target] = sidecar.targets
    target._ticked_at -= 4 * 60  # four intervals of 60 s
    answer = await client.get("/-/healthy")
    assert (answer.status_code, answer.text) == (503, "timer late: 1 of 1 targets\n")


async def test_not_ready_without_settings() -> None:
    """A sidecar that never had valid settings is alive and says what is wrong in its metrics."""
    transport = httpx.ASGITransport(create_app(Sidecar()))
    async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
        assert (await client.get("/-/ready")).status_code == 503
        assert (await client.get("/-/healthy")).status_code == 200
        assert "\nvllm_sidecar_config_valid 0.0\n" in (await client.get("/metrics")).text


async def test_signals_before_the_engine_was_ever_seen(client: httpx.AsyncClient) -> None:
    """null is not known: no zeros, no engines; and nobody is to act on it."""
    answer = await client.get("/api/v1/signals")
    assert answer.status_code == 503
    assert answer.json()["error"] == "127.0.0.1:9 is loading"
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    [target] = answer.json()["targets"]
    assert target["target"] == "127.0.0.1:9"
    assert target["engines"] == []
    assert target["age_seconds"] is None
    assert target["target_up"] is None
    assert target["last_success_timestamp_seconds"] is None
    assert target["target_state"] == {"loading": 1.0, "up": 0.0, "asleep": 0.0, "lost": 0.0}


async def test_signals_of_an_engine(client: httpx.AsyncClient, sidecar: Sidecar) -> None:
    """One object a target with its engines; what one scrape cannot tell is null, what it tells is a number."""
    observe(sidecar, Scraped(EXPOSITION, False, 0.01))
    found = (await client.get("/api/v1/signals")).json()
    [target] = found["targets"]
    [engine] = target["engines"]
    assert abs(found["unix_seconds"] - time.time()) < 60
    assert 0 <= target["age_seconds"] < 60
    assert target["target_up"] == 1.0
    assert target["scrape_duration_seconds"] == 0.01
    assert (engine["model_name"], engine["engine"]) == ("tiny", "0")
    assert engine["running_requests"] == 1.0
    assert engine["decode_batch_size"] is None
    assert engine["generation_tokens_total"] == 0.0
    assert json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("faulty", ["recent.add", "pipeline.view"])
async def test_the_recent_past_and_the_advice_are_kept_up(
    client: httpx.AsyncClient, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch, faulty: str
) -> None:
    """A point a round, and every model that is watched is advised on; a fault in one round does not end the next. What
    readers of the API were shown is let go.
    """
    monkeypatch.setattr(exporter.app, "STEP_SECONDS", 0.001)
    monkeypatch.setattr(exporter.readings, "REUSED_SECONDS", 0.0)
    observe(sidecar, Scraped(EXPOSITION, False, 0.01))
    shown = weakref.ref(sidecar.readings.all()[0])
    rounds = itertools.count()
    [target] = sidecar.targets
    where, name = {"recent.add": (sidecar.recent, "add"), "pipeline.view": (target.pipeline, "view")}[faulty]
    work = getattr(where, name)

    def at_first_faulty(*arguments: Any) -> Any:
        if next(rounds) == 0:
            raise ArithmeticError
        return work(*arguments)

    monkeypatch.setattr(where, name, at_first_faulty)
    keeping = asyncio.create_task(sidecar.remember())
    async with asyncio.timeout(10):
        while next(rounds) < 5:  # noqa: ASYNC110 - seen from outside only
            await asyncio.sleep(0.001)
    keeping.cancel()
    assert shown() is None
    [engine] = (await client.get("/api/v1/history")).json()["engines"]
    assert engine["series"]["running_requests"][0] == 1.0
    assert sidecar.fleet.advice.keys() == {"tiny"}


async def test_units_are_in_the_keys_of_signals(client: httpx.AsyncClient, sidecar: Sidecar) -> None:
    """Every number of a quantity says its unit; those without are counts, states or ratios by name."""
    observe(sidecar, Scraped(EXPOSITION, False, 0.01))
    [target] = (await client.get("/api/v1/signals")).json()["targets"]
    keys = set(target) | set(target["engines"][0])
    timed = {key for key in keys if re.search(r"duration|interval|(^|_)age|timestamp|ttft|latency_quantile", key)}
    assert timed
    assert {key for key in timed if "_seconds" not in key} <= {"latency_quantile_bounded"}


async def test_landing_page_is_whole(client: httpx.AsyncClient) -> None:
    """It works in a cluster without the internet, and would not be let out of its origin."""
    answer = await client.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert not re.search(r"https?:|//[a-z]", answer.text)
    for link in re.findall(r'href="([^"]+)"', answer.text):
        assert not link.startswith("/"), "behind a proxy's path an absolute link leads elsewhere"
        assert (await client.get(f"/{link}")).status_code == 200


@pytest.mark.parametrize(("index", "watched"), [("", True), ("0", True), ("1", False), ("7", False)])
async def test_only_the_leader_of_a_group_watches_its_engine(
    index: str, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of a LeaderWorkerSet has no API server: its sidecar is well, says so, and shows no target as lost."""
    if index:
        monkeypatch.setenv("VLLM_SIDECAR_WORKER_INDEX", index)
    sidecar = Sidecar()
    sidecar.use(load())
    try:
        transport = httpx.ASGITransport(create_app(sidecar))
        async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
            body = (await client.get("/metrics")).text
            assert (await client.get("/-/healthy")).status_code == 200
            assert (await client.get("/-/ready")).status_code == 200
    finally:
        await sidecar.targets.stop()
    assert "vllm_sidecar_config_valid 1.0" in body
    assert ("vllm_sidecar_target_state{" in body) == watched


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"url": "http://127.0.0.1:9"}, False),
        ({"targets": [{"url": "http://127.0.0.1:9"}]}, True),
        ({"discovery": {"dns": [{"name": "localhost", "port": 9}]}, "targets": [{"url": "http://127.0.0.1:9"}]}, True),
    ],
    ids=["a sidecar's", "listed", "found"],
)
async def test_engines_of_a_fleet_carry_their_target_be_it_one(settings: dict[str, object], told: bool) -> None:
    """Rules for a fleet go by it, and a shard may hold one target; a second one must not rename all series."""
    sidecar = Sidecar()
    sidecar.use(Config.model_validate({"scrape": {"interval_seconds": 60}, **settings}))
    try:
        observe(sidecar, Scraped(EXPOSITION, False, 0.01))
        body, _ = await sidecar.render("", compressed=False)
    finally:
        await sidecar.targets.stop()
    [running] = [line for line in body.decode().splitlines() if line.startswith("vllm_sidecar_running_requests{")]
    assert ('target="127.0.0.1:9"' in running) == told
