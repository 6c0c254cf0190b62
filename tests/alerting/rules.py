"""The rules as committed, what they may name, and the checks that every one of them must pass."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from alerts.build import PACKS
from exporter.catalogue import TABLE, Scope, Type
from exporter.upstream import PREFIXES, Kind, Part
from exporter.upstream import TABLE as UPSTREAM
from tests.alerting.promql import Parser, Walk, template_labels
from tests.programs import ROOT

ALERTS = ROOT / "alerts"
DISCOVERED = frozenset({"namespace", "pod", "job", "instance"})
"""Labels that Prometheus gives whatever it scrapes in Kubernetes."""

RECORDED = re.compile(r"(engine|replica|target|model):vllm_[a-z_]+:[a-z]+(\d+[smhd])?")
SEVERITIES = {"critical", "warning", "info"}
LINKS = {"runbook_url", "dashboard_url"}


@dataclass(frozen=True)
class Rule:
    """One rule of a pack, and the file it is in."""

    pack: str
    file: Path
    body: dict = field(hash=False)

    @property
    def name(self) -> str:
        return self.body.get("alert") or self.body["record"]

    @property
    def is_alert(self) -> bool:
        return "alert" in self.body


def load(pack: str, directory: Path = ALERTS) -> list[Rule]:
    """The rules of a pack, in the order of evaluation."""
    return [
        Rule(pack, path, body)
        for path in sorted((directory / PACKS[pack]).glob("*.yaml"))
        for group in yaml.safe_load(path.read_text())["groups"]
        for body in group["rules"]
    ]


class Checker:
    """What is wrong with a rule, told by reading it.

    Args:
        parser: Prometheus's own.
        pack: which metrics and labels there are.
        rules: the whole pack; what one records another may read.
    """

    def __init__(self, parser: Parser, pack: str, rules: list[Rule]) -> None:
        self._parser = parser
        self.labels, self.counters = _raw() if pack == "raw" else _exported(pack)
        self.labels["up"] = DISCOVERED
        # Given by those who expect a number of engines.
        self.labels["model:vllm_sidecar_expected_engines:sum"] = frozenset({"namespace", "model_name"})
        waiting = [rule for rule in rules if not rule.is_alert]
        # A rule may read what one in another file records.
        while waiting:
            ready = [rule for rule in waiting if not self._unknown(rule) & {other.name for other in waiting}]
            assert ready, [rule.name for rule in waiting]
            for rule in ready:
                self.labels[rule.name] = self.labels.get(rule.name, frozenset()) | self._walk(rule).labels
            waiting = [rule for rule in waiting if rule not in ready]

    def _unknown(self, rule: Rule) -> set[str]:
        return {found[0] for found in re.finditer(RECORDED, rule.body["expr"])} - set(self.labels)

    def _walk(self, rule: Rule) -> Walk:
        return Walk(self._parser.parse(rule.body["expr"]), self.labels, self.counters)

    def faults(self, rule: Rule) -> list[str]:
        """Everything that is wrong with a rule."""
        walk = self._walk(rule)
        found = list(walk.faults)
        if not rule.is_alert:
            if not RECORDED.fullmatch(rule.name):
                found.append(f"{rule.name} is not level:metric:operation")
            return found
        labels, annotations = rule.body["labels"], rule.body["annotations"]
        if labels.get("severity") not in SEVERITIES:
            found.append("no severity")
        if not re.fullmatch(r"[A-Z][^{]*\.", annotations.get("summary", "")):
            found.append("the summary is not a plain sentence")
        if not (LINKS | {"description"}) <= set(annotations):
            found.append("an annotation is missing")
        named = set().union(*(template_labels(text) for text in annotations.values()))
        found += [
            f"the annotations name {label}, which the result has not" for label in named - walk.labels - set(labels)
        ]
        if not (ALERTS / "runbooks" / f"{rule.name}.md").is_file():
            found.append("no runbook")
        return found


def _exported(pack: str) -> tuple[dict[str, frozenset[str]], frozenset[str]]:
    labels: dict[str, frozenset[str]] = {}
    counters = set()
    engine = {"model_name", "engine"} | ({"target"} if pack == "fleet" else set())
    scopes = {Scope.SELF: set(), Scope.TARGET: {"target"}, Scope.ENGINE: engine}
    for row in TABLE:
        own = DISCOVERED | scopes[row.scope] | set(row.labels)
        if row.type is Type.HISTOGRAM:
            for part in ("_sum", "_count"):
                labels[row.full_name + part] = own
            labels[f"{row.full_name}_bucket"] = own | {"le"}
            counters |= {row.full_name + part for part in ("_bucket", "_sum", "_count")}
        else:
            labels[row.full_name] = own
            if row.type is Type.COUNTER:
                counters.add(row.full_name)
    return labels, frozenset(counters)


def _raw() -> tuple[dict[str, frozenset[str]], frozenset[str]]:
    """vLLM's own newest names."""
    labels: dict[str, frozenset[str]] = {}
    counters = set()
    for row in UPSTREAM:
        prefix = PREFIXES[0] if row.prefixed else ""
        own = DISCOVERED | ({"model_name", "engine"} if row.scope_engine else set()) | set(row.labels)
        for part in row.parts:
            name = prefix + row.name + part.value
            labels[name] = own | ({"le"} if part is Part.BUCKET else set())
            if row.kind is not Kind.GAUGE:
                counters.add(name)
    return labels, frozenset(counters)
