"""PromQL over our metrics: names, labels and scopes come from the exporter's catalogue, so that they cannot drift.

Labels of a replica: Prometheus adds ``job``, ``namespace``, ``pod`` and ``instance``, which are the sidecar's. With one
sidecar a pod they name the replica; where one sidecar watches a fleet, ``target`` does. The dashboards' variable
``$replica`` holds the name of the label that does.
"""

import re

from exporter.catalogue import METRICS, PREFIX, Metric, Scope, Type

SIDECAR = ("job", "namespace", "pod", "instance")
SELECTED_BY = {
    Scope.SELF: SIDECAR,
    Scope.TARGET: (*SIDECAR, "target"),
    Scope.ENGINE: (*SIDECAR, "target", "model_name", "engine"),
}
"""The dashboards' variables that choose among the series of a scope."""

PARTS = ("bucket", "count", "sum")
TARGET = "job, instance, target"
"""Labels that tell targets apart, whatever else Prometheus adds."""

REPLICA = "namespace, $replica"
RATE_INTERVAL, RANGE = "$__rate_interval", "$__range"
NAME = re.compile(rf"\b{PREFIX}(\w+)")


class NotInCatalogueError(LookupError):
    """A metric or a label that the exporter does not export, or one that its catalogue does not describe."""


def metric(name: str) -> Metric:
    """The catalogue's row of an exported sample's name, without prefix; a histogram's may end in a part.

    Raises:
        NotInCatalogueError: there is none, or it has no help.
    """
    row = METRICS.get(name)
    if row is None:
        stem, _, part = name.rpartition("_")
        row = METRICS.get(stem) if part in PARTS else None
    if row is None or (row.name != name) != (row.type is Type.HISTOGRAM):
        raise NotInCatalogueError(f"{PREFIX}{name} is not a sample that exporter/catalogue.py exports")
    if not row.help:
        raise NotInCatalogueError(f"{PREFIX}{name} has no help in exporter/catalogue.py")
    return row


def used(expr: str) -> list[Metric]:
    """Rows of the metrics that an expression names, in its order."""
    return list(dict.fromkeys(metric(name) for name in NAME.findall(expr)))


def _matchers(variables: tuple[str, ...], own: str) -> str:
    chosen = [f'{variable}=~"${variable}"' for variable in variables]
    return "{" + ", ".join([own] * bool(own) + chosen) + "}"


def _selector(name: str, own: str) -> str:
    row = metric(name)
    for label in re.findall(r"(\w+)\s*[=!]", own):
        if label not in row.labels:
            raise NotInCatalogueError(f"{PREFIX}{name} has no label {label} in exporter/catalogue.py")
    return f"{PREFIX}{name}{_matchers(SELECTED_BY[row.scope], own)}"


def _chosen(name: str, expr: str, over: str = RATE_INTERVAL) -> str:
    """A target's series carry no model: keep those of targets that serve a model chosen."""
    if metric(name).scope is not Scope.TARGET or name == "target_info":
        return expr
    return f"({expr} and on ({TARGET}) {_info(over, of_model=True)})"


def _info(over: str, own: str = "", *, of_model: bool = False) -> str:
    """What a target is; over the whole range what it was, since one that is gone by its end has its part in sums."""
    info = f"{PREFIX}target_info{_matchers((*SELECTED_BY[Scope.TARGET], *['model_name'] * of_model), own)}"
    return f"last_over_time({info}[{RANGE}])" if over == RANGE else info


def series(name: str, own: str = "") -> str:
    """The chosen series of a gauge.

    Args:
        name: without prefix.
        own: matchers on the metric's own labels.
    """
    return _chosen(name, _selector(name, own))


def rate(name: str, own: str = "") -> str:
    """What the chosen series of a counter, or of a histogram's part, gain per second."""
    return _chosen(name, f"rate({_selector(name, own)}[{RATE_INTERVAL}])")


def increase(name: str, own: str = "", over: str = RATE_INTERVAL) -> str:
    """What they gained over a time."""
    return _chosen(name, f"increase({_selector(name, own)}[{over}])", over)


def aggregate(operation: str, by: str, expr: str) -> str:
    """``sum``, ``max`` and so on, by labels; by none without."""
    return f"{operation} by ({by}) ({expr})" if by else f"{operation}({expr})"


def total(by: str, expr: str) -> str:
    """The sum by labels."""
    return aggregate("sum", by, expr)


def worst(by: str, expr: str) -> str:
    """The maximum by labels."""
    return aggregate("max", by, expr)


def ratio(above: str, below: str) -> str:
    """A quotient, absent where nothing stands below the line."""
    return f"{above} / ({below} > 0)"


def weighted_mean(by: str, values: str, weights: str, ignoring: str = "") -> str:
    """The mean of what are means themselves, each by the weight that it is a mean of.

    Args:
        by: labels to keep.
        values: one for each engine; an engine without one adds nothing to the weights either.
        weights: per second.
        ignoring: labels that only the values have.
    """
    matched = f"ignoring ({ignoring}) {weights}" if ignoring else weights
    return ratio(total(by, f"{values} * {matched}"), total(by, f"{values} * 0 + {matched}"))


def quantile(q: float, histogram: str, by: str = "") -> str:
    """A quantile of the merged buckets, absent without observations."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, {total(labels, rate(f'{histogram}_bucket'))}) >= 0"


def or_zero(expr: str) -> str:
    """0 instead of nothing, but only while a target reports."""
    return f"{expr} or 0 * sum({series('target_up')})"


def by_model(expr: str, over: str = RATE_INTERVAL) -> str:
    """A target's values with the model's name; those of a target that serves several models are called ``several``."""
    info = _info(over)
    if over == RANGE:
        # Before an engine has answered its target has no model.
        named = _info(over, 'model_name!=""')
        info = f"group by ({TARGET}, model_name) ({named} or on ({TARGET}) {info})"
    models = f"count by ({TARGET}) ({info})"
    one = f"group by ({TARGET}, model_name) ({info}) and on ({TARGET}) ({models} == 1)"
    several = f'label_replace(group by ({TARGET}) ({info}) and ({models} > 1), "model_name", "several", "", "")'
    return f"{expr} * on ({TARGET}) group_left (model_name) ({one} or {several})"
