"""``python -m exporter`` is ``vllm-sidecar``."""

import os
import signal
import sys


def main() -> int:
    """Run the command line; returns the exit code.

    Importing it takes most of a second. As PID 1 a process is not ended by a signal that it does not handle, and would
    be killed after the grace period.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    from exporter import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
