"""Nothing grows: a busy engine in virtual time, and targets that come and go. ``make soak`` is the real hour."""

import asyncio
import gc
import subprocess
import sys
import time
import tracemalloc
import weakref
from itertools import islice

from exporter.exposition import Scraped
from exporter.pipeline import Pipeline
from exporter.render import Lines
from exporter.replay import looped
from exporter.schema import Config
from exporter.targets import Targets
from tests.bodies import Body
from tests.recordings import entries

ROUNDS, SETTLED_ROUNDS = 7, 4
EVERY = 6
"""Of the recorded scrapes, half a second apart: one in six is 3 s."""


def test_memory_is_flat_over_rounds_of_bursts_and_restarts() -> None:
    """Once the longest window is full nothing is kept that was not kept a round ago: 1 % of half a MiB at most."""
    config = Config(gpu_hour_dollars=2.0)
    log = entries("burst")[::EVERY]
    played = iter(looped(log, ROUNDS))
    pipeline = Pipeline(config.all_targets()[0], config.options(), at=log[0].unix_seconds)
    lines, held = Lines(), []
    tracemalloc.start()
    try:
        for _ in range(ROUNDS):
            for position, (at, outcome) in enumerate(islice(played, len(log))):
                pipeline.observe(outcome, at, at)
                if position % 10 == 0:
                    lines.of(None, [pipeline.view(at)], (), several=True)
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()

    assert held[0] < 2**20
    assert held[-1] <= held[SETTLED_ROUNDS] * 1.01


def flood(turn: int) -> bytes:
    """An engine that stays, and beside it a name, reasons, routes, an edge and a comment that never come again."""
    steady, fresh = Body(bare=True).running(1).first_tokens(0.2), Body(model_name=f"m{turn}", bare=True).running(turn)
    for number in range(5):
        steady.finish(f"{turn}-{number}")
        steady.own("vllm:admission_rejections_total", 1, model_name=turn, reason=number)
        steady.own("http_requests_total", 1, handler="/v1/completions", method=number, status=turn)
    steady.set("vllm:time_to_first_token_seconds_bucket", 0, le=1000 + turn)
    return steady.text() + fresh.text() + f"# HELP x{turn} {'y' * 1000}\n".encode()


def test_memory_is_flat_under_a_flood_of_everything_that_an_engine_names() -> None:
    """Room for 200 series, 17 fresh ones at each scrape: after 600 scrapes no more is held than after 300.

    The most of 20 scrapes each, since places fill up and are given up a quarter at a time. A hundred bytes that stayed
    of each scrape would be 30,000.
    """
    config = Config.model_validate({"gpu_hour_dollars": 2.0, "scrape": {"max_series": 200}})
    pipeline, lines = Pipeline(config.all_targets()[0], config.options(), at=0.0), Lines()
    held: dict[int, int] = {}
    tracemalloc.start()
    try:
        for turn in range(600):
            at = 15.0 * turn
            assert pipeline.observe(Scraped(flood(turn), openmetrics=False, seconds=0.01), at, at) is None
            lines.of(None, [pipeline.view(at)], (), several=True)
            if turn % 300 > 280:
                gc.collect()
                end = turn // 300
                held[end] = max(held.get(end, 0), tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()

    assert pipeline.view(at).dropped_series > 600 * 17 - 200
    assert held[0] < 2**20
    assert held[1] - held[0] < 300 * 100


async def test_a_target_that_is_gone_is_let_go() -> None:
    """Its history, its lines and its task, also while others stay."""
    targets = Targets()
    known = []
    for turn in range(5):
        # Nobody listens there: what they know comes from this test.
        names = [
            {"url": f"http://127.0.0.1:{port}", "name": name} for port, name in ((1, "stays"), (2, f"comes {turn}"))
        ]
        targets.apply(Config.model_validate({"targets": names, "scrape": {"interval_seconds": 60}}))
        for target in targets:
            body = Body().process().first_tokens(0.2).decode(4, 10).text()
            target.pipeline.observe(Scraped(body, openmetrics=False, seconds=0.01), time.monotonic(), time.time())
            target.text(target.view(), (), several=True)
            known.append(weakref.ref(target))
        await asyncio.sleep(0.01)
    targets.apply(Config.model_validate({"targets": names, "scrape": {"interval_seconds": 60}}))
    del target
    await asyncio.sleep(0.05)
    gc.collect()
    alive = {target.config.label for each in known if (target := each()) is not None}
    await targets.stop()

    assert alive == {"stays", "comes 4"}


LARGE_BLOCKS = """
import asyncio, ctypes
from exporter.serve import bound_resources

class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena a b c d e f g h i".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo2

async def main():
    bound_resources()
    bytearray(2**24)
    before, kept = libc.mallinfo2().arena, []
    for _ in range(20):
        large = [bytearray(2**20) for _ in range(5)]
        kept.append(bytearray(4000))
    del large
    print(libc.mallinfo2().arena - before)

asyncio.run(main())
"""


def test_large_blocks_are_given_back() -> None:
    """Twenty times 5 MiB come and go between small blocks that stay: the heap grows by these, 80 kB, not by 5 MiB.

    In a process of its own, since the C library is told for good.
    """
    run = subprocess.run([sys.executable, "-c", LARGE_BLOCKS], capture_output=True, text=True, check=True, timeout=60)
    assert int(run.stdout) < 2**20
