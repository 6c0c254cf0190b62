"""One streamed request to an OpenAI-compatible server, with every time on one monotonic clock."""

import json
import random
import time
from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp

from exporter.lab.arrivals import Arrival

TOKEN_RANGE = (100, 1000)
"""Token numbers that any vocabulary has and that no tokenizer treats as special."""
POOL_TOKENS = 65_536


@dataclass(slots=True)
class Outcome:
    """What became of one arrival. Times are `time.monotonic()` seconds; None is what never happened."""

    arrival: Arrival
    scheduled: float
    started: float = 0.0
    """When the request was handed to the client: TTFT counts from here, before any connection."""
    sent: float | None = None
    """When it had a connection or began to open one: what it waited for that was the pool's fault or the CPU's."""
    queued_for_pool: bool = False
    first_token: float | None = None
    last_token: float | None = None
    ended: float = 0.0
    tokens: int = 0
    gaps: "array[float]" = field(default_factory=lambda: array("d"))
    """Seconds between events with tokens."""
    error: str | None = None

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token."""
        return None if self.first_token is None else self.first_token - self.started

    @property
    def tpot(self) -> float | None:
        """Mean seconds a token after the first."""
        if self.first_token is None or self.last_token is None or self.tokens <= 1:
            return None
        return (self.last_token - self.first_token) / (self.tokens - 1)


class StreamError(Exception):
    """The stream broke off or carried an error; the text is the kind."""


class Prompts:
    """Prompts of a given length, each new to any prefix cache."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a load, not a secret
        self._pool = [str(self._random.randrange(*TOKEN_RANGE)) for _ in range(POOL_TOKENS)]

    def tokens(self, count: int) -> str:
        """JSON list of `count` token numbers."""
        start = self._random.randrange(len(self._pool))
        body = self._pool[start : start + count]
        while len(body) < count:
            body += self._pool[: count - len(body)]
        fresh = [str(self._random.randrange(*TOKEN_RANGE)) for _ in range(min(4, count))]
        return f"[{','.join(fresh + body[len(fresh) :])}]"

    def text(self, count: int) -> str:
        """JSON string of about `count` tokens: numbers of three digits and a space are one or two tokens each."""
        return f'"{self.tokens(count)[1:-1].replace(",", " ")}"'


@dataclass(frozen=True, slots=True)
class Target:
    """Where the load goes."""

    url: str
    model: str
    chat: bool = False
    text: bool = False
    """Prompts as text, for servers that take no token numbers."""

    @property
    def endpoint(self) -> str:
        """The URL to post to."""
        return f"{self.url}/v1/chat/completions" if self.chat else f"{self.url}/v1/completions"

    def body(self, arrival: Arrival, prompts: Prompts) -> bytes:
        """The request body: streamed, with usage, exactly as many tokens as planned where the server knows how."""
        count = arrival.prompt_tokens
        if self.chat:
            prompt = f'"messages":[{{"role":"user","content":{prompts.text(count)}}}]'
        else:
            prompt = f'"prompt":{prompts.text(count) if self.text else prompts.tokens(count)}'
        rest = f'"max_tokens":{arrival.output_tokens},"ignore_eos":true,"stream":true'
        usage = '"stream_options":{"include_usage":true}'
        return f'{{"model":{json.dumps(self.model)},{prompt},{rest},{usage}}}'.encode()


def tracing() -> aiohttp.TraceConfig:
    """Note in the request's Outcome when it got past the pool, and whether it had to queue for it."""
    trace = aiohttp.TraceConfig()

    async def queued(_session: Any, context: SimpleNamespace, _params: Any) -> None:
        context.trace_request_ctx.queued_for_pool = True

    async def sent(_session: Any, context: SimpleNamespace, _params: Any) -> None:
        outcome = context.trace_request_ctx
        outcome.sent = outcome.sent or time.monotonic()

    trace.on_connection_queued_start.append(queued)
    trace.on_connection_create_start.append(sent)
    trace.on_connection_reuseconn.append(sent)
    return trace


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    async for data in content.iter_any():
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            if event.startswith(b"data:"):
                yield event[5:].strip()


async def _read(content: aiohttp.StreamReader, outcome: Outcome) -> None:
    async for event in _events(content):
        if event == b"[DONE]":
            return
        try:
            message = json.loads(event)
        except ValueError:
            raise StreamError("garbage") from None
        if "error" in message:
            raise StreamError("stream_error")
        if usage := message.get("usage"):
            outcome.tokens = usage["completion_tokens"]
        if not any(_has_tokens(choice) for choice in message.get("choices", ())):
            continue
        now = time.monotonic()
        if outcome.last_token is None:
            outcome.first_token = now
        else:
            outcome.gaps.append(now - outcome.last_token)
        outcome.last_token = now
    raise StreamError("truncated")


def _has_tokens(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    said = choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls")
    return bool(said)


async def send(session: aiohttp.ClientSession, target: Target, outcome: Outcome, body: bytes) -> None:
    """Send one request and fill in its outcome; a failure is its `error`, never a latency."""
    outcome.started = time.monotonic()
    headers = {"content-type": "application/json"}
    try:
        async with session.post(target.endpoint, data=body, headers=headers, trace_request_ctx=outcome) as response:
            if response.status != 200:
                outcome.error = f"http_{response.status}"
                return
            await _read(response.content, outcome)
            outcome.tokens = outcome.tokens or len(outcome.gaps) + 1
    except TimeoutError:
        outcome.error = "timeout"
    except aiohttp.ClientConnectorError:
        outcome.error = "connect"
    except StreamError as error:
        outcome.error = str(error)
    except (aiohttp.ClientError, OSError):
        outcome.error = "disconnected"
    finally:
        outcome.ended = time.monotonic()
