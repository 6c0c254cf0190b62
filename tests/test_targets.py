"""Watching targets: when they are scraped, what is said of them, and when their health is asked."""

import asyncio
import itertools
import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.schema import Config, Options, TargetConfig
from exporter.signals.view import State
from exporter.targets import Target, Targets, stretched
from tests.fake_engine import EXPOSITION, FakeEngine, Request, response, serving

OPTIONS = Options({"1m": 60.0}, (0.5,))


def target_at(url: str, **settings: Any) -> Target:
    return Target(TargetConfig.model_validate({"url": url, **settings}), OPTIONS)


def paths(engine: FakeEngine) -> list[str]:
    return [request.path for request in engine.requests]


@pytest.mark.parametrize(
    ("durations", "interval"),
    [
        pytest.param([0.0075] * 60, 2.0, id="vLLM 0.32, one API server: 7.5 ms are 0.4 % of 2 s"),
        pytest.param([0.02] * 60, 2.0, id="exactly 1 %"),
        pytest.param([0.03] * 60, 3.0, id="30 ms are 1 % of 3 s"),
        pytest.param([0.2] * 60, 5.0, id="never beyond 5 s"),
        pytest.param([0.03] * 7 + [9.0] * 53, 3.0, id="overload: the low quantile is the scrape, the rest the queue"),
        pytest.param([0.01] * 5 + [9.0] * 55, 5.0, id="the lowest few are no quantile"),
        pytest.param([9.0] * 9, 2.0, id="nine scrapes tell nothing"),
        pytest.param([], 2.0, id="none tells nothing"),
    ],
)
def test_interval_stretches_to_one_percent_of_the_event_loop(durations: list[float], interval: float) -> None:
    """The 10th percentile of the last 60 durations over 1 %; the seventh lowest of 60."""
    assert stretched(2.0, durations) == interval


def test_a_long_interval_is_not_shortened() -> None:
    """Who sets 30 s has 30 s, whatever 5 s would be."""
    assert stretched(30.0, [0.2] * 60) == 30.0


async def test_the_stretched_interval_is_exported() -> None:
    """A slow engine's effective interval is what the view says."""
    async with serving(lambda _: response()) as engine:
        target = target_at(engine.url)
        await target._tick()
        target._durations.extend([0.04] * 59)
        await target._tick()
        assert target.view().interval_seconds == pytest.approx(4.0)
        await target._scraper.close()


async def test_one_log_line_a_change_and_none_a_scrape(caplog: pytest.LogCaptureFixture) -> None:
    """Five phases of ten scrapes: not there, there, refusing us, away, there again."""
    caplog.set_level(logging.INFO)
    answers = itertools.chain.from_iterable(
        itertools.repeat(answer, 10)
        for answer in (
            response(status="404 Not Found"),
            response(),
            response(status="401 Unauthorized"),
            response(status="503 Service Unavailable"),
            response(),
        )
    )

    def answer(request: Request) -> bytes:
        return response(b"") if request.path == "/health" else next(answers)

    async with serving(answer) as engine:
        target = target_at(engine.url)
        for _ in range(50):
            await target._tick()
        await target._scraper.close()
    told = [
        (line.levelname, line.fields["state"], line.fields.get("reason"))
        for line in caplog.records
        if line.name == "exporter.targets"
    ]
    assert told == [
        ("INFO", "loading", "http_status"),
        ("INFO", "up", None),
        ("WARNING", "lost", "auth"),
        ("WARNING", "lost", "http_status"),
        ("INFO", "up", None),
    ]


async def test_an_objective_that_cannot_be_counted_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not at each reload, nor each time another target comes or goes; again where its threshold is another."""
    buckets = b"".join(
        b'vllm:time_to_first_token_seconds_bucket{engine="0",le="%b",model_name="tiny"} 3.0\n' % edge
        for edge in (b"5.0", b"+Inf")
    )
    async with serving(lambda _: response(EXPOSITION + buckets)) as engine:
        target = target_at(engine.url)
        for ttft_seconds in (2.5, 2.5, 2.5, 3.0, 6.0, 3.0):
            target.configure(
                TargetConfig.model_validate({"url": engine.url, "slo": {"ttft_seconds": ttft_seconds}}), OPTIONS
            )
            await target._tick()
        await target._scraper.close()
    told = [line.fields["slo"] for line in caplog.records if "cannot be counted" in line.message]
    assert told == ["ttft", "ttft", "ttft"]  # 2.5, 3, and 3 again after 6, which is above the first edge


async def test_optional_series_that_are_not_there_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """An engine without adapters and speculation, a hundred scrapes: the one line that it is up."""
    caplog.set_level(logging.INFO)
    async with serving(lambda _: response()) as engine:
        target = target_at(engine.url)
        for _ in range(100):
            await target._tick()
        await target._scraper.close()
    assert [line.message for line in caplog.records if line.name.startswith("exporter")] == ["target is up"]


async def test_health_is_not_asked_of_an_engine_that_looks_well() -> None:
    """Each call is a line in the engine's log."""
    async with serving(lambda _: response()) as engine:
        target = target_at(engine.url)
        for _ in range(20):
            await target._tick()
        assert target.view().healthy is True
        await target._scraper.close()
    assert paths(engine) == ["/metrics"] * 20


async def test_health_is_asked_where_the_scrape_fails() -> None:
    """An answer that is no exposition: is it the engine, or only its metrics?"""

    def answer(request: Request) -> bytes:
        return response(b"") if request.path == "/health" else response(status="500 Internal Server Error")

    async with serving(answer) as engine:
        target = target_at(engine.url)
        await target._tick()
        assert (target.view().up, target.view().healthy) == (False, True)
        await target._scraper.close()
    assert paths(engine) == ["/metrics", "/health"]


async def test_health_is_not_asked_where_nobody_listens(unused_tcp_port: int) -> None:
    """There is nobody to ask; not healthy is known."""
    target = target_at(f"http://127.0.0.1:{unused_tcp_port}")
    await target._tick()
    assert (target.view().up, target.view().healthy) == (False, False)
    await target._scraper.close()


async def test_health_is_asked_where_work_does_not_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead engine core: /metrics goes on with frozen values, /health answers 503. Asked after 6 s."""
    now = [1000.0]
    monkeypatch.setattr("exporter.targets.time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))

    def answer(request: Request) -> bytes:
        return response(b"", "503 Service Unavailable") if request.path == "/health" else response()

    async with serving(answer) as engine:
        target = target_at(engine.url)
        for _ in range(4):  # at 0, 2, 4 and 6 s
            await target._tick()
            now[0] += 2.0
        assert (target.view().up, target.view().healthy) == (True, False)
        await target._scraper.close()
    assert paths(engine) == ["/metrics"] * 4 + ["/health"]


@pytest.mark.parametrize(
    ("interval", "deadline", "late_after"),
    [
        pytest.param(2.0, 4.0, 9.0, id="default: an interval, a deadline, a health check; and a second"),
        pytest.param(60.0, 4.0, 181.0, id="three intervals and a second"),
        pytest.param(1.0, 30.0, 34.0, id="a long deadline"),
    ],
)
async def test_punctual_as_long_as_a_hanging_engine_allows(
    monkeypatch: pytest.MonkeyPatch, interval: float, deadline: float, late_after: float
) -> None:
    """An engine that accepts and never answers takes the whole deadline, then the health check's, at each tick."""
    now = [1000.0]
    monkeypatch.setattr("exporter.targets.time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    target = target_at("http://127.0.0.1:9", scrape={"interval_seconds": interval, "timeout_seconds": deadline})
    now[0] += late_after
    assert target.punctual
    now[0] += 0.1
    assert not target.punctual


async def test_a_fault_of_ours_is_a_failed_scrape(caplog: pytest.LogCaptureFixture) -> None:
    """The target is not left up, nor exported as such, the watch goes on, and the fault is logged once."""
    async with serving(lambda _: response()) as engine:
        target = target_at(engine.url, name="a")

        def exported() -> str:
            return "".join(target.text(target.view(), (), several=False))

        await target._tick_safely()
        assert target.view().up is True
        assert 'vllm_sidecar_target_up{target="a"} 1.0\n' in exported()

        class Broken:
            config = target.config

            async def scrape(self) -> None:
                raise ZeroDivisionError

        good, target._scraper = target._scraper, Broken()  # type: ignore[assignment]
        for _ in range(5):
            await target._tick_safely()
        assert (target.view().up, target.view().state) == (False, State.LOST)
        assert 'vllm_sidecar_target_up{target="a"} 0.0\n' in exported()
        assert 'vllm_sidecar_scrape_failures_total{reason="parse",target="a"} 5.0\n' in exported()
        target._scraper = good
        await target._tick_safely()
        assert target.view().up is True
        await good.close()
    assert [line.message for line in caplog.records if line.exc_info] == ["a scrape failed inside the sidecar"]


async def test_scraping_changes_at_the_next_tick_and_totals_go_on() -> None:
    """Another path and interval, as after a reload; the pipeline and its counters are the same."""
    async with serving(lambda _: response()) as engine:
        target = target_at(engine.url)
        await target._tick()
        changed = {"path": "/api/metrics", "interval_seconds": 10}
        target.configure(TargetConfig.model_validate({"url": engine.url, "scrape": changed}), OPTIONS)
        pipeline = target.pipeline
        await target._tick()
        assert target.pipeline is pipeline
        assert target.view().interval_seconds == 10.0
        await target._scraper.close()
    assert paths(engine) == ["/metrics", "/api/metrics"]


@pytest.fixture
def growing() -> Any:
    """An engine whose tokens grow by 100 a scrape."""
    tokens = itertools.count(100, 100)
    return lambda _: response(EXPOSITION.replace(b" 100.0\n", b" %d\n" % next(tokens)))


async def test_each_target_has_a_timer_of_its_own(growing: Any) -> None:
    """One engine hangs: the other's scrapes go on and come through."""

    async def never(_: Request) -> Any:
        await asyncio.sleep(60)
        yield b""

    targets = Targets()
    async with serving(never) as hanging, serving(growing) as engine:
        scrape = {"interval_seconds": 0.2}
        config = {"scrape": scrape, "targets": [{"url": hanging.url}, {"url": engine.url}]}
        targets.apply(Config.model_validate(config))
        deadline = time.monotonic() + 10
        while len(engine.requests) < 5:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        first, second = targets
        assert (first.view().up, second.view().up) == (None, True)
        await targets.stop()
    assert len(hanging.requests) == 1
