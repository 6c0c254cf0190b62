"""Faults to switch on and off while the simulator serves, and the truth to hold estimates against.

The application here is for a loopback address only.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from math import inf
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from exporter.lab.serving import Serving

GARBAGE = {
    "html": b"<html><body><h1>502 Bad Gateway</h1></body></html>\n",
    "binary": bytes(range(256)) * 16,
    "empty": b"",
}
Arguments = dict[str, Any]


class Faults:
    """The switches. Each takes arguments when set; clearing takes the fault away where that is possible.

    Args:
        serving: the current life of the server.
        restart: stops listening, waits the seconds given, and starts a new life.
    """

    def __init__(self, serving: Callable[[], Serving], restart: Callable[[float], Awaitable[None]]) -> None:
        self._serving = serving
        self._restart = restart
        self._restarting: asyncio.Task[None] | None = None
        self._delay = 0.0
        self._garbage: str | None = None
        self.active: dict[str, Arguments] = {}

    @property
    def restarting(self) -> bool:
        """Whether a reset is under way."""
        return self._restarting is not None and not self._restarting.done()

    async def stop(self) -> None:
        """Let no reset go on."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)

    async def delay(self) -> None:
        """Hold a scrape back."""
        if self._delay:
            await asyncio.sleep(self._delay)

    def garble(self, body: bytes) -> bytes:
        """Spoil a scrape."""
        if self._garbage is None:
            return body
        if self._garbage == "truncated":
            return body[: len(body) * 2 // 3]
        return GARBAGE[self._garbage]

    def set(self, name: str, arguments: Any) -> None:
        """Switch a fault on.

        Raises:
            ValueError: there is no such fault or argument.
        """
        switch = getattr(self, f"_set_{name}", None)
        if switch is None:
            raise ValueError(f"no fault {name!r}; there are {', '.join(self.names())}")
        if not isinstance(arguments, dict):
            raise ValueError(f"{name}: arguments are an object")  # noqa: TRY004 - one kind of error for the endpoint
        try:
            switch(**arguments)
        except TypeError as error:
            raise ValueError(f"{name}: {error}") from None
        if name != "reset":
            self.active[name] = arguments

    def clear(self, name: str) -> None:
        """Switch a fault off.

        Raises:
            ValueError: there is no such fault, or it cannot be taken back.
        """
        switch = getattr(self, f"_clear_{name}", None)
        if switch is None:
            raise ValueError(f"cannot clear {name!r}: reset brings a dead engine back")
        switch()
        self.active.pop(name, None)

    @classmethod
    def names(cls) -> list[str]:
        """The faults there are."""
        return sorted(name.removeprefix("_set_") for name in vars(cls) if name.startswith("_set_"))

    def _set_hang(self) -> None:
        for live in self._serving().live.values():
            live.hung = True

    def _clear_hang(self) -> None:
        for live in self._serving().live.values():
            live.hung = False

    def _set_die(self) -> None:
        for live in self._serving().live.values():
            live.die()

    def _set_slow(self, factor: float = 1.0, metrics_seconds: float = 0.0) -> None:
        if not (0 < factor < inf and 0 <= metrics_seconds < inf):
            raise ValueError("slow: factor must be above 0, metrics_seconds at least 0")
        self._delay = metrics_seconds
        for engine in self._serving().live:
            engine.slowdown = factor

    def _clear_slow(self) -> None:
        self._set_slow()

    def _set_reset(self, down_seconds: float = 0.0) -> None:
        if not 0 <= down_seconds < inf:
            raise ValueError("reset: down_seconds must be at least 0")
        if self.restarting:
            raise ValueError("reset: one is under way")
        self._delay, self._garbage = 0.0, None
        self.active.clear()

        async def restart() -> None:
            await self._restart(down_seconds)

        self._restarting = asyncio.create_task(restart())

    def _set_lose(self, series: str) -> None:
        self._serving().collector.lost.add(series)

    def _clear_lose(self) -> None:
        self._serving().collector.lost.clear()

    def _set_freeze(self) -> None:
        self._serving().collector.freeze_gauges()

    def _clear_freeze(self) -> None:
        self._serving().collector.thaw_gauges()

    def _set_garbage(self, kind: str = "html") -> None:
        if kind not in {*GARBAGE, "truncated"}:
            raise ValueError(f"garbage: kind is one of {', '.join(sorted({*GARBAGE, 'truncated'}))}")
        self._garbage = kind

    def _clear_garbage(self) -> None:
        self._garbage = None

    def _set_pause(self) -> None:
        self._pause(paused=True)

    def _clear_pause(self) -> None:
        self._pause(paused=False)

    def _set_sleep(self, level: int = 1) -> None:
        """As vLLM's /sleep: requests in flight end as `abort`, level 2 also discards the cache."""
        if level not in {1, 2}:
            raise ValueError("sleep: level is 1 or 2")
        self._pause(paused=True)
        for engine, live in self._serving().live.items():
            live.abort_all()
            engine.sleep_level = level
            engine.scheduler.pool.forget()

    def _clear_sleep(self) -> None:
        for engine in self._serving().live:
            engine.sleep_level = 0
        self._pause(paused=False)

    def _pause(self, *, paused: bool) -> None:
        for engine, live in self._serving().live.items():
            engine.scheduler.paused = paused
            live.wake()


def control_app(serving: Callable[[], Serving], faults: Faults) -> Starlette:
    """The control endpoint: `GET /faults`, `PUT` and `DELETE /faults/NAME`, `GET /truth?seconds=15`."""

    async def show(_request: Request) -> Response:
        return JSONResponse({"active": faults.active, "available": faults.names()})

    async def switch(request: Request) -> Response:
        name = request.path_params["name"]
        try:
            if request.method == "DELETE":
                faults.clear(name)
            else:
                faults.set(name, await request.json() if await request.body() else {})
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        return JSONResponse({"active": faults.active})

    async def truth(request: Request) -> Response:
        now = serving()
        try:
            end = float(request.query_params.get("end", now.clock()))
            start = float(request.query_params.get("start", end - float(request.query_params.get("seconds", 15))))
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        if start >= end:
            return JSONResponse({"error": "start must be before end"}, 400)
        engines = [
            {"model_name": engine.model_name, "engine": str(engine.index), **asdict(engine.truth.window(start, end))}
            for engine in now.live
        ]
        return JSONResponse({"engines": engines})

    return Starlette(
        routes=[
            Route("/faults", show, methods=["GET"]),
            Route("/faults/{name}", switch, methods=["PUT", "DELETE"]),
            Route("/truth", truth, methods=["GET"]),
        ]
    )
