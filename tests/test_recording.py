"""The scrape log: what is written is read back, and what is no log is said to be none."""

import asyncio
import gzip
import itertools
import lzma
import time
from pathlib import Path

import httpx
import pytest

from exporter import playback, recorder
from exporter.exposition import Failure, Reason, Scraped
from exporter.recording import Entry, NotALogError, open_log, read_log, write_entry
from exporter.schema import TargetConfig
from tests.fake_engine import EXPOSITION, Request, response, serving

ENTRIES = [
    Entry(1795949866.802, Scraped(EXPOSITION, False, 0.0)),
    Entry(1795949867.302, Failure(Reason.CONNECT, "as recorded")),
    Entry(1795949868.0, Scraped(b"", False, 0.0)),
    Entry(1795949869.5, Scraped(EXPOSITION + b"# EOF\n", True, 0.0)),
]


def write(path: Path, entries: list[Entry]) -> None:
    with open_log(path, "wb") as log:
        for entry in entries:
            write_entry(log, entry)


@pytest.mark.parametrize("name", ["engine.scrapes", "engine.scrapes.gz", "engine.scrapes.xz"])
def test_a_log_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    """Times to the millisecond, bodies to the byte, failures by reason; compressed by the file's name."""
    path = tmp_path / name
    write(path, ENTRIES)
    assert list(read_log(path)) == ENTRIES
    raw = path.read_bytes()
    text = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(path.suffix, bytes)(raw)
    assert text.startswith(b"# scrape 1795949866.802 200\n# TYPE vllm:num_requests_running gauge\n")
    assert b"\n# scrape 1795949867.302 error connect\n# scrape 1795949868.000 200\n" in text


def test_an_engine_s_comment_is_not_taken_for_a_mark(tmp_path: Path) -> None:
    """A body may hold any comment, ours included: one scrape in, one scrape out."""
    path = tmp_path / "log"
    hostile = b"# scrape 1 200\n" + EXPOSITION + b"# scrape 2 error connect\n# scrape nonsense\n"
    write(path, [Entry(5.0, Scraped(hostile, False, 0.0))])
    [entry] = read_log(path)
    assert entry.unix_seconds == 5.0
    assert isinstance(entry.outcome, Scraped)
    assert EXPOSITION in entry.outcome.body


def test_a_status_is_read_as_a_failure(tmp_path: Path) -> None:
    """Recorders that write the status of a refused scrape."""
    path = tmp_path / "log"
    path.write_bytes(b"# scrape 5 503\n")
    assert list(read_log(path)) == [Entry(5.0, Failure(Reason.HTTP_STATUS, "HTTP 503, as recorded"))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "{path}: no scrape in it"),
        (b"vllm:x 1\n", "{path}: line 1 is not '# scrape <unix seconds> 200'"),
        (b"# scrape\n", "{path}: line 1 is not '# scrape <unix seconds> 200'"),
        (b"# scrape 1\n", "line 1 is not '# scrape <unix seconds> 200' or '… error <reason>'"),
        (b"# scrape now 200\n", "line 1 is not '# scrape <unix seconds> 200' or '… error <reason>'"),
        (b"# scrape nan 200\n", "line 1 is not '# scrape <unix seconds> 200' or '… error <reason>'"),
        (b"# scrape inf 200\n", "line 1 is not '# scrape <unix seconds> 200' or '… error <reason>'"),
        (b"# scrape 1 error\n", "line 1 is not '# scrape <unix seconds> 200' or '… error <reason>'"),
        (b"# scrape 1 error boredom\n", "line 1 is not '# scrape <unix seconds> 200' or '… error <reason>'"),
        (b"# scrape 1 200\nx 1\n# scrape 2\n", "line 3 is not '# scrape <unix seconds> 200' or '… error <reason>'"),
    ],
)
def test_what_is_no_log_is_refused_with_the_line(tmp_path: Path, content: bytes, message: str) -> None:
    """Which file, which line, what was expected."""
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(NotALogError) as refused:
        list(read_log(path))
    assert str(refused.value) == message.format(path=path)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("damage", ["not compressed", "cut off", "flipped"])
def test_damaged_compression_is_refused(tmp_path: Path, suffix: str, damage: str) -> None:
    """Whatever the library raises for it."""
    path = tmp_path / f"log{suffix}"
    write(path, ENTRIES)
    raw = bytearray(path.read_bytes())
    if damage == "not compressed":
        raw = bytearray(b"# scrape 1 200\n")
    elif damage == "cut off":
        raw = raw[:-20]
    else:
        raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(NotALogError, match=f"^{path}: "):
        list(read_log(path))


async def test_a_recording_ends_in_time_however_long_the_interval(tmp_path: Path) -> None:
    """After its seconds, not when the next scrape would be due: an hour later here."""
    async with serving(lambda _: response()) as engine, asyncio.timeout(30):
        config = TargetConfig(url=engine.url)
        path = tmp_path / "engine.scrapes"
        assert await recorder.record(config, path, interval_seconds=3600.0, seconds=0.2) == 1
    assert len(list(read_log(path))) == 1


async def test_recording_an_engine(tmp_path: Path) -> None:
    """What it answers and that it does not, as they come."""
    path = tmp_path / "log.gz"
    answers = itertools.cycle([response(), response(status="503 Away")])
    async with serving(lambda _: next(answers)) as engine:
        config = TargetConfig.model_validate({"url": engine.url})
        written = await recorder.record(config, path, interval_seconds=0.05, seconds=0.5)
    entries = list(read_log(path))
    assert len(entries) == written
    assert written >= 2
    assert isinstance(entries[0].outcome, Scraped)
    assert entries[0].outcome.body == EXPOSITION
    assert entries[1].outcome == Failure(Reason.HTTP_STATUS, "as recorded")


async def test_recording_stopped_by_ctrl_c_is_whole(tmp_path: Path) -> None:
    """Cancelled in the middle, as asyncio does on SIGINT: what was written is readable."""
    path = tmp_path / "log.xz"
    count, three = itertools.count(1), asyncio.Event()

    def answer(_: Request) -> bytes:
        if next(count) == 3:
            three.set()
        return response()

    async with serving(answer) as engine:
        config = TargetConfig.model_validate({"url": engine.url})
        recording = asyncio.create_task(recorder.record(config, path, interval_seconds=0.01, seconds=None))
        await asyncio.wait_for(three.wait(), timeout=10)
        recording.cancel()
        await asyncio.gather(recording, return_exceptions=True)
    assert len(list(read_log(path))) >= 2


async def test_playback_says_what_was_said_at_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapes at 0, 1 and 2 s, the second failed; after 3 s the recording begins again."""
    now = [100.0]
    monkeypatch.setattr("exporter.playback.time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])}))
    other = EXPOSITION.replace(b" 100.0\n", b" 200.0\n")
    entries = [
        Entry(50.0, Scraped(EXPOSITION, False, 0.0)),
        Entry(51.0, Failure(Reason.TIMEOUT, "as recorded")),
        Entry(52.0, Scraped(other, False, 0.0)),
    ]
    transport = httpx.ASGITransport(playback.create_app(entries, began=100.0))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        heard = []
        for now[0] in (100.0, 100.9, 101.0, 102.5, 103.1):
            answer = await client.get("/metrics")
            heard.append(answer.content if answer.status_code == 200 else answer.status_code)
        assert (await client.get("/health")).status_code == 200
    assert heard == [EXPOSITION, EXPOSITION, 503, other, EXPOSITION]


async def test_a_log_whose_clock_stood_still_or_went_back_plays_back() -> None:
    """Two scrapes of one instant, and one that claims to be from before: each moment has an answer."""
    body = Scraped(b"vllm:num_requests_running 1\n", openmetrics=False, seconds=0.0)
    for times in ((10.0, 10.0), (10.0, 20.0, 14.0)):
        app = playback.create_app([Entry(at, body) for at in times], time.monotonic() - 3.0)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine") as client:
            answer = await client.get("/metrics")

        assert (answer.status_code, answer.content) == (200, body.body)
