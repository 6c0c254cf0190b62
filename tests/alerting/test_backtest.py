"""The rules over hours of recordings of a real engine: what went wrong in them is raised, and nothing else."""

from pathlib import Path

import exporter
from exporter.recording import Entry, read_log
from tests.alerting.backtest import firing, from_zero, write_scrapes

BURST = Path(exporter.__file__).parent / "data" / "burst.scrapes.xz"
GIVEUP = Path(__file__).parent.parent / "data" / "recordings" / "giveup.scrapes.xz"
HOURS = 2.0


def played(recording: Path, start: int = 0, stop: int | None = None) -> list[Entry]:
    """A recording, or some seconds of it, at the sidecar's own interval of 2 s; it was made every half second."""
    return list(read_log(recording))[2 * start : None if stop is None else 2 * stop : 4]


def raised(entries: list[Entry], directory: Path, hours: float = HOURS) -> dict[str, list[float]]:
    """Alerts and when they fire, in seconds since the beginning."""
    first, last = write_scrapes(entries, hours, {"gpu_hour_dollars": 2.0}, directory / "scrapes.om")
    return {name: [at - first for at in times] for name, times in firing(directory / "scrapes.om", first, last).items()}


def test_bursts_raise_the_preemption_ticket(tmp_path: Path) -> None:
    """684 requests, 65 preemptions in 100 s, over and over: 9.5 % of arrivals; a sixth of the first tokens is late."""
    found = raised(played(BURST), tmp_path)
    assert set(found) == {"VLLMPreemptions", "VLLMTTFTBudgetBurn"}
    # Ten preemptions are there within the first minute; then it takes `for`, 5 minutes.
    assert 300 <= found["VLLMPreemptions"][0] <= 390
    assert found["VLLMPreemptions"][-1] >= HOURS * 3600 - 60


def test_clients_that_leave_raise_the_page(tmp_path: Path) -> None:
    """677 requests arrive and 221 finish; the others leave after 3 s, which the engine logs as 200."""
    found = raised(played(GIVEUP), tmp_path)
    assert set(found) == {"VLLMRequestsAbandoned", "VLLMTTFTBudgetBurn"}
    assert 300 <= found["VLLMRequestsAbandoned"][0] <= 390
    assert found["VLLMRequestsAbandoned"][-1] >= HOURS * 3600 - 60


def test_quiet_traffic_raises_nothing(tmp_path: Path) -> None:
    """The seconds between two bursts, 4.6 requests a second without a queue, for two hours."""
    assert raised(from_zero(played(BURST, 20, 32)), tmp_path) == {}


def test_an_idle_engine_raises_nothing(tmp_path: Path) -> None:
    """The last seconds of a recording, after its last request."""
    assert raised(played(GIVEUP, 50), tmp_path, hours=1) == {}
