"""Whether anything grows: memory, descriptors and tasks of two sidecars over an hour, on one target and on a hundred.

    SOAK_SECONDS=3600 python bench/soak.py

The hundred are a window over 120 engines, a fifth of them slow or failing, that moves by two every ten seconds. Both
sidecars are read as Prometheus reads them. What comes before their windows are full is not judged.
"""

import asyncio
import contextlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import fleet

SECONDS = float(os.environ.get("SOAK_SECONDS", "3600"))
ENGINES, WATCHED, MOVED, PROCESSES = 120, 100, 2, 3
INTERVAL_SECONDS, MOVE_SECONDS, LOOK_SECONDS = 5.0, 10.0, 5.0
SETTLED_SECONDS = 640.0
"""Ten minutes of the page's history, the longest there is, are full on every target that was there from the start."""
MIB_PER_HOUR = 2.0
"""A slope below this, or within two standard errors of zero, is none."""
TELL = "--tell-tasks"


@dataclass
class Watched:
    """A sidecar under observation: (seconds, resident MiB, open descriptors, tasks) at each look."""

    name: str
    pid: int
    port: int
    tasks: Path
    looks: list[tuple[float, float, int, int]] = field(default_factory=list)

    def look(self, at: float) -> None:
        """Read its metrics, then count what it holds."""
        fleet.read_metrics(self.port)
        descriptors = sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())
        self.looks.append((at, fleet.resident_mib(self.pid), descriptors, int(self.tasks.read_text())))


def main() -> int:
    """Run, print what was seen, and say whether it was flat."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        ports = fleet.free_ports(ENGINES)
        share = ENGINES // PROCESSES
        for first in range(0, ENGINES, share):
            command = fleet.engines_command(ports[first : first + share], first, INTERVAL_SECONDS)
            stack.enter_context(fleet.running(command, None, Path(os.devnull)))
        for last in range(share - 1, ENGINES, share):
            fleet.wait_for_port(ports[last])
        one = stack.enter_context(sidecar("1 target", [ports[1]], directory / "one"))
        many = stack.enter_context(sidecar(f"{WATCHED} targets with churn", ports[:WATCHED], directory / "many"))
        soak([one, many], ports, directory / "many")
    flat = [report(each) for each in (one, many)]
    return 0 if all(flat) else 1


def soak(sidecars: list[Watched], ports: list[int], directory: Path) -> None:
    """Look at them, and move the window, until the time is over."""
    began, moved = time.monotonic(), 0
    while (passed := time.monotonic() - began) < SECONDS:
        if passed >= (moved + 1) * MOVE_SECONDS:
            moved += 1
            start = moved * MOVED
            tell_targets(directory, [ports[(start + number) % ENGINES] for number in range(WATCHED)])
        for each in sidecars:
            each.look(time.monotonic() - began)
        time.sleep(LOOK_SECONDS)
    print(f"{passed:.0f} s, {moved * MOVED} targets replaced")


@contextlib.contextmanager
def sidecar(name: str, ports: list[int], directory: Path) -> Iterator[Watched]:
    """A sidecar on those engines that writes down how many tasks it has."""
    directory.mkdir()
    tell_targets(directory, ports)
    (own,) = fleet.free_ports(1)
    settings = {
        "listen_address": f"127.0.0.1:{own}",
        "scrape": {"interval_seconds": INTERVAL_SECONDS, "timeout_seconds": INTERVAL_SECONDS * 0.8},
        "gpu_hour_dollars": 2.0,
        "discovery": {"file_sd": [str(directory / "targets.json")]},
    }
    config, tasks = directory / "settings.yaml", directory / "tasks"
    config.write_text(json.dumps(settings))
    command = [sys.executable, __file__, TELL, str(tasks), "--config.file", str(config)]
    with fleet.running(command, None, directory / "sidecar.log") as process:
        fleet.wait_for_port(own)
        while not tasks.exists():
            time.sleep(0.1)
        yield Watched(name, process.pid, own, tasks)


def tell_targets(directory: Path, ports: list[int]) -> None:
    """Write the targets file, whole at once."""
    new = directory / "targets.new"
    new.write_text(json.dumps([{"targets": [f"127.0.0.1:{port}" for port in ports]}]))
    new.rename(directory / "targets.json")


def slope(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Least squares: units per second, and its standard error."""
    mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    left = sum((y - mean_y - rise * (x - mean_x)) ** 2 for x, y in points)
    return rise, math.sqrt(left / max(1, len(points) - 2) / spread)


def report(watched: Watched) -> bool:
    """Print a sidecar's figures; returns whether it was flat."""
    looks = [look for look in watched.looks if look[0] >= min(SETTLED_SECONDS, SECONDS / 2)]
    rise, error = (each * 3600 for each in slope([(at, mib) for at, mib, _, _ in looks]))
    flat = rise <= max(2 * error, MIB_PER_HOUR)
    print(f"{watched.name}: judged over {looks[-1][0] - looks[0][0]:.0f} s, {len(looks)} looks")
    print(f"  memory: {looks[0][1]:.1f} to {looks[-1][1]:.1f} MiB, {rise:+.2f} MiB/h, standard error {error:.2f}")
    for column, what in ((2, "descriptors"), (3, "tasks")):
        early, late = (
            sorted(look[column] for look in half) for half in (looks[: len(looks) // 2], looks[len(looks) // 2 :])
        )
        print(f"  {what}: {early[0]} to {early[-1]} in the first half, {late[0]} to {late[-1]} in the second")
        flat &= late[len(late) // 2] <= early[-1]
    print("  flat" if flat else "  NOT flat")
    return flat


def tell_tasks(path: Path, arguments: list[str]) -> int:
    """The sidecar itself, with one more task that writes down how many there are."""
    from exporter import cli, serve  # noqa: PLC0415 - only the process that is the sidecar

    serving = serve.serve

    async def tell() -> None:
        new = path.with_suffix(".new")
        while True:
            new.write_text(str(len(asyncio.all_tasks()) - 1))
            new.rename(path)
            await asyncio.sleep(1.0)

    async def both(*given: object) -> None:
        telling = asyncio.create_task(tell())
        try:
            await serving(*given)  # type: ignore[arg-type]
        finally:
            telling.cancel()

    serve.serve = both  # type: ignore[assignment]
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(tell_tasks(Path(sys.argv[2]), sys.argv[3:]) if sys.argv[1:2] == [TELL] else main())
