"""Write the dashboards with ``python -m grafana.build``.

The same source gives the same bytes. A metric or label that the catalogue does not have, or does not describe, and a
threshold that the alerts do not have, is one line on stderr and exit code 1.
"""

import json
import sys
from pathlib import Path

from grafana import economics, fleet, on_call, roofline
from grafana.alerts import NotAThresholdError
from grafana.queries import NotInCatalogueError

DIRECTORY = Path(__file__).parent / "dashboards"
SOURCES = (on_call.dashboard, economics.dashboard, roofline.dashboard, fleet.dashboard)


def dashboards() -> dict[str, str]:
    """The text of each file by its name.

    Raises:
        NotInCatalogueError: a panel draws what the exporter does not export.
        NotAThresholdError: a panel marks a threshold that the alerts do not have.
    """
    found = [source() for source in SOURCES]
    return {f"{one.name}.json": json.dumps(one.json(), indent=2, sort_keys=True) + "\n" for one in found}


def main() -> int:
    """Write all files."""
    try:
        texts = dashboards()
    except (NotInCatalogueError, NotAThresholdError) as error:
        sys.stderr.write(f"grafana: {error}\n")
        return 1
    DIRECTORY.mkdir(exist_ok=True)
    for name, text in texts.items():
        (DIRECTORY / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
