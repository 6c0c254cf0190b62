"""``python -m exporter`` is ``vllm-sidecar``."""

import sys

from exporter.cli import main

sys.exit(main())
