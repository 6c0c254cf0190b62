"""The scrape log: scrapes of one target with their times, as text, compressed by file extension.

# scrape 1795949866.802 200
<body of that scrape>
# scrape 1795949867.302 error connect
"""

import gzip
import lzma
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from exporter.exposition import Failure, Reason, Scraped

MARK = b"# scrape "


class Entry(NamedTuple):
    """One scrape: when, in unix seconds, and what came of it."""

    unix_seconds: float
    outcome: Scraped | Failure


class NotALogError(ValueError):
    """The file does not hold a scrape log; the message says which line."""


def open_log(path: Path, mode: str) -> IO[bytes]:
    """The file, through gzip or xz where its name says so."""
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix)
    return opener(path, mode) if opener else path.open(mode)  # type: ignore[operator]


def write_entry(log: IO[bytes], entry: Entry) -> None:
    """Append one scrape and flush it."""
    if isinstance(entry.outcome, Scraped):
        # A comment of the engine's must not be taken for a mark of ours.
        head, body = "200", (b"\n" + entry.outcome.body).replace(b"\n" + MARK, b"\n#" + MARK)[1:]
    else:
        head, body = f"error {entry.outcome.reason.value}", b""
    log.write(b"%b%.3f %b\n" % (MARK, entry.unix_seconds, head.encode()))
    log.write(body if body.endswith(b"\n") or not body else body + b"\n")
    log.flush()


def read_log(path: Path) -> Iterator[Entry]:
    """The scrapes of a log, oldest first.

    Raises:
        NotALogError: it does not start with a mark, or a mark cannot be read.
        OSError: it cannot be opened or decompressed.
    """
    with open_log(path, "rb") as log:
        mark: tuple[int, bytes] | None = None
        body: list[bytes] = []
        try:
            for number, line in enumerate(log, start=1):
                if line.startswith(MARK):
                    if mark is not None:
                        yield _entry(*mark, b"".join(body))
                    mark, body = (number, line), []
                elif mark is None:
                    raise NotALogError(f"{path}: line 1 is not '# scrape <unix seconds> 200'")
                else:
                    body.append(line)
        except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
            raise NotALogError(f"{path}: {error}") from None
        if mark is None:
            raise NotALogError(f"{path}: no scrape in it")
        yield _entry(*mark, b"".join(body))


def _entry(number: int, line: bytes, body: bytes) -> Entry:
    words = line.decode(errors="replace").split()[2:]
    try:
        unix_seconds = _finite(words[0])
        if words[1] == "200":
            openmetrics = body.rstrip().endswith(b"# EOF")
            return Entry(unix_seconds, Scraped(body, openmetrics, 0.0))
        if words[1] == "error":
            return Entry(unix_seconds, Failure(Reason(words[2]), "as recorded"))
        return Entry(unix_seconds, Failure(Reason.HTTP_STATUS, f"HTTP {int(words[1])}, as recorded"))
    except (IndexError, ValueError):
        raise NotALogError(f"line {number} is not '# scrape <unix seconds> 200' or '… error <reason>'") from None


def _finite(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(word)
    return number
