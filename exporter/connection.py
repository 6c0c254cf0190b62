"""Connections to our port: bounded in number and in time, so that neither many clients nor slow ones hold us up."""

import asyncio
import socket
from email.utils import formatdate
from typing import Any
from weakref import WeakKeyDictionary

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

REQUEST_SECONDS = 10.0
ANSWER_SECONDS = 60.0
MAX_CONNECTIONS = 512
MAX_CONNECTIONS_OF_ONE = 128


class Listening(socket.socket):
    """A listening socket that takes in so many connections and drops the rest.

    Counted here, before TLS: a handshake that is never finished is a connection too, and costs more than one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._hosts: WeakKeyDictionary[socket.socket, str] = WeakKeyDictionary()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection and where it is from.

        Raises:
            ConnectionAbortedError: it was dropped.
        """
        taken, address = super().accept()
        hosts = [host for each, host in self._hosts.items() if each.fileno() != -1]
        if len(hosts) >= MAX_CONNECTIONS or hosts.count(address[0]) >= MAX_CONNECTIONS_OF_ONE:
            taken.close()
            raise ConnectionAbortedError
        self._hosts[taken] = address[0]
        return taken, address


class Connection(H11Protocol):
    """uvicorn's, with a deadline for a whole request to come and another for its answer to be taken."""

    _deadline: asyncio.TimerHandle | None = None
    _answering = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection in."""
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request."""
        super().data_received(data)
        if self._deadline is None or self._answering != self._answers():
            self._arm()

    def handle_events(self) -> None:
        """Begin what has been asked for. Answers say when they were made; uvicorn has a timer for that, which would
        wake us for nothing.
        """
        self.server_state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        super().handle_events()

    def on_response_complete(self) -> None:
        """The answer is written; uvicorn's own timeout closes a connection that now stays idle."""
        super().on_response_complete()
        self._disarm()
        if self._answers():  # the next request was there already
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._disarm()
        super().connection_lost(exc)

    def _answers(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _arm(self) -> None:
        self._disarm()
        self._answering = self._answers()
        seconds = ANSWER_SECONDS if self._answering else REQUEST_SECONDS
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
