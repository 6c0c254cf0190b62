"""Log lines: one line each, whatever is in them."""

import json
import logging
from collections.abc import Iterator

import pytest

from exporter import log


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level
    for name in ("exporter", "uvicorn"):
        logging.getLogger(name).setLevel(logging.NOTSET)


HOSTILE = 'a "b"\nlevel=error msg=forged\x1b[31m\u2028=\\'


def test_logfmt(capsys: pytest.CaptureFixture[str]) -> None:
    """Time in UTC, level, message, then the fields given."""
    log.set_up("info", "logfmt")
    logging.getLogger("exporter.x").info("target is up", extra={"fields": {"target": "a:1", "detail": ""}})
    line = capsys.readouterr().err
    assert line.startswith("ts=20")
    assert line.endswith('Z level=info msg="target is up" target=a:1 detail=""\n')


@pytest.mark.parametrize("log_format", ["logfmt", "json"])
def test_nothing_an_engine_says_makes_a_line_or_colours_a_terminal(
    capsys: pytest.CaptureFixture[str], log_format: str
) -> None:
    """Line feeds, escapes and separators in a message or a field stay inside their quotes."""
    log.set_up("info", log_format)
    logging.getLogger("exporter.x").warning(HOSTILE, extra={"fields": {"detail": HOSTILE, "url": "\x1b[2J"}})
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line[:-1].isprintable()
    if log_format == "json":
        found = json.loads(line)
        assert (found["level"], found["msg"], found["detail"]) == ("warning", HOSTILE, HOSTILE)


def test_an_exception_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With its traceback inside."""
    log.set_up("info", "logfmt")
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        logging.getLogger("exporter.x").exception("a scrape failed inside the sidecar")
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "ZeroDivisionError" in line


@pytest.mark.parametrize(("level", "told"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_levels(capsys: pytest.CaptureFixture[str], level: str, told: int) -> None:
    """Ours from the level set up; of libraries warnings and worse, since they would name what they send."""
    log.set_up(level, "logfmt")
    for method in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger("exporter.x"), method)("ours")
        getattr(logging.getLogger("httpx"), method)("theirs")
    lines = capsys.readouterr().err.splitlines()
    assert sum("msg=ours" in line for line in lines) == told
    assert sum("msg=theirs" in line for line in lines) == 2
