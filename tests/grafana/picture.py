"""Draw the on-call dashboard for the documentation: ``python -m tests.grafana.picture docs/images/on-call.png``."""

import sys
import tempfile
from pathlib import Path

from grafana.render import chromium
from tests.grafana.stored_fleet import LOOKBACK, openmetrics
from tests.grafana.test_dashboards_drawn import drawn
from tests.programs import newer, system
from tests.prometheus import blocks_of, serving

ROWS = 29
"""Of the grid: is it up, the first lines of the queue or the batch."""


def main(picture: Path) -> None:
    """Store the fleet, serve it, ask it, draw the answers."""
    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch, "fleet.om")
        text.write_text(openmetrics())
        blocks = blocks_of(text, Path(scratch, "blocks"))
        with serving(Path(scratch), program=newer("prometheus"), blocks=blocks, flags=LOOKBACK) as prometheus:
            found = drawn(prometheus, "on-call", job="vllm-sidecar", namespace="inference")
            chromium.screenshot(system("chromium"), found, picture, rows=ROWS)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
