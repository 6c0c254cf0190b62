"""The promise about metrics: none is renamed or dropped, and none gets other labels, without a word in the changelog.

``tests/data/metrics-promised.txt`` is ``metrics.txt`` as of the last release, copied when a release is made.
"""

import re
from pathlib import Path

from tests.programs import ROOT

DATA = Path(__file__).parent / "data"


def parsed(text: str) -> dict[str, tuple[str, str]]:
    """Type and labels by name."""
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {name: (kind, labels) for name, kind, labels in lines}


def broken(promised: str, now: str, changelog: str) -> list[str]:
    """Metrics that were promised, are gone or different, and of which the unreleased changes say nothing."""
    unreleased = changelog.partition("## [Unreleased]")[2].partition("\n## ")[0]
    told = "".join(re.findall(r"^### (?:Changed|Removed)\n(.*?)(?=^### |\Z)", unreleased, re.MULTILINE | re.DOTALL))
    current = parsed(now)
    different = [name for name, shape in parsed(promised).items() if current.get(name) != shape]
    return [name for name in different if f"`{name.removeprefix('vllm_sidecar_')}`" not in told]


def test_what_was_promised_is_there_or_its_change_is_told() -> None:
    """Else name the metric, in backquotes and without its prefix, under Changed or Removed in CHANGELOG.md."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert broken((DATA / "metrics-promised.txt").read_text(), (DATA / "metrics.txt").read_text(), changelog) == []


def test_a_rename_a_drop_and_another_label_are_found() -> None:
    """Four promised: one stays, one has another label, one is gone, one was renamed and told. Additions are free."""
    promised = (
        "# head\nvllm_sidecar_a gauge -\nvllm_sidecar_b gauge x\nvllm_sidecar_c counter -\nvllm_sidecar_d gauge -\n"
    )
    now = "vllm_sidecar_a gauge -\nvllm_sidecar_b gauge x,y\nvllm_sidecar_e gauge -\n"
    log = "## [Unreleased]\n\n### Added\n\n- `c`\n\n### Changed\n\n- `d` is `e`.\n\n## [0.1.0]\n\n### Removed\n\n- `b`"

    assert broken(promised, now, log) == ["vllm_sidecar_b", "vllm_sidecar_c"]
