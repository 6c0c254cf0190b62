"""Whether readers delay the scraping: wrk on our endpoints, and when the engine is asked meanwhile.

    LOAD_SECONDS=20 python bench/load.py

Readers beyond the rate of one client are refused, which is most of what wrk does; what it costs us is the question.
"""

import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import fleet

SECONDS = float(os.environ.get("LOAD_SECONDS", "20"))
INTERVAL_SECONDS = 1.0
CONNECTIONS = 32
PATHS = ("/metrics", "/api/v1/signals", "/", "/-/healthy")


def main() -> int:
    """Print, for no load and for each endpoint, how far scrapes were off their interval."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        log, ports = directory / "engine.log", fleet.free_ports(2)
        # The first engine of a process is one of the faulty ones.
        with fleet.running(fleet.engines_command(ports, 0, INTERVAL_SECONDS), None, log):
            fleet.wait_for_port(ports[1])
            with fleet.sidecar(ports[1:], INTERVAL_SECONDS, directory / "sidecar", None) as (_, own):
                time.sleep(5 * INTERVAL_SECONDS)
                spans = [("no readers", span(None, own))]
                spans += [(path, span(path, own)) for path in PATHS]
            time.sleep(1.0)
            asked = fleet.arrivals([log])[ports[1]]
    for what, (began, ended, said) in spans:
        times = [at for at in asked if began <= at <= ended]
        off = sorted(abs(later - earlier - INTERVAL_SECONDS) * 1e3 for earlier, later in pairwise(times))
        print(f"{what}: {len(times)} scrapes, off by {off[len(off) // 2]:.1f} ms (median), {off[-1]:.1f} ms (most)")
        if said:
            print("\n".join(f"    {line}" for line in said))
    return 0


def span(path: str | None, port: int) -> tuple[float, float, list[str]]:
    """Some time with readers or without: from, to, and what wrk says."""
    began = time.monotonic()
    said = []
    if path is None:
        time.sleep(SECONDS)
    else:
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS:.0f}s", f"http://127.0.0.1:{port}{path}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
        said = [line.strip() for line in done.stdout.splitlines() if "Requests/sec" in line or "Non-2xx" in line]
    return began, time.monotonic(), said


if __name__ == "__main__":
    sys.exit(main())
