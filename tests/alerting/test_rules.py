"""The rules as committed: made from their source, readable by every ruler, and each one sound."""

import re
import runpy
import subprocess
from pathlib import Path

import pytest

from alerts import build
from exporter.lab import observations
from tests.alerting.promql import Parser
from tests.alerting.rules import ALERTS, Checker, load
from tests.programs import PROMETHEUS_VERSIONS, newer

THRESHOLDS = ALERTS / "thresholds.yaml"
RULE_FILES = [path for directory in build.PACKS.values() for path in sorted((ALERTS / directory).glob("*.yaml"))]


def test_committed_files_are_what_the_source_makes() -> None:
    """After a change of source or thresholds, run alerts/build.py and commit what it makes."""
    made = build.files(THRESHOLDS, {})
    committed = {
        str(path.relative_to(ALERTS)): path.read_text()
        for directory in (*build.PACKS.values(), "prometheus-rule")
        for path in (ALERTS / directory).glob("*.yaml")
    }
    assert committed == made


def test_the_page_about_the_alerts_is_current() -> None:
    """If not: python alerts/reference.py."""
    assert (ALERTS / "README.md").read_text() == runpy.run_path(str(ALERTS / "reference.py"))["page"]()


@pytest.mark.parametrize("version", PROMETHEUS_VERSIONS)
def test_promtool_finds_nothing(version: str) -> None:
    """Old and new Prometheus load the rules, and have nothing to say of them."""
    command = [PROMETHEUS_VERSIONS[version]("promtool"), "check", "rules", "--lint=all", "--lint-fatal", *RULE_FILES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") == len(RULE_FILES)


def test_vmalert_loads_them() -> None:
    """VictoriaMetrics' ruler takes the same files."""
    rules = [f"-rule={path}" for path in RULE_FILES]
    done = subprocess.run([newer("vmalert"), "-dryRun", *rules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("pack", build.PACKS)
def test_every_rule_is_sound(pack: str, parser: Parser) -> None:
    """Its metrics exist, its labels meet, counters are rated, ratios guarded, and an alert says what people need."""
    rules = load(pack)
    checker = Checker(parser, pack, rules)
    assert rules
    assert {rule.name: faults for rule in rules if (faults := checker.faults(rule))} == {}


def test_every_runbook_is_an_alert_s() -> None:
    """A runbook whose alert is gone misleads."""
    alerts = {rule.name for pack in build.PACKS for rule in load(pack) if rule.is_alert}
    assert {path.stem for path in (ALERTS / "runbooks").glob("*.md")} == alerts


def test_no_alert_is_on_a_hit_ratio() -> None:
    """It is 0 where no prefix is shared, or a block is larger than what is, and nothing is wrong then."""
    assert [rule.name for pack in build.PACKS for rule in load(pack) if "prefix_cache_hit" in rule.body["expr"]] == []


def test_sidecars_and_fleets_raise_the_same_alerts() -> None:
    """The same names, severities and times; a fleet has two more, about finding its targets."""
    sidecar, fleet = (
        {(rule.name, rule.body["labels"]["severity"], rule.body.get("for")) for rule in load(pack) if rule.is_alert}
        for pack in ("sidecar", "fleet")
    )
    assert sidecar < fleet
    assert {name for name, *_ in fleet - sidecar} == {"VLLMTargetsMissing", "VLLMDiscoveryInvalid"}


def test_every_threshold_is_used_and_has_its_reason() -> None:
    """No setting without effect, none without a reason."""
    sources = "".join(path.read_text() for path in (ALERTS / "source").glob("*.yaml"))
    program = (ALERTS / "build.py").read_text()
    for name, entry in build.yaml.safe_load(THRESHOLDS.read_text()).items():
        assert set(entry) == {"value", "why"}, name
        assert len(entry["why"]) > 10, name
        used = f"<<{name}>>" in sources or f"<<{name}_seconds>>" in sources or re.search(rf"['\"]{name}['\"]", program)
        assert used, name


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("preemptions_ratio=-0.01", "preemptions_ratio: -0.01 is not a number above 0"),
        ("preemptions_ratio=1.5", "preemptions_ratio: 1.5 is not a share between 0 and 1"),
        ("burn_1_factor=0", "burn_1_factor: 0 is not a number above 0"),
        ("burn_count=2.5", "burn_count: 2.5 is not a whole number"),
        ("engine_lost_for=-5m", "engine_lost_for: '-5m' is not a duration above 0 such as 5m"),
        ("engine_lost_for=soon", "engine_lost_for: 'soon' is not a duration above 0 such as 5m"),
        ("window=1m", "window: 1m is shorter than four scrape intervals of 30s"),
        ("burn_2_long=30m", "burn_2_long: 30m is not longer than burn_2_short, 30m"),
        ("burn_3_short=1h", "burn_1_long: 1h is also burn_3_short; each window is recorded once"),
        ("cost_factor=.nan", "cost_factor: nan is not a number above 0"),
        ("cost_factor=true", "cost_factor: True is not a number above 0"),
        ("no_such_ratio=1", "no_such_ratio: unknown threshold; thresholds.yaml lists them"),
        ("runbook_url=", "runbook_url: None is not a url"),
        ("raw_ttft_seconds=3", "raw_ttft_seconds: 3 is not an edge of vLLM's buckets"),
        ("expected_engines=3", "expected_engines: each entry has namespace, model_name and engines, a whole number"),
    ],
)
def test_nonsense_is_refused_by_name(change: str, complaint: str, tmp_path: Path, capsys) -> None:
    """One line with the threshold's name, exit code 2, and nothing written."""
    assert build.main(["--set", change, "--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines() == [f"alerts/build.py: {complaint}"]
    assert list(tmp_path.iterdir()) == []


def test_a_changed_threshold_reaches_the_rules(tmp_path: Path) -> None:
    """What is set is in the expression, in `for` and in the text."""
    changes = ["preemptions_ratio=0.02", "preemptions_window=20m", "preemptions_for=9m"]
    assert build.main([*(part for change in changes for part in ("--set", change)), "--output", str(tmp_path)]) == 0
    for pack in ("sidecar", "fleet"):
        rule = next(rule for rule in load(pack, tmp_path) if rule.name == "VLLMPreemptions")
        assert "engine:vllm_sidecar_preemptions:increase20m" in rule.body["expr"]
        assert "> 0.02" in rule.body["expr"]
        assert rule.body["for"] == "9m"
        assert "in 20m" in rule.body["annotations"]["description"]


def test_edges_are_those_of_vllm_s_buckets() -> None:
    """Up to 80 s, as the simulated engine has them, which is held against real scrapes."""
    edges = {"raw_ttft_seconds": observations.TTFT_BUCKETS, "raw_tpot_seconds": observations.ITL_BUCKETS}
    assert {name: tuple(edge for edge in found if edge <= 80) for name, found in edges.items()} == build.BUCKET_EDGES


def test_expected_engines_become_series(tmp_path: Path) -> None:
    """Each model that should have engines gets a series that says how many."""
    entry = "[{namespace: prod, model_name: llama, engines: 4}]"
    assert build.main(["--set", f"expected_engines={entry}", "--output", str(tmp_path)]) == 0
    rule = next(rule for rule in load("fleet", tmp_path) if rule.name == "model:vllm_sidecar_expected_engines:sum")
    assert rule.body["expr"] == "vector(4)"
    assert rule.body["labels"] == {"namespace": "prod", "model_name": "llama"}
