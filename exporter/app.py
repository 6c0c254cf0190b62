"""The HTTP surface: /metrics, the API, health, the page. It serves what the targets' timers have gathered."""

import gzip
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder, gzip_accepted

from exporter import __version__, collect
from exporter.schema import Config
from exporter.signals.view import SelfView, TargetView
from exporter.targets import Targets

PAGE = Path(__file__).parent / "page" / "index.html"
REUSED_SECONDS = 0.5
"""A rendered body serves every reader for so long: two Prometheus replicas read the same state."""


class Sidecar:
    """What the sidecar serves: its targets, and whether its settings are good."""

    def __init__(self) -> None:
        self.targets = Targets()
        self.config_valid = False
        self.config_reload_unix_seconds: float | None = None
        self.disabled_groups: Sequence[str] = ()
        # These collectors register where they are made unless told not to; nowhere is where we want them.
        self._process = (ProcessCollector(registry=None), PlatformCollector(registry=None))
        self._rendered: dict[tuple[str, bool], tuple[float, bytes]] = {}

    def use(self, config: Config) -> None:
        """Put settings in force."""
        self.config_valid = True
        self.config_reload_unix_seconds = time.time()
        self.disabled_groups = config.disabled_groups
        self.targets.apply(config)

    def views(self) -> list[TargetView]:
        """Every target, now."""
        return [target.view() for target in self.targets]

    def collect(self) -> Iterator[Family]:
        """Every family, as prometheus_client's encoders read a registry."""
        sidecar = SelfView(__version__, platform.python_version(), self.config_valid, self.config_reload_unix_seconds)
        yield from collect.families(sidecar, self.views(), self.disabled_groups)
        for collector in self._process:
            yield from collector.collect()

    def render(self, accept: str, *, compressed: bool) -> tuple[bytes, str]:
        """The exposition and its content type, in the format a reader asked for."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is none
            encode, content_type = choose_encoder("")
        now = time.monotonic()
        made, body = self._rendered.get((content_type, compressed), (0.0, b""))
        if now - made > REUSED_SECONDS or not body:
            body = encode(self)
            body = gzip.compress(body, compresslevel=1) if compressed else body
            self._rendered = {key: kept for key, kept in self._rendered.items() if now - kept[0] <= REUSED_SECONDS}
            self._rendered[content_type, compressed] = (now, body)
        return body, content_type


def create_app(sidecar: Sidecar) -> FastAPI:
    """The application over a sidecar's state."""
    app = FastAPI(title="vLLM Sidecar", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)

    @app.api_route("/metrics", methods=["GET", "HEAD"], include_in_schema=False)
    @app.api_route("/metrics/", methods=["GET", "HEAD"], include_in_schema=False)
    async def metrics(request: Request) -> Response:
        compressed = gzip_accepted(request.headers.get("accept-encoding", ""))
        body, content_type = sidecar.render(request.headers.get("accept", ""), compressed=compressed)
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if compressed:
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers)

    @app.api_route("/-/healthy", methods=["GET", "HEAD"], include_in_schema=False)
    async def healthy() -> Response:
        late = [target.config.label for target in sidecar.targets if not target.punctual]
        if late:
            return Response(f"timer late: {', '.join(late)}\n", status_code=503, media_type="text/plain")
        return Response("healthy\n", media_type="text/plain")

    @app.api_route("/-/ready", methods=["GET", "HEAD"], include_in_schema=False)
    async def ready() -> Response:
        if not sidecar.config_reload_unix_seconds:
            return Response("no valid settings yet\n", status_code=503, media_type="text/plain")
        return Response("ready\n", media_type="text/plain")

    @app.api_route("/api/v1/signals", methods=["GET", "HEAD"])
    async def signals() -> Response:
        """Every signal of every target and its engines; null is not known."""
        found: dict[str, Any] = {"unix_seconds": time.time(), "targets": collect.signals(sidecar.views())}
        return JSONResponse(found, headers={"Cache-Control": "no-store"})

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(
            PAGE.read_text(), headers={"Content-Security-Policy": "default-src 'self'; style-src 'unsafe-inline'"}
        )

    return app
