"""Two hundred readers of the page at once, once a second each: `python bench/readers.py URL`, until it is ended."""

import asyncio
import sys

import httpx

READERS, HOSTS = 200, 20
"""From twenty addresses: one client alone may ask fifty times a second."""


async def read(http: httpx.AsyncClient, url: str, position: int) -> None:
    """What a page does."""
    await asyncio.sleep(position / READERS)
    while True:
        await http.get(f"{url}/page/state")
        await asyncio.sleep(1)


async def main(url: str) -> None:
    """Read for ever."""
    hosts = [httpx.AsyncHTTPTransport(local_address=f"127.0.1.{host + 1}", retries=3) for host in range(HOSTS)]
    clients = [httpx.AsyncClient(transport=host, timeout=30) for host in hosts]
    async with asyncio.TaskGroup() as reading:
        for position in range(READERS):
            reading.create_task(read(clients[position % HOSTS], url, position))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
