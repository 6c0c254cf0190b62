"""Fuzz one of the checks, guided by coverage.

    python -m fuzz.run parser|pipeline [libFuzzer options]

It starts from the kept corpus. New inputs that reach new code go to fuzz/found, an input that breaks a check to
``crash-…``; what is worth keeping is copied to the corpus by hand.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["exporter"]):
    from fuzz.checks import CHECKS

HERE = Path(__file__).parent


def main() -> None:
    """Hand over to libFuzzer, which ends the process."""
    name, *options = sys.argv[1:]
    found = HERE / "found" / name
    found.mkdir(parents=True, exist_ok=True)
    corpora = [str(found), str(HERE / "corpus" / name)]
    atheris.Setup([sys.argv[0], *corpora, f"-dict={HERE / 'words.dict'}", *options], CHECKS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
