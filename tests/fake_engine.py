"""A server on loopback that answers byte for byte what a test says, and keeps what it was asked."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

EXPOSITION = b"""\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="tiny"} 100.0
"""
TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Request:
    """What was asked: method, path with query, headers with small names."""

    method: str
    path: str
    headers: dict[str, str]


Answer = Callable[[Request], bytes | AsyncIterator[bytes]]


@dataclass
class FakeEngine:
    """Where it listens, and what it was asked so far."""

    url: str
    connections: int = 0
    requests: list[Request] = field(default_factory=list)


def response(body: bytes = EXPOSITION, status: str = "200 OK", **headers: str) -> bytes:
    """A whole response; ``content_type=…`` is the header Content-Type. ``content_length`` may lie."""
    given = {"content_type": TEXT, "content_length": str(len(body)), **headers}
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-').title()}: {value}" for name, value in given.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@contextlib.asynccontextmanager
async def serving(
    answer: Answer, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, socket_path: Path | None = None
) -> AsyncIterator[FakeEngine]:
    """Serve until the block ends. Bytes leave the connection open; after an iterator it is closed."""
    engine = FakeEngine("")
    open_now: set[asyncio.StreamWriter] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine.connections += 1
        open_now.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                request = Request(method, path, headers | {"authorization": _header(head, "authorization")})
                engine.requests.append(request)
                answered = answer(request)
                if isinstance(answered, bytes):
                    writer.write(answered)
                    await writer.drain()
                    continue
                async for part in answered:
                    writer.write(part)
                    await writer.drain()
                break
        writer.close()

    if socket_path is not None:
        server = await asyncio.start_unix_server(connected, socket_path)
    else:
        server = await asyncio.start_server(connected, host, 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        engine.url = f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        yield engine
    finally:
        server.close()
        for writer in open_now:
            writer.transport.abort()
        await asyncio.sleep(0)


def _header(head: list[str], name: str) -> str:
    """A header's value as it was sent, capitals and all."""
    return next((line.partition(": ")[2] for line in head if line.lower().startswith(f"{name}:")), "")
