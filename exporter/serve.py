"""The running sidecar: bind, watch the settings file, serve until told to stop."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from exporter.app import Sidecar, create_app
from exporter.schema import Config, split_address

log = logging.getLogger("exporter.serve")

SETTINGS_CHECKED_EVERY_SECONDS = 1.0
WATCHED_BYTES = 2**20
BIND_AGAIN_SECONDS = 5.0
SHUTDOWN_SECONDS = 1
STOP_CHECKED_EVERY_SECONDS = 0.5


class Reloader:
    """Settings as they are now.

    Args:
        load: reads and validates them; raises what ``refused`` names.
        refused: the exception that means invalid settings.
        path: the file to watch, if any.
    """

    def __init__(self, load: Callable[[], Config], refused: type[Exception], path: Path | None) -> None:
        self._load = load
        self._refused = refused
        self._path = path
        self._seen = self._content()
        self._told: str | None = None

    def _content(self) -> bytes | None:
        try:
            if self._path is None or not self._path.is_file():
                return None
            with self._path.open("rb") as file:
                return file.read(WATCHED_BYTES)
        except OSError:
            return None

    def changed(self) -> bool:
        """Whether the file's content is another than when it was last asked."""
        content = self._content()
        changed = content != self._seen
        self._seen = content
        return changed

    def apply(self, sidecar: Sidecar) -> None:
        """Read the settings into a sidecar; refused ones leave the last good ones in force."""
        try:
            config = self._load()
        except self._refused as error:
            sidecar.config_valid = False
            if self._told != str(error):
                self._told = str(error)
                log.error(
                    "settings refused, the last good ones stay in force", extra={"fields": {"reason": self._told}}
                )
            return
        self._told = None
        if sidecar.config_reload_unix_seconds is not None:
            log.info("settings reloaded")
        sidecar.use(config)

    async def watch(self, sidecar: Sidecar) -> None:
        """Apply the file whenever it changes, and what was refused again: a file that it names may have come."""
        while True:
            await asyncio.sleep(SETTINGS_CHECKED_EVERY_SECONDS)
            if self.changed() or not sidecar.config_valid:
                self.apply(sidecar)


def bind(address: str) -> socket.socket:
    """A listening socket; an empty host is every interface, IPv6 and IPv4.

    Raises:
        OSError: the address is in use or not ours.
    """
    host, port = split_address(address)
    everywhere = host in ("", "::")
    try:
        if everywhere and socket.has_dualstack_ipv6():
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while")[0]  # that part repeats the address
        raise OSError(error.errno, why) from None


class _Server(uvicorn.Server):
    """uvicorn, but a signal that ends it ends it at once, with exit code 0, and is not raised again."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._asked_to_stop = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self.handle_exit, each, None)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._asked_to_stop.set()

    async def main_loop(self) -> None:
        # uvicorn asks itself ten times a second whether to stop, which costs as much as the scraping.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_CHECKED_EVERY_SECONDS):
                    await self._asked_to_stop.wait()


def server_of(app: FastAPI) -> uvicorn.Server:
    """A server for an application, with our logging and a short farewell."""
    return _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
    )


async def serve(listen_address: str, reloader: Reloader, listening: socket.socket | None) -> None:
    """Serve until SIGTERM or SIGINT. Without a socket, try to bind until it works."""
    sidecar = Sidecar()
    reloader.apply(sidecar)
    watching = [
        asyncio.create_task(reloader.watch(sidecar)),
        asyncio.create_task(sidecar.discovery.watch(sidecar.watch_targets)),
    ]
    try:
        listening = listening or await _bound(listen_address)
        log.info("serving", extra={"fields": {"address": listen_address}})
        await server_of(create_app(sidecar)).serve(sockets=[listening])
    finally:
        for task in watching:
            task.cancel()
        await sidecar.targets.stop()


async def _bound(address: str) -> socket.socket:
    """A listening socket, as soon as one can be had."""
    told = None
    while True:
        try:
            return bind(address)
        except OSError as error:
            if told != error.strerror:
                told = error.strerror
                log.error("cannot listen, trying again", extra={"fields": {"address": address, "reason": told}})
        await asyncio.sleep(BIND_AGAIN_SECONDS)
