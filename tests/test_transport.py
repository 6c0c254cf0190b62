"""Our HTTP client against servers, on loopback, that say byte for byte what a test wants."""

import asyncio
import contextlib
import gc
import itertools
from collections.abc import AsyncIterator

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter import transport
from exporter.transport import MAX_HEAD_BYTES, READ_AHEAD_BYTES, Transport
from tests.fake_engine import EXPOSITION, Answer, response, serving

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"6;name=value\r\nvllm:a\r\n3\r\n 1\n\r\n0\r\nX-After: the body\r\n\r\n"
)
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"


async def get(client: Transport, url: str) -> bytes:
    async with contextlib.aclosing(await client.handle_async_request(httpx.Request("GET", url))) as answer:
        return b"".join([part async for part in answer.aiter_raw()])


async def said(answer: Answer) -> bytes:
    async with serving(answer) as server, contextlib.aclosing(Transport()) as client:
        return await get(client, server.url)


async def parts(*each: bytes) -> AsyncIterator[bytes]:
    """Sent one by one; then the connection is closed."""
    for part in each:
        yield part
        await asyncio.sleep(0)


async def endless(part: bytes, after: bytes = b"") -> AsyncIterator[bytes]:
    yield after
    while True:
        yield part


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (response(), EXPOSITION),
        (response(b""), b""),
        (CHUNKED, b"vllm:a 1\n"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Length: 7\r\n\r\n" + response(), EXPOSITION),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + CHUNKED, b"vllm:a 1\n"),
        (response(status="204 No Content", content_length="0", content_type=""), EXPOSITION[:0]),
    ],
    ids=["length", "empty", "chunked", "early hints", "continue", "no content"],
)
async def test_a_body_is_as_long_as_the_server_says(answer: bytes, body: bytes) -> None:
    """The server keeps the connection open, so the end is known from the answer alone."""
    assert await said(lambda _: answer) == body


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
async def test_a_body_of_no_given_length_ends_with_the_connection(version: bytes) -> None:
    """As servers of old answer."""
    assert await said(lambda _: parts(UNTIL_CLOSED.replace(b"HTTP/1.1", version), EXPOSITION)) == EXPOSITION


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([response(), CHUNKED]), st.lists(st.integers(1, 200), max_size=5))
def test_it_does_not_matter_where_packets_end(whole: bytes, cuts: list[int]) -> None:
    """One answer, however it is cut, is one body."""
    edges = [0, *sorted(cuts), len(whole)]
    pieces = [whole[begin:end] for begin, end in itertools.pairwise(edges)]
    body = EXPOSITION if whole == response() else b"vllm:a 1\n"
    assert asyncio.run(said(lambda _: parts(*pieces))) == body


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (parts(response()[:-1]), "closed before the end"),
        (parts(CHUNKED[:-2]), "closed before the end"),
        (parts(b"SSH-2.0-OpenSSH_9.2\r\n"), "Expected HTTP/"),
        (parts(response(content_length="many")), "Content-Length"),
        (endless(b"HTTP/1.1 100 Continue\r\n\r\n"), f"more than {MAX_HEAD_BYTES} bytes of headers"),
        (endless(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 4096), f"more than {MAX_HEAD_BYTES} bytes of headers"),
        (endless(b"a: b\r\n" * 4096, after=CHUNKED[:-2]), f"more than {MAX_HEAD_BYTES} bytes of headers"),
        (endless(b"x" * 4096, after=CHUNKED[:-2] + b"X: "), f"more than {MAX_HEAD_BYTES} bytes of headers"),
        (endless(b"x" * 4096, after=CHUNKED.partition(b"name")[0]), f"more than {MAX_HEAD_BYTES} bytes of headers"),
    ],
    ids=[
        *("short", "short chunk", "another protocol", "no number", "only preludes", "endless header"),
        *("trailers", "endless trailer", "endless extension of a chunk"),
    ],
)
async def test_what_is_not_http_is_said_to_be_so(sent: AsyncIterator[bytes], message: str) -> None:
    """And what is no body is held to a limit, also between the body's parts and after them."""
    with pytest.raises(httpx.RemoteProtocolError, match=message):
        await said(lambda _: sent)


async def test_a_switch_to_another_protocol_is_an_answer_like_any() -> None:
    """Nobody asked for one. What comes on that connection then is not read, and the next request has its own."""
    switching = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + response()
    answers = iter([switching, response()])
    async with serving(lambda _: next(answers)) as server, contextlib.aclosing(Transport()) as client:
        async with contextlib.aclosing(await client.handle_async_request(httpx.Request("GET", server.url))) as answer:
            assert answer.status_code == 101
        assert await get(client, server.url) == EXPOSITION
    assert server.connections == 2


async def test_a_large_body_in_small_chunks_is_no_header() -> None:
    """100 KiB, each byte with five around it."""
    body = b"x" * 100_000
    chunks = b"1\r\nx\r\n" * len(body) + b"0\r\n\r\n"
    assert await said(lambda _: CHUNKED.partition(b"6;")[0] + chunks) == body


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=80), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", UNTIL_CLOSED, CHUNKED[:60]]))
def test_any_bytes_are_an_answer_or_an_error(garbage: bytes, before: bytes) -> None:
    """No other exception, and an end; what stands after a whole head is the body."""
    try:
        body = asyncio.run(said(lambda _: parts(before, garbage)))
    except (OSError, httpx.RemoteProtocolError):
        assert before != UNTIL_CLOSED
    else:
        assert before != UNTIL_CLOSED or body == garbage


@pytest.mark.parametrize(
    "sent",
    [(response(),), (), (UNTIL_CLOSED,), (response()[:-5],), (b"HTTP/1.1 200",), (b"\x00garbage",)],
    ids=["whole", "unheard", "until closed", "cut", "half a head", "garbage"],
)
async def test_a_connection_that_ended_holds_nothing(sent: tuple[bytes, ...]) -> None:
    """Neither by its error's traceback nor by its parser: nothing is left to the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(OSError, httpx.RemoteProtocolError):
            await said(lambda _: parts(*sent))
        await asyncio.sleep(0.01)  # asyncio tells it that it is lost
        assert [each for each in gc.get_objects() if type(each) is transport._Connection] == []
    finally:
        gc.enable()


async def test_a_kept_connection_that_was_closed_meanwhile_is_replaced() -> None:
    """The server closes as we ask the second time: it is asked again on a new connection, and once."""
    answers = iter([response(), parts(), response(b"second")])
    async with serving(lambda _: next(answers)) as server, contextlib.aclosing(Transport()) as client:
        assert await get(client, server.url) == EXPOSITION
        assert await get(client, server.url) == b"second"
    assert (server.connections, len(server.requests)) == (2, 3)


async def test_a_new_connection_closed_without_an_answer_is_not_tried_again() -> None:
    """The server may have been told to stop by what we asked."""
    async with serving(lambda _: parts()) as server, contextlib.aclosing(Transport()) as client:
        with pytest.raises(ConnectionError, match="closed before an answer"):
            await get(client, server.url)
    assert len(server.requests) == 1


async def test_half_an_answer_on_a_kept_connection_is_not_asked_for_again() -> None:
    """It has been heard: the engine has done the work, and the failure is its own."""
    answers = iter([response(), parts(b"HTTP/1.1 200")])
    async with serving(lambda _: next(answers)) as server, contextlib.aclosing(Transport()) as client:
        await get(client, server.url)
        with pytest.raises(ConnectionError):
            await get(client, server.url)
    assert len(server.requests) == 2


@pytest.mark.parametrize("surplus", [response(b"stale"), b"\x00garbage"])
async def test_more_than_was_asked_for_is_never_the_next_answer(surplus: bytes) -> None:
    """Sent in one go with the answer: each request has its own answer, on a connection of its own."""
    bodies = iter([b"first", b"second"])
    async with (
        serving(lambda _: response(next(bodies)) + surplus) as server,
        contextlib.aclosing(Transport()) as client,
    ):
        assert [await get(client, server.url), await get(client, server.url)] == [b"first", b"second"]
    assert server.connections == 2


async def test_what_comes_while_nothing_is_asked_is_never_the_next_answer() -> None:
    """Sent later, on the kept connection, which is closed for it."""
    go, sent = asyncio.Event(), asyncio.Event()

    async def pushing() -> AsyncIterator[bytes]:
        yield response(b"first")
        await go.wait()
        yield response(b"stale")
        sent.set()
        await asyncio.sleep(60)

    answers = iter([pushing(), response(b"second")])
    async with serving(lambda _: next(answers)) as server, contextlib.aclosing(Transport()) as client:
        assert await get(client, server.url) == b"first"
        go.set()
        await sent.wait()
        for _ in range(3):  # turns of the event loop, in which it is read
            await asyncio.sleep(0)
        async with asyncio.timeout(10):  # the kept one would not be answered
            assert await get(client, server.url) == b"second"


@pytest.mark.parametrize("answer", [response(connection="close"), response().replace(b"HTTP/1.1", b"HTTP/1.0")])
async def test_a_server_that_wants_no_further_request_gets_none(answer: bytes) -> None:
    """Though it leaves the connection open."""
    async with serving(lambda _: answer) as server, contextlib.aclosing(Transport()) as client:
        for _ in range(2):
            assert await get(client, server.url) == EXPOSITION
    assert server.connections == 2


async def test_an_idle_connection_is_closed_before_the_server_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """By us, though nobody asks again."""
    monkeypatch.setattr(transport, "IDLE_SECONDS", 0.01)
    closed = asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response())
        assert await reader.read() == b""
        closed.set()
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = Transport()
        assert await get(client, f"http://127.0.0.1:{port}") == EXPOSITION
        async with asyncio.timeout(10):
            await closed.wait()


async def test_a_body_is_not_read_ahead_of_its_reader() -> None:
    """Of 32 MiB never more than the limit and one packet (256 KiB) are held, and none is lost."""
    size = 2**25
    held = []
    async with (
        serving(lambda _: response(bytes(size))) as server,
        contextlib.aclosing(Transport()) as client,
        contextlib.aclosing(await client.handle_async_request(httpx.Request("GET", server.url))) as answer,
    ):
        async for part in answer.aiter_raw():
            held.append(len(part))
            for _ in range(5):  # a slow reader
                await asyncio.sleep(0)
    assert sum(held) == size
    assert max(held) <= READ_AHEAD_BYTES + 2**18
    assert max(held) > READ_AHEAD_BYTES, "the server was never ahead"


async def test_the_request_is_what_was_asked_for() -> None:
    """Path and query as they are, headers once, no body."""
    async with serving(lambda _: response()) as server, contextlib.aclosing(Transport()) as client:
        request = httpx.Request("GET", f"{server.url}/a%20b/?name[]=x", headers={"Accept": "text/plain"})
        async with contextlib.aclosing(await client.handle_async_request(request)) as answer:
            assert answer.status_code == 200
    [seen] = server.requests
    assert (seen.method, seen.path) == ("GET", "/a%20b/?name[]=x")
    host = server.url.removeprefix("http://")
    assert seen.headers == {"host": host, "accept": "text/plain", "authorization": ""}
