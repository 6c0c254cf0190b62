"""The running sidecar: serve until told to stop, and read its files again when they change."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import resource
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from exporter.app import Sidecar, create_app
from exporter.aside import aside
from exporter.files import file_version, read_file
from exporter.guard import App, Guard, Rate
from exporter.http_server import Server, bind, ended_by_signals, server_of
from exporter.log import set_up
from exporter.schema import Config
from exporter.webconfig import BadWebConfigError, Web

log = logging.getLogger("exporter.serve")

FILES_CHECKED_EVERY_SECONDS = 2.0
BIND_AGAIN_SECONDS = 5.0
ONLY_PROBES = "only probes are served"
LARGE_BLOCK_BYTES = 2**19
"""Larger than what a read from a socket sets aside."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""As malloc.h has them."""


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
        self._version: object = None
        self._settled = False
        self._content: object = None
        self._told: str | None = None
        self.changed()

    def changed(self) -> bool:
        """Whether the file's content is another than when it was last asked. Read only where its version is."""
        version = self._version_now()
        if self._settled and version == self._version:
            return False
        # Once more the next time: where a file system's times are coarse, only the content tells of a second edit.
        self._settled, self._version = version == self._version, version
        before, self._content = self._content, self._content_now()
        return self._content != before

    def forget(self) -> None:
        """Take the file for changed, whatever is in it."""
        self._settled, self._content = False, object()

    def _version_now(self) -> object:
        try:
            return file_version(self._path)
        except OSError as error:
            return error.errno

    def _content_now(self) -> bytes | None:
        try:
            return None if self._path is None else read_file(self._path)
        except OSError:
            return None

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


async def serve(config: Config, reloader: Reloader, web: Web, sockets: Mapping[str, socket.socket]) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP has all files read again, changed or not.

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
        log.error("web config refused, %s", ONLY_PROBES, extra={"fields": {"reason": web.refused}})
    _apply(reloader, sidecar, web)
    main, page = config.listen_address, config.served_page_address
    rate = Rate()
    sites = [
        Site(address, Guard(create_app(sidecar, page=address == page), web, rate), web, page=address == page)
        for address in dict.fromkeys((main, page))
    ]
    watching = [
        asyncio.create_task(_watch_files(reloader, web, sidecar, sites)),
        asyncio.create_task(sidecar.keep_up()),
    ]
    try:
        async with asyncio.TaskGroup() as serving:
            for site in sites:
                serving.create_task(site.serve(sockets.get(site.address)))
    finally:
        for task in watching:
            task.cancel()
        await sidecar.targets.stop()


def bound_resources() -> None:
    """As many open files as we may have: one a target, one a reader. No more memory than is used."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Names that do not resolve hold a thread each for seconds; they must not wait for one another.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64, thread_name_prefix="names"))
    # What is kept hardly ever forms cycles, and there is much of it to search; asyncio leaves one of each connection.
    gc.set_threshold(5_000, 20, 50)
    # glibc, once a large block was freed, takes further ones from the heap, which they leave in pieces: a fifth of the
    # memory of a hundred targets. With limits set it gives them back.
    with contextlib.suppress(AttributeError):  # another libc
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * LARGE_BLOCK_BYTES)


async def _watch_files(reloader: Reloader, web: Web, sidecar: Sidecar, sites: Sequence["Site"]) -> None:
    """Apply the settings and the web config when their files change; settings that were refused are tried again, since
    a file that they name may have come.
    """

    def forget() -> None:
        reloader.forget()
        web.forget()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, forget)
    while True:
        await asyncio.sleep(FILES_CHECKED_EVERY_SECONDS)
        try:
            if reloader.changed() or not sidecar.config_valid:
                _apply(reloader, sidecar, web)
            if web.changed():
                await _reload_web(web, sidecar, sites)
        except Exception:  # whatever it is, changes must go on being seen
            log.exception("reading files again failed inside the sidecar")


def _apply(reloader: Reloader, sidecar: Sidecar, web: Web) -> None:
    reloader.apply(sidecar)
    if sidecar.config is not None:  # it may be the first that is valid, and name users that nobody knew of
        web.use(sidecar.config.web_config_file)
        set_up(sidecar.config.log_level, sidecar.config.log_format)


async def _reload_web(web: Web, sidecar: Sidecar, sites: Sequence["Site"]) -> None:
    try:
        await aside(web.load)
    except BadWebConfigError as error:
        sidecar.web_config_valid = False
        consequence = "the last good one stays in force" if web.refused is None else ONLY_PROBES
        log.error("web config refused, %s", consequence, extra={"fields": {"reason": str(error)}})
        return
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
        page: whether the page and the API are there, for the log.
    """

    def __init__(self, address: str, app: App, web: Web, *, page: bool) -> None:
        self.address = address
        self._page = page
        self._app = app
        self._web = web
        self._server: Server | None = None
        self._ended = asyncio.Event()

    def renew(self) -> None:
        """Serve with what the web config file says now; connections that stand are ended, none is refused."""
        if self._server is not None:
            self._server.end()

    def end(self) -> None:
        """Stop serving."""
        self._ended.set()
        self.renew()

    async def serve(self, listening: socket.socket | None) -> None:
        """Serve until told to stop."""
        with ended_by_signals(self.end):
            listening = listening or await self._bound()
            if listening is None:
                return
            address = f"{self.address.rpartition(':')[0]}:{listening.getsockname()[1]}"  # port 0 is any
            fields = {"address": address, "page": self._page, "tls": self._web.context is not None}
            log.info("serving", extra={"fields": fields})
            with listening:
                while not self._ended.is_set():
                    self._server = server_of(self._app, self._web.context)
                    # A server closes the sockets it is given; ours goes on listening while the next one starts.
                    await self._server.serve(sockets=[listening.dup()])

    async def _bound(self) -> socket.socket | None:
        """A listening socket, as soon as one can be had; None if told to stop before."""
        told = None
        while not self._ended.is_set():
            try:
                return bind(self.address)
            except OSError as error:
                if told != error.strerror:
                    told = error.strerror
                    fields = {"address": self.address, "reason": told}
                    log.error("cannot listen, trying again", extra={"fields": fields})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BIND_AGAIN_SECONDS):
                    await self._ended.wait()
        return None
