"""Simulated engines, each in a state made to happen, behind one sidecar that is served for real."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from exporter.app import Sidecar
from exporter.lab.profiles import PROFILES, Profile
from exporter.lab.serving import Layout
from exporter.lab.simulate import Simulator, serving
from exporter.schema import Config
from exporter.upstream import Part
from tests.sites import site

STEADY = replace(PROFILES["demo"], weight_read_seconds=0.04)
"""Steps of 40 ms: far below the objective for a gap, 200 ms."""
SETTINGS: dict[str, Any] = {
    "windows": ["15s"],
    "gpu_hour_dollars": 2.0,
    "hardware": {"profile": "h100-sxm"},
    "model": {"total_params": 8e9, "layers": 32, "kv_heads": 8, "head_dim": 128},
    "baseline": {"busy_dollars_per_million_output_tokens": 2.0},
    # On a busy machine simulated steps are late now and then.
    "slo": {"objective_ratio": 0.8},
    "scrape": {"interval_seconds": 0.5, "timeout_seconds": 2.0},
}


@dataclass
class Scene:
    """What runs: the sidecar, where it serves, the simulators by target."""

    sidecar: Sidecar
    url: str
    http: httpx.AsyncClient
    simulators: dict[str, Simulator] = field(default_factory=dict)
    _clients: list[asyncio.Task[None]] = field(default_factory=list)

    def load(self, name: str, clients: int, *, patience: float | None = None, **body: Any) -> None:
        """Clients of an engine, each asking again as soon as it is answered or has lost patience."""
        simulator = self.simulators[name]
        url = f"http://127.0.0.1:{simulator.listener.port}/v1/completions"
        fields = {"prompt": "hello world", "max_tokens": 30, "ignore_eos": True} | body
        self._clients += [asyncio.create_task(_ask_for_ever(self.http, url, fields, patience)) for _ in range(clients)]

    async def stop(self) -> None:
        """The clients leave."""
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def steps(self, name: str) -> float:
        """Steps of an engine that the sidecar has seen since the engine started."""
        views = [target.view() for target in self.sidecar.targets if target.config.label == name]
        steps = [engine.now.last("steps", part=Part.COUNT) for view in views for engine in view.engines]
        return sum(step or 0.0 for step in steps)

    def kinds(self) -> dict[str, str]:
        """The kind of verdict by target."""
        return {reading.target.label: reading.verdict.kind.value for reading in self.sidecar.readings.all()}

    async def until(self, condition: Callable[[], Any], seconds: float = 30.0) -> None:
        """Wait until something has come about."""
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - seen from outside only
                await asyncio.sleep(0.05)


async def _ask_for_ever(http: httpx.AsyncClient, url: str, body: dict[str, Any], patience: float | None) -> None:
    while True:
        with contextlib.suppress(httpx.TransportError):
            await http.post(url, json=body, timeout=patience)
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def scene(
    engines: dict[str, Profile | None], models: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[Scene]:
    """A sidecar over simulated engines.

    Args:
        engines: a profile by name of the target; None for a port where nobody listens.
        models: names of models served, where they matter.
        settings: of the sidecar, over ``SETTINGS``.
    """
    async with contextlib.AsyncExitStack() as stack:
        simulators: dict[str, Simulator] = {}
        targets = []
        for name, profile in engines.items():
            if profile is None:
                nobody = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                port = nobody.getsockname()[1]
                nobody.close()
            else:
                model = (models or {}).get(name, "simulated")
                simulators[name] = await stack.enter_async_context(serving(Layout(profile, (model,))))
                port = simulators[name].listener.port
            targets.append({"name": name, "url": f"http://127.0.0.1:{port}"})
        sidecar = Sidecar()
        sidecar.use(Config.model_validate(SETTINGS | settings | {"targets": targets}))
        remembering = asyncio.create_task(sidecar.remember())
        _, _, port = await stack.enter_async_context(site(sidecar=sidecar))
        limits = httpx.Limits(max_connections=None)
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, limits=limits))
        found = Scene(sidecar, f"http://127.0.0.1:{port}", http, simulators)
        try:
            yield found
        finally:
            remembering.cancel()
            await found.stop()
            await sidecar.targets.stop()
