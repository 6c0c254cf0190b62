"""What a load run showed, and whether it can be believed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import Any

from exporter.lab.client import Outcome

LATE_SECONDS = 0.02
"""A run in which more than one request, and more than 1 % of them, were sent later than this was slowed by its CPU."""
DISPERSION_WINDOWS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
LEAST_WINDOWS = 5


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets in seconds; a request meets them when it finishes and neither is missed."""

    ttft: float
    tpot: float

    def met(self, outcome: Outcome) -> bool:
        """Whether this request did."""
        if outcome.error or outcome.ttft is None:
            return False
        return outcome.ttft <= self.ttft and (outcome.tpot is None or outcome.tpot <= self.tpot)


@dataclass(frozen=True, slots=True)
class Run:
    """Raw results: outcomes in order of schedule, times on one monotonic clock."""

    outcomes: Sequence[Outcome]
    started: float
    ended: float
    max_connections: int
    planned_seconds: float


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value with at least a share `q` at or below it; `values` sorted and not empty."""
    return values[min(len(values) - 1, max(0, -int(-q * len(values) // 1) - 1))]


def summary(values: Iterable[float]) -> dict[str, float] | None:
    """Mean and quantiles in seconds; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    found = {f"p{100 * q:g}": quantile(ordered, q) for q in (0.5, 0.9, 0.95, 0.99)}
    return {"mean": fmean(ordered), **found, "max": ordered[-1]}


def dispersion(times: Sequence[float], seconds: float) -> dict[str, float]:
    """Index of dispersion of counts, variance over mean, by window length in seconds.

    A Poisson process has 1 at every window; a gamma renewal process levels off near CV² once the window holds many
    gaps; a modulated process goes on rising until the window is well past its dwell times.
    """
    found = {}
    for window in DISPERSION_WINDOWS:
        windows = int(seconds // window)
        if windows < LEAST_WINDOWS:
            break
        counts = Counter(int(time // window) for time in times)
        series = [counts[index] for index in range(windows)]
        if mean := fmean(series):
            found[f"{window:g}"] = pvariance(series) / mean
    return found


def peak_in_flight(outcomes: Sequence[Outcome]) -> int:
    """Most requests at once between hand-over and end."""
    changes = sorted([(o.started, 1) for o in outcomes] + [(o.ended, -1) for o in outcomes])
    level = peak = 0
    for _time, change in changes:
        level += change
        peak = max(peak, level)
    return peak


def verdict(run: Run) -> dict[str, Any]:
    """Whether arrivals waited for nothing of the load generator's own: not for its pool, not for its CPU."""

    def late(outcome: Outcome) -> float:
        return (outcome.started if outcome.sent is None else outcome.sent) - outcome.scheduled

    held = sum(outcome.queued_for_pool for outcome in run.outcomes)
    peak = peak_in_flight(run.outcomes)
    reasons = []
    if held:
        reasons.append(
            f"closed loop: the pool of {run.max_connections} connections held {held} requests back; "
            f"{peak} were in flight at the peak"
        )
    own = [late(outcome) for outcome in run.outcomes if not outcome.queued_for_pool]
    slow = sum(seconds > LATE_SECONDS for seconds in own)
    if slow > max(1, 0.01 * len(own)):
        reasons.append(f"too slow: {slow} of {len(own)} sends were more than {LATE_SECONDS:g} s late for want of CPU")
    return {
        "valid": not reasons,
        "reasons": reasons,
        "send_lateness_seconds": summary(map(late, run.outcomes)),
        "own_lateness_seconds": summary(own),
        "held_back_by_pool": held,
        "peak_in_flight": peak,
        "max_connections": run.max_connections,
    }


def class_report(outcomes: Sequence[Outcome], seconds: float, slo: Slo) -> dict[str, Any]:
    """Latencies of the requests of one class that finished, counts of those that did not, and goodput."""
    done = [outcome for outcome in outcomes if outcome.error is None]
    met = sum(slo.met(outcome) for outcome in outcomes)
    return {
        "requests": len(outcomes),
        "finished": len(done),
        "errors": dict(Counter(outcome.error for outcome in outcomes if outcome.error)),
        "ttft_seconds": summary(o.ttft for o in done if o.ttft is not None),
        "itl_seconds": summary(gap for o in done for gap in o.gaps),
        "tpot_seconds": summary(o.tpot for o in done if o.tpot is not None),
        "e2e_seconds": summary(o.ended - o.started for o in done),
        "output_tokens": sum(o.tokens for o in done),
        "goodput_ratio": met / len(outcomes),
        "goodput_requests_per_second": met / seconds,
    }


def report(run: Run, slo: Slo) -> dict[str, Any]:
    """The whole report, ready for JSON. Classes are never averaged together; only counts are added up."""
    labels = sorted({outcome.arrival.label for outcome in run.outcomes})
    times = [outcome.scheduled - run.started for outcome in run.outcomes]
    seconds = run.planned_seconds
    served = sum(outcome.error is None for outcome in run.outcomes)
    return {
        "verdict": verdict(run),
        "slo": {"ttft_seconds": slo.ttft, "tpot_seconds": slo.tpot},
        "planned_seconds": seconds,
        "duration_seconds": run.ended - run.started,
        "offered_requests_per_second": len(run.outcomes) / seconds,
        "finished_requests_per_second": served / (run.ended - run.started),
        "dispersion_of_counts_by_window_seconds": dispersion(times, seconds),
        "classes": {
            label: class_report([o for o in run.outcomes if o.arrival.label == label], seconds, slo) for label in labels
        },
    }


def text(found: dict[str, Any]) -> str:
    """The report for a terminal."""
    lines = [
        f"offered {found['offered_requests_per_second']:.2f}/s for {found['planned_seconds']:.0f} s",
        f"done after {found['duration_seconds']:.0f} s",
    ]
    for label, part in found["classes"].items():
        lines.append(f"{label}: {part['requests']} requests, {part['finished']} finished, errors {part['errors']}")
        for name in ("ttft", "itl", "tpot", "e2e"):
            if values := part[f"{name}_seconds"]:
                columns = "  ".join(f"{key} {value:.3f}" for key, value in values.items())
                lines.append(f"  {name:<5}{columns}  (s)")
        lines.append(f"  goodput {part['goodput_ratio']:.1%}, {part['goodput_requests_per_second']:.2f}/s")
    windows = found["dispersion_of_counts_by_window_seconds"].items()
    lines.append("dispersion of counts: " + "  ".join(f"{window} s {value:.2f}" for window, value in windows))
    checked = found["verdict"]
    late = (checked["send_lateness_seconds"] or {}).get("p99", 0.0)
    lines.append(f"sends late by p99 {late * 1000:.1f} ms; peak in flight {checked['peak_in_flight']}")
    lines.append("valid: open loop" if checked["valid"] else "INVALID: " + "; ".join(checked["reasons"]))
    return "\n".join(lines)


def timeline(run: Run) -> dict[str, list[float]]:
    """Arrivals and requests in flight for each second of the run."""
    length = int(run.ended - run.started) + 1
    arrivals = Counter(int(outcome.scheduled - run.started) for outcome in run.outcomes)
    flight = [0.0] * length
    for outcome in run.outcomes:
        for second in range(int(outcome.started - run.started), min(length, int(outcome.ended - run.started) + 1)):
            flight[second] += 1
    return {"arrivals": [float(arrivals[second]) for second in range(length)], "in_flight": flight}


def gaps_by_second(run: Run, label: str) -> dict[int, list[float]]:
    """Inter-token gaps of one class, sorted, by the second of the run in which they ended."""
    found: dict[int, list[float]] = {}
    for outcome in run.outcomes:
        if outcome.first_token is None or outcome.arrival.label != label:
            continue
        at = outcome.first_token - run.started
        for gap in outcome.gaps:
            at += gap
            found.setdefault(int(at), []).append(gap)
    return {second: sorted(gaps) for second, gaps in sorted(found.items())}
