"""The running sidecar: bind, watch the settings file, serve until told to stop."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import uvicorn

from exporter.app import Sidecar, create_app
from exporter.aside import aside
from exporter.connection import Connection
from exporter.guard import App, Guard, Rate
from exporter.schema import Config
from exporter.schema_types import split_address
from exporter.webconfig import BadWebConfigError, Web

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
        _running.add(self)
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, _end_all, each)
        try:
            yield
        finally:
            _running.discard(self)

    def end(self) -> None:
        """Stop serving, letting what is being answered end for a moment."""
        self.should_exit = True
        self._asked_to_stop.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._asked_to_stop.set()

    async def main_loop(self) -> None:
        # uvicorn asks itself ten times a second whether to stop, which costs as much as the scraping.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_CHECKED_EVERY_SECONDS):
                    await self._asked_to_stop.wait()


_running: set[_Server] = set()


def _end_all(sig: int) -> None:
    for server in list(_running):
        server.handle_exit(sig, None)


def server_of(app: App, context: ssl.SSLContext | None = None) -> _Server:
    """A server for an application, with our logging, patience limited, and a short farewell."""
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    config.load()
    config.ssl = context
    return _Server(config)


async def serve(config: Config, reloader: Reloader, web: Web, sockets: Mapping[str, socket.socket]) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        config: where to serve.
        reloader: the settings.
        web: TLS and users; has been read.
        sockets: listening already, by address; others are bound as soon as that works.
    """
    bound_resources()
    sidecar = Sidecar()
    sidecar.web_config_valid = web.refused is None
    if web.refused is not None:
        log.error("web config refused, only probes are served", extra={"fields": {"reason": web.refused}})
    reloader.apply(sidecar)
    watching = [
        asyncio.create_task(reloader.watch(sidecar)),
        asyncio.create_task(sidecar.discovery.watch(sidecar.watch_targets)),
        asyncio.create_task(sidecar.remember()),
    ]
    main, page = config.listen_address, config.served_page_address
    rate = Rate()
    sites = [Site(main, Guard(create_app(sidecar, page=page == main), web, rate), web)]
    if page != main:
        sites.append(Site(page, Guard(create_app(sidecar), web, rate), web))
    try:
        watching.append(asyncio.create_task(_watch_web(web, sidecar, sites)))
        async with asyncio.TaskGroup() as serving:
            for site in sites:
                serving.create_task(site.serve(sockets.get(site.address)))
    finally:
        for task in watching:
            task.cancel()
        await sidecar.targets.stop()


def bound_resources() -> None:
    """As many open files as we may have: one a target, one a reader."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Names that do not resolve hold a thread each for seconds; they must not wait for one another.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64, thread_name_prefix="names"))
    # What is kept hardly ever forms cycles, and there is much of it to search.
    gc.set_threshold(20_000, 20, 50)


async def _watch_web(web: Web, sidecar: Sidecar, sites: Sequence["Site"]) -> None:
    while True:
        await asyncio.sleep(SETTINGS_CHECKED_EVERY_SECONDS)
        if not web.changed():
            continue
        try:
            await aside(web.load)
        except BadWebConfigError as error:
            sidecar.web_config_valid = False
            log.error("web config refused, the last good one stays in force", extra={"fields": {"reason": str(error)}})
            continue
        sidecar.web_config_valid = True
        log.info("web config reloaded")
        for site in sites:
            site.renew()


class Site:
    """One address we serve on.

    Args:
        address: where.
        app: what.
        web: TLS; asked again at each renewal.
    """

    def __init__(self, address: str, app: App, web: Web) -> None:
        self.address = address
        self._app = app
        self._web = web
        self._server: _Server | None = None
        self._again = False

    def renew(self) -> None:
        """Serve with what the web config file says now; connections that stand are ended, none is refused."""
        self.end()
        self._again = True

    def end(self) -> None:
        """Stop serving."""
        self._again = False
        if self._server is not None:
            self._server.end()

    async def serve(self, listening: socket.socket | None) -> None:
        """Serve until told to stop."""
        listening = listening or await _bound(self.address)
        log.info("serving", extra={"fields": {"address": self.address, "tls": self._web.context is not None}})
        with listening:
            self._again = True
            while self._again:
                self._again = False
                self._server = server_of(self._app, self._web.context)
                # A server closes the sockets it is given; ours goes on listening while the next one starts.
                await self._server.serve(sockets=[listening.dup()])


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
