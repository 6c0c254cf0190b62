"""Record an engine's scrapes to a log, at a steady pace."""

import asyncio
import math
import time
from pathlib import Path

from exporter.recording import Entry, open_log, write_entry
from exporter.schema import TargetConfig
from exporter.scrape import Scraper, next_due


async def record(config: TargetConfig, path: Path, interval_seconds: float, seconds: float | None) -> int:
    """Scrape until the time is over, or for ever; returns how many scrapes were written.

    Raises:
        OSError: the log cannot be written.
    """
    written = 0
    began = due = time.monotonic()
    ends = math.inf if seconds is None else began + seconds
    with open_log(path, "wb") as log:
        async with Scraper(config) as scraper:
            while due < ends:
                outcome = await scraper.scrape()
                write_entry(log, Entry(time.time(), outcome))
                written += 1
                due = next_due(due, interval_seconds, time.monotonic())
                await asyncio.sleep(max(0.0, min(due, ends) - time.monotonic()))
    return written
