"""Runbooks say what, so what, how to look and what to do; what they tell people to paste works."""

import re
import subprocess
from pathlib import Path

import pytest

from alerts import build
from tests.alerting.promql import Parser, Walk
from tests.alerting.rules import ALERTS, Checker, load
from tests.programs import system

RUNBOOKS = sorted((ALERTS / "runbooks").glob("*.md"))
QUERY = re.compile(r"promtool query instant \"\$\{PROMETHEUS:-http://localhost:9090\}\" '([^']+)'")


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)
def test_has_the_four_parts(path: Path) -> None:
    """Meaning, Impact, Diagnosis beginning with a command, Mitigation; under the alert's name."""
    text = path.read_text()
    assert text.startswith(f"# {path.stem}\n")
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    assert parts[1::2] == ["Meaning", "Impact", "Diagnosis", "Mitigation"]
    assert all(len(part.strip()) > 5 for part in parts[2::2])
    assert parts[6].lstrip().startswith("```sh\npromtool query instant ")


def test_first_commands_work_as_pasted(parser: Parser) -> None:
    """In a shell, against a Prometheus; its own parser reads each query."""
    for path in RUNBOOKS:
        command = path.read_text().split("```sh\n")[1].split("\n```")[0]
        environment = {"PROMETHEUS": parser.prometheus.url, "PATH": str(Path(system("promtool")).parent)}
        done = subprocess.run(["/bin/sh", "-c", command], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{path.stem}: {done.stderr}"


def test_queries_name_what_we_export(parser: Parser) -> None:
    """No runbook sends anybody after a metric or label that does not exist."""
    fleet, raw = (Checker(parser, pack, load(pack)) for pack in ("fleet", "raw"))
    known = {**raw.labels, **fleet.labels, "ALERTS": frozenset({"alertname"})}
    for path in RUNBOOKS:
        for query in QUERY.findall(path.read_text()):
            faults = Walk(parser.parse(query), known, raw.counters | fleet.counters).faults
            wrong = [
                fault for fault in faults if "ratio whose denominator" not in fault and "read without rate" not in fault
            ]
            assert wrong == [], f"{path.stem}: {query}"
        for name in re.findall(r"vllm_sidecar_\w+", path.read_text()):
            assert {name, f"{name}_total"} & set(known) or any(name in each for each in known), f"{path.stem}: {name}"


def test_queries_tell_engines_of_a_fleet_apart() -> None:
    """A fleet's engines have one pod, the sidecar's: what is grouped by pod is grouped by target too."""
    for path in RUNBOOKS:
        for query in QUERY.findall(path.read_text()):
            for labels in re.findall(r"by \(([^)]*\bpod\b[^)]*)\)", query):
                assert "vllm:" in query or "target" in labels.split(", "), f"{path.stem}: {query}"


def test_alerts_on_raw_series_have_a_query_that_answers() -> None:
    """Where no sidecar runs, a runbook that both packs link to asks vLLM's own series too."""
    for name in {rule.name for rule in load("raw") if rule.is_alert}:
        queries = QUERY.findall((ALERTS / "runbooks" / f"{name}.md").read_text())
        assert any("vllm:" in query or query.startswith("up{") for query in queries), name


def test_misses_are_of_the_objective_that_burns() -> None:
    """Gaps are hundreds of a request: misses of all objectives together are those of gaps."""
    for slo in ("TTFT", "TPOT"):
        text = (ALERTS / "runbooks" / f"VLLM{slo}BudgetBurn.md").read_text()
        asked = re.findall(r"vllm_sidecar_slo_misses_total(\S*)\[", text)
        assert asked == [f'{{slo="{slo.lower()}"}}']


def test_other_runbooks_named_exist() -> None:
    """References between runbooks hold."""
    alerts = {rule.name for pack in build.PACKS for rule in load(pack) if rule.is_alert}
    for path in RUNBOOKS:
        assert set(re.findall(r"\bVLLM[A-Z]\w+", path.read_text())) <= alerts, path.stem


def test_none_makes_it_worse() -> None:
    """Less memory for KV cache is no cure for too little KV cache; V1 does not swap."""
    for name in (
        "VLLMPreemptions",
        "VLLMKVCachePinned",
        "VLLMMaxNumSeqsPastPreemptionPoint",
        "VLLMPredictedTTFTTooLong",
    ):
        text = (ALERTS / "runbooks" / f"{name}.md").read_text()
        assert not re.search(r"(?<!never )lower (`?--)?gpu-memory-utilization", text, re.IGNORECASE)
        assert "swap-space" not in text
        assert "out of memory" not in text
