"""HTTP on our own port: listening, a server, and the signals that end it."""

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Callable, Iterator

import uvicorn

from exporter.connection import Connection, Listening
from exporter.guard import App
from exporter.schema_types import split_address

SHUTDOWN_SECONDS = 1

_ends: set[Callable[[], None]] = set()


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


@contextlib.contextmanager
def ended_by_signals(end: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call ``end`` while the block runs, and everything else that is in such a block."""
    loop = asyncio.get_running_loop()
    _ends.add(end)
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, _end_all)
    try:
        yield
    finally:
        _ends.discard(end)


def _end_all() -> None:
    for end in list(_ends):
        end()


class Server(uvicorn.Server):
    """uvicorn, but a signal that ends it ends it at once, with exit code 0, and is not raised again."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told_to_end = asyncio.Event()

    def end(self) -> None:
        """Stop serving, letting what is being answered end for a moment."""
        self.should_exit = True
        self._told_to_end.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with ended_by_signals(self.end):
            yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([Listening(fileno=each.dup().detach()) for each in sockets or ()])

    async def main_loop(self) -> None:
        # uvicorn asks itself ten times a second whether to stop, which costs as much as the scraping.
        await self._told_to_end.wait()


def server_of(app: App, context: ssl.SSLContext | None = None) -> Server:
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
    return Server(config)
