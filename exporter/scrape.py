"""One HTTP scrape of an engine under one deadline. Whatever goes wrong is a value, never an exception."""

import asyncio
import contextlib
import math
import os
import ssl
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

import httpx

from exporter.aside import aside
from exporter.exposition import LARGE_BYTES, Failure, Reason, Scraped, condense, is_large
from exporter.files import file_version, read_file
from exporter.schema import TargetConfig
from exporter.tls import client_context, problem
from exporter.transport import IDLE_SECONDS, Transport
from exporter.upstream import PREFIXES, filter_names

# Text 0.0.4, or whatever there is. OpenMetrics is not named, though it is read: prometheus_client takes the name for
# the wish, however low its q, and then renames vllm:x to vllm_x.
ACCEPT = "text/plain;version=0.0.4,*/*;q=0.1"
MAX_REDIRECTS = 3
FULL_SCRAPE_EVERY_SECONDS = 600.0
HEALTH_TIMEOUT_SECONDS = 2.0
LONGEST_DETAIL = 200
_OURS = b"\n" + PREFIXES[0].encode()
FILTER_QUERY = "&".join(f"name[]={name}" for name in filter_names())


class Scraper:
    """Scrapes one target. Files with secrets are read again when they change.

    Args:
        config: the target's settings.
        clock: monotonic seconds, for when a full scrape is due.
        large_bodies: shared by all targets: so many may hold a large body at once. None ever waits with a usual one.
    """

    def __init__(
        self,
        config: TargetConfig,
        clock: Callable[[], float] = time.monotonic,
        large_bodies: asyncio.Semaphore | None = None,
    ) -> None:
        self.config = config
        self._large_bodies = large_bodies or asyncio.Semaphore()
        self._clock = clock
        self._transport: Transport | None = None
        self._files: tuple[object, ...] = ()
        self._requests: dict[str, httpx.Request] = {}
        self._filtered_until = 0.0
        self._filter_works = config.scrape.filter

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            await self._transport.aclose()
            self._transport = None

    async def scrape(self) -> Scraped | Failure:
        """The engine's exposition, whole and decompressed, or why there is none."""
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self.config.scrape.timeout_seconds):
                outcome = await self._scrape()
        except TimeoutError:
            outcome = Failure(Reason.TIMEOUT, f"no whole answer within {self.config.scrape.timeout_seconds:g} s")
        if isinstance(outcome, Failure):
            self._filtered_until = 0.0  # one full scrape after each reconnect
            return outcome
        body, openmetrics = outcome
        return Scraped(body, openmetrics, time.perf_counter() - began)

    async def healthy(self) -> bool:
        """Whether the engine's own health check answers 200."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_SECONDS):
                request = self._request(self.config.scrape.health_path)
                async with contextlib.aclosing(await self._send(request)) as response:
                    return response.status_code == httpx.codes.OK
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, OSError, ValueError):
            return False

    async def _scrape(self) -> tuple[bytes, bool] | Failure:
        path = self.config.scrape.path
        now = self._clock()
        if self._filter_works and now < self._filtered_until:
            outcome = await self._get(f"{path.rstrip('/')}/?{FILTER_QUERY}")
            # Behind several API servers the filter answers 200 and nothing; an old one answers 404 or redirects, a
            # proxy with something of its own, and under another prefix none of the names is known.
            if not isinstance(outcome, Failure) and _OURS in outcome[0]:
                return outcome
            self._filter_works = False
        if self._filtered_until <= now:
            self._filtered_until = now + FULL_SCRAPE_EVERY_SECONDS
            self._filter_works = self.config.scrape.filter
        return await self._get(path)

    async def _get(self, path: str) -> tuple[bytes, bool] | Failure:
        try:
            request = self._request(path)
            for _ in range(MAX_REDIRECTS + 1):
                async with contextlib.aclosing(await self._send(request)) as response:
                    if not response.has_redirect_location:
                        return await self._read(response)
                    onward = request.url.join(response.headers["location"])
                if (onward.scheme, onward.netloc) != (request.url.scheme, request.url.netloc):
                    return Failure(Reason.HTTP_STATUS, f"HTTP {response.status_code} to another host")
                request = httpx.Request("GET", onward, headers=request.headers, extensions=request.extensions)
            return Failure(Reason.HTTP_STATUS, f"more than {MAX_REDIRECTS} redirects")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return _failure(error)

    async def _read(self, response: httpx.Response) -> tuple[bytes, bool] | Failure:
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            return Failure(Reason.AUTH, f"HTTP {response.status_code}: the engine wants another credential")
        if response.status_code != httpx.codes.OK:
            return Failure(Reason.HTTP_STATUS, f"HTTP {response.status_code}")
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "", "gzip", "x-gzip"):
            return Failure(Reason.ENCODING, f"Content-Encoding {encoding[:40]!r}, which was not asked for")
        try:
            async with contextlib.AsyncExitStack() as permit:
                body = await self._body(response, permit, gzipped=encoding.endswith("gzip"))
                if not isinstance(body, Failure) and is_large(body):
                    body = await aside(condense, body, self.config.scrape.max_series)
        except httpx.RemoteProtocolError as error:
            return Failure(Reason.PARSE, f"the answer is cut off: {error}"[:LONGEST_DETAIL])
        openmetrics = response.headers.get("content-type", "").startswith("application/openmetrics-text")
        return body if isinstance(body, Failure) else (body, openmetrics)

    async def _body(
        self, response: httpx.Response, permit: contextlib.AsyncExitStack, *, gzipped: bool
    ) -> bytes | Failure:
        """The body, decompressed no further than the limit, whatever it would unpack to. A large one needs a permit."""
        limit = self.config.scrape.max_body_bytes
        unpack = zlib.decompressobj(wbits=31) if gzipped else None
        body = bytearray()
        async for chunk in response.stream:  # type: ignore[union-attr]
            size = len(body)
            try:
                body += unpack.decompress(chunk, limit + 1 - len(body)) if unpack else chunk
            except zlib.error:
                return Failure(Reason.ENCODING, "Content-Encoding says gzip, the body is not")
            if len(body) > limit:
                return Failure(Reason.TOO_LARGE, f"more than {limit} bytes")
            if len(body) > LARGE_BYTES >= size:
                await permit.enter_async_context(self._large_bodies)
            if unpack and unpack.unused_data:
                return Failure(Reason.ENCODING, "the compressed body goes on after its end")
        if unpack and not unpack.eof:
            return Failure(Reason.PARSE, "the compressed body is cut off")
        return bytes(body)

    def _request(self, path: str) -> httpx.Request:
        """Made once a path. http+unix://%2Frun%2Fvllm.sock is asked of the socket as http://localhost."""
        scrape = self.config.scrape
        request = self._requests.get(path)
        if request is None:
            parts = urlsplit(self.config.url)
            base = f"http://localhost{parts.path}" if parts.scheme == "http+unix" else self.config.url
            headers = {"Accept": ACCEPT, "Accept-Encoding": "identity"}
            extensions = {} if scrape.server_name is None else {"sni_hostname": scrape.server_name}
            request = self._requests[path] = httpx.Request("GET", base + path, headers=headers, extensions=extensions)
        if scrape.bearer_token_file is not None:
            request.headers["Authorization"] = f"Bearer {_token(scrape.bearer_token_file)}"
        return request

    async def _send(self, request: httpx.Request) -> httpx.Response:
        # The transport alone: cookies, hooks and redirects of a client are not wanted here, and cost.
        return await (await self._connected()).handle_async_request(request)

    async def _connected(self) -> Transport:
        scrape = self.config.scrape
        paths = (scrape.ca_file, scrape.cert_file, scrape.key_file)
        try:
            files = tuple(file_version(path) for path in paths)
            if self._transport is not None and files == self._files:
                return self._transport
            await self.close()
            parts = urlsplit(self.config.url)
            context = client_context(scrape) if parts.scheme == "https" else None
        except OSError as error:
            raise _UnusableFileError(Reason.TLS, f"certificate files: {problem(error)}") from None
        socket_path = unquote(parts.netloc) if parts.scheme == "http+unix" else None
        self._transport = Transport(context, socket_path, often=scrape.interval_seconds < IDLE_SECONDS)
        self._files = files
        return self._transport


class _UnusableFileError(ValueError):
    """A file that the settings name cannot be used. The detail says nothing of what it holds."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.failure = Failure(reason, detail)


def _token(path: Path) -> str:
    try:
        token = read_file(path).decode().strip()
    except (OSError, UnicodeDecodeError):
        raise _UnusableFileError(Reason.AUTH, "bearer_token_file cannot be read") from None
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise _UnusableFileError(Reason.AUTH, "bearer_token_file does not hold one token")
    return token


def _failure(error: Exception) -> Failure:
    if isinstance(error, _UnusableFileError):
        return error.failure
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            told = getattr(cause, "verify_message", None) or getattr(cause, "reason", None)
            return Failure(Reason.TLS, told or str(cause))
        cause = cause.__cause__ or cause.__context__
    told = None
    if isinstance(error, OSError) and error.errno is not None:
        # asyncio's own text repeats the address, which is named beside it.
        told = os.strerror(error.errno) if error.errno > 0 else error.strerror
    return Failure(Reason.CONNECT, (told or str(error) or type(error).__name__)[:LONGEST_DETAIL])


def next_due(due: float, interval: float, now: float) -> float:
    """When the next scrape is due: a scrape longer than the interval skips ticks and does not shift them."""
    return due + interval * max(1, math.ceil((now - due) / interval))
