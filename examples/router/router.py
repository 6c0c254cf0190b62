"""A cost-aware router between a small and a large tier.

A question goes to the cheapest tier that can answer it, by what a million tokens cost there at the moment. A tier takes
none while its sidecar does not vouch for it, while it is cold, saturated, or would keep a new request waiting for too
long; where no tier takes one the client is told to come again. A tier may have a second deployment that speculates: it
is used while speculation pays, which its decode batch decides and not how many requests run.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.background import BackgroundTask

ASKED_EVERY_SECONDS = 1.0
MAX_PREDICTED_TTFT_SECONDS = 5.0
"""A client that would wait longer is better told at once."""
MAX_SATURATION = 1.0
MIN_WARMTH = 0.1
COMPLEX = 0.5
HARD = re.compile(
    r"\b(prove|derive|refactor|debug|analy[sz]e|compare|optimi[sz]e|architecture|step by step)\b|```", re.IGNORECASE
)
LONG_PROMPT = 2_000
LONG_ANSWER = 1_000


@dataclass
class Tier:
    """Engines of one kind, and what their sidecar last said of them.

    Attributes:
        url: where it serves.
        sidecar: where its sidecar's API is.
        answers: the most complex question it can answer, 0-1.
        speculating_url: the same model with speculative decoding, if there is such a deployment.
    """

    name: str
    url: str
    sidecar: str
    answers: float
    speculating_url: str | None = None
    dollars: float | None = None
    saturation: float | None = None
    warmth: float | None = None
    predicted_ttft_seconds: float | None = None
    speculate: bool = False
    said: str = "not asked yet"

    @property
    def open(self) -> bool:
        """Whether it may be sent another request. What is not known keeps it closed, but for a predicted wait."""
        return (
            self.saturation is not None
            and self.saturation < MAX_SATURATION
            and self.warmth is not None
            and self.warmth >= MIN_WARMTH
            and (self.predicted_ttft_seconds or 0.0) <= MAX_PREDICTED_TTFT_SECONDS
        )

    @property
    def address(self) -> str:
        """Where to send a request now."""
        return self.speculating_url if self.speculating_url and self.speculate else self.url

    async def ask(self, http: httpx.AsyncClient) -> None:
        """Take in what the sidecar says now. It answers 503 rather than anything stale, and then nothing is known.

        While it is asked, what it last said holds.
        """
        try:
            found = {path: await self._read(http, path) for path in ("saturation", "warmth", "speculation", "signals")}
            self.saturation = found["saturation"]["saturation_ratio"]
            self.predicted_ttft_seconds = found["saturation"]["predicted_ttft_seconds"]
            self.warmth = found["warmth"]["weight"]
            self.speculate = all(engine["advised"] for engine in found["speculation"]["engines"])
            self.dollars = _price(found["signals"]["targets"]) or self.dollars
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            self.close(repr(error))
        else:
            self.said = "well"

    def close(self, why: str) -> None:
        """Send it nothing until its sidecar has been asked again."""
        self.saturation = self.warmth = self.predicted_ttft_seconds = None
        self.speculate = False
        self.said = why

    async def _read(self, http: httpx.AsyncClient, path: str) -> dict[str, Any]:
        answer = await http.get(f"{self.sidecar}/api/v1/{path}", timeout=1.0)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


def _price(targets: Sequence[Mapping[str, Any]]) -> float | None:
    """Dollars per million output tokens, the dearest target's; None without traffic or without a price."""
    prices = [
        price
        for target in targets
        for window in ((target["cost_dollars_per_million_tokens"] or {}).get("output", {}).get("output", {}),)
        for price in window.values()
    ]
    return max(prices, default=None)


def complexity(body: Mapping[str, Any]) -> float:
    """How hard a question looks, 0-1: its words, its length, the length of the answer asked for."""
    messages = body.get("messages") or [{"content": body.get("prompt", "")}]
    text = " ".join(str(message.get("content", "")) for message in messages)
    marks = 0.5 if HARD.search(text) else 0.0
    marks += 0.3 * min(1.0, len(text) / LONG_PROMPT)
    return min(1.0, marks + 0.2 * min(1.0, (body.get("max_tokens") or 0) / LONG_ANSWER))


def choose(tiers: Sequence[Tier], hardness: float) -> Tier | None:
    """The cheapest open tier that can answer; None where there is none. A tier of unknown price is the dearest."""
    able = [tier for tier in tiers if tier.open and tier.answers >= hardness]
    return min(able, key=lambda tier: float("inf") if tier.dollars is None else tier.dollars, default=None)


@dataclass
class Ledger:
    """What was spent, and what it would have been with everything on the dearest tier."""

    dollars: float = 0.0
    dearest_dollars: float = 0.0
    requests: dict[str, int] = field(default_factory=dict)

    def add(self, tiers: Sequence[Tier], chosen: Tier, output_tokens: int) -> None:
        """Book a request at the prices of now."""
        prices = [tier.dollars for tier in tiers if tier.dollars is not None]
        self.requests[chosen.name] = self.requests.get(chosen.name, 0) + 1
        if chosen.dollars is not None:
            self.dollars += chosen.dollars * output_tokens / 1e6
            self.dearest_dollars += max(prices) * output_tokens / 1e6

    @property
    def saved_ratio(self) -> float | None:
        """Share of the money saved."""
        return 1 - self.dollars / self.dearest_dollars if self.dearest_dollars else None


def create_app(tiers: Sequence[Tier], http: httpx.AsyncClient) -> FastAPI:
    """The router over these tiers."""
    ledger = Ledger()

    async def watch() -> None:
        while True:
            await asyncio.gather(*(tier.ask(http) for tier in tiers))
            await asyncio.sleep(ASKED_EVERY_SECONDS)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(watch())
        yield
        watching.cancel()
        await http.aclose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/completions")
    @app.post("/v1/chat/completions")
    async def route(request: Request) -> Response:
        try:
            body = await request.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return JSONResponse({"error": "the body is no JSON object"}, 400)
        while chosen := choose(tiers, complexity(body)):
            sent = http.build_request("POST", chosen.address + request.url.path, json=body, timeout=None)
            try:
                answer = await http.send(sent, stream=True)
            except httpx.TransportError as error:
                chosen.close(repr(error))
                continue
            ledger.add(tiers, chosen, body.get("max_tokens") or 0)
            headers = {"X-Tier": chosen.name, "Content-Type": answer.headers.get("content-type", "application/json")}
            return StreamingResponse(
                answer.aiter_raw(), answer.status_code, headers, background=BackgroundTask(answer.aclose)
            )
        said = {tier.name: tier.said for tier in tiers}
        return JSONResponse({"error": "no tier has room", "tiers": said}, 503, {"Retry-After": "1"})

    @app.get("/savings")
    async def savings() -> dict[str, Any]:
        return {"saved_ratio": ledger.saved_ratio, "dollars": ledger.dollars, "requests": ledger.requests}

    return app


def _tier(name: str, answers: float) -> Tier:
    url, sidecar, *more = os.environ[name].split(",")
    return Tier(name.lower(), url, sidecar, answers, more[0] if more else None)


def __getattr__(name: str) -> FastAPI:
    """``uvicorn router:app``, with the tiers from the environment."""
    if name != "app":
        raise AttributeError(name)
    return create_app([_tier("SMALL", COMPLEX), _tier("LARGE", 1.0)], httpx.AsyncClient(trust_env=False))
