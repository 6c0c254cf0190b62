"""A page of ours in a headless Chromium: its picture, and what it found wrong with itself."""

import json
import re
import subprocess
import tempfile
from pathlib import Path

from grafana.panels import Json

HERE = Path(__file__).parent
WIDTH, HEADER, CELL, GAP = 1600, 64, 30, 8
"""Of the page in pixels, as page.js and page.css have them."""

SECONDS = 60


def page(*drawn: Json) -> str:
    """Dashboards with their answers, one below the other, as one HTML file that needs nothing else."""
    parts = {
        "/*uplot.css*/": _text("vendor/uPlot.min.css"),
        "/*page.css*/": _text("page.css"),
        "/*uplot.js*/": _text("vendor/uPlot.iife.min.js"),
        "/*drawn*/null": json.dumps(drawn).replace("</", "<\\/"),
        "/*page.js*/": _text("page.js"),
    }
    return re.sub("|".join(map(re.escape, parts)), lambda found: parts[found[0]], _text("page.html"))


def _text(name: str) -> str:
    return (HERE / name).read_text()


def height(dashboard: Json) -> int:
    """Of the whole page, in pixels."""
    rows: int = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    return HEADER + rows * (CELL + GAP)


def screenshot(program: str, drawn: Json, picture: Path, *, rows: int | None = None) -> None:
    """Write a PNG of the dashboard, or of its first rows of the grid."""
    tall = height(drawn["dashboard"]) if rows is None else HEADER + rows * (CELL + GAP)
    _run(program, page(drawn), f"--screenshot={picture}", f"--window-size={WIDTH},{tall}")


def findings(program: str, *drawn: Json) -> list[str]:
    """What is cut, overlaps or is no number on the drawn page."""
    dom = _run(program, page(*drawn), "--dump-dom", f"--window-size={WIDTH},1000")
    found = re.search(r'<script class="findings" type="application/json">(.*?)</script>', dom, re.DOTALL)
    if found is None:
        raise RuntimeError("the page did not draw to its end")
    return list(json.loads(found[1]))


def _run(program: str, text: str, *options: str) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "page.html"
        path.write_text(text)
        command = [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={scratch}/profile",
            *options,
            path.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)  # noqa: S603
    return done.stdout
