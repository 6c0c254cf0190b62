"""Draw the on-call dashboard for the documentation: ``python -m tests.grafana.picture docs/images/on-call.png``."""

import subprocess
import sys
import tempfile
from pathlib import Path

from grafana.render import chromium
from tests.grafana.prometheus_server import serving
from tests.grafana.stored_fleet import openmetrics
from tests.grafana.test_dashboards_drawn import drawn
from tests.programs import newer, system

ROWS = 29
"""Of the grid: is it up, the first lines of the queue or the batch."""


def main(picture: Path) -> None:
    """Store the fleet, serve it, ask it, draw the answers."""
    with tempfile.TemporaryDirectory() as scratch:
        text, blocks, data = Path(scratch, "fleet.om"), Path(scratch, "blocks"), Path(scratch, "prometheus")
        text.write_text(openmetrics())
        data.mkdir()
        made = [system("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(text), str(blocks)]
        subprocess.run(made, check=True, capture_output=True)
        with serving(newer("prometheus"), data, blocks=blocks) as prometheus:
            found = drawn(prometheus, "on-call", job="vllm-sidecar", namespace="inference")
            chromium.screenshot(system("chromium"), found, picture, rows=ROWS)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
