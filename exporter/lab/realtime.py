"""A simulated engine in real time: steps take as long as they say, outputs go to the streams that wait for them."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from exporter.lab.engine import Engine
from exporter.lab.scheduler import Request

LATE_SECONDS = 0.25
"""Steps keep to the simulated clock while the event loop is no later than this; beyond, the clock gives way."""


def unix_clock() -> Callable[[], float]:
    """Unix seconds that never step: the wall clock now, the monotonic clock from here on."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


class Stream:
    """What one API request receives: (sequence, new tokens, finish reason or None), or the news that it failed."""

    def __init__(self) -> None:
        self.failed = False
        self.closed = False
        """The client is gone."""
        self._ready = asyncio.Event()
        self._outputs: deque[tuple[int, int, str | None]] = deque()

    def put(self, sequence: int, tokens: int, finish_reason: str | None) -> None:
        """Add an output; a reader that is slow gets several at once."""
        self._outputs.append((sequence, tokens, finish_reason))
        self._ready.set()

    def fail(self) -> None:
        """The engine is dead."""
        self.failed = True
        self._ready.set()

    def close(self) -> None:
        """The client has left."""
        self.closed = True
        self._ready.set()

    async def get(self) -> list[tuple[int, int, str | None]]:
        """Wait for outputs; empty when there will be none."""
        await self._ready.wait()
        self._ready.clear()
        outputs = list(self._outputs)
        self._outputs.clear()
        return outputs


class LiveEngine:
    """Runs one engine. `hung` stops it between two steps, `die` for good."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self.engine = engine
        self.dead = False
        self._clock = clock
        self._going = asyncio.Event()
        self._going.set()
        self._work = asyncio.Event()
        self._streams: dict[Request, tuple[Stream, int]] = {}

    @property
    def hung(self) -> bool:
        """Steps have stopped, nobody knows."""
        return not self._going.is_set()

    @hung.setter
    def hung(self, hung: bool) -> None:
        (self._going.clear if hung else self._going.set)()

    def submit(self, request: Request, stream: Stream, sequence: int) -> None:
        """Hand in a request; its outputs go to `stream` under the number `sequence`."""
        self._streams[request] = (stream, sequence)
        self.engine.submit(request)
        self.wake()

    def abort(self, request: Request) -> None:
        """Its client has left."""
        if self._streams.pop(request, None):
            self.engine.abort(request, self._clock())
            self.wake()

    def abort_all(self) -> None:
        """The engine aborts everybody: the finish reason says so."""
        for request in self.engine.abort_all(self._clock()):
            stream, sequence = self._streams.pop(request)
            stream.put(sequence, 0, "abort")

    def die(self) -> None:
        """The engine core is gone; requests in flight fail."""
        self.dead = True
        for stream, _sequence in self._streams.values():
            stream.fail()
        self._streams.clear()

    def wake(self) -> None:
        """Look for work again."""
        self._work.set()

    async def run(self) -> None:
        """Step until cancelled or dead."""
        now = self._clock()
        while True:
            await self._going.wait()
            end = self.engine.begin(now)
            if end is None:
                self._work.clear()
                await self._work.wait()
                now = self._clock()
                continue
            await asyncio.sleep(end - self._clock())
            await self._going.wait()
            if self.dead:
                return
            late = self._clock() - end
            now = end if late < LATE_SECONDS else end + late
            for request in self.engine.finish(now):
                self._deliver(request)

    def _deliver(self, request: Request) -> None:
        found = self._streams.get(request)
        if found is None:
            return
        stream, sequence = found
        if request.gone:
            del self._streams[request]
        stream.put(sequence, request.new_tokens, request.finish_reason if request.gone else None)
