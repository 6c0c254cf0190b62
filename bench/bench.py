"""Measure the sidecar against its budgets, beside real baselines doing the same work, all in one run.

Prints one table. Absolute figures depend on the machine; quote the ratios. ``BENCH_ENGINE`` names a real engine's URL
to measure what being scraped costs it; without one that row says so.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

import httpx
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families

from exporter.app import Sidecar
from exporter.exposition import Parser, Scraped
from exporter.http_server import bind
from exporter.pipeline import Pipeline
from exporter.recording import read_log
from exporter.render import Lines, exposition
from exporter.schema import Config, TargetConfig
from exporter.scrape import FILTER_QUERY
from exporter.snapshot import Layout

RECORDING = Path(__file__).parent.parent / "exporter" / "data" / "burst.scrapes.xz"
INTERVAL_SECONDS = 0.5
MEASURED_SECONDS = float(os.environ.get("BENCH_SECONDS", "20"))
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Print the table."""
    bodies = [entry.outcome.body for entry in read_log(RECORDING) if isinstance(entry.outcome, Scraped)]
    print(f"{'what':<44}{'ours':>12}  {'budget or baseline':<34}{'ratio':>8}")
    parse(bodies[40:90])
    render()
    cycles()
    memory()
    readers()
    engine()


def row(what: str, ours: str, baseline: str, ratio: float | None = None) -> None:
    """One line of the table."""
    print(f"{what:<44}{ours:>12}  {baseline:<34}{'' if ratio is None else f'{ratio:.2f}x':>8}", flush=True)


def parse(bodies: list[bytes]) -> None:
    """Consecutive bodies of a real engine under load: ours warm, as it runs, and prometheus_client's parser."""
    parser = Parser(Layout())
    parser.parse(bodies[0])
    ours = cpu_milliseconds(parser.parse, bodies, rounds=5)
    theirs = cpu_milliseconds(lambda body: list(text_string_to_metric_families(body.decode())), bodies, rounds=1)
    row("parse a scrape under load, CPU", f"{ours:.2f} ms", f"prometheus_client.parser {theirs:.1f} ms", theirs / ours)
    still = cpu_milliseconds(parser.parse, [bodies[-1]] * 50, rounds=5)
    row(
        "parse a scrape of an idle engine, CPU",
        f"{still:.2f} ms",
        f"prometheus_client.parser {theirs:.1f} ms",
        theirs / still,
    )


def cpu_milliseconds(work: Callable[[bytes], object], bodies: list[bytes], rounds: int) -> float:
    """The median over rounds of the CPU one call takes."""
    spent = []
    for _ in range(rounds):
        began = time.process_time()
        for body in bodies:
            work(body)
        spent.append((time.process_time() - began) / len(bodies) * 1e3)
    return median(spent)


def render() -> None:
    """Our /metrics, made anew each time, with one engine and every group on."""
    config = Config(gpu_hour_dollars=2.0)
    entries = list(read_log(RECORDING))[:150]
    pipeline = Pipeline(config.all_targets()[0], config.options(), at=entries[0].unix_seconds)
    for entry in entries:
        pipeline.observe(entry.outcome, at=entry.unix_seconds, unix=entry.unix_seconds)
    sidecar, lines, own = Sidecar(), Lines(), Lines()
    encode, _ = choose_encoder("")

    def once(_: bytes) -> object:
        view = pipeline.view(entries[-1].unix_seconds)
        texts = [
            lines.of(None, [view], (), several=False),
            own.of(sidecar.view([view]), (), (), several=False),
        ]
        return exposition(texts, (), encode)

    row("our /metrics, one engine, CPU", f"{cpu_milliseconds(once, [b''] * 40, rounds=5):.2f} ms", "budget 5 ms")


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A child process, ended at the end."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
    try:
        yield child
    finally:
        child.terminate()
        child.wait()


def free_port() -> int:
    """A port nobody listens on now."""
    with bind("127.0.0.1:0") as listening:
        port: int = listening.getsockname()[1]
        return port


def fetch(url: str) -> bytes:
    """A body, once the server is there."""
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310
                body: bytes = response.read()
                return body
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def cpu_seconds(pid: int) -> float:
    """Time that the threads of a process have had a processor so far."""
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def resident_mebibytes(pid: int) -> float:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES / 2**20


@contextmanager
def playback() -> Iterator[str]:
    """A real engine's recording over HTTP."""
    port = free_port()
    with process(sys.executable, "-m", "exporter", "replay", str(RECORDING), "--serve", f"0.0.0.0:{port}"):
        fetch(f"http://127.0.0.1:{port}/metrics")
        yield f"http://127.0.0.1:{port}"


@contextmanager
def sidecar(settings: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The sidecar as a process of its own."""
    port = free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(settings)
        file.flush()
        address = f"127.0.0.1:{port}"
        with process(
            sys.executable, "-m", "exporter", "--config.file", file.name, "--web.listen-address", address
        ) as child:
            fetch(f"http://{address}/metrics")
            yield child, f"http://{address}"


def spent_per_scrape(child: subprocess.Popen[bytes], interval_seconds: float) -> float:
    """CPU milliseconds a process spends per scrape interval, after it has settled."""
    time.sleep(3)
    began = cpu_seconds(child.pid)
    time.sleep(MEASURED_SECONDS)
    return (cpu_seconds(child.pid) - began) * interval_seconds / MEASURED_SECONDS * 1e3


def cycles() -> None:
    """A whole cycle (scrape, parse, integrate) beside a real Prometheus scraping the same endpoint as often.

    Of both processes all that they spend is counted, also between scrapes.
    """
    for interval_seconds in (TargetConfig().scrape.interval_seconds, INTERVAL_SECONDS):
        settings = f"url: {{url}}\nscrape: {{{{interval_seconds: {interval_seconds}}}}}\n"
        with playback() as url, sidecar(settings.format(url=url)) as (child, _):
            ours = spent_per_scrape(child, interval_seconds)
        what = f"whole cycle at {interval_seconds:g} s, CPU"
        theirs = cycle_of_prometheus(interval_seconds)
        if theirs is None:
            row(what, f"{ours:.2f} ms", "skipped: no prometheus in PATH")
        else:
            row(what, f"{ours:.2f} ms", f"Prometheus, same endpoint {theirs:.2f} ms", ours / theirs)


def cycle_of_prometheus(interval_seconds: float) -> float | None:
    """CPU milliseconds that Prometheus spends per scrape; None where there is none."""
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        return None
    with playback() as url, tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "prometheus.yml")
        every = f"{int(interval_seconds * 1e3)}ms"
        host = url.removeprefix("http://")
        file.write_text(
            f"global: {{scrape_interval: {every}, scrape_timeout: {every}}}\n"
            f"scrape_configs: [{{job_name: engine, static_configs: [{{targets: ['{host}']}}]}}]\n"
        )
        command = (prometheus, f"--config.file={file}", f"--storage.tsdb.path={folder}/data")
        with process(*command, f"--web.listen-address=127.0.0.1:{free_port()}") as child:
            return spent_per_scrape(child, interval_seconds)


def memory() -> None:
    """Resident memory with 1, 8 and 64 engines, each a target of its own, after two minutes' worth of rows."""
    base = None
    for count in (1, 8, 64):
        with playback() as url:
            port = url.rpartition(":")[2]
            targets = "".join(f"  - {{url: 'http://127.0.0.{i + 1}:{port}', name: e{i}}}\n" for i in range(count))
            with sidecar(f"scrape: {{interval_seconds: 1}}\ntargets:\n{targets}") as (child, address):
                deadline = time.monotonic() + MEASURED_SECONDS
                while time.monotonic() < deadline:
                    fetch(f"{address}/metrics")
                    time.sleep(1)
                resident = resident_mebibytes(child.pid)
        if base is None:
            base = resident
            row("resident memory, 1 engine", f"{resident:.0f} MiB", "budget 64 MiB")
        else:
            each = (resident - base) / (count - 1)
            row(f"resident memory, {count} engines", f"{resident:.0f} MiB", f"{each:.2f} MiB each further; budget 1")


def readers() -> None:
    """How late scrapes come, and how fast the API answers meanwhile, without readers of the page and with 200."""
    settings = f"url: {{url}}\nscrape: {{{{interval_seconds: {INTERVAL_SECONDS}}}}}\n"
    with playback() as url, sidecar(settings.format(url=url)) as (child, address):
        fetch(f"{address}/api/v1/saturation")  # refused until the engine has been seen
        alone = ask(address)
        command = (sys.executable, str(Path(__file__).with_name("readers.py")), address)
        with process(*command):
            time.sleep(3)
            began = cpu_seconds(child.pid)
            crowded = ask(address)
            share = (cpu_seconds(child.pid) - began) / MEASURED_SECONDS
    for (what, budget), one, other in zip(
        (("longest time between scrapes", "the same"), ("API, p99", "budget 5 ms")), alone, crowded, strict=True
    ):
        row(f"{what}, 200 readers", f"{other * 1e3:.1f} ms", f"{budget}; none {one * 1e3:.1f} ms", other / one)
    row("CPU for 200 readers, scraping included", f"{share:.0%}", "of one core")


def ask(address: str) -> tuple[float, float]:
    """The longest time between two scrapes, and the 99th percentile of the API's answers, in seconds."""
    times, scrapes = [], set()
    deadline = time.monotonic() + MEASURED_SECONDS
    with httpx.Client() as http:
        while time.monotonic() < deadline:
            began = time.perf_counter()
            http.get(f"{address}/api/v1/saturation").raise_for_status()
            times.append(time.perf_counter() - began)
            [target] = http.get(f"{address}/api/v1/signals").json()["targets"]
            scrapes.add(target["last_success_timestamp_seconds"])
            time.sleep(0.05)
    seen = sorted(scrapes)
    gaps = [after - before for before, after in pairwise(seen)]
    return max(gaps), sorted(times)[int(len(times) * 0.99)]


def engine() -> None:
    """What being scraped costs a real engine, in bytes and time, whole and filtered."""
    url = os.environ.get("BENCH_ENGINE")
    if url is None:
        row("a real engine, full and filtered", "skipped", "set BENCH_ENGINE to its URL")
        return
    asked = {
        "full": "/metrics",
        "filtered": f"/metrics/?{FILTER_QUERY}",
        "of nothing": "/metrics/?name[]=none",
    }
    seconds = {}
    with httpx.Client(base_url=url, headers={"Accept-Encoding": "identity"}) as http:
        for name, path in asked.items():
            timings = []
            for _ in range(100):
                began = time.perf_counter()
                size = len(http.get(path).content)
                timings.append(time.perf_counter() - began)
            seconds[name] = median(timings)
            row(f"a real engine's scrape, {name}", f"{seconds[name] * 1e3:.1f} ms", f"{size / 1e3:.1f} kB")
    row("filtered is cheaper by", "", "budget 3x", seconds["full"] / seconds["filtered"])


if __name__ == "__main__":
    main()
