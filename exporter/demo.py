"""The demo: an engine that nobody needs to have, the sidecar on it, its signals in the terminal."""

import asyncio
import contextlib
import math
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple

from exporter import playback
from exporter.app import Sidecar, create_app
from exporter.http_server import bind, server_of
from exporter.recording import read_log
from exporter.schema import Config, Discovery, Scrape
from exporter.signals import cost, decode, kv_cache, latency, preemption, queue, traffic
from exporter.signals.view import EngineView, TargetView

RECORDING = Path(__file__).parent / "data" / "burst.scrapes.xz"
GPU_HOUR_DOLLARS = 2.0


class Engine(NamedTuple):
    """Something to watch: where it serves, and a line on what it is."""

    url: str
    what: str


@contextlib.asynccontextmanager
async def recorded() -> AsyncIterator[Engine]:
    """A real engine's recording, played back over and over."""
    listening = bind("127.0.0.1:0")
    engine = server_of(playback.create_app(list(read_log(RECORDING)), time.monotonic()))
    serving = asyncio.create_task(engine.serve(sockets=[listening]))
    try:
        yield Engine(f"http://127.0.0.1:{listening.getsockname()[1]}", "A recording of a real engine under bursts")
    finally:
        engine.end()
        await serving


async def run(
    config: Config, listening: socket.socket, engine_of: AbstractAsyncContextManager[Engine], seconds: float | None
) -> None:
    """Show the signals of an engine live until the time is over or Ctrl-C."""
    sidecar = Sidecar()
    server = server_of(create_app(sidecar))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    async with engine_of as engine:
        sidecar.use(_watching(config, engine))
        going_on = asyncio.create_task(sidecar.keep_up())
        port = listening.getsockname()[1]
        print(f"{engine.what} serves at {engine.url}/metrics; the sidecar reads it:")
        print(f"  http://localhost:{port} (the page)   http://localhost:{port}/metrics   (Ctrl-C ends)\n")
        ends = math.inf if seconds is None else time.monotonic() + seconds
        drawn = 0
        try:
            while not serving.done() and time.monotonic() < ends:
                await asyncio.sleep(1.0)
                drawn = _show(sidecar.views()[0], drawn)
        finally:
            going_on.cancel()
            server.end()
            await serving
            await sidecar.targets.stop()


def _watching(config: Config, engine: Engine) -> Config:
    """The settings, without what they say of where other engines are and of how those are scraped."""
    price = GPU_HOUR_DOLLARS if config.gpu_hour_dollars is None else config.gpu_hour_dollars
    elsewhere = {"targets": (), "discovery": Discovery(), "worker_index": None, "engines": ()}
    shown = {"url": engine.url, "name": "demo", "gpu_hour_dollars": price, "scrape": Scrape(interval_seconds=1.0)}
    return config.model_copy(update=elsewhere | shown)


def _show(view: TargetView, drawn: int) -> int:
    """Print the signals, in a terminal over so many lines drawn before; returns how many there are now."""
    lines = [_number("state", view.state.value)]
    for engine in view.engines:
        lines += _engine_lines(engine)
    if "1m" in view.windows:
        dollars = cost.per_million_tokens(view).get(("output", "output", "1m"))
        lines.append(_number("$ per 1M output tokens", dollars, ".2f"))
    if sys.stdout.isatty():
        print((f"\x1b[{drawn}A\r\x1b[J" if drawn else "") + "\n".join(lines), flush=True)
    else:
        print("  ".join(" ".join(line.split()) for line in lines), flush=True)
    return len(lines)


def _engine_lines(view: EngineView) -> list[str]:
    quantiles = latency.quantiles(view)
    return [
        _number("arrivals", traffic.arrivals(view), ".0f"),
        _number("running (raw)", view.now.last("running"), ".0f"),
        _number("decode batch", decode.batch_size(view), ".1f"),
        _number("waiting for capacity", queue.capacity_waiting(view.now), ".0f"),
        _number("predicted TTFT, s", queue.predicted_ttft(view), ".2f"),
        _number("TTFT p99, s", quantiles.get(("ttft", "0.99", "1m")), ".2f"),
        _number("ITL p99, s", quantiles.get(("itl", "0.99", "1m")), ".3f"),
        _number("KV usage", kv_cache.usage(view), ".0%"),
        _number("preemptions per arrival", preemption.per_arrival(view).get(("1m",)), ".1%"),
    ]


def _number(name: str, value: float | str | None, form: str = "") -> str:
    shown = "not known" if value is None else format(value, form)
    return f"  {name:<26} {shown}"
