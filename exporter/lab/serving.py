"""The server behind one port: models, their engines, API servers, metrics. Restarting it makes all of it anew."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, cycle

from exporter.lab.completions import Generation
from exporter.lab.engine import Engine
from exporter.lab.engine_metrics import EngineCollector, registry
from exporter.lab.http_metrics import HttpMetrics
from exporter.lab.profiles import Profile
from exporter.lab.realtime import LiveEngine, Stream
from exporter.lab.scheduler import Parent, Request
from exporter.lab.virtual import least_loaded

STEP_HISTORY = 100_000
"""Steps that the ground truth of a server keeps: at 50 a second more than half an hour."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What to serve: every model has `engines` engines of the profile; `api_servers` share one port."""

    profile: Profile
    models: Sequence[str] = ("simulated",)
    engines: int = 1
    api_servers: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.models or len(set(self.models)) < len(self.models):
            raise ValueError("models need names, each its own")
        if self.engines < 1 or self.api_servers < 1:
            raise ValueError("there is at least one engine and one API server")


class Serving:
    """One life of the server, from start to stop."""

    def __init__(self, layout: Layout, clock: Callable[[], float]) -> None:
        self.layout = layout
        self.clock = clock
        self.started = clock()
        self.models = {
            model: [self._engine(model, index) for index in range(layout.engines)] for model in layout.models
        }
        self.live = {engine: LiveEngine(engine, clock) for engines in self.models.values() for engine in engines}
        multiprocess = layout.api_servers > 1
        self.collector = EngineCollector(list(self.live), created=self.started, multiprocess=multiprocess)
        self.http = HttpMetrics(created=self.started, multiprocess=multiprocess)
        self.registry = registry(self.collector, self.http, self.started)
        self._api_servers = cycle(range(layout.api_servers))
        self._ids = count()
        self._tasks: list[asyncio.Task[None]] = []

    def _engine(self, model: str, index: int) -> Engine:
        seed = self.layout.seed + index
        engine = Engine(self.layout.profile, model_name=model, index=index, seed=seed, history=STEP_HISTORY)
        engine.siblings = self.layout.engines
        return engine

    @property
    def healthy(self) -> bool:
        """No engine is dead. A hung one looks well."""
        return not any(live.dead for live in self.live.values())

    def start(self) -> None:
        """Run the engines on this event loop."""
        self._tasks = [asyncio.create_task(live.run()) for live in self.live.values()]

    async def stop(self) -> None:
        """Stop the engines; requests in flight fail. What an engine failed with is raised."""
        for live in self.live.values():
            live.die()
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    def submit(self, generation: Generation) -> tuple[Stream, Callable[[], None]]:
        """Start a generation on the least loaded engines of its model; the callable aborts what is left of it."""
        stream = Stream()
        api_server = next(self._api_servers)
        submitted: list[tuple[LiveEngine, Request]] = []
        now = self.clock()
        sequences = count()
        for prompt in generation.prompts:
            parent = Parent(n=generation.n, unfinished=generation.n)
            for _ in range(generation.n):
                output, reason = generation.output()
                request = Request(
                    id=next(self._ids),
                    arrival=now,
                    prompt_tokens=prompt.tokens,
                    output_tokens=output,
                    max_tokens=generation.max_tokens,
                    finish_reason=reason,
                    prefix_keys=prompt.keys,
                    api_server=api_server,
                    parent=parent,
                )
                live = self.live[least_loaded(self.models[generation.model])]
                if live.dead:
                    stream.fail()
                else:
                    live.submit(request, stream, next(sequences))
                    submitted.append((live, request))

        def abort() -> None:
            for live, request in submitted:
                live.abort(request)

        return stream, abort
