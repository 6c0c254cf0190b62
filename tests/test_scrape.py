"""Scraping an engine: one deadline, bounded bodies, errors as values. The servers are real, on loopback."""

import asyncio
import gc
import gzip
import itertools
import logging
import os
import socket
import ssl
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from prometheus_client.exposition import choose_encoder

from exporter.exposition import Failure, Reason, Scraped
from exporter.pipeline import Pipeline
from exporter.schema import Options, TargetConfig
from exporter.scrape import ACCEPT, FULL_SCRAPE_EVERY_SECONDS, Scraper, next_due
from tests.certificates import Authority
from tests.fake_engine import EXPOSITION, Request, response, serving

SECRET = "tok-3n-Pl4nt3d"
OPTIONS = Options({"1m": 60.0}, (0.5,))


def target(url: str, **scrape: Any) -> TargetConfig:
    return TargetConfig.model_validate({"url": url, "scrape": {"timeout_seconds": 5.0, **scrape}})


async def scraped(url: str, **scrape: Any) -> Scraped | Failure:
    async with Scraper(target(url, **scrape)) as scraper:
        return await scraper.scrape()


def body_of(outcome: Scraped | Failure) -> bytes:
    assert isinstance(outcome, Scraped), outcome
    return outcome.body


def reason_of(outcome: Scraped | Failure) -> Reason:
    """The reason that is counted: what fails in transport, or what the parser makes of a body."""
    if isinstance(outcome, Failure):
        return outcome.reason
    pipeline = Pipeline(target("http://localhost:8000"), OPTIONS, at=0.0)
    failure = pipeline.observe(outcome, at=1.0, unix=1.0)
    assert failure is not None, "the body was read"
    return failure.reason


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """What a test leaves to the garbage collector is collected within it, and not blamed on another."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def tls_server(authority: Authority, name: str, *, ask_client: bool = False) -> ssl.SSLContext:
    pair = authority.issue(name)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    if ask_client:
        context.load_verify_locations(authority.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        # With TLS 1.3 the refusal comes after the handshake, and a reset may overtake it.
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


async def test_a_scrape_is_the_body_and_its_duration() -> None:
    """What the engine said, byte for byte; it was asked for text 0.0.4 and for no compression."""
    async with serving(lambda _: response()) as engine:
        outcome = await scraped(engine.url)
    assert body_of(outcome) == EXPOSITION
    assert isinstance(outcome, Scraped)
    assert outcome.seconds > 0
    assert not outcome.openmetrics
    [request] = engine.requests
    assert (request.method, request.path) == ("GET", "/metrics")
    assert request.headers["accept"].startswith("text/plain;version=0.0.4")
    assert request.headers["accept-encoding"] == "identity"


def test_what_is_asked_for_is_not_renamed() -> None:
    """prometheus_client, behind vLLM's /metrics/, reads our header as text 0.0.4: vllm:x stays vllm:x."""
    assert choose_encoder(ACCEPT)[1] == "text/plain; version=0.0.4; charset=utf-8"


async def test_openmetrics_is_recognised_though_not_asked_for() -> None:
    """The Rust frontend answers OpenMetrics whatever is asked."""
    answer = response(EXPOSITION + b"# EOF\n", content_type="application/openmetrics-text; version=1.0.0")
    async with serving(lambda _: answer) as engine:
        outcome = await scraped(engine.url)
    assert isinstance(outcome, Scraped)
    assert outcome.openmetrics


def cut_gzip() -> bytes:
    return gzip.compress(EXPOSITION)[:-12]


async def trickle(parts: Iterator[bytes], seconds: float) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
        await asyncio.sleep(seconds)


async def never(_: Request) -> AsyncIterator[bytes]:
    await asyncio.sleep(60)
    yield b""


HEAD = response(b"", content_length="1000000")
ENDLESS = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n" + b"x 1\n" * 0x4000 + b"\r\n"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(lambda _: response(status="401 Unauthorized"), Reason.AUTH, id="401"),
        pytest.param(lambda _: response(status="403 Forbidden"), Reason.AUTH, id="403"),
        pytest.param(lambda _: response(status="404 Not Found"), Reason.HTTP_STATUS, id="404"),
        pytest.param(lambda _: response(status="500 Error"), Reason.HTTP_STATUS, id="500 with an exposition"),
        pytest.param(lambda _: response(status="204 No Content"), Reason.HTTP_STATUS, id="204"),
        pytest.param(lambda _: response(content_encoding="zstd"), Reason.ENCODING, id="zstd"),
        pytest.param(lambda _: response(content_encoding="gzip"), Reason.ENCODING, id="gzip in name only"),
        pytest.param(lambda _: response(content_encoding="gzip, gzip"), Reason.ENCODING, id="gzip twice"),
        pytest.param(lambda _: response(cut_gzip(), content_encoding="gzip"), Reason.PARSE, id="gzip cut off"),
        pytest.param(
            lambda _: response(gzip.compress(EXPOSITION) + b"x", content_encoding="gzip"),
            Reason.ENCODING,
            id="more after the gzip",
        ),
        pytest.param(lambda _: response(b"", content_encoding="gzip"), Reason.PARSE, id="gzip of no bytes"),
        pytest.param(lambda _: response(b""), Reason.EMPTY, id="empty"),
        pytest.param(lambda _: response(b"\n\n"), Reason.EMPTY, id="blank lines"),
        pytest.param(lambda _: response(b"up 1\n"), Reason.NO_SERIES, id="another exporter"),
        pytest.param(
            lambda _: response(b"<!doctype html>\n<h1>Sign in</h1>\n", content_type="text/html"),
            Reason.PARSE,
            id="a page",
        ),
        pytest.param(lambda _: response(EXPOSITION[:-4]), Reason.PARSE, id="cut inside a line"),
        pytest.param(
            lambda _: trickle(iter([response(content_length="1000")]), 0), Reason.PARSE, id="short of Content-Length"
        ),
        pytest.param(lambda _: trickle(iter([ENDLESS, CHUNK]), 0), Reason.PARSE, id="cut between chunks"),
        pytest.param(lambda _: trickle(iter([]), 0), Reason.CONNECT, id="closed without a word"),
        pytest.param(lambda _: trickle(iter([b"SSH-2.0-OpenSSH_9.2\r\n"]), 0), Reason.CONNECT, id="not HTTP"),
        pytest.param(
            lambda _: trickle(itertools.chain([ENDLESS], itertools.repeat(CHUNK)), 0), Reason.TOO_LARGE, id="endless"
        ),
    ],
)
async def test_each_way_to_fail_has_its_reason(answer: Any, reason: Reason) -> None:
    """A failed scrape is a value with the reason that is exported; nothing of its body is used."""
    async with serving(answer) as engine:
        assert reason_of(await scraped(engine.url, max_body_bytes=2**20)) is reason


async def test_nothing_listens(unused_tcp_port: int) -> None:
    """An engine that is not there yet refuses the connection."""
    outcome = await scraped(f"http://127.0.0.1:{unused_tcp_port}")
    assert outcome == Failure(Reason.CONNECT, "Connection refused")


async def test_a_name_that_does_not_resolve_is_a_failed_connection() -> None:
    """RFC 6761: .invalid never resolves."""
    outcome = await scraped("http://engine.invalid:8000")
    assert reason_of(outcome) is Reason.CONNECT
    assert isinstance(outcome, Failure)
    assert "Errno" not in outcome.detail


async def test_reset_mid_body_is_a_failed_connection() -> None:
    """The peer is gone: RST after some of the body."""

    async def reset(request: Request) -> AsyncIterator[bytes]:
        yield HEAD + EXPOSITION
        raise ConnectionResetError

    async with serving(reset) as engine:
        outcome = await scraped(engine.url)
    assert reason_of(outcome) in (Reason.CONNECT, Reason.PARSE)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(never, id="half open"),
        pytest.param(lambda _: trickle(itertools.chain([HEAD], itertools.repeat(b"#\n")), 0.01), id="dripping body"),
        pytest.param(
            lambda _: trickle(itertools.chain([b"HTTP/1.1 200 OK\r\n"], itertools.repeat(b"X-A: b\r\n")), 0.01),
            id="dripping headers",
        ),
        pytest.param(
            lambda _: trickle(itertools.repeat(b"HTTP/1.1 102 Processing\r\n\r\n"), 0.01), id="informational for ever"
        ),
    ],
)
async def test_one_deadline_over_the_whole_scrape(answer: Any) -> None:
    """Each read succeeds in time and the whole does not: the deadline counts, and is named."""
    async with serving(answer) as engine:
        outcome = await scraped(engine.url, timeout_seconds=0.2)
    assert outcome == Failure(Reason.TIMEOUT, "no whole answer within 0.2 s")


async def test_timeouts_do_not_use_connections_up() -> None:
    """After five hanging answers the sixth scrape has a connection to use."""
    hangs = iter([True] * 5)
    async with (
        serving(lambda request: never(request) if next(hangs, False) else response()) as engine,
        Scraper(target(engine.url, timeout_seconds=0.1)) as scraper,
    ):
        for _ in range(5):
            assert reason_of(await scraper.scrape()) is Reason.TIMEOUT
        scraper.config = target(engine.url)
        assert body_of(await scraper.scrape()) == EXPOSITION


async def test_a_hanging_handshake_leaves_no_connection_open(authority: Authority) -> None:
    """A TLS port that accepts and says nothing: each scrape ends at the deadline, and its file descriptor with it."""

    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async with serving(never) as engine:
        before = open_files()
        async with Scraper(target(engine.url.replace("http", "https"), timeout_seconds=0.1)) as scraper:
            for _ in range(5):
                assert reason_of(await scraper.scrape()) is Reason.TIMEOUT
        client_side_open = open_files() - before - engine.connections
    assert engine.connections == 5
    assert client_side_open <= 0


async def test_a_connection_is_kept() -> None:
    """Ten scrapes, one connection."""
    async with serving(lambda _: response()) as engine, Scraper(target(engine.url)) as scraper:
        for _ in range(10):
            body_of(await scraper.scrape())
    assert (engine.connections, len(engine.requests)) == (1, 10)


async def test_a_connection_that_nobody_would_use_again_is_not_kept() -> None:
    """Asked every 4 s or less often the engine, which ends one that was idle for 5 s, would be asked too late."""
    async with serving(lambda _: response()) as engine, Scraper(target(engine.url, interval_seconds=5.0)) as scraper:
        assert body_of(await scraper.scrape()) == body_of(await scraper.scrape()) == EXPOSITION
    assert engine.connections == 2


async def test_gzip_is_read_though_not_asked_for() -> None:
    """An engine behind a proxy that compresses always."""
    async with serving(lambda _: response(gzip.compress(EXPOSITION), content_encoding="GZIP")) as engine:
        assert body_of(await scraped(engine.url)) == EXPOSITION


async def test_the_refused_encoding_is_named() -> None:
    """Not a puzzling parse error: the encoding's name."""
    async with serving(lambda _: response(content_encoding="zstd")) as engine:
        outcome = await scraped(engine.url)
    assert outcome == Failure(Reason.ENCODING, "Content-Encoding 'zstd', which was not asked for")


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_a_body_beyond_the_limit_is_not_held(encoding: str) -> None:
    """64 MiB against a limit of 1 MiB: memory stays within a few times the limit, compressed or not."""
    squeeze = zlib.compressobj(wbits=31)
    packed = b"".join(squeeze.compress(bytes(2**20)) for _ in range(64)) + squeeze.flush()
    parts = iter([packed]) if encoding == "gzip" else itertools.repeat(bytes(2**16), 1024)
    head = response(
        b"", content_length=str(len(packed) if encoding == "gzip" else 64 * 2**20), content_encoding=encoding
    )
    async with serving(lambda _: trickle(itertools.chain([head], parts), 0)) as engine:
        tracemalloc.start()
        try:
            outcome = await scraped(engine.url, max_body_bytes=2**20)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert outcome == Failure(Reason.TOO_LARGE, "more than 1048576 bytes")
    assert peak < 6 * 2**20


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    """The limit itself is allowed, one byte more is not."""
    async with serving(lambda _: response()) as engine:
        assert body_of(await scraped(engine.url, max_body_bytes=len(EXPOSITION))) == EXPOSITION
        assert reason_of(await scraped(engine.url, max_body_bytes=len(EXPOSITION) - 1)) is Reason.TOO_LARGE


async def test_the_body_of_a_failure_is_not_parsed() -> None:
    """vLLM's 500 comes with text; the status is the failure."""
    async with serving(lambda _: response(b"No space left on device", "500 Internal Server Error")) as engine:
        assert await scraped(engine.url) == Failure(Reason.HTTP_STATUS, "HTTP 500")


async def test_redirect_to_the_same_host_is_followed() -> None:
    """Older engines answer /metrics with 307 to /metrics/."""

    def answer(request: Request) -> bytes:
        return response() if request.path == "/metrics/" else response(b"", "307 Redirect", location="/metrics/")

    async with serving(answer) as engine:
        assert body_of(await scraped(engine.url)) == EXPOSITION
    assert [request.path for request in engine.requests] == ["/metrics", "/metrics/"]


async def test_redirect_to_another_host_is_refused_and_gets_no_token(tmp_path: Path) -> None:
    """Whoever controls the engine's answers must not be able to send our token elsewhere."""
    token = tmp_path / "token"
    token.write_text(SECRET)
    async with (
        serving(lambda _: response()) as other,
        serving(lambda _: response(b"", "307 Redirect", location=f"{other.url}/metrics")) as engine,
    ):
        outcome = await scraped(engine.url, bearer_token_file=token)
    assert outcome == Failure(Reason.HTTP_STATUS, "HTTP 307 to another host")
    assert other.requests == []


@pytest.mark.parametrize("location", ["/metrics", "http://[::1", "//", "\x7f", "http://a b/", "/" + "x" * 60_000])
async def test_no_redirect_leads_astray(location: str) -> None:
    """A loop ends; a location that is no URL is a failure as any other."""
    async with serving(lambda _: response(b"", "302 Found", location=location)) as engine:
        outcome = await scraped(engine.url)
    assert isinstance(outcome, Failure)
    assert outcome.reason in (Reason.HTTP_STATUS, Reason.CONNECT)
    assert len(engine.requests) <= 4


def wants_token(request: Request) -> bytes:
    good = request.headers["authorization"] == f"Bearer {SECRET}"
    return response() if good else response(b"{}", "401 Unauthorized")


async def test_token_is_sent_and_read_again_when_it_rotates(tmp_path: Path) -> None:
    """A wrong token, then the right one in the same file, without a restart."""
    token = tmp_path / "token"
    token.write_text("yesterday's")
    async with serving(wants_token) as engine:
        assert reason_of(await scraped(engine.url)) is Reason.AUTH
        async with Scraper(target(engine.url, bearer_token_file=token)) as scraper:
            assert await scraper.scrape() == Failure(Reason.AUTH, "HTTP 401: the engine wants another credential")
            token.write_text(f"{SECRET}\n")
            assert body_of(await scraper.scrape()) == EXPOSITION


@pytest.mark.parametrize(
    "content", [f"{SECRET}\nsecond line", f"{SECRET} x", f"{SECRET}\x00", f"{SECRET}é", ""], ids=repr
)
async def test_a_token_file_without_one_token_is_named_and_not_quoted(tmp_path: Path, content: str) -> None:
    """HTTP libraries quote a header that they refuse: the secret would be in the log."""
    token = tmp_path / "token"
    token.write_text(content)
    async with serving(wants_token) as engine:
        outcome = await scraped(engine.url, bearer_token_file=token)
    assert outcome == Failure(Reason.AUTH, "bearer_token_file does not hold one token")
    assert engine.requests == []


@pytest.mark.parametrize("instead", [Path.touch, os.mkfifo, None], ids=["nothing in it", "a pipe", "gone"])
async def test_a_token_file_that_is_none_any_more_is_a_failure_of_authentication(
    tmp_path: Path, instead: Callable[[Path], None] | None
) -> None:
    """It held a token when the settings were checked. Nobody waits for a pipe: every target would."""
    token = tmp_path / "token"
    token.write_text(SECRET)
    config = target("http://127.0.0.1:9", bearer_token_file=token)
    token.unlink()
    if instead is not None:
        instead(token)
    async with Scraper(config) as scraper:
        outcome = await scraper.scrape()
    assert isinstance(outcome, Failure)
    assert outcome.reason is Reason.AUTH


async def test_the_token_is_in_no_failure_and_no_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every failing answer, with libraries logging at their lowest level: the secret is nowhere."""
    caplog.set_level(logging.DEBUG)
    token = tmp_path / "token"
    token.write_text(SECRET)
    answers: list[Any] = [
        lambda _: response(status="401 Unauthorized"),
        lambda _: trickle(iter([b"SSH-2.0-OpenSSH_9.2\r\n"]), 0),
        lambda _: response(b"", "302 Found", location="/metrics"),
        lambda request: response(status=f"500 {request.headers['authorization'][:0]}"),
        lambda _: trickle(iter([]), 0),
    ]
    for answer in answers:
        async with serving(answer) as engine:
            outcome = await scraped(engine.url, bearer_token_file=token)
            assert isinstance(outcome, Failure)
            assert SECRET not in repr(outcome)
            assert engine.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    assert SECRET not in caplog.text


async def test_nothing_an_engine_sets_is_sent_back() -> None:
    """Cookies would pile up without end, and go into every request."""
    count = itertools.count()
    async with (
        serving(lambda _: response(set_cookie=f"c{next(count)}={'x' * 1000}; Path=/")) as engine,
        Scraper(target(engine.url)) as scraper,
    ):
        for _ in range(3):
            body_of(await scraper.scrape())
    assert [request.headers.get("cookie") for request in engine.requests] == [None, None, None]


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
async def test_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A proxy in the environment must not see what goes to localhost."""
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with serving(lambda _: response()) as engine:
        assert body_of(await scraped(engine.url)) == EXPOSITION


async def test_netrc_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials of other programs are not sent to an engine."""
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login somebody password {SECRET}\n")
    monkeypatch.setenv("NETRC", str(netrc))
    async with serving(lambda _: response()) as engine:
        body_of(await scraped(engine.url))
    assert engine.requests[0].headers["authorization"] == ""


async def test_ipv6_literal() -> None:
    """Brackets in the URL, and in the label it gives."""
    async with serving(lambda _: response(), host="::1") as engine:
        assert engine.url.startswith("http://[::1]:")
        assert body_of(await scraped(engine.url)) == EXPOSITION
        assert target(engine.url).label == engine.url.removeprefix("http://")
    assert engine.requests[0].headers["host"] == engine.url.removeprefix("http://")


@pytest.mark.parametrize("percent", ["%25", "%"])
async def test_ipv6_zone(percent: str) -> None:
    """As RFC 6874 writes a link-local address in a URL, and as most people do."""
    async with serving(lambda _: response(), host="::1") as engine:
        url = engine.url.replace("::1", f"::1{percent}{socket.if_nametoindex('lo')}")
        assert body_of(await scraped(url)) == EXPOSITION


async def test_unix_socket(tmp_path: Path) -> None:
    """http+unix with the socket's path percent-encoded as the host."""
    path = tmp_path / "vllm.sock"
    async with serving(lambda _: response(), socket_path=path) as engine:
        assert body_of(await scraped(f"http+unix://{quote(str(path), safe='')}", path="/api/metrics")) == EXPOSITION
    assert engine.requests[0].path == "/api/metrics"
    assert engine.requests[0].headers["host"] == "localhost"


async def test_root_path_is_part_of_the_url_or_of_the_path() -> None:
    """An engine behind --root-path /api."""
    async with serving(lambda _: response()) as engine:
        body_of(await scraped(f"{engine.url}/api/"))
        body_of(await scraped(engine.url, path="/api/metrics"))
    assert [request.path for request in engine.requests] == ["/api/metrics", "/api/metrics"]


async def test_private_authority(authority: Authority) -> None:
    """Refused by the system's authorities, accepted with ca_file, accepted without looking only when asked."""
    async with serving(lambda _: response(), tls=tls_server(authority, "127.0.0.1")) as engine:
        assert reason_of(await scraped(engine.url)) is Reason.TLS
        assert body_of(await scraped(engine.url, ca_file=authority.ca)) == EXPOSITION
        assert body_of(await scraped(engine.url, insecure_skip_verify=True)) == EXPOSITION


async def test_the_certificate_s_name_is_compared(authority: Authority) -> None:
    """A certificate for another name is refused, and accepted where server_name expects that name."""
    async with serving(lambda _: response(), tls=tls_server(authority, "engine.internal")) as engine:
        outcome = await scraped(engine.url, ca_file=authority.ca)
        assert reason_of(outcome) is Reason.TLS
        assert isinstance(outcome, Failure)
        assert "127.0.0.1" in outcome.detail
        for name in ("engine.internal", "engine.internal."):  # as whoever resolves without search domains writes it
            assert body_of(await scraped(engine.url, ca_file=authority.ca, server_name=name)) == EXPOSITION


async def test_client_certificate(authority: Authority) -> None:
    """A server that wants one refuses us without it and answers with it."""
    client = authority.issue("sidecar")
    async with serving(lambda _: response(), tls=tls_server(authority, "127.0.0.1", ask_client=True)) as engine:
        assert reason_of(await scraped(engine.url, ca_file=authority.ca)) is Reason.TLS
        files = {"ca_file": authority.ca, "cert_file": client.certificate, "key_file": client.key}
        assert body_of(await scraped(engine.url, **files)) == EXPOSITION


async def test_what_breaks_tls_after_the_handshake_is_a_failure_of_tls(authority: Authority) -> None:
    """Where TLS 1.3 refuses a client, too. Here what comes next is no record of TLS."""
    pair = authority.issue("127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with context.wrap_socket(listening.accept()[0], server_side=True) as secured:
                secured.recv(1024)
                with socket.socket(fileno=os.dup(secured.fileno())) as bare:
                    bare.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

        answering = asyncio.create_task(asyncio.to_thread(answer))
        outcome = await scraped(f"https://127.0.0.1:{listening.getsockname()[1]}", ca_file=authority.ca)
        await answering
    assert reason_of(outcome) is Reason.TLS


async def test_an_encrypted_key_is_refused_and_not_asked_for(authority: Authority) -> None:
    """OpenSSL would ask for the password on the terminal, and everything would stand still."""
    client = authority.issue("locked", password=b"of the night")
    files = {"ca_file": authority.ca, "cert_file": client.certificate, "key_file": client.key}
    assert reason_of(await scraped("https://127.0.0.1:9", **files)) is Reason.TLS


async def test_a_rotated_authority_is_read_again(authority: Authority, tmp_path: Path) -> None:
    """First another authority's file, then the right one under the same name; then it is gone."""
    ca = tmp_path / "ca.pem"
    (tmp_path / "other").mkdir()
    ca.write_bytes(Authority(tmp_path / "other").ca.read_bytes())
    async with (
        serving(lambda _: response(), tls=tls_server(authority, "127.0.0.1")) as engine,
        Scraper(target(engine.url, ca_file=ca)) as scraper,
    ):
        assert reason_of(await scraper.scrape()) is Reason.TLS
        ca.write_bytes(authority.ca.read_bytes() + b"\n")
        assert body_of(await scraper.scrape()) == EXPOSITION
        ca.unlink()
        assert await scraper.scrape() == Failure(Reason.TLS, "certificate files: No such file or directory")
        ca.write_text("not a certificate")
        assert reason_of(await scraper.scrape()) is Reason.TLS


async def test_plain_http_asked_of_a_tls_port_and_the_other_way_round(authority: Authority) -> None:
    """A wrong scheme is a failure with a reason, within the deadline."""
    async with serving(lambda _: response(), tls=tls_server(authority, "127.0.0.1")) as engine:
        assert reason_of(await scraped(engine.url.replace("https", "http"))) is Reason.CONNECT

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert reason_of(await scraped(f"https://127.0.0.1:{port}")) is Reason.TLS


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def filtered(answer: Any, ticks: int, seconds: float = 2.0) -> list[str]:
    """Which paths are asked in so many scrapes with the filter on, without queries."""
    clock = Clock()
    async with serving(answer) as engine, Scraper(target(engine.url, filter=True), clock) as scraper:
        for _ in range(ticks):
            await scraper.scrape()
            clock.now += seconds
    return [request.path.partition("?")[0] for request in engine.requests]


async def test_filter_asks_for_exact_names_after_a_full_scrape() -> None:
    """First everything, then /metrics/ with name[]: the trailing slash is what makes vLLM filter."""
    async with serving(lambda _: response()) as engine, Scraper(target(engine.url, filter=True)) as scraper:
        for _ in range(2):
            body_of(await scraper.scrape())
    assert engine.requests[0].path == "/metrics"
    path, _, query = engine.requests[1].path.partition("?")
    names = {pair.removeprefix("name[]=") for pair in query.split("&")}
    assert path == "/metrics/"
    assert {"vllm:num_requests_running", "vllm:iteration_tokens_total_count", "process_start_time_seconds"} <= names
    assert "http_requests_total" in names


async def test_filter_is_full_again_every_ten_minutes() -> None:
    """Only a full scrape can show what a missing name became. 10 minutes at 2 s are 300 scrapes."""
    paths = await filtered(lambda _: response(), ticks=302)
    assert FULL_SCRAPE_EVERY_SECONDS == 600.0
    assert [position for position, path in enumerate(paths) if path == "/metrics"] == [0, 300]


def nothing_filtered(body: bytes) -> Any:
    return lambda request: response(body) if "?" in request.path else response()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(nothing_filtered(b""), id="several API servers: 200 and nothing"),
        pytest.param(nothing_filtered(b"# EOF\n"), id="nothing, in OpenMetrics"),
        pytest.param(nothing_filtered(b"process_start_time_seconds 1.7e9\n"), id="another prefix: none of its names"),
        pytest.param(nothing_filtered(b"<h1>router</h1>\n"), id="a proxy's own page"),
        pytest.param(
            nothing_filtered(b"# HELP vllm_x of vllm:x\nvllm_x 1\n# EOF\n"), id="renamed: our names in comments only"
        ),
        pytest.param(
            lambda request: response(b"", "404 Not Found") if "?" in request.path else response(),
            id="404 with the slash",
        ),
        pytest.param(
            lambda request: (
                response(b"", "307 Redirect", location="http://login.invalid/") if "?" in request.path else response()
            ),
            id="redirected",
        ),
    ],
)
async def test_filter_falls_back_within_the_same_scrape(answer: Any) -> None:
    """The scrape in which the filter fails is good all the same, and the filter is left alone for ten minutes."""
    clock = Clock()
    async with serving(answer) as engine, Scraper(target(engine.url, filter=True), clock) as scraper:
        for _ in range(302):
            assert body_of(await scraper.scrape()) == EXPOSITION
            clock.now += 2.0
    asked = [position for position, request in enumerate(engine.requests) if "?" in request.path]
    assert asked[0] == 1
    assert len(asked) == 2


async def test_filter_is_full_again_after_a_failure() -> None:
    """An engine that was away may be another one: everything first."""
    statuses = iter(["200 OK", "200 OK", "503 Away", "503 Away", "200 OK", "200 OK"])
    paths = await filtered(lambda _: response(status=next(statuses)), ticks=5)
    # full, filtered, filtered and full both refused, full, filtered
    assert paths == ["/metrics", "/metrics/", "/metrics/", "/metrics", "/metrics", "/metrics/"]


@pytest.mark.parametrize(
    ("status", "healthy"), [("200 OK", True), ("503 Service Unavailable", False), ("307 Redirect", False)]
)
async def test_health_is_the_engine_s_own_answer(status: str, healthy: bool) -> None:
    """A dead engine answers 503 there while /metrics goes on."""
    async with (
        serving(lambda _: response(b"", status)) as engine,
        Scraper(target(engine.url, health_path="/ping")) as scraper,
    ):
        assert await scraper.healthy() is healthy
    assert engine.requests[0].path == "/ping"


async def test_health_reads_no_body() -> None:
    """An endless or exploding answer to the health check costs nothing: the status is all."""
    bomb = gzip.compress(bytes(2**26))
    endless = itertools.chain([response(bomb, content_encoding="gzip", content_length="1000000000")])
    async with serving(lambda _: trickle(endless, 0)) as engine:
        tracemalloc.start()
        try:
            async with Scraper(target(engine.url)) as scraper:
                assert await scraper.healthy()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 4 * 2**20


async def test_health_of_nobody_is_false(unused_tcp_port: int) -> None:
    """No answer is not health."""
    async with Scraper(target(f"http://127.0.0.1:{unused_tcp_port}")) as scraper:
        assert await scraper.healthy() is False


@pytest.mark.parametrize(
    ("now", "due"),
    [
        pytest.param(100.01, 102.0, id="on time: the next tick"),
        pytest.param(101.99, 102.0, id="a scrape of almost an interval: the next tick all the same"),
        pytest.param(102.5, 104.0, id="longer than an interval: one tick is skipped, the rest is not shifted"),
        pytest.param(109.0, 110.0, id="much longer: four are skipped"),
    ],
)
def test_skipped_ticks_do_not_shift(now: float, due: float) -> None:
    """Ticks are due at 100, 102, 104 … whatever a scrape took."""
    assert next_due(100.0, 2.0, now) == due
