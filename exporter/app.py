"""The HTTP surface: /metrics, the API, health, the page. It serves what the targets' timers have gathered."""

import asyncio
import gzip
import logging
import platform
import re
import time
from collections.abc import Iterator, Sequence

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder, gzip_accepted

from exporter import __version__
from exporter.api import add_api
from exporter.aside import aside
from exporter.discovery import Discovery
from exporter.page_state import add_page
from exporter.readings import Readings
from exporter.recent import STEP_SECONDS, Recent
from exporter.render import Encode, Lines, exposition
from exporter.replicas import Fleet
from exporter.schema import Config
from exporter.signals.view import SelfView, TargetView
from exporter.targets import RENDERED_AHEAD_FROM, Target, Targets

log = logging.getLogger("exporter.app")

SLICE_SECONDS, LONGEST_SLICE_SECONDS = 0.01, 0.2
"""So long rendering goes on before scrapes have a turn."""
_REFUSED = re.compile(r";\s*q\s*=\s*0(\.0*)?\s*(;|$)", re.IGNORECASE)
REUSED_SECONDS = 0.5
"""A rendered body serves every reader for so long: two Prometheus replicas read the same state."""


class Sidecar:
    """What the sidecar serves: its targets, and whether its settings are good."""

    def __init__(self) -> None:
        self.targets = Targets()
        self.discovery = Discovery()
        self.readings = Readings(self.targets)
        self.recent = Recent()
        self.fleet = Fleet()
        self.config: Config | None = None
        self.config_valid = False
        self.web_config_valid = True
        self.config_reload_unix_seconds: float | None = None
        # These collectors register where they are made unless told not to; nowhere is where we want them.
        self._process = (ProcessCollector(registry=None), PlatformCollector(registry=None))
        self._own_lines = Lines()
        self._rendering = asyncio.Lock()
        self._rendered: dict[tuple[str, bool], tuple[float, bytes]] = {}

    def use(self, config: Config) -> None:
        """Put settings in force."""
        self.config_valid = True
        self.config_reload_unix_seconds = time.time()
        self.config = config
        self.discovery.use(config)
        self.watch_targets()

    @property
    def disabled_groups(self) -> Sequence[str]:
        """Groups of metrics that are left out."""
        return () if self.config is None else self.config.disabled_groups

    def watch_targets(self) -> None:
        """Watch what the settings list and discovery has found."""
        if self.config is not None:
            self.targets.apply(self.config, self.discovery.targets())

    def views(self) -> list[TargetView]:
        """Every target, now."""
        return [target.view() for target in self.targets]

    def view(self, targets: Sequence[TargetView]) -> SelfView:
        """What signals about the sidecar itself read."""
        return SelfView(
            __version__,
            platform.python_version(),
            self.config_valid and self.web_config_valid,
            self.config_reload_unix_seconds,
            targets,
            None if self.config is None else self.config.discovery.expected_targets,
            self.discovery.views(),
            self.fleet.desired(),
        )

    async def keep_up(self) -> None:
        """What goes on beside scraping and answering, for ever: finding targets, and remembering what they showed."""
        async with asyncio.TaskGroup() as going_on:
            going_on.create_task(self.discovery.watch(self.watch_targets))
            going_on.create_task(self.remember())

    async def remember(self) -> None:
        """Keep the recent past and the advice on replicas, a round every few seconds, for ever."""
        while True:
            views: list[TargetView] = []
            targets = list(self.targets)
            for target in targets:
                if (view := self._remember(target)) is not None:
                    views.append(view)
                await asyncio.sleep(STEP_SECONDS / len(targets))
            self._advise(views)
            self.recent.forget(time.time())
            self.readings.forget()
            if not targets:
                await asyncio.sleep(STEP_SECONDS)

    def _remember(self, target: Target) -> TargetView | None:
        """Keep a point of a target; returns it as it is now, if that can be told."""
        view = None
        try:
            view = target.view()
            self.recent.add(view, time.time())
        except Exception:  # whatever it is, targets must go on being found, and the others remembered
            log.exception("a point could not be kept", extra={"fields": {"target": target.config.label}})
        return view

    def _advise(self, views: Sequence[TargetView]) -> None:
        if self.config is None:
            return
        try:
            self.fleet.observe(views, self.config.replicas, time.monotonic())
        except Exception:
            log.exception("replicas could not be advised")

    async def render(self, accept: str, *, compressed: bool) -> tuple[bytes, str]:
        """The exposition and its content type, in the format a reader asked for."""
        encode, content_type = _format(accept)
        async with self._rendering:
            made, body = self._rendered.get((content_type, compressed), (-REUSED_SECONDS, b""))
            if time.monotonic() - made >= REUSED_SECONDS:
                body = exposition(await self._lines(), self._of_process(), encode)
                if compressed:
                    body = await aside(gzip.compress, body, compresslevel=1)
                now = time.monotonic()
                self._rendered = {key: kept for key, kept in self._rendered.items() if now - kept[0] < REUSED_SECONDS}
                self._rendered[content_type, compressed] = (now, body)
        return body, content_type

    async def _lines(self) -> list[list[str]]:
        """The lines of every target, then of the sidecar, with pauses in which scrapes go on."""
        targets = list(self.targets)
        # Where targets are listed or found, the label must not come and go with the second of them.
        several = len(targets) > 1 or (self.config is not None and self.config.names_targets)
        found, views = [], []
        began, turn_seconds = time.monotonic(), SLICE_SECONDS
        for target in targets:
            view = target.view()
            views.append(view)
            found.append(target.text(view, self.disabled_groups, several=several))
            if len(targets) >= RENDERED_AHEAD_FROM:
                target.render_ahead(self.disabled_groups)
            if (paused := time.monotonic()) - began > turn_seconds:
                await asyncio.sleep(0)
                began = time.monotonic()
                # As long as the others' turn was: else a busy loop would never let an answer be finished.
                turn_seconds = min(max(SLICE_SECONDS, began - paused), LONGEST_SLICE_SECONDS)
        found.append(self._own_lines.of(self.view(views), (), self.disabled_groups, several=several))
        return found

    def _of_process(self) -> Iterator[Family]:
        for collector in self._process:
            yield from collector.collect()


def _format(accept: str) -> tuple[Encode, str]:
    """prometheus_client's encoder for what a reader accepts; plain text for what is not ours."""
    try:
        encode, content_type = choose_encoder(_wanted(accept))
    except (TypeError, ValueError):  # a version that is none
        return choose_encoder("")
    return choose_encoder("") if "escaping=dots" in content_type else (encode, content_type)


def _wanted(header: str) -> str:
    """What a reader accepts, without what it refuses by a weight of 0: prometheus_client reads no weights."""
    return ",".join(each for each in header.split(",") if not _REFUSED.search(each))


def create_app(sidecar: Sidecar, *, page: bool = True) -> FastAPI:
    """The application over a sidecar's state: the metrics, the probes, and the page with its API if it is to be here.

    Nothing that a request holds makes it ask anybody anything.
    """
    app = FastAPI(
        title="vLLM Sidecar",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json" if page else None,
        redirect_slashes=False,
    )

    @app.api_route("/metrics", methods=["GET", "HEAD"], include_in_schema=False)
    @app.api_route("/metrics/", methods=["GET", "HEAD"], include_in_schema=False)
    async def metrics(request: Request) -> Response:
        compressed = gzip_accepted(_wanted(request.headers.get("accept-encoding", "")))
        body, content_type = await sidecar.render(request.headers.get("accept", ""), compressed=compressed)
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if compressed:
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers)

    @app.api_route("/-/healthy", methods=["GET", "HEAD"], include_in_schema=False)
    async def healthy() -> Response:
        targets = list(sidecar.targets)
        late = sum(not target.punctual for target in targets)
        if late:  # no names: who probes has shown no credential
            text = f"timer late: {late} of {len(targets)} targets\n"
            return Response(text, status_code=503, media_type="text/plain")
        return Response("healthy\n", media_type="text/plain")

    @app.api_route("/-/ready", methods=["GET", "HEAD"], include_in_schema=False)
    async def ready() -> Response:
        if sidecar.config is None:
            return Response("no valid settings yet\n", status_code=503, media_type="text/plain")
        return Response("ready\n", media_type="text/plain")

    if page:
        _add_page(app, sidecar)
    return app


def _add_page(app: FastAPI, sidecar: Sidecar) -> None:
    @app.get("/api/v1/config")
    @app.head("/api/v1/config", include_in_schema=False)
    async def config() -> Response:
        """The settings in force. Secrets are files there, so their paths are all that is shown."""
        return JSONResponse(None if sidecar.config is None else sidecar.config.model_dump(mode="json"))

    add_api(app, sidecar.readings, sidecar.recent, sidecar.fleet)
    add_page(app, sidecar.readings)
