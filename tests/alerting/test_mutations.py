"""A rule that is broken on purpose fails a test: by being read where that is enough, else by promtool."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from alerts import build
from tests.alerting.promql import Parser, Walk
from tests.alerting.rules import ALERTS, Checker, Rule, load
from tests.programs import system

NAME = re.compile(r"\b(?:vllm_sidecar_\w+|vllm:\w+|(?:engine|replica|target|model):vllm_\w+:\w+)\b")
LABELS = (
    "model_name",
    "engine",
    "pod",
    "target",
    "slo",
    "reason",
    "status",
    "state",
    "role",
    "resource",
    "series",
    "kind",
)
OPPOSITE = {">": "<", ">=": "<", "<": ">=", "==": "!="}


def broken(expression: str) -> Iterator[tuple[str, str]]:
    """(kind, expression) of each way to break it that people's rules are broken in."""
    for found in NAME.finditer(expression):
        head, name, tail = expression[: found.start()], found[0], expression[found.end() :]
        yield "wrong name", f"{head}{name}x{tail}"
        if name.endswith("_total"):
            yield "missing _total", head + name.removesuffix("_total") + tail
    for label in LABELS:
        for found in re.finditer(rf"\b{label}\b(?=[,)]|=)", expression):
            yield "wrong label", f"{expression[: found.start()]}{label}x{expression[found.end() :]}"
    for found in re.finditer(r"\s+> (?:0|100000)(?=\s*\))", expression):
        if "/" in expression[: found.start()]:
            yield "no guard", expression[: found.start()] + expression[found.end() :]
    for found in re.finditer(r"\b(?:rate|increase)\(", expression):
        yield "no rate", f"{expression[: found.start()]}max_over_time({expression[found.end() :]}"


def mutated(rule: Rule, expression: str) -> Rule:
    """The rule with another expression."""
    return replace(rule, body={**rule.body, "expr": expression})


@pytest.mark.parametrize("pack", build.PACKS)
def test_reading_finds_names_labels_guards_and_rates(pack: str, parser: Parser) -> None:
    """Each metric of each rule misspelt, without `_total`, with a wrong label, without its guard or its rate."""
    rules = load(pack)
    checker = Checker(parser, pack, rules)
    seen = set()
    for rule in rules:
        for kind, expression in broken(rule.body["expr"]):
            seen.add(kind)
            assert checker.faults(mutated(rule, expression)), f"{rule.name}: {kind} is not found in\n{expression}"
    assert seen == {"wrong name", "missing _total", "wrong label", "no guard", "no rate"}


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("(up == 1) * 2", True),
        ("2 - (up > 0)", True),
        ("(up > 0) / 2", True),
        ("(up == bool 1) * 2", False),
        ("2 / (up > 0)", False),
        ("0 * (up > 1)", False),
    ],
)
def test_reading_finds_a_comparison_that_is_computed_with(expression: str, found: bool, parser: Parser) -> None:
    """Without bool it gives the value itself, where 0 or 1 was meant; a guard and a zero are meant so."""
    faults = Walk(parser.parse(expression), {"up": frozenset()}, frozenset()).faults
    assert any("without bool" in fault for fault in faults) is found


def flipped(expression: str) -> str:
    """The expression with its last comparison turned round."""
    *_, found = re.finditer(r"(?<=\s)(?:>=|<|>|==)(?=\s)", expression)
    return expression[: found.start()] + OPPOSITE[found[0]] + expression[found.end() :]


ALERTING = sorted({rule.name for rule in load("sidecar") if rule.is_alert} - {"VLLMWatchdog"})


@pytest.mark.parametrize("alert", ALERTING)
def test_promtool_finds_a_comparison_turned_round(alert: str, tmp_path: Path) -> None:
    """What reading cannot know, the unit tests do: each rule of the alert is turned round in its last comparison."""
    shutil.copytree(ALERTS / "rules", tmp_path / "rules")
    (tmp_path / "tests").mkdir()
    test = Path(shutil.copy(ALERTS / "tests" / f"{alert}.yaml", tmp_path / "tests"))
    path = next(rule.file for rule in load("sidecar", tmp_path) if rule.name == alert)
    content = yaml.safe_load(path.read_text())
    for group in content["groups"]:
        for rule in group["rules"]:
            if rule.get("alert") == alert:
                rule["expr"] = flipped(rule["expr"])
    path.write_text(yaml.safe_dump(content))
    command = [system("promtool"), "test", "rules", test]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert "exp:" in done.stdout + done.stderr, done.stderr
