"""Run simulated engines in virtual time: no waiting, the same result for the same seed."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from math import inf

from exporter.lab.engine import Engine
from exporter.lab.scheduler import Request


def least_loaded(engines: Sequence[Engine]) -> Engine:
    """The engine with the fewest requests, the first of several: about what vLLM's own balancer picks."""
    return min(engines, key=lambda engine: engine.load)


def run(
    engines: Sequence[Engine],
    requests: Iterable[Request],
    *,
    until: float = inf,
    patience: float = inf,
    sample_every: float = inf,
    sample: Callable[[float], None] = lambda _now: None,
) -> list[Request]:
    """Feed `requests` (in order of arrival) to the engines until everybody is served, or until a time.

    Args:
        engines: one, or several behind a balancer.
        requests: may be endless if `until` is given.
        until: seconds of virtual time to stop at.
        patience: seconds after which a client that is not served leaves.
        sample_every: seconds of virtual time between calls of `sample`, which may read the engines.
        sample: called with the time.

    Returns:
        Every request that arrived.
    """
    arrived: list[Request] = []
    coming = iter(requests)
    upcoming = next(coming, None)
    ends: list[tuple[float, int]] = []
    busy = [False] * len(engines)
    leaving: list[tuple[float, int, Request, Engine]] = []
    next_sample = sample_every

    def begin(index: int, now: float) -> None:
        end = engines[index].begin(now)
        busy[index] = end is not None
        if end is not None:
            heapq.heappush(ends, (end, index))

    while True:
        arrival = upcoming.arrival if upcoming else inf
        end = ends[0][0] if ends else inf
        leave = leaving[0][0] if leaving else inf
        now = min(arrival, end, leave)
        while next_sample <= min(now, until) and (now < inf or next_sample <= until < inf):
            sample(next_sample)
            next_sample += sample_every
        if now > until or now == inf:
            return arrived
        if end == now:
            _, index = heapq.heappop(ends)
            engines[index].finish()
            begin(index, now)
        elif upcoming and arrival == now:
            engine = least_loaded(engines)
            engine.submit(upcoming)
            arrived.append(upcoming)
            if patience < inf:
                heapq.heappush(leaving, (now + patience, len(arrived), upcoming, engine))
            upcoming = next(coming, None)
            index = engines.index(engine)
            if not busy[index]:
                begin(index, now)
        else:
            _, _, request, engine = heapq.heappop(leaving)
            engine.abort(request, now)
            index = engines.index(engine)
            if not busy[index]:
                begin(index, now)
