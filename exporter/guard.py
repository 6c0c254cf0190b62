"""Who may ask, how much, how often: an ASGI middleware before everything we serve.

Probes are let through without a credential and without limits: they cost nothing and say nothing.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from exporter.aside import aside
from exporter.webconfig import Web

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Refusal = tuple[int, str, list[tuple[bytes, bytes]]]
"""Status, text, headers."""

PROBES = frozenset(("/-/healthy", "/-/ready"))
METRICS = frozenset(("/metrics", "/metrics/"))
MAX_TARGET_BYTES = 4_096
MAX_BODY_BYTES = 65_536
MAX_AT_ONCE = 16
PER_SECOND, BURST = 50.0, 100.0
COST_OF_FAILED_LOGIN = 20.0
MAX_CLIENTS = 1_000
MAX_KNOWN_LOGINS = 100
MAX_LOGINS_WAITING = 8
SLICE_BYTES = 65_536
_NOBODY = b"$2b$10$" + b"." * 53
"""A hash that no password has: an unknown user takes as long to refuse as a known one."""


class Rate:
    """Requests by client: so many a second, with a burst.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def left(self, client: str) -> float:
        """What a client may still spend."""
        tokens, at = self._clients.get(client, (BURST, 0.0))
        return min(BURST, tokens + (self._clock() - at) * PER_SECOND)

    def spend(self, client: str, cost: float) -> bool:
        """Whether a client has so much left; if so it is spent. Who has been silent longest is forgotten first."""
        left = self.left(client)
        if left < cost:
            return False
        self._clients[client] = (left - cost, self._clock())
        self._clients.move_to_end(client)
        if len(self._clients) > MAX_CLIENTS:
            self._clients.popitem(last=False)
        return True


class Logins:
    """Passwords against bcrypt hashes, away from the event loop, each good one worked out once."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._one = asyncio.Lock()
        self._waiting = 0

    async def right(self, users: dict[str, str], header: bytes) -> bool | None:
        """Whether a header ``Basic …`` names a user and the password; None if too many attempts wait."""
        try:
            user, _, password = base64.b64decode(header[len(b"Basic ") :], validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return False
        hashed = users.get(user, "").encode()
        told = b"\0".join((user.encode(), password.encode(), hashed))
        key = hmac.digest(self._salt, told, hashlib.sha256)
        if key in self._known:
            return True
        if self._waiting >= MAX_LOGINS_WAITING:
            return None
        self._waiting += 1
        try:
            async with self._one:
                good = await aside(_matches, password.encode(), hashed or _NOBODY)
        finally:
            self._waiting -= 1
        if good and hashed:
            self._known[key] = None
            if len(self._known) > MAX_KNOWN_LOGINS:
                self._known.popitem(last=False)
        return good and bool(hashed)


def _matches(password: bytes, hashed: bytes) -> bool:
    import bcrypt  # noqa: PLC0415 - only who sets users pays for it

    try:
        return bcrypt.checkpw(password, hashed)
    except ValueError:  # longer than bcrypt reads
        return False


class Guard:
    """The middleware.

    Args:
        app: what is guarded.
        web: users, and whether anything may be served at all.
        rate: the limit by client.
    """

    def __init__(self, app: App, web: Web, rate: Rate | None = None) -> None:
        self._app = app
        self._web = web
        self._rate = rate or Rate()
        self._logins = Logins()
        self._at_once = {"metrics": 0, "other": 0}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or say why not."""
        if scope["type"] != "http":
            return
        refusal = _too_big(scope)
        if refusal is None and scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        refusal = refusal or await self._refusal(scope)
        # Apart, so that no number of readers of the page keeps Prometheus out.
        kind = "metrics" if scope["path"] in METRICS else "other"
        if refusal is not None:
            await _answer(send, *refusal)
        elif self._at_once[kind] >= MAX_AT_ONCE:
            await _answer(send, 503, "too many requests at once", [(b"retry-after", b"1")])
        else:
            self._at_once[kind] += 1
            try:
                await self._app(scope, receive, _sliced(send))
            finally:
                self._at_once[kind] -= 1

    async def _refusal(self, scope: Scope) -> Refusal | None:
        if self._web.refused is not None:
            return 503, "the web config file cannot be used", []
        client = (scope.get("client") or ("",))[0]
        if not self._rate.spend(client, 1.0):
            return 429, "too many requests", [(b"retry-after", b"1")]
        users = self._web.users
        if not users:
            return None
        header = dict(scope["headers"]).get(b"authorization", b"")
        if header[:6].lower() != b"basic ":
            return 401, "a user and a password are needed", [(b"www-authenticate", b'Basic realm="vllm-sidecar"')]
        right = await self._logins.right(users, header)
        if right is None:
            return 503, "too many attempts to log in", [(b"retry-after", b"1")]
        if not right:
            self._rate.spend(client, min(COST_OF_FAILED_LOGIN, self._rate.left(client)))
            return 401, "wrong user or password", [(b"www-authenticate", b'Basic realm="vllm-sidecar"')]
        return None


def _too_big(scope: Scope) -> Refusal | None:
    headers = dict(scope["headers"])
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_TARGET_BYTES:
        return 414, "the URL is too long", []
    length = headers.get(b"content-length", b"0")
    if b"transfer-encoding" in headers or not length.isdigit() or int(length) > MAX_BODY_BYTES:
        return 413, "nothing is to be sent here", [(b"connection", b"close")]
    return None


async def _answer(send: Send, status: int, text: str, headers: list[tuple[bytes, bytes]]) -> None:
    body = f"{text}\n".encode()
    plain = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*plain, *headers]})
    await send({"type": "http.response.body", "body": body})


def _sliced(send: Send) -> Send:
    """A large body in slices, each sent when the one before is on its way: a slow reader costs a slice."""

    async def sliced(message: Message) -> None:
        body = message.get("body", b"")
        if message["type"] != "http.response.body" or len(body) <= SLICE_BYTES:
            await send(message)
            return
        for start in range(0, len(body), SLICE_BYTES):
            last = start + SLICE_BYTES >= len(body)
            more = not last or bool(message.get("more_body"))
            await send({"type": message["type"], "body": body[start : start + SLICE_BYTES], "more_body": more})

    return sliced
