"""Our own port, served for real within a test."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from exporter.app import Sidecar, create_app
from exporter.guard import Guard, Rate
from exporter.http_server import bind
from exporter.serve import Site
from exporter.webconfig import Web


@contextlib.asynccontextmanager
async def site(
    web_config_file: Path | None = None,
    *,
    page: bool = True,
    clock: Callable[[], float] | None = None,
    sidecar: Sidecar | None = None,
) -> AsyncIterator[tuple[Site, Web, int]]:
    """A site over a sidecar, by default an idle one: itself, its web config, its port."""
    web = Web(web_config_file)
    web.load()
    listening = bind("127.0.0.1:0")
    port = listening.getsockname()[1]
    rate = Rate(clock) if clock else Rate() if sidecar else Rate(lambda: 0.0)
    one = Site(f"127.0.0.1:{port}", Guard(create_app(sidecar or Sidecar(), page=page), web, rate), web, page=page)
    serving = asyncio.create_task(one.serve(listening))
    try:
        yield one, web, port
    finally:
        one.end()
        await serving
