"""HTTP/1.1 to one engine over at most one kept connection.

An httpx transport like httpx's own, which is a pool above a layer over several event loops: asked once a second, these
cost more than reading the answer and deriving from it together. The grammar of HTTP is llhttp's, by httptools.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

import httptools
import httpx

from exporter.dial import dial

IDLE_SECONDS = 4.0
"""vLLM closes a connection that was idle for 5 s; one asked again at that moment would fail."""
CLOSED = "the connection was closed"
READ_AHEAD_BYTES = 2**18
MAX_HEAD_BYTES = 2**16
"""Of what is no body: headers, what stands between chunks, trailers."""


class Transport(httpx.AsyncBaseTransport):
    """Asks one server, one request at a time. Has no timeouts: cancelling a request closes its connection.

    Args:
        context: for https.
        socket_path: a Unix socket to ask instead of the host in the URL.
        often: the next request will come before a kept connection would be closed.
    """

    def __init__(
        self, context: ssl.SSLContext | None = None, socket_path: str | None = None, *, often: bool = True
    ) -> None:
        self._context = context
        self._socket_path = socket_path
        self._often = often
        self._kept: _Connection | None = None
        self._expiry: asyncio.TimerHandle | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The response to a request without a body; closing it before its body was read closes the connection.

        Raises:
            OSError: no connection, or it broke.
            httpx.RemoteProtocolError: what came is not HTTP, or ends too early.
        """
        kept = self._take()
        if kept is not None:
            with contextlib.suppress(_UnheardError):  # closed by the server while we asked
                return await self._ask(kept, request)
        return await self._ask(await self._connect(request), request)

    async def aclose(self) -> None:
        """Close the kept connection."""
        kept = self._take()
        if kept is not None:
            kept.close()

    async def _ask(self, connection: "_Connection", request: httpx.Request) -> httpx.Response:
        await connection.ask(_head(request))
        return httpx.Response(connection.status, headers=connection.headers, stream=_Body(self, connection))

    async def _connect(self, request: httpx.Request) -> "_Connection":
        loop = asyncio.get_running_loop()
        if self._socket_path is not None:
            _, connection = await loop.create_unix_connection(_Connection, self._socket_path)
            return connection
        url = request.url
        host, secure = url.raw_host.decode().replace("%25", "%"), url.scheme == "https"  # fe80::1%25eth0, a zone
        dialled = await dial(host, url.port or (443 if secure else 80))
        if not secure:
            _, connection = await loop.create_connection(_Connection, sock=dialled)
            return connection
        # A dot at the end says that a name is whole, and is no part of it in certificates (RFC 6066, section 3).
        name = request.extensions.get("sni_hostname", host).removesuffix(".")
        try:
            _, connection = await loop.create_connection(
                _Connection, sock=dialled, ssl=self._context, server_hostname=name
            )
        except ConnectionResetError:
            # As a server does that wants another certificate: not to be taken for one that does not listen.
            raise ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "the connection was closed during the TLS handshake") from None
        return connection

    def keep(self, connection: "_Connection") -> None:
        """Keep a connection whose answer was read for the next request, if there is one soon."""
        if self._kept is not None or not self._often or not connection.reusable:
            connection.close()
            return
        self._kept = connection
        self._expiry = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._expire)

    def _take(self) -> "_Connection | None":
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        kept, self._kept = self._kept, None
        return kept if kept is not None and kept.open else None

    def _expire(self) -> None:
        kept = self._take()
        if kept is not None:
            kept.close()


def _head(request: httpx.Request) -> bytes:
    lines = [f"{request.method} {request.url.raw_path.decode()} HTTP/1.1".encode()]
    lines += [name + b": " + value for name, value in request.headers.raw]
    return b"\r\n".join(lines) + b"\r\n\r\n"


class _UnheardError(ConnectionError):
    """The connection ended before any of an answer came."""


class _Body(httpx.AsyncByteStream):
    def __init__(self, transport: Transport, connection: "_Connection") -> None:
        self._transport = transport
        self._connection = connection

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._connection.body()

    async def aclose(self) -> None:
        self._transport.keep(self._connection)


class _Connection(asyncio.Protocol):
    """A connection: what asyncio calls as bytes come, and what the parser calls as it reads them (``on_…``)."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._unread = bytearray()
        self._head_bytes = 0
        self._whole = True  # nothing is owed before something is asked
        self._heard = self._lasting = self._paused = False
        self._failure: Exception | None = None

    @property
    def open(self) -> bool:
        """Whether something may be asked."""
        return self._failure is None and not self._transport.is_closing()

    @property
    def reusable(self) -> bool:
        """Whether something more may be asked: all has been read, and the server is for it."""
        return self.open and self._whole and self._lasting and not self._unread

    async def ask(self, head: bytes) -> None:
        """Send a request; returns as soon as status and headers of its answer are there.

        Raises:
            OSError: the connection broke.
            httpx.RemoteProtocolError: what came is not HTTP.
        """
        self.status, self.headers, self._head_bytes = 0, [], 0
        self._heard = self._whole = False
        self._transport.write(head)
        try:
            while not self.status:
                await self._more()
        except BaseException:
            self.close()
            raise

    async def body(self) -> AsyncIterator[bytes]:
        """What comes after, in parts; raises as ``ask`` does."""
        while True:
            if self._unread:
                part = bytes(self._unread)
                self._unread.clear()
                yield part
            elif self._whole:
                return
            else:
                await self._more()

    def close(self) -> None:
        """Close at once, whatever is still to be read."""
        self._transport.abort()

    async def _more(self) -> None:
        if self._failure is not None:
            # Given away: kept here once it was raised, it would hold itself and us, by way of its traceback.
            failure, self._failure = self._failure, ConnectionError(CLOSED)
            try:
                raise failure
            finally:
                del failure
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, failure: Exception) -> None:
        self._failure = self._failure or failure
        self.close()
        self._wake()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._whole:
            self.close()  # what nobody asked for would be taken for the next answer
            return
        self._heard = True
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._lasting = False
            if not self._whole:
                self._fail(httpx.RemoteProtocolError(str(error)))
        if self._head_bytes > MAX_HEAD_BYTES and not self._whole:
            self._fail(httpx.RemoteProtocolError(f"more than {MAX_HEAD_BYTES} bytes of headers"))
        if len(self._unread) > READ_AHEAD_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        if self.status and not self._whole:
            # Which ends a body of no given length, and cuts any other off.
            self._whole = not any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self.headers)
            if not self._whole:
                self._fail(httpx.RemoteProtocolError("the connection was closed before the end"))
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._heard:
            unheard = _UnheardError("the connection was closed before an answer")
            unheard.__cause__ = exc  # as TLS 1.3 refuses a client's certificate
            exc = unheard
        self._failure = self._failure or exc or ConnectionError(CLOSED)
        del self._parser  # which holds us
        self._wake()

    def on_message_begin(self) -> None:
        if self._whole:
            raise ValueError("more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < httpx.codes.OK and status != httpx.codes.SWITCHING_PROTOCOLS:
            self.headers = []  # 100 Continue, 103 Early Hints: the answer is yet to come
        else:
            self.status = status
            self._lasting = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._unread += body

    def on_message_complete(self) -> None:
        self._whole = self.status != 0
