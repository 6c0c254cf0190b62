"""One sidecar, many engines: whether each is scraped on time, what it costs, and that the sick disturb no other.

    python bench/fleet.py [--engines 500] [--seconds 600] [--interval 5]

The engines are HTTP servers in other processes, a fifth of them slow or failing; a fifth of all is killed in the middle
and comes back. The sidecar has one core to itself. When an engine is asked is what the engine saw.
"""

import argparse
import contextlib
import gzip
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from engines import fault_of

ROOT = Path(__file__).parent.parent

PROCESSES = 5
READ_EVERY_SECONDS = 15.0
DOWN_SECONDS = 20.0


@dataclass
class Report:
    """What was measured.

    Attributes:
        ports: the engines', in order of their numbers.
        base_mib: resident with one engine.
        fleet_mib: resident with all, at the end.
        gaps: by the good engines' ports that were never killed, seconds between one scrape and the next.
        killed_gaps: the same of those killed, once they were back.
        read_seconds: durations of reading our /metrics.
        read_bytes: size of the last one, unpacked.
        cpu_ratio: share of one core that the sidecar used.
        last: the last exposition.
    """

    ports: list[int] = field(default_factory=list)
    base_mib: float = 0.0
    fleet_mib: float = 0.0
    gaps: dict[int, list[float]] = field(default_factory=dict)
    killed_gaps: dict[int, list[float]] = field(default_factory=dict)
    read_seconds: list[float] = field(default_factory=list)
    read_bytes: int = 0
    cpu_ratio: float = 0.0
    last: str = ""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextlib.contextmanager
def running(command: list[str], core: int | None, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours, on one core if asked, ended at the end."""
    # As if the machine had nothing else to do: others who use it would be measured with us.
    pin = ["nice", "-n", "-15", "taskset", "-c", str(core)] if core is not None else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        out.open("ab") as file,
        subprocess.Popen([*pin, *command], stdout=file, stderr=subprocess.STDOUT, env=environment) as process,  # noqa: S603
    ):
        try:
            yield process
        finally:
            process.kill()


def engines_command(ports: list[int], first: int, interval: float) -> list[str]:
    """The command that serves engines."""
    script = Path(__file__).parent / "engines.py"
    return [sys.executable, str(script), *map(str, ports), "--first", str(first), "--interval", str(interval)]


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_metrics(port: int) -> tuple[float, str]:
    """Seconds to read our /metrics as Prometheus does, and what it said."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "gzip"})
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
        body = response.read()
    return time.perf_counter() - began, gzip.decompress(body).decode()


def wait_for_port(port: int) -> None:
    """Until somebody listens."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise TimeoutError(f"nobody listens on port {port}")


def measure(engines: int, seconds: float, interval: float, directory: Path, core: int | None) -> Report:
    """Run the whole of it."""
    ports = free_ports(engines)
    report = Report(ports)
    share = -(-engines // PROCESSES)
    groups = [ports[start : start + share] for start in range(0, engines, share)]
    logs = [directory / f"engines-{position}.log" for position in range(len(groups))]
    other_core = None if core is None else (core + 1) % (os.cpu_count() or 1)
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(running(engines_command(group, position * share, interval), other_core, log))
            for position, (group, log) in enumerate(zip(groups, logs, strict=True))
        ]
        for group in groups:
            wait_for_port(group[-1])
        good = next(port for number, port in enumerate(ports) if fault_of(number) is None)
        with sidecar([good], interval, directory / "one", core) as (pid, port):
            time.sleep(min(20 * interval, seconds / 4))
            read_metrics(port)
            report.base_mib = resident_mib(pid)
        with sidecar(ports, interval, directory / "all", core) as (pid, port):
            began, used = time.monotonic(), cpu_seconds(pid)
            victim, back_at = len(groups) // 2, None
            while (passed := time.monotonic() - began) < seconds:
                time.sleep(min(READ_EVERY_SECONDS, seconds / 8))
                took, report.last = read_metrics(port)
                report.read_seconds.append(took)
                if back_at is None and passed > seconds / 2:
                    processes[victim].send_signal(signal.SIGKILL)
                    time.sleep(min(DOWN_SECONDS, seconds / 8))
                    command = engines_command(groups[victim], victim * share, interval)
                    stack.enter_context(running(command, other_core, logs[victim]))
                    wait_for_port(groups[victim][-1])
                    back_at = time.monotonic()
            report.cpu_ratio = (cpu_seconds(pid) - used) / (time.monotonic() - began)
            report.fleet_mib = resident_mib(pid)
            report.read_bytes = len(report.last)
            time.sleep(1.0)
        seen = arrivals(logs)
    settled = began + 2 * interval
    for number, one in enumerate(ports):
        if fault_of(number) is None:
            killed = number // share == victim
            since = (back_at or began) + 2 * interval if killed else settled
            times = [at for at in seen.get(one, []) if since <= at <= began + seconds]
            gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
            (report.killed_gaps if killed else report.gaps)[one] = gaps
    return report


@contextlib.contextmanager
def sidecar(ports: list[int], interval: float, directory: Path, core: int | None) -> Iterator[tuple[int, int]]:
    """A sidecar on those engines, found by file_sd: its process id and its port."""
    directory.mkdir()
    targets = directory / "targets.json"
    targets.write_text(json.dumps([{"targets": [f"127.0.0.1:{port}" for port in ports]}]))
    (own,) = free_ports(1)
    scrape = {"interval_seconds": interval, "timeout_seconds": interval * 0.8}
    settings = {
        "listen_address": f"127.0.0.1:{own}",
        "scrape": scrape,
        "gpu_hour_dollars": 2.0,
        "discovery": {"file_sd": [str(targets)], "expected_targets": len(ports)},
    }
    config = directory / "settings.yaml"
    config.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "exporter", "--config.file", str(config)]
    with running(command, core, directory / "sidecar.log") as process:
        wait_for_port(own)
        yield process.pid, own


def arrivals(logs: list[Path]) -> dict[int, list[float]]:
    """When each engine was asked, in monotonic seconds by port."""
    found: dict[int, list[float]] = {}
    for log in logs:
        for line in log.read_text().splitlines():
            port, _, at = line.partition(" ")
            if port.isdigit() and at:
                found.setdefault(int(port), []).append(float(at))
    return found


def _spread(values: list[float]) -> str:
    if len(values) < 2:
        return "too few"
    p99 = sorted(values)[min(len(values) - 1, round(0.99 * len(values)))]
    return f"median {statistics.median(values):.3f}, p99 {p99:.3f}, worst {max(values):.3f}"


def main() -> int:
    """Measure, print, and say whether the budgets were kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--interval", type=float, default=5.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        report = measure(options.engines, options.seconds, options.interval, Path(directory), core=0)
    late = [abs(gap - options.interval) for gaps in report.gaps.values() for gap in gaps]
    late_killed = [abs(gap - options.interval) for gaps in report.killed_gaps.values() for gap in gaps]
    per_engine = (report.fleet_mib - report.base_mib) / max(1, options.engines - 1)
    print(f"{options.engines} engines, {options.interval:g} s, {options.seconds:g} s, a fifth slow or failing")
    print(f"scrapes of good engines: {len(late)} never killed, {len(late_killed)} back after a kill")
    print(f"off the interval, s: {_spread(late)}; once back after a kill: {_spread(late_killed)}")
    print(f"processor: {report.cpu_ratio:.2f} of one core")
    print(f"memory, MiB: {report.base_mib:.1f} with one engine, {report.fleet_mib:.1f} with all, {per_engine:.2f} each")
    print(f"our /metrics, {report.read_bytes / 1e6:.1f} MB unpacked, s: {_spread(report.read_seconds)}")
    kept = max(late) <= options.interval / 2 and per_engine <= 1.0 and max(report.read_seconds) < 1.0
    print("within the budgets" if kept else "NOT within the budgets")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
