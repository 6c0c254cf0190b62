"""Our port against everybody: what is refused, what is never refused, and who holds up nobody."""

import asyncio
import logging
import re
import socket
from pathlib import Path

import bcrypt
import httpx
import pytest

from exporter import connection, guard
from exporter.app import Sidecar, create_app
from exporter.guard import BURST, MAX_AT_ONCE, Guard, Message, Rate, Receive, Scope, Send
from exporter.schema import Config
from exporter.webconfig import Web
from tests.sites import site

PASSWORD = "tr0ub4dor"


def url(port: int, path: str) -> str:
    return f"http://127.0.0.1:{port}{path}"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_rate_is_a_burst_and_then_so_many_a_second() -> None:
    """100 at once, then 50 a second: after a tenth of a second five more. Clients do not spend each other's."""
    clock = Clock()
    rate = Rate(clock)
    assert [rate.spend("10.0.0.1", 1.0) for _ in range(101)] == [True] * 100 + [False]
    assert rate.spend("10.0.0.2", 1.0)
    clock.now += 0.1
    assert [rate.spend("10.0.0.1", 1.0) for _ in range(6)] == [True] * 5 + [False]
    clock.now += 3600
    assert rate.left("10.0.0.1") == BURST


def test_rate_remembers_a_bounded_number_of_clients() -> None:
    rate = Rate(Clock())
    for number in range(guard.MAX_CLIENTS + 50):
        rate.spend(f"client {number}", 100.0)
    assert len(rate._clients) == guard.MAX_CLIENTS
    assert rate.left("client 0") == BURST
    assert rate.left("client 1049") == 0.0


async def test_too_many_requests_are_refused_but_probes_are_not() -> None:
    """The clock stands still, so after the burst of 100 nothing but probes is served."""
    async with site() as (_, _, port), httpx.AsyncClient() as reader:
        statuses = [(await reader.get(url(port, "/openapi.json"))).status_code for _ in range(101)]
        assert statuses == [200] * 100 + [429]
        refused = await reader.get(url(port, "/metrics"))
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert (await reader.get(url(port, "/-/healthy"))).status_code == 200


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ({"method": "GET", "url": "/metrics?" + "x" * 5000}, 414),
        ({"method": "GET", "url": "/metrics", "content": b"x" * 70_000}, 413),
        ({"method": "GET", "url": "/-/ready", "content": iter([b"chunk"])}, 413),
        ({"method": "POST", "url": "/metrics"}, 405),
        ({"method": "DELETE", "url": "/api/v1/signals"}, 405),
        ({"method": "CONNECT", "url": "/metrics"}, 405),
    ],
)
async def test_size_and_method_are_limited(request_: dict[str, object], status: int) -> None:
    """All we serve is to be read, so nothing is to be sent."""
    async with site() as (_, _, port):
        if not isinstance(request_.get("content", b""), bytes):
            request_ = {**request_, "content": _chunks()}
        async with httpx.AsyncClient(base_url=url(port, "")) as reader:
            assert (await reader.request(**request_)).status_code == status  # type: ignore[arg-type]


async def _chunks():
    yield b"chunk"


async def test_headers_are_limited() -> None:
    """A header without an end is refused at 64 KiB."""
    async with site() as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 200_000)
        answer = await reader.read(100)
        writer.close()
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))


async def test_so_many_at_once_and_each_kind_apart() -> None:
    """Readers of the page at their limit: the next gets 503, Prometheus is served, and a place freed is a place."""
    held, served = asyncio.Event(), []

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/":
            await held.wait()
        served.append(scope["path"])

    one = Guard(slow, Web(None), Rate(Clock()))
    answers: list[Message] = []

    async def send(message: Message) -> None:
        answers.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    def asked(path: str) -> Scope:
        return {"type": "http", "path": path, "query_string": b"", "headers": [], "client": ("10.0.0.1", 1)}

    waiting = [asyncio.create_task(one(asked("/"), receive, send)) for _ in range(MAX_AT_ONCE)]
    await asyncio.sleep(0)
    await one(asked("/"), receive, send)
    assert [answer["status"] for answer in answers if "status" in answer] == [503]
    await one(asked("/metrics"), receive, send)
    await one(asked("/-/ready"), receive, send)
    assert served == ["/metrics", "/-/ready"]
    held.set()
    await asyncio.gather(*waiting)
    await one(asked("/"), receive, send)
    assert served.count("/") == MAX_AT_ONCE + 1


async def test_a_large_body_is_sent_in_slices() -> None:
    """200,000 bytes are four slices of at most 64 KiB, each awaited, and the same bytes."""
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(range(200)) * 1000})

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/metrics", "query_string": b"", "headers": []}
    await Guard(app, Web(None))(scope, None, send)  # type: ignore[arg-type]
    bodies = sent[1:]
    assert [len(each["body"]) for each in bodies] == [65_536, 65_536, 65_536, 3_392]
    assert [each["more_body"] for each in bodies] == [True, True, True, False]
    assert b"".join(each["body"] for each in bodies) == bytes(range(200)) * 1000


async def test_a_client_that_never_finishes_its_request_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that says nothing nor one that drips; others are served meanwhile."""
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.3)
    async with site() as (_, _, port):
        silent, says_nothing = await asyncio.open_connection("127.0.0.1", port)
        dripping, drip = await asyncio.open_connection("127.0.0.1", port)
        async with httpx.AsyncClient() as reader:
            assert (await reader.get(url(port, "/metrics"))).status_code == 200
        drip.write(b"GET /metrics HTTP/1.1\r\n")
        for stream in (silent, dripping):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(stream.readexactly(1), 60)
        says_nothing.close()
        drip.close()


async def test_one_client_cannot_take_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five connections where three are allowed, two are dropped at once."""
    monkeypatch.setattr(connection, "MAX_CONNECTIONS_OF_ONE", 3)
    async with site() as (_, _, port):
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        answers = []
        for reader, writer in pairs:
            try:
                writer.write(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                answers.append((await reader.read(15)) or b"dropped")
            except ConnectionError:
                answers.append(b"dropped")
            writer.close()
    assert answers == [b"HTTP/1.1 200 OK"] * 3 + [b"dropped"] * 2


async def test_an_answer_says_when_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its own Date, also on one connection, though no timer keeps one ready."""
    dates = [f"Thu, 01 Jan 1970 00:00:{second} GMT" for second in ("00", "59")]
    async with site() as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answers = []
        for date in dates:
            monkeypatch.setattr(connection, "formatdate", lambda *, usegmt, date=date: date if usegmt else "")
            writer.write(b"HEAD /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n")
            answers.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()
    found = [re.findall(r"(?m)^date: (.*)\r$", answer.decode()) for answer in answers]
    assert found == [[date] for date in dates]


async def test_failed_logins_use_up_the_rate_and_probes_go_on(tmp_path: Path) -> None:
    """Each costs 1 + 20 of 100: the fifth is refused unheard, also with the right password."""
    path = tmp_path / "web.yaml"
    path.write_text(f"basic_auth_users: {{ann: '{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}'}}")
    async with site(path) as (_, _, port), httpx.AsyncClient(base_url=url(port, "")) as reader:
        wrong = [(await reader.get("/metrics", auth=("ann", f"guess {turn}"))).status_code for turn in range(5)]
        assert wrong == [401, 401, 401, 401, 401]
        assert (await reader.get("/metrics", auth=("ann", PASSWORD))).status_code == 429
        assert (await reader.get("/-/ready")).status_code == 503
        assert (await reader.get("/-/healthy")).status_code == 200


async def test_the_page_and_the_api_are_on_their_own_address() -> None:
    """Where Prometheus reads there are the metrics and the probes, and nothing else."""
    async with site(page=False) as (_, _, port), httpx.AsyncClient(base_url=url(port, "")) as reader:
        found = {
            path: (await reader.get(path)).status_code
            for path in ("/metrics", "/-/healthy", "/", "/api/v1/signals", "/openapi.json", "/docs", "/config")
        }
    assert found == {
        "/metrics": 200, "/-/healthy": 200, "/": 404, "/api/v1/signals": 404, "/openapi.json": 404, "/docs": 404,
        "/config": 404,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("listen", "page", "served"),
    [
        (":10077", None, "127.0.0.1:10078"),
        ("0.0.0.0:9000", None, "127.0.0.1:9001"),
        ("[::]:10077", None, "127.0.0.1:10078"),
        ("192.0.2.7:65535", None, "127.0.0.1:0"),
        ("127.0.0.1:10077", None, "127.0.0.1:10077"),
        ("[::1]:10077", None, "[::1]:10077"),
        ("localhost:10077", None, "localhost:10077"),
        (":10077", ":10077", ":10077"),
        (":10077", "10.0.0.1:80", "10.0.0.1:80"),
    ],
)
def test_where_the_page_is(listen: str, page: str | None, served: str) -> None:
    """On a loopback unless somebody asks for more."""
    assert Config(listen_address=listen, page_address=page).served_page_address == served


async def test_no_request_makes_us_ask_anybody() -> None:
    """A port of ours is named in every way a request can name one; nobody ever connects to it."""
    asked = socket.create_server(("127.0.0.1", 0))
    asked.setblocking(False)
    target = f"http://127.0.0.1:{asked.getsockname()[1]}/metrics"
    paths = [route.path for route in create_app(Sidecar()).routes]  # type: ignore[attr-defined]
    assert "/metrics" in paths
    async with site() as (_, _, port), httpx.AsyncClient() as reader:
        for path in (*paths, "/probe", "/scrape", "/federate"):
            headers = {"Host": target[7:-8], "X-Forwarded-Host": target[7:-8], "Referer": target}
            query = {"target": target, "url": target, "name[]": target}
            answer = await reader.get(url(port, path), params=query, headers=headers)
            assert answer.status_code in (200, 404, 422, 503)
    with asked, pytest.raises(BlockingIOError):
        asked.accept()


async def test_secrets_are_nowhere_to_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A token towards engines and a password's hash, planted: neither stands in anything served or logged."""
    token, hashed = "planted-token", bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    (tmp_path / "token").write_text(token)
    (tmp_path / "web.yaml").write_text(f"basic_auth_users: {{ann: '{hashed}'}}")
    caplog.set_level(logging.DEBUG)
    settings = {"url": "http://127.0.0.1:9", "scrape": {"bearer_token_file": tmp_path / "token"}}
    sidecar = Sidecar()
    sidecar.use(Config.model_validate(settings))
    web = Web(tmp_path / "web.yaml")
    web.load()
    transport = httpx.ASGITransport(Guard(create_app(sidecar), web, Rate(Clock())))  # type: ignore[arg-type]
    said = []
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as reader:
        for path in ("/metrics", "/api/v1/signals", "/api/v1/config", "/openapi.json", "/-/ready", "/nothing"):
            said.append((await reader.get(path, auth=("ann", PASSWORD))).text)
            said.append((await reader.get(path, auth=("ann", "wrong"))).text)
    [target] = sidecar.targets
    await target._tick()
    await sidecar.targets.stop()
    said.append(caplog.text)
    assert "bearer_token_file" in "".join(said)
    for secret in (token, hashed, PASSWORD):
        assert secret not in "".join(said)
