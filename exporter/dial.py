"""A socket connected to the first of a name's addresses that takes it (RFC 8305, Happy Eyeballs).

asyncio's own race loses the socket that connects at the moment in which the attempt is cancelled.
"""

import asyncio
import itertools
import socket
from collections.abc import Iterable
from typing import Any, NamedTuple

NEXT_ADDRESS_SECONDS = 0.25
"""So long an address may keep us waiting before the next one is tried beside it."""


class Address(NamedTuple):
    """Where to connect, as ``socket`` wants it."""

    family: socket.AddressFamily
    address: Any


async def dial(host: str, port: int) -> socket.socket:
    """A connected socket. Cancelled, it leaves none behind.

    Raises:
        OSError: the name has no address, or none of them takes a connection: why the last one did not.
    """
    outcome = await _first(by_turns(await _addresses(host, port)))
    if isinstance(outcome, socket.socket):
        return outcome
    try:
        raise outcome
    finally:
        del outcome  # which would hold itself, by way of its traceback


async def _first(addresses: Iterable[Address]) -> socket.socket | OSError:
    following = iter(addresses)
    attempts: list[asyncio.Task[socket.socket]] = []
    failure = OSError("the name has no address")
    waiting: set[asyncio.Task[socket.socket]] = set()
    try:
        while True:
            address = next(following, None)
            if address is not None:
                attempts.append(asyncio.create_task(_connected(address)))
                waiting.add(attempts[-1])
            if not waiting:
                return failure
            patience = None if address is None else NEXT_ADDRESS_SECONDS
            done, waiting = await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            for attempt in done:
                error = attempt.exception()
                if not isinstance(error, OSError):
                    attempts.remove(attempt)
                    return attempt.result()
                failure = error
    finally:
        for attempt in attempts:
            attempt.cancel()
            attempt.add_done_callback(_drop)


def by_turns(found: Iterable[Address]) -> list[Address]:
    """Addresses in the resolver's order, but of the families in turn: often all of one do not work."""
    families: dict[socket.AddressFamily, list[Address]] = {}
    for each in found:
        families.setdefault(each.family, []).append(each)
    turns = itertools.zip_longest(*families.values())
    return [each for turn in turns for each in turn if each is not None]


async def _addresses(host: str, port: int) -> list[Address]:
    try:  # numbers need no resolver, which may be held up by names
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [Address(family, address) for family, _, _, _, address in found]


async def _connected(to: Address) -> socket.socket:
    connecting = socket.socket(to.family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connecting, to.address)
    except BaseException:
        connecting.close()
        raise
    return connecting


def _drop(attempt: "asyncio.Task[socket.socket]") -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
