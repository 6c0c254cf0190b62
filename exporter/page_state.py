"""The page: its files, and what it asks for once a second."""

import asyncio
import hashlib
import time
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response

from exporter import __version__, answers
from exporter.api import LIVE, listed
from exporter.readings import Reading, Readings

FILES = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
MAX_LISTED = 200
REUSED_SECONDS = 0.25
"""A state serves every reader for so long."""


class PageState(answers.Aged):
    """The list of engines, worst first, and everything about the one that is looked at."""

    version: str
    engines: list[answers.EngineSummary]
    engines_total: int
    selected: answers.EngineAnswer | None


def add_page(app: FastAPI, readings: Readings) -> None:
    """Add the page to an application."""
    kept: dict[tuple[str | None, ...], tuple[float, bytes]] = {}
    one = asyncio.Lock()

    @app.api_route("/page/state", methods=["GET", "HEAD"], include_in_schema=False)
    async def state(selection: Annotated[answers.EngineSelection, Query()]) -> Response:
        key = (selection.target, selection.model_name, selection.engine)
        async with one:
            made, body = kept.get(key, (-REUSED_SECONDS, b""))
            if time.monotonic() - made >= REUSED_SECONDS:
                await readings.ahead(lambda each: (each.verdict, each.conditions))
                body = _state(readings.all(), selection, time.time()).model_dump_json().encode()
                now = time.monotonic()
                for old in [each for each, (at, _) in kept.items() if now - at >= REUSED_SECONDS]:
                    del kept[old]
                kept[key] = (now, body)
        return Response(body, headers=LIVE, media_type="application/json")

    for name in sorted(file.name for file in FILES.iterdir() if file.suffix in TYPES):
        _add_file(app, "/" if name == "index.html" else f"/page/{name}", FILES / name)


def _state(every: list[Reading], selection: answers.EngineSelection, unix_seconds: float) -> PageState:
    found = listed(every, unix_seconds)
    by_labels = {tuple(one.labels.values()): one for one in every}
    meant = selection.among(every) if selection.labels else []
    # An engine that has just begun to answer has a name that it had not when it was chosen.
    beside = [one for one in every if one.target.label == selection.target]
    worst = [by_labels[each.target, each.model_name, each.engine] for each in found.engines[:1]]
    selected = next(iter(meant or beside or worst), None)
    return PageState(
        unix_seconds=unix_seconds,
        age_seconds=found.age_seconds,
        version=__version__,
        engines=found.engines[:MAX_LISTED],
        engines_total=len(found.engines),
        selected=None if selected is None else answers.EngineAnswer.of(selected, unix_seconds),
    )


def _add_file(app: FastAPI, path: str, file: Path) -> None:
    body = file.read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    headers = SECURITY | {"ETag": etag, "Cache-Control": "no-cache"}

    @app.api_route(path, methods=["GET", "HEAD"], include_in_schema=False)
    async def serve(request: Request) -> Response:
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=f"{TYPES[file.suffix]}; charset=utf-8")
