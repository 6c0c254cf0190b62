"""A whole fleet in one process: rendering it, and that no engine of it delays another."""

import asyncio
import tracemalloc
from pathlib import Path

import fleet
import pytest
from engines import fault_of
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families

from exporter import collect
from exporter.exposition import Failure, Parser, Reason, Scraped, condense, is_large
from exporter.pipeline import Pipeline
from exporter.recording import read_log
from exporter.render import Lines, exposition
from exporter.schema import Config, TargetConfig
from exporter.scrape import Scraper
from exporter.signals.view import SelfView, TargetView
from exporter.snapshot import MAX_ENGINES, Layout
from tests.fake_engine import response, serving

RECORDING = Path(collect.__file__).parent / "data" / "burst.scrapes.xz"
NOBODY = SelfView("1.2.3", "3.11.2", config_valid=True, config_reload_unix_seconds=1.8e9)
HOSTILE = 'a"b\\c\nd'


def views() -> list[TargetView]:
    """Two targets: one with a recorded minute behind it and an awkward name, one that never answered."""
    entries = list(read_log(RECORDING))[:120]
    options = Config().options()
    busy = Pipeline(TargetConfig(name=HOSTILE, gpu_hour_dollars=2.0), options, at=entries[0].unix_seconds)
    for at, outcome in entries:
        assert isinstance(outcome, Scraped)
        busy.observe(outcome, at, at)
    dead = Pipeline(TargetConfig(name="dead"), options, at=entries[0].unix_seconds)
    return [busy.view(entries[-1].unix_seconds), dead.view(entries[-1].unix_seconds)]


class Registry:
    def __init__(self, families: list[object]) -> None:
        self.collect = lambda: families


@pytest.mark.parametrize(
    "accept", ["", "text/plain;version=1.0.0;escaping=allow-utf-8", "application/openmetrics-text"]
)
@pytest.mark.parametrize("left_out", [(), ("latency", "cost")])
def test_rendering_by_target_is_what_the_client_library_writes(accept: str, left_out: tuple[str, ...]) -> None:
    """The same bytes as prometheus_client's own encoder over the same families, the first time and the next."""
    encode, _ = choose_encoder(accept)
    targets = views()
    expected = encode(Registry(list(collect.families(NOBODY, targets, left_out))))
    own, lines = Lines(), [Lines() for _ in targets]
    for _ in range(2):
        found = [each.of(None, [view], left_out, several=True) for each, view in zip(lines, targets, strict=True)]
        found.append(own.of(NOBODY, (), left_out, several=True))
        assert exposition(found, (), encode) == expected
    assert expected.count(b"\n") > 200


REASONS = {
    "hangs": "timeout",
    "drips": "timeout",
    "answers 500": "http_status",
    "closes": "connect",
    "sends HTML": "parse",
    "sends 150,000 lines": "no_series",
}


def test_sick_and_killed_engines_disturb_no_other(tmp_path: Path) -> None:
    """40 engines in five processes, every fifth sick, eight killed and restarted. The long form is `make bench-fleet`.

    How late a scrape comes is measured there; here a good engine is asked at least every other time.
    """
    seconds = 16
    report = fleet.measure(40, seconds, 1.0, tmp_path, core=None)
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(report.last):
        for sample in family.samples:
            if sample.value > 0 and sample.name.endswith(("target_up", "scrape_failures_total")):
                found.setdefault(sample.labels["target"], {})[sample.labels.get("reason", "up")] = sample.value
    assert len(report.gaps) == 40 - 8 - 7
    for gaps in report.gaps.values():
        assert len(gaps) >= (seconds - 2) / 2
    for number, port in enumerate(report.ports):
        fault = fault_of(number)
        said = found[f"127.0.0.1:{port}"]
        if fault is None:
            assert said["up"] == 1.0
            assert set(said) == {"up"} or port in report.killed_gaps
        else:
            assert REASONS[fault] in said
            assert "up" not in said


SERIES = b'vllm:num_requests_running{engine="0",model_name="m"} '


def test_a_large_body_is_condensed_to_what_may_be_ours() -> None:
    """Ours is read as before, a cut off end stays one, and what cannot be an engine is refused for its size."""
    noise = b'other:series{with="labels"} 1\n' * 30_000
    body = noise + SERIES + b"3\n" + noise
    assert is_large(body)
    assert not is_large(SERIES + b"3\n")
    small = condense(body, 20_000)
    assert isinstance(small, bytes)
    assert len(small) < 200
    layout = Layout()
    snapshot = Parser(layout).parse(small)
    assert not isinstance(snapshot, Failure)
    assert snapshot.values == [3.0]
    cut = condense(body + b"vllm:num_requ", 20_000)
    assert isinstance(cut, bytes)
    assert Parser(Layout()).parse(cut) == Failure(Reason.PARSE, "the body is cut off inside a line")
    assert condense(b"x\n" * 200_001, 20_000) == Failure(Reason.TOO_LARGE, "more than 200000 lines")
    assert condense(SERIES + b"3\n" + (SERIES + b"1\n") * 41_000, 20_000) == Failure(
        Reason.TOO_LARGE, "more than 40000 lines of ours"
    )
    nothing = condense(noise, 20_000)
    assert isinstance(nothing, bytes)
    failure = Parser(Layout()).parse(nothing)
    assert isinstance(failure, Failure)
    assert failure.reason is Reason.NO_SERIES


@given(
    st.lists(st.sampled_from([b"vllm:a 1", b"process_start_time_seconds 2", b"# EOF", b"", b"x" * 90, b"vllm:" * 30]))
)
def test_it_does_not_matter_where_the_pieces_of_a_large_body_end(lines: list[bytes]) -> None:
    """In pieces of 64 bytes, longer lines among them: ours in their order, then the last line and what is after it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exporter.exposition.PIECE_BYTES", 64)
        condensed = condense(b"".join(line + b"\n" for line in [b"vllm:b 3", *lines, b"y 4"]), 100)
    ours = [line for line in lines if line.startswith((b"vllm:", b"process_start"))]
    assert condensed == b"\n".join([b"vllm:b 3", *ours, b"y 4", b""])


def test_to_condense_a_body_takes_little_room_beside_it() -> None:
    """150,000 lines, each an object at once, would be 12 MiB, and for months a heap in shreds."""
    body = b'other:series{with="labels"} 1\n' * 150_000
    tracemalloc.start()
    try:
        condense(body, 20_000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**19


def test_one_port_cannot_pose_as_any_number_of_engines() -> None:
    """Each would have hundreds of series with us. One name of a megabyte would stand in all of them."""
    line = 'vllm:num_requests_running{{engine="{}",model_name="m"}} 1\n'
    many = "".join(line.format(number) for number in range(MAX_ENGINES)).encode()
    assert not isinstance(Parser(Layout()).parse(many), Failure)
    failure = Parser(Layout()).parse(many + line.format("one more").encode())
    assert isinstance(failure, Failure)
    assert failure.reason is Reason.TOO_LARGE
    layout = Layout()
    snapshot = Parser(layout).parse(line.format("e" * 2000).encode() + line.format("0").encode())
    assert not isinstance(snapshot, Failure)
    assert (snapshot.bad_lines, [engine.engine for engine in layout.engines]) == (1, ["0"])


async def test_only_large_bodies_wait_for_one_another() -> None:
    """With every permit taken a usual body is read at once, and a large one when a permit is free again."""
    permits = asyncio.Semaphore(1)
    large = response(SERIES + b"1\n" + b"# comment that says nothing at all\n" * 60_000)
    answers = {"/metrics": response(SERIES + b"1\n"), "/large": large}
    await permits.acquire()
    async with serving(lambda request: answers[request.path]) as engine:
        usual = TargetConfig.model_validate({"url": engine.url})
        huge = TargetConfig.model_validate({"url": engine.url, "scrape": {"path": "/large", "timeout_seconds": 60}})
        async with Scraper(usual, large_bodies=permits) as one, Scraper(huge, large_bodies=permits) as other:
            waiting = asyncio.create_task(other.scrape())
            assert isinstance(await one.scrape(), Scraped)
            assert not waiting.done()
            permits.release()
            outcome = await waiting
    assert isinstance(outcome, Scraped)
    assert outcome.body.startswith(SERIES)
    assert len(outcome.body) < 1000
