"""A picture of a load run: arrivals, requests in flight, TTFT and ITL over time."""

from pathlib import Path

from matplotlib.figure import Figure

from exporter.lab.load_report import Run, gaps_by_second, quantile, timeline


def draw(run: Run, path: Path) -> None:
    """Write the picture; the file's suffix says in which format.

    Raises:
        OSError: the file cannot be written.
        ValueError: the format is unknown.
    """
    figure = Figure(figsize=(10, 9), layout="constrained")
    arrivals, flight, ttft, itl = figure.subplots(4, 1, sharex=True)
    series = timeline(run)
    seconds = range(len(series["arrivals"]))
    arrivals.step(seconds, series["arrivals"], where="post")
    arrivals.set_ylabel("arrivals (1/s)")
    flight.step(seconds, series["in_flight"], where="post")
    flight.axhline(run.max_connections, linestyle=":", color="grey")
    flight.set_ylim(0, 1.1 * max(1.0, *series["in_flight"]))
    flight.set_ylabel("in flight")
    for label in sorted({outcome.arrival.label for outcome in run.outcomes}):
        points = [
            (outcome.started - run.started, outcome.ttft)
            for outcome in run.outcomes
            if outcome.arrival.label == label and outcome.ttft is not None and outcome.error is None
        ]
        ttft.plot([at for at, _ in points], [value for _, value in points], ".", label=label)
        gaps = gaps_by_second(run, label)
        for q in (0.5, 0.99):
            itl.plot(list(gaps), [quantile(values, q) for values in gaps.values()], label=f"{label} p{100 * q:g}")
    ttft.set_ylabel("TTFT (s)")
    ttft.legend()
    itl.set_ylabel("ITL (s)")
    itl.set_xlabel("seconds")
    itl.legend()
    figure.savefig(path)
