"""`vllm-sidecar simulate`: a vLLM server without a GPU, over HTTP in real time."""

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import uvicorn
import uvloop
from starlette.types import ASGIApp

from exporter.lab.arguments import refuse_infinite
from exporter.lab.faults import Faults, control_app
from exporter.lab.http_app import create_app
from exporter.lab.profiles import PROFILES, Profile, Speculation
from exporter.lab.realtime import unix_clock
from exporter.lab.serving import Layout, Serving

LOOPBACK = "127.0.0.1"


class _Server(uvicorn.Server):
    """Says when it listens, and leaves signals to the command."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off"))
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listener:
    """An application on a port that can close and open again."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self._app = app
        self._host = host
        self.port = port
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen; port 0 picks one and keeps it.

        Raises:
            OSError: the port is taken.
        """
        bound = socket.create_server((self._host, self.port), backlog=2048)
        self.port = bound.getsockname()[1]
        self._server = _Server(self._app)
        self._task = asyncio.create_task(self._server.serve([bound]))
        await self._server.listening.wait()

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        if self._server and self._task:
            self._server.should_exit = self._server.force_exit = True
            # Whoever gives up waiting leaves it to end by itself.
            await asyncio.shield(self._task)


class Simulator:
    """The server on its port, and the control endpoint on its own, on loopback only."""

    def __init__(self, layout: Layout, *, host: str = LOOPBACK, port: int = 0, control_port: int = 0) -> None:
        self._layout = layout
        self._clock = unix_clock()
        self.serving = Serving(layout, self._clock)
        self.faults = Faults(self.current, self.restart)
        self.listener = Listener(create_app(self.current, self.faults), host, port)
        self.control = Listener(control_app(self.current, self.faults), LOOPBACK, control_port)

    def current(self) -> Serving:
        """This life of the server."""
        return self.serving

    async def start(self) -> None:
        """Serve.

        Raises:
            OSError: a port is taken.
        """
        await self.control.open()
        try:
            await self.listener.open()
        except OSError:
            await self.control.close()
            raise
        self.serving.start()

    async def stop(self) -> None:
        """Stop serving, and what was to serve again."""
        await self.faults.stop()
        await self.serving.stop()
        await asyncio.gather(self.listener.close(), self.control.close())

    async def restart(self, down_seconds: float) -> None:
        """Die, refuse connections for a while, and start from nothing."""
        await self.serving.stop()
        await self.listener.close()
        await asyncio.sleep(down_seconds)
        self.serving = Serving(self._layout, self._clock)
        await self.listener.open()
        self.serving.start()


@contextlib.asynccontextmanager
async def serving(layout: Layout) -> AsyncIterator[Simulator]:
    """A simulator on free loopback ports, for tests and demos."""
    simulator = Simulator(layout)
    await simulator.start()
    try:
        yield simulator
    finally:
        await simulator.stop()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="vllm-sidecar simulate", description="Serve a simulated vLLM engine.")
    found.add_argument("--host", default=LOOPBACK, help="address to serve on")
    found.add_argument("--port", type=int, default=8000, help="default: %(default)s")
    found.add_argument(
        "--control-port",
        type=int,
        default=8001,
        help="faults and ground truth, on loopback only (default: %(default)s)",
    )
    found.add_argument("--profile", choices=sorted(PROFILES), default="h100-tp4-70b", help="default: %(default)s")
    found.add_argument("--model", action="append", help="served model name; several make several models")
    found.add_argument("--engines", type=int, default=1, help="data-parallel engines of each model")
    found.add_argument("--api-servers", type=int, default=1, help="more than one exposes multiprocess metrics")
    found.add_argument("--seed", type=int, default=0)
    for name in ("max-num-seqs", "max-num-batched-tokens", "long-prefill-token-threshold", "max-model-len"):
        found.add_argument(f"--{name}", type=int, help="as in vLLM; default from the profile")
    found.add_argument("--kv-tokens", type=int, help="KV-cache capacity; default from the profile")
    found.add_argument("--block-size", type=int, help="tokens a block")
    found.add_argument("--weight-read-seconds", type=float, help="shortest step; default from the profile")
    found.add_argument("--positions-per-second", type=float, help="compute; default from the profile")
    found.add_argument("--overhead-seconds", type=float, help="added to each step")
    found.add_argument("--no-prefix-caching", dest="prefix_caching", action="store_false", default=None)
    found.add_argument("--speculate", type=int, metavar="GAMMA", help="draft this many tokens a step")
    found.add_argument("--acceptance", type=float, default=0.8, help="chance that a draft token is accepted")
    return found


def read_layout(arguments: argparse.Namespace) -> Layout:
    """What the command line describes.

    Raises:
        ValueError: it makes no sense.
    """
    refuse_infinite(arguments)
    for port in (arguments.port, arguments.control_port):
        if not 0 <= port <= 65_535:
            raise ValueError(f"a port lies between 0 and 65535, so {port} is none")
    fields = (
        *("max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold", "max_model_len", "kv_tokens"),
        *("block_size", "weight_read_seconds", "positions_per_second", "overhead_seconds", "prefix_caching"),
    )
    given = {field: value for field in fields if (value := getattr(arguments, field)) is not None}
    if arguments.speculate:
        given["speculation"] = Speculation(arguments.speculate, arguments.acceptance)
    profile: Profile = replace(PROFILES[arguments.profile], **given)
    models = tuple(arguments.model or ("simulated",))
    return Layout(profile, models, arguments.engines, arguments.api_servers, arguments.seed)


async def _serve(simulator: Simulator) -> None:
    await simulator.start()
    print(f"engine  http://{LOOPBACK}:{simulator.listener.port}/metrics")  # noqa: T201
    print(f"control http://{LOOPBACK}:{simulator.control.port}/faults", flush=True)  # noqa: T201
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await stopping.wait()
    await simulator.stop()


def main(argv: list[str]) -> int:
    """Run the command; 2 for arguments that make no sense or a port that is taken."""
    arguments = parser().parse_args(argv)

    try:
        layout = read_layout(arguments)
    except ValueError as error:
        print(f"vllm-sidecar simulate: {error}", file=sys.stderr)  # noqa: T201
        return 2
    try:
        uvloop.run(
            _serve(Simulator(layout, host=arguments.host, port=arguments.port, control_port=arguments.control_port))
        )
    except OSError as error:
        print(f"vllm-sidecar simulate: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
