"""The HTTP surface of a vLLM server: generation, models, health, version, metrics."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from exporter.lab.completions import Answer, Generation, RequestError, error_body, read_generation
from exporter.lab.faults import Faults
from exporter.lab.realtime import Stream
from exporter.lab.serving import Serving

VERSION = "0.32.0"
DEAD = error_body(500, "InternalServerError", "EngineCore encountered an issue. See stack trace for the root cause.")


class GenerationResponse(Response):
    """Waits for the engine and for the client to leave, whichever comes first."""

    def __init__(self, generation: Generation, serving: Serving) -> None:
        super().__init__()
        self._generation = generation
        self._serving = serving

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        stream, abort = self._serving.submit(self._generation)
        watch = asyncio.create_task(_watch(receive, stream))
        answer = Answer(self._generation, int(self._serving.clock()))
        try:
            await (self._stream if self._generation.stream else self._whole)(stream, answer, send)
        finally:
            watch.cancel()
            abort()

    @staticmethod
    async def _stream(stream: Stream, answer: Answer, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while not answer.finished:
            events = "".join(answer.chunk(*output) for output in await stream.get())
            if stream.closed:
                return
            if stream.failed:
                events += f"data: {json.dumps(DEAD)}\n\n"
                await send({"type": "http.response.body", "body": f"{events}data: [DONE]\n\n".encode()})
                return
            await send({"type": "http.response.body", "body": events.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": answer.closing().encode()})

    @staticmethod
    async def _whole(stream: Stream, answer: Answer, send: Send) -> None:
        while not (answer.finished or stream.closed or stream.failed):
            for output in await stream.get():
                answer.add(*output)
        status = 500 if stream.failed else 200
        # vLLM logs and counts 200 for a client that left; nobody reads the body
        content = DEAD if stream.failed else None if stream.closed else answer.whole()
        body = json.dumps(content, separators=(",", ":")).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def _watch(receive: Receive, stream: Stream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.close()


class Instrumented:
    """Counts a response when it has ended, under the path it was routed to, `none` where no route took it."""

    def __init__(self, app: ASGIApp, serving: Callable[[], Serving], routes: dict[str, frozenset[str]]) -> None:
        self._app = app
        self._serving = serving
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on and count."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        serving = self._serving()
        began = serving.clock()
        status, size = 500, 0

        async def counting(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status, size = message["status"], _content_length(message)
            await send(message)

        try:
            await self._app(scope, receive, counting)
        finally:
            path, method = scope["path"], scope["method"]
            serving.http.response_ended(
                path if method in self._routes.get(path, ()) else "none",
                method,
                status,
                seconds=serving.clock() - began,
                request_bytes=_content_length(scope),
                response_bytes=size,
            )


def _content_length(message: Any) -> int:
    for name, value in message.get("headers", ()):
        if name.lower() == b"content-length":
            with contextlib.suppress(ValueError):
                return int(value)
    return 0


def create_app(serving: Callable[[], Serving], faults: Faults) -> ASGIApp:
    """The server's application. `serving` gives the current life of the server, which a restart replaces."""

    async def generate(request: Request) -> Response:
        now = serving()
        profile = now.layout.profile
        if not now.healthy:
            return JSONResponse(DEAD, 500)
        try:
            generation = read_generation(
                await request.body(),
                chat=request.url.path.endswith("/chat/completions"),
                models=now.layout.models,
                block_size=profile.block_size,
                longest=profile.longest_sequence,
            )
        except RequestError as error:
            return JSONResponse(error.body, error.status)
        except ClientDisconnect:  # vLLM, too, calls that a bad request
            return Response(status_code=400)
        return GenerationResponse(generation, now)

    async def models(_request: Request) -> Response:
        layout = serving().layout
        entry = {"object": "model", "created": int(serving().started), "owned_by": "vllm", "parent": None}
        extent = {"max_model_len": layout.profile.max_model_len}
        listed = [{"id": model, "root": model, **entry, **extent} for model in layout.models]
        return JSONResponse({"object": "list", "data": listed})

    async def health(_request: Request) -> Response:
        return Response(status_code=200 if serving().healthy else 503)

    async def version(_request: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def metrics(_request: Request) -> Response:
        await faults.delay()
        body = faults.garble(generate_latest(serving().registry))
        return Response(body, headers={"content-type": CONTENT_TYPE_LATEST})

    async def metrics_mount(request: Request) -> Response:
        await faults.delay()
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        registry: Any = serving().registry
        if names := request.query_params.getlist("name[]"):
            registry = registry.restricted_registry(names)
        return Response(faults.garble(encode(registry)), headers={"content-type": content_type})

    post, get = ["POST"], ["GET"]
    routes = [
        Route("/v1/completions", generate, methods=post),
        Route("/v1/chat/completions", generate, methods=post),
        Route("/v1/models", models, methods=get),
        Route("/health", health, methods=get),
        Route("/version", version, methods=get),
        Route("/metrics", metrics, methods=get),
        Route("/metrics/", metrics_mount, methods=get),
    ]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    return Instrumented(app, serving, {route.path: frozenset(route.methods or ()) for route in routes})
