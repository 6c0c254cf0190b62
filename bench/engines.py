"""Many engines in one process, for measuring: each on a port of its own, playing a recording, some slow or failing.

Run as a program it serves the ports given, prints ``ready``, and writes ``port monotonic_seconds`` for each scrape.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path

RECORDING = Path(__file__).parent.parent / "exporter" / "data" / "burst.scrapes.xz"
FAULTS = ("hangs", "drips", "answers 500", "closes", "sends HTML", "sends 150,000 lines")
HTML = b"<html>" + b"<p>this is no exposition</p>\n" * 500


def fault_of(number: int) -> str | None:
    """What is wrong with the engine of that number: every fifth has a fault, each kind in turn."""
    return FAULTS[number // 5 % len(FAULTS)] if number % 5 == 0 else None


def bodies() -> list[bytes]:
    """The recorded engine's answers, in order."""
    from exporter.exposition import Scraped  # noqa: PLC0415 - who only asks fault_of needs none of it
    from exporter.recording import read_log  # noqa: PLC0415

    return [entry.outcome.body for entry in read_log(RECORDING) if isinstance(entry.outcome, Scraped)]


class Engines:
    """The engines of this process.

    Args:
        answers: what a good engine says, one after the other.
        interval_seconds: how long each of them holds.
    """

    def __init__(self, answers: list[bytes], interval_seconds: float) -> None:
        self._answers = answers
        self._interval_seconds = interval_seconds
        self._huge = b'not:ours_at_all{with="labels"} 1\n' * 150_000

    async def serve(self, number: int, port: int) -> None:
        """Open one engine's port."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await self._answer(number, port, reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                pass
            finally:
                writer.close()

        await asyncio.start_server(connected, "127.0.0.1", port)

    async def _answer(self, number: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault = fault_of(number)
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            if request.startswith(b"GET /health"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                continue
            sys.stdout.write(f"{port} {time.monotonic():.4f}\n")
            if fault == "closes":
                return
            if fault == "hangs":
                await asyncio.sleep(3600)
            if fault == "answers 500":
                writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")
                continue
            turn = int(time.monotonic() / self._interval_seconds) + number
            body = self._answers[turn % len(self._answers)]
            body = {"sends HTML": HTML, "sends 150,000 lines": self._huge}.get(fault or "", body)
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\n\r\n" % len(body)
            )
            if fault == "drips":
                for byte in body:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.5)
            writer.write(body)
            await writer.drain()


async def main(arguments: argparse.Namespace) -> None:
    """Serve until killed."""
    engines = Engines(bodies(), arguments.interval)
    for offset, port in enumerate(arguments.ports):
        await engines.serve(arguments.first + offset, port)
    print("ready")
    while True:
        await asyncio.sleep(0.5)
        sys.stdout.flush()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ports", type=int, nargs="+")
    parser.add_argument("--first", type=int, default=0, help="number of the first engine")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds for which an answer holds")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(_parse()))
