"""Play a scrape log back over HTTP, as if it were the engine, over and over at the pace it was recorded."""

import socket
import time
from bisect import bisect_right
from itertools import accumulate

from fastapi import FastAPI, Response

from exporter.exposition import Scraped
from exporter.http_server import server_of
from exporter.recording import Entry
from exporter.replay import interval_seconds


def create_app(entries: list[Entry], began: float) -> FastAPI:
    """An engine that says at each moment what the recorded one said; where that did not answer it answers 503."""
    # Never backwards, though the clock may have been set back while it was recorded.
    times = list(accumulate((entry.unix_seconds - entries[0].unix_seconds for entry in entries), max))
    period = times[-1] + interval_seconds(entries)
    app = FastAPI(openapi_url=None, redirect_slashes=False)

    @app.get("/metrics")
    async def metrics() -> Response:
        position = bisect_right(times, (time.monotonic() - began) % period) - 1
        outcome = entries[position].outcome
        if isinstance(outcome, Scraped):
            return Response(outcome.body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
        return Response(status_code=503)

    @app.get("/health")
    async def health() -> Response:
        return Response()

    return app


async def serve(entries: list[Entry], listening: socket.socket) -> None:
    """Play back until told to stop."""
    await server_of(create_app(entries, time.monotonic())).serve(sockets=[listening])
