"""Expressions as Prometheus's own parser reads them, and what is wrong with them."""

import re
from collections.abc import Iterator, Mapping

from tests.prometheus import Prometheus

RATES = {"rate", "increase", "irate", "resets"}
ARITHMETIC = {"+", "-", "*", "/", "%", "^"}
COMPARISONS = {"==", "!=", ">", "<", ">=", "<="}


class Parser:
    """A Prometheus 3 as a parser."""

    def __init__(self, prometheus: Prometheus) -> None:
        self.prometheus = prometheus
        self._known: dict[str, dict] = {}

    def parse(self, expression: str) -> dict:
        """The syntax tree of an expression."""
        if expression not in self._known:
            self._known[expression] = self.prometheus.answer("parse_query", query=expression)
        return self._known[expression]


class Walk:
    """One expression, walked: the labels of its result, and its faults.

    Args:
        tree: as Prometheus parsed it.
        labels: the labels that the series of each metric may have, by sample name.
        counters: sample names that only go up.
    """

    def __init__(self, tree: dict, labels: Mapping[str, frozenset[str]], counters: frozenset[str]) -> None:
        self.faults: list[str] = []
        self._known = labels
        self._counters = counters
        self.labels = self._labels(tree, inside="")

    def _labels(self, node: dict, inside: str) -> frozenset[str]:
        kind = node["type"]
        if kind in ("numberLiteral", "stringLiteral"):
            return frozenset()
        if kind in ("vectorSelector", "matrixSelector"):
            return self._selector(node, inside)
        if kind in ("parenExpr", "unaryExpr", "stepInvariant", "subquery"):
            return self._labels(node["expr"], "" if kind == "subquery" else inside)
        if kind == "call":
            found = [self._labels(each, node["func"]["name"]) for each in node["args"]]
            return found[0] if found else frozenset()
        if kind == "aggregation":
            return self._aggregation(node, inside)
        assert kind == "binaryExpr", kind
        return self._binary(node, inside)

    def _selector(self, node: dict, inside: str) -> frozenset[str]:
        name = node["name"]
        if any(matcher["name"] == "__name__" and matcher["type"] != "=" for matcher in node["matchers"]):
            self.faults.append("a name is matched by a pattern")
        if name not in self._known:
            self.faults.append(f"{name} is no metric of ours, nor recorded")
            return frozenset()
        if name in self._counters and inside not in RATES:
            self.faults.append(f"{name} is a counter, read without rate")
        if inside == "delta":
            self.faults.append(f"delta of {name}: a counter wants increase, a gauge deriv")
        if name not in self._counters and inside in RATES:
            self.faults.append(f"{name} is no counter, but its rate is taken")
        for matcher in node["matchers"]:
            if matcher["name"] not in {"__name__", *self._known[name]}:
                self.faults.append(f"{name} has no label {matcher['name']}")
        return self._known[name]

    def _aggregation(self, node: dict, inside: str) -> frozenset[str]:
        below = self._labels(node["expr"], inside)
        kept = frozenset(node["grouping"])
        if node["without"]:
            self.faults.append("without() keeps labels that nobody knows; name those to keep")
        self.faults += [f"no label {label} to aggregate by" for label in kept - below]
        if node["op"] == "avg" and _is_ratio(node["expr"]):
            self.faults.append("an average of ratios")
        return kept | ({node["param"]["val"]} if node["op"] == "count_values" else set())

    def _binary(self, node: dict, inside: str) -> frozenset[str]:
        left, right = self._labels(node["lhs"], inside), self._labels(node["rhs"], inside)
        if node["op"] == "/" and not _is_guarded(node["rhs"]):
            self.faults.append("a ratio whose denominator may be 0")
        if _computes_with_a_filter(node):
            self.faults.append(f"{node['op']} takes the result of a comparison without bool")
        matching = node["matching"]
        if matching is None:
            return left or right
        if matching["on"]:
            for label in matching["labels"]:
                for side, found in (("left", left), ("right", right)):
                    if label not in found:
                        self.faults.append(f"no label {label} on the {side} of {node['op']}")
        elif left != right:
            self.faults.append(f"{node['op']} joins {sorted(left)} with {sorted(right)}")
        if node["op"] in ("and", "unless"):
            return left
        if node["op"] == "or":
            return left | right
        if matching["card"] == "one-to-one":
            return frozenset(matching["labels"]) if matching["on"] else left
        one, many = (right, left) if matching["card"] == "many-to-one" else (left, right)
        self.faults += [f"no label {label} to include" for label in set(matching["include"]) - one]
        return many | set(matching["include"])


def _unwrapped(node: dict) -> dict:
    while node["type"] in ("parenExpr", "stepInvariant"):
        node = node["expr"]
    return node


def _is_guarded(node: dict) -> bool:
    """Whether a denominator is a number, or a vector from which zeros are filtered."""
    node = _unwrapped(node)
    if node["type"] == "numberLiteral":
        return float(node["val"]) != 0
    if node["type"] != "binaryExpr":
        return False
    if node["matching"] is None and _is_scalar(node):
        return True
    return node["op"] == ">" and _unwrapped(node["rhs"])["type"] == "numberLiteral" and not node["bool"]


def _computes_with_a_filter(node: dict) -> bool:
    """Whether a comparison that lets values through is computed with as if it said 0 or 1: ``(x > 0) * y`` is x y.

    A guarded denominator is what it should be, and ``0 * (x > y)`` is 0 where that holds.
    """
    left, right = _unwrapped(node["lhs"]), _unwrapped(node["rhs"])
    if node["op"] not in ARITHMETIC or (left["type"] == "numberLiteral" and float(left["val"]) == 0):
        return False
    return any(
        each["type"] == "binaryExpr" and each["op"] in COMPARISONS and not each["bool"]
        for each in ([left] if node["op"] == "/" else [left, right])
    )


def _is_scalar(node: dict) -> bool:
    node = _unwrapped(node)
    if node["type"] == "binaryExpr":
        return _is_scalar(node["lhs"]) and _is_scalar(node["rhs"])
    return node["type"] == "numberLiteral"


def _is_ratio(node: dict) -> bool:
    return any(each.get("op") == "/" or re.search(r"_ratio\b", each.get("name") or "") for each in nodes(node))


def nodes(tree: object) -> Iterator[dict]:
    """Every node of a tree, from the root."""
    if isinstance(tree, dict):
        if "type" in tree:
            yield tree
        for value in tree.values():
            yield from nodes(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from nodes(value)


def template_labels(text: str) -> set[str]:
    """Labels that an annotation's template names."""
    return set(re.findall(r"\$labels\.(\w+)", text))
