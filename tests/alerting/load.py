"""A simulated engine with switches for its faults, and clients that ask it for more than it has, or leave."""

import asyncio
import contextlib
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator

import httpx

from tests.sidecar import ENVIRONMENT, free_port

SMALL = ("--profile", "demo", "--weight-read-seconds", "0.01", "--kv-tokens", "3000", "--max-num-seqs", "32")
"""Holds 20 sequences of 150 tokens and runs 32: it preempts before it queues."""


class Engine:
    """A simulated engine on a port that it keeps over its lives."""

    def __init__(self) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Begin a life."""
        command = [sys.executable, "-m", "exporter", "simulate", *SMALL, f"--port={self._port}", "--control-port=0"]
        self._process = subprocess.Popen([*command, "--model=tiny"], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.match(r"control (\S+)", line):
                self._control = found[1]
                return
        raise AssertionError("the simulated engine did not start")

    def kill(self) -> None:
        """End it without a farewell."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def switch(self, fault: str, *, on: bool) -> None:
        """Switch a fault."""
        request = urllib.request.Request(f"{self._control}/{fault}", method="PUT" if on else "DELETE")
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200


@contextlib.contextmanager
def engine() -> Iterator[Engine]:
    """A running engine."""
    running = Engine()
    running.start()
    try:
        yield running
    finally:
        running.kill()


@contextlib.contextmanager
def clients(url: str, number: int, tokens: int, patience_seconds: float) -> Iterator[None]:
    """So many clients, each asking again and again, and leaving an answer that takes longer than its patience."""
    stopping = threading.Event()

    async def one(client: httpx.AsyncClient, name: int) -> None:
        turn = 0
        while not stopping.is_set():
            turn += 1
            prompt = f"client {name} turn {turn} " * 10
            body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
            try:
                async with asyncio.timeout(patience_seconds):
                    await client.post(f"{url}/v1/completions", json=body)
            except (TimeoutError, httpx.TransportError):
                await asyncio.sleep(0.05)

    async def run() -> None:
        async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None)) as client:
            await asyncio.gather(*(one(client, name) for name in range(number)))

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(timeout=60)
