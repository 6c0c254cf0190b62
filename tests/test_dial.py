"""Connecting to one of a name's addresses: which one, and that nothing is left of the others."""

import asyncio
import contextlib
import gc
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter import dial as dialling
from exporter.dial import Address, by_turns, dial

PORT = 8000


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """It has no room for another connection, so that one more is not answered."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, socket.create_connection(server.getsockname()):
        yield server


def resolves_to(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[str, int]) -> None:
    async def found(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_an_address_that_refuses_is_followed_by_the_next(
    monkeypatch: pytest.MonkeyPatch, listening: socket.socket, unused_tcp_port: int
) -> None:
    """At once, though there would be time."""
    monkeypatch.setattr(dialling, "NEXT_ADDRESS_SECONDS", 3600.0)
    resolves_to(monkeypatch, ("127.0.0.1", unused_tcp_port), listening.getsockname())
    with await dial("two.example", PORT) as connected:
        assert connected.getpeername() == listening.getsockname()


async def test_an_address_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, listening: socket.socket, silent: socket.socket
) -> None:
    """The next one is tried beside it; what was begun is ended."""
    monkeypatch.setattr(dialling, "NEXT_ADDRESS_SECONDS", 0.01)
    resolves_to(monkeypatch, silent.getsockname(), listening.getsockname())
    before = descriptors()
    with await dial("two.example", PORT) as connected:
        assert connected.getpeername() == listening.getsockname()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert descriptors() == before
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_why_the_last_address_failed_is_told(monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int) -> None:
    """A multicast address has no route for TCP: of the two, the one that is there and refuses says more."""
    resolves_to(monkeypatch, ("224.0.0.1", PORT), ("127.0.0.1", unused_tcp_port))
    with pytest.raises(ConnectionRefusedError):
        await dial("two.example", PORT)
    resolves_to(monkeypatch)
    with pytest.raises(OSError, match="no address"):
        await dial("none.example", PORT)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_cancelled_at_whatever_moment_it_leaves_no_socket(listening: socket.socket, host: str) -> None:
    """Also at the one in which it is connected. Nothing is left to the garbage collector."""
    port = listening.getsockname()[1]
    async with asyncio.timeout(60):
        (await dial(host, port)).close()  # threads that resolve names are there from now on
    before = descriptors()
    gc.disable()
    try:
        for moment in range(40):
            attempt = asyncio.create_task(dial(host, port))
            for _ in range(moment):
                await asyncio.sleep(0)
            attempt.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await attempt).close()
            for _ in range(3):
                await asyncio.sleep(0)
        assert descriptors() == before
        assert asyncio.all_tasks() == {asyncio.current_task()}
    finally:
        gc.enable()


async def test_numbers_need_no_resolver(monkeypatch: pytest.MonkeyPatch, listening: socket.socket) -> None:
    """Its threads may all be waiting for names."""
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", None)
    host, port = listening.getsockname()
    with await dial(host, port) as connected:
        assert connected.getpeername() == (host, port)


def test_families_take_turns() -> None:
    """As the resolver orders them, but not one family after the other."""
    four = [Address(socket.AF_INET, (f"192.0.2.{n}", PORT)) for n in range(3)]
    six = [Address(socket.AF_INET6, (f"2001:db8::{n}", PORT, 0, 0)) for n in range(2)]
    assert by_turns([*six, *four]) == [six[0], four[0], six[1], four[1], four[2]]
