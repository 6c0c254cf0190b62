"""One HTTP scrape of an engine under one deadline. Whatever goes wrong is a value, never an exception."""

import asyncio
import contextlib
import ssl
import time
import zlib
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

import httpx

from exporter.exposition import Failure, Reason, Scraped
from exporter.schema import TargetConfig
from exporter.upstream import filter_names

# Text 0.0.4 by name: for OpenMetrics an engine may rename vllm:x to vllm_x. It is read all the same.
ACCEPT = "text/plain;version=0.0.4,text/plain;q=0.5,application/openmetrics-text;q=0.1"
MAX_REDIRECTS = 3
FULL_SCRAPE_EVERY_SECONDS = 600.0
HEALTH_TIMEOUT_SECONDS = 2.0


class Scraper:
    """Scrapes one target. Files with secrets are read again when they change."""

    def __init__(self, config: TargetConfig) -> None:
        self._config = config
        self._client: httpx.AsyncClient | None = None
        self._files: tuple[object, ...] = ()
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
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def scrape(self) -> Scraped | Failure:
        """The engine's exposition, whole and decompressed, or why there is none."""
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self._config.scrape.timeout_seconds):
                outcome = await self._scrape()
        except TimeoutError:
            outcome = Failure(Reason.TIMEOUT, f"no whole answer within {self._config.scrape.timeout_seconds:g} s")
        if isinstance(outcome, Failure):
            self._filtered_until = 0.0  # one full scrape after each reconnect
            return outcome
        body, openmetrics = outcome
        return Scraped(body, openmetrics, time.perf_counter() - began)

    async def healthy(self) -> bool:
        """Whether the engine's own health check answers 200."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_SECONDS):
                url = self._config.url + self._config.scrape.health_path
                client = await self._connected()
                response = await client.get(self._http_url(url), headers=self._headers(), extensions=self._extensions())
                return response.status_code == httpx.codes.OK
        except (TimeoutError, httpx.HTTPError, OSError, ValueError):
            return False

    async def _scrape(self) -> tuple[bytes, bool] | Failure:
        url = self._config.url + self._config.scrape.path
        now = time.monotonic()
        if self._filter_works and now < self._filtered_until:
            query = "&".join(f"name[]={name}" for name in filter_names())
            outcome = await self._get(f"{url.rstrip('/')}/?{query}")
            # Behind several API servers the filter answers 200 and nothing; an old one answers 404 or redirects.
            if not isinstance(outcome, Failure) and outcome[0].strip():
                return outcome
            self._filter_works = False
        if self._filtered_until <= now:
            self._filtered_until = now + FULL_SCRAPE_EVERY_SECONDS
            self._filter_works = self._config.scrape.filter
        return await self._get(url)

    async def _get(self, url: str) -> tuple[bytes, bool] | Failure:
        try:
            client = await self._connected()
            for _ in range(MAX_REDIRECTS + 1):
                request = client.build_request(
                    "GET", self._http_url(url), headers=self._headers(), extensions=self._extensions()
                )
                response = await client.send(request, stream=True)
                async with contextlib.aclosing(response):
                    if not response.has_redirect_location:
                        return await self._read(response)
                    onward = response.url.join(response.headers["location"])
                if (onward.scheme, onward.netloc) != (request.url.scheme, request.url.netloc):
                    return Failure(Reason.HTTP_STATUS, f"HTTP {response.status_code} to another host")
                url = str(onward)
            return Failure(Reason.HTTP_STATUS, f"more than {MAX_REDIRECTS} redirects")
        except httpx.RemoteProtocolError as error:
            return Failure(Reason.PARSE, f"the answer is cut off or not HTTP: {error}")
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
        body = await self._body(response, gzipped=encoding.endswith("gzip"))
        openmetrics = response.headers.get("content-type", "").startswith("application/openmetrics-text")
        return body if isinstance(body, Failure) else (body, openmetrics)

    async def _body(self, response: httpx.Response, *, gzipped: bool) -> bytes | Failure:
        """The body, decompressed no further than the limit, whatever it would unpack to."""
        limit = self._config.scrape.max_body_bytes
        unpack = zlib.decompressobj(wbits=31) if gzipped else None
        body = bytearray()
        async for chunk in response.aiter_raw():
            try:
                body += unpack.decompress(chunk, limit + 1 - len(body)) if unpack else chunk
            except zlib.error:
                return Failure(Reason.ENCODING, "Content-Encoding says gzip, the body is not")
            if len(body) > limit:
                return Failure(Reason.TOO_LARGE, f"more than {limit} bytes")
        if unpack and not unpack.eof:
            return Failure(Reason.PARSE, "the compressed body is cut off")
        return bytes(body)

    def _http_url(self, url: str) -> str:
        """http+unix://%2Frun%2Fvllm.sock/metrics is asked of the socket as http://localhost/metrics."""
        parts = urlsplit(url)
        return (
            f"http://localhost{url[url.index(parts.netloc) + len(parts.netloc) :]}"
            if parts.scheme == "http+unix"
            else url
        )

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": ACCEPT, "Accept-Encoding": "identity"}
        if self._config.scrape.bearer_token_file is not None:
            headers["Authorization"] = f"Bearer {self._config.scrape.bearer_token_file.read_text().strip()}"
        return headers

    def _extensions(self) -> dict[str, str]:
        name = self._config.scrape.server_name
        return {} if name is None else {"sni_hostname": name}

    async def _connected(self) -> httpx.AsyncClient:
        scrape = self._config.scrape
        paths = (scrape.ca_file, scrape.cert_file, scrape.key_file)
        files = tuple(_version(path) for path in paths)
        if self._client is not None and files == self._files:
            return self._client
        await self.close()
        parts = urlsplit(self._config.url)
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                verify=self._ssl_context() if parts.scheme == "https" else False,
                uds=unquote(parts.netloc) if parts.scheme == "http+unix" else None,
                limits=httpx.Limits(max_connections=2, max_keepalive_connections=1, keepalive_expiry=60.0),
                trust_env=False,
            ),
            timeout=None,  # noqa: S113 - one deadline over the whole scrape instead
            follow_redirects=False,
        )
        self._files = files
        return self._client

    def _ssl_context(self) -> ssl.SSLContext:
        scrape = self._config.scrape
        context = ssl.create_default_context(cafile=scrape.ca_file)
        if scrape.cert_file is not None:
            context.load_cert_chain(scrape.cert_file, scrape.key_file)
        if scrape.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _version(path: Path | None) -> object:
    if path is None:
        return None
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _failure(error: Exception) -> Failure:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return Failure(Reason.TLS, cause.reason or str(cause))
        cause = cause.__cause__ or cause.__context__
    return Failure(Reason.CONNECT, str(error) or type(error).__name__)
