"""The demo's engine: simulated, small, under a load that clumps until a queue builds and preemptions start."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

from exporter.demo import Engine
from exporter.lab.arrivals import Pattern, arrivals
from exporter.lab.client import Target
from exporter.lab.load import connection_limit, find_model, offer
from exporter.lab.profiles import PROFILES
from exporter.lab.serving import Layout
from exporter.lab.simulate import serving

PROFILE = PROFILES["demo"]
CALM_SECONDS, BURST_SECONDS, ROUND_SECONDS = 10.0, 30.0, 100.0
CALM_RATE, BURST_RATE = 0.4, 2.0
"""Requests per second. The engine serves nearly one: a burst leaves a queue that the calm drains."""


@contextlib.asynccontextmanager
async def simulated() -> AsyncIterator[Engine]:
    """A simulated engine with a bursty load on it."""
    async with serving(Layout(PROFILE)) as simulator:
        url = f"http://127.0.0.1:{simulator.listener.port}"
        load = asyncio.create_task(_load(url))
        try:
            what = f"A simulated engine ({PROFILE.name} profile, a burst every {ROUND_SECONDS:.0f} s)"
            yield Engine(url, what)
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)


async def _load(url: str) -> None:
    """Round after round of calm, burst and calm, for ever."""
    target = Target(url, await find_model(url), chat=False, text=False)
    pattern = Pattern(CALM_RATE, BURST_RATE, burst_window=(CALM_SECONDS, CALM_SECONDS + BURST_SECONDS))
    async with asyncio.TaskGroup() as rounds:
        while True:
            seed = random.randrange(2**32)  # noqa: S311 - a load, not a secret
            plan = list(arrivals(pattern, ROUND_SECONDS, seed=seed, longest=PROFILE.max_model_len))
            limit = connection_limit(len(plan))
            rounds.create_task(offer(target, plan, seconds=ROUND_SECONDS, max_connections=limit, seed=seed))
            await asyncio.sleep(ROUND_SECONDS)
