"""The dashboards keep the rules of Grafana's dashboard-linter, and ours; they name only what the exporter exports."""

import re
from collections.abc import Iterator

import promql_parser
import pytest

from exporter.catalogue import METRICS, PREFIX, TABLE, Metric, Scope, Type
from grafana.queries import PARTS, SIDECAR
from grafana.render.ask import ALL
from tests.grafana.asked import NAMES, Asked, dashboard, panels, queries

UNITS = {"bytes", "short", "none", "s", "percentunit", "currencyUSD", "reqps"}
NOT_OURS = {
    "up": "Prometheus's own, of scraping the sidecar",
    "ALERTS": "Prometheus's own, of the rules it evaluates",
    "DCGM_FI_DEV_GPU_UTIL": "of NVIDIA's DCGM exporter, on a row of its own",
}
NOT_DRAWN = {
    "config_last_reload_timestamp_seconds": "a change of settings is in the log; whether they hold is drawn",
    "engine_awake": "the target's state says asleep",
    "speculation_tokens_per_step": "drawn from its counters, which add up over engines",
    "decode_batch_estimator_info": "says how decode_batch_size comes about",
    "decode_occupancy_requests": "drawn from its counter, which adds up over engines",
    **dict.fromkeys(
        ("fleet_targets", "fleet_engines", "fleet_running_requests", "fleet_waiting_requests"),
        "totals for readers without a Prometheus; the dashboards add up targets and engines",
    ),
    "build_info": "a version is not a question of these dashboards",
    "scrape_body_bytes": "of use when the sidecar's own cost is measured",
    "preemptions_per_arrival": "drawn from its counters, which add up over engines",
    "latency_quantile_seconds": "drawn from the histograms, which add up over engines",
    "desired_replicas": "advice for autoscalers; what it is made from is drawn",
    "requests_per_dollar": "drawn from its counters, which add up over targets",
    "prefix_cache_hit_ratio": "drawn from its counters, which add up over engines",
    "computed_prompt_tokens_per_arrival": "drawn from its counters, which add up over engines",
}
# Durations that no query has of its own, to find Grafana's again in a parsed one.
RATE_INTERVAL, RANGE = 671.0, 793.0

EVERY = [pytest.param(asked, id=str(asked)) for asked in queries()]
EACH = pytest.mark.parametrize("name", NAMES)


def parsed(asked: Asked) -> promql_parser.Expr:
    return promql_parser.parse(_marked(str(asked.target["expr"])))


def _marked(expr: str) -> str:
    values = ALL | {"__rate_interval": f"{RATE_INTERVAL:.0f}s", "__range": f"{RANGE:.0f}s"}
    values |= {name: f"all-{name}" for name in ALL if name != "replica"}
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], expr)


def walk(expr: promql_parser.Expr, inside: str = "") -> Iterator[tuple[promql_parser.Expr, str]]:
    """Every part of an expression with the function or aggregation it is the argument of."""
    yield expr, inside
    if isinstance(expr, promql_parser.Call):
        for argument in expr.args:
            yield from walk(argument, expr.func.name)
    elif isinstance(expr, promql_parser.MatrixSelector):
        yield expr.vector_selector, inside
    elif isinstance(expr, promql_parser.BinaryExpr):
        yield from walk(expr.lhs)
        yield from walk(expr.rhs)
    elif isinstance(expr, promql_parser.AggregateExpr):
        yield from walk(expr.expr, str(expr.op))
    elif isinstance(expr, promql_parser.ParenExpr | promql_parser.UnaryExpr):
        yield from walk(expr.expr, inside)
    else:
        assert isinstance(
            expr, promql_parser.VectorSelector | promql_parser.NumberLiteral | promql_parser.StringLiteral
        )


def selectors(expr: promql_parser.Expr) -> Iterator[tuple[promql_parser.VectorSelector, str]]:
    return ((part, inside) for part, inside in walk(expr) if isinstance(part, promql_parser.VectorSelector))


def row_of(sample: str) -> Metric:
    name = sample.removeprefix(PREFIX)
    row = METRICS.get(name)
    if row is None:
        stem, _, part = name.rpartition("_")
        row = METRICS[stem]
        assert row.type is Type.HISTOGRAM
        assert part in PARTS
    return row


@EACH
def test_identity(name: str) -> None:
    """A dashboard keeps its address over releases and imports by page, file or ConfigMap."""
    found = dashboard(name)
    assert found["uid"] == f"vllm-sidecar-{name}"
    assert len(found["uid"]) <= 40
    assert found["id"] is None
    assert not {"__inputs", "__requires"} & set(found)
    assert found["editable"] is False
    assert found["title"].startswith("vLLM sidecar / ")
    assert 36 <= found["schemaVersion"] <= 41
    assert found["refresh"] in ("30s", "1m")
    assert found["graphTooltip"] == 1
    assert found["tags"] == ["vllm", "vllm-sidecar"]


@EACH
def test_links_carry_time_and_variables(name: str) -> None:
    """From one dashboard to the next, what is looked at stays the same."""
    links = [link for link in dashboard(name)["links"] if link["type"] == "dashboards"]
    assert {tuple(link["tags"]) for link in links} == {("vllm-sidecar",), ("vllm",)}
    assert all(link["keepTime"] and link["includeVars"] for link in links)


@EACH
def test_variables(name: str) -> None:
    """One data source; job and instance as the linter wants them; labels that a deployment lacks do not empty it."""
    variables = {one["name"]: one for one in dashboard(name)["templating"]["list"]}
    assert set(variables) - {"window"} == {"datasource", *SIDECAR, "target", "model_name", "engine", "replica"}
    source = variables.pop("datasource")
    assert (source["type"], source["query"], source["label"]) == ("datasource", "prometheus", "Data Source")
    for one in variables.values():
        assert one["type"] == "query"
        assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert one["refresh"] == 2, "reload on a change of the time range"
    choices = {name: one for name, one in variables.items() if name not in ("replica", "window")}
    assert all(one["multi"] and one["includeAll"] for one in choices.values())
    assert {name: one["allValue"] for name, one in choices.items()} == {name: ALL[name] for name in choices}


@EACH
def test_variables_ask_for_what_is_exported(name: str) -> None:
    """Each variable's query parses, and names a metric that has the label."""
    for one in dashboard(name)["templating"]["list"]:
        if one["type"] != "query":
            continue
        kind, inside = re.fullmatch(r"(label_values|query_result)\((.*)\)", one["query"]["query"]).groups()
        expr, _, label = inside.rpartition(", ") if kind == "label_values" else (inside, "", "")
        for selector, _ in selectors(promql_parser.parse(_marked(expr))):
            row = row_of(selector.name)
            scope = {Scope.SELF: SIDECAR, Scope.TARGET: (*SIDECAR, "target")}
            labels = scope.get(row.scope, (*SIDECAR, "target", "model_name", "engine"))
            assert not label or label in (*labels, *row.labels)


@EACH
def test_ids_are_unique(name: str) -> None:
    """Grafana drops one of two panels of the same id."""
    found = [panel["id"] for panel in dashboard(name)["panels"]] + [panel["id"] for panel in panels(name)]
    rows = [panel for panel in dashboard(name)["panels"] if panel["type"] == "row"]
    assert len(set(found)) == len(list(panels(name))) + len(rows)


@EACH
def test_every_panel_is_described(name: str) -> None:
    """A panel says what it answers, in which unit, of which source, and by which metrics."""
    for panel in panels(name):
        assert not panel["title"].endswith(".")
        asks, *helps = panel["description"].split("\n\n")
        assert asks.endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"], panel["title"]
        named = set(re.findall(rf"\b{PREFIX}\w+", " ".join(one["expr"] for one in panel["targets"])))
        drawn = {row_of(sample) for sample in named} - {METRICS["target_info"]}
        assert set(helps) == {f"`{row.full_name}`: {row.help}" for row in drawn}, panel["title"]


UNIT_OF = {"seconds": "s", "ratio": "percentunit", "bytes": "bytes", "dollars": "currencyUSD"}
"""Grafana's unit for the last word of a gauge's name."""

ABOVE_ONE = {"saturation_ratio", "crossover_ratio", "speculation_expected_speedup_ratio"}
"""Ratios that are no shares: how many times over."""


@pytest.mark.parametrize("asked", EVERY)
def test_a_value_is_shown_in_the_unit_of_its_metric(asked: Asked) -> None:
    """Seconds as seconds, shares of 1 as percent: in the panel, or in the column of a table."""
    assert asked.unit in UNITS
    inner = parsed(asked)
    while isinstance(inner, promql_parser.AggregateExpr | promql_parser.ParenExpr):
        inner = inner.expr
    if isinstance(inner, promql_parser.VectorSelector):
        expected = UNIT_OF.get(inner.name.rpartition("_")[2], asked.unit)
        assert asked.unit == ("short" if inner.name.removeprefix(PREFIX) in ABOVE_ONE else expected), inner.name


@EACH
def test_no_data_is_not_zero(name: str) -> None:
    """A gap stays a gap: no line is drawn over it, and no value stands in for it."""
    for panel in panels(name):
        assert panel["fieldConfig"]["defaults"].get("noValue") != "0"
        if panel["type"] == "timeseries":
            assert panel["fieldConfig"]["defaults"]["custom"]["spanNulls"] is False
        assert not any("vector(" in one["expr"] for one in panel["targets"])


@pytest.mark.parametrize("asked", EVERY)
def test_query_parses_and_is_of_ours(asked: Asked) -> None:
    """Metrics exist; each is selected by the variables of its scope and by labels that it has."""
    for selector, _ in selectors(parsed(asked)):
        if selector.name in NOT_OURS:
            continue
        row = row_of(selector.name)
        chosen = {"target": Scope.TARGET, "model_name": Scope.ENGINE, "engine": Scope.ENGINE}
        order = [Scope.SELF, Scope.TARGET, Scope.ENGINE]
        expected = set(SIDECAR) | {one for one, scope in chosen.items() if order.index(row.scope) >= order.index(scope)}
        matchers = {one.name: one for one in selector.matchers.matchers}
        own = set(matchers) - expected
        assert own <= set(row.labels), f"{selector.name} has no label {own - set(row.labels)}"
        for label in expected:
            assert matchers[label].value == f"all-{label}", f"{selector.name} is not selected by ${label}"


@pytest.mark.parametrize("asked", EVERY)
def test_query_names_labels_that_exist(asked: Asked) -> None:
    """Grouping, matching and legends name labels of the metrics in the query."""
    added = {*SIDECAR, "target", "model_name", "engine", "le", "severity", "alertname", "gpu"}
    own = {
        label for one, _ in selectors(parsed(asked)) if one.name not in NOT_OURS for label in row_of(one.name).labels
    }
    expr, legend = _marked(str(asked.target["expr"])), _marked(str(asked.target["legendFormat"]))
    groups = re.findall(r"\b(?:by|on|ignoring|without|group_left|group_right) ?\(([^)]*)\)", expr)
    named = {label.strip() for group in groups for label in group.split(",") if label.strip()}
    named |= set(re.findall(r"{{(\w+)}}", legend))
    assert named <= added | own


@pytest.mark.parametrize("asked", EVERY)
def test_counters_are_rates(asked: Asked) -> None:
    """A counter is only ever rated, over ``$__rate_interval``, or over ``$__range`` where a table sums the time up."""
    expr = parsed(asked)
    for selector, inside in selectors(expr):
        if selector.name in NOT_OURS:
            continue
        counts = row_of(selector.name).type is not Type.GAUGE
        assert counts == (inside in ("rate", "increase")), f"{selector.name} inside {inside or 'nothing'}"
    for part, _ in walk(expr):
        if isinstance(part, promql_parser.MatrixSelector):
            allowed = {RATE_INTERVAL, RANGE} if asked.target["instant"] else {RATE_INTERVAL}
            assert part.range.total_seconds() in allowed


@pytest.mark.parametrize("asked", EVERY)
def test_divisions_are_guarded(asked: Asked) -> None:
    """Nothing stands below the line without a guard against zero, but numbers and objectives, which are below 1."""
    for part, _ in walk(parsed(asked)):
        if isinstance(part, promql_parser.BinaryExpr) and str(part.op) == "/":
            below = str(part.rhs)
            assert "> 0" in below or "slo_objective_ratio" in below or re.fullmatch(r"[\d.e]+", below), below


@pytest.mark.parametrize("asked", EVERY)
def test_no_average_of_ratios(asked: Asked) -> None:
    """Ratios and quantiles of engines have a worst, a best and a median; a sum or a mean of them means nothing."""
    for part, _ in walk(parsed(asked)):
        if isinstance(part, promql_parser.AggregateExpr) and str(part.op) in ("sum", "avg"):
            added = {one.name for one, inside in selectors(part.expr) if inside not in ("rate", "increase")}
            assert not [name for name in added if name.endswith(("_ratio", "_quantile_seconds"))]


@pytest.mark.parametrize("asked", EVERY)
def test_sums_of_histograms_are_divided(asked: Asked) -> None:
    """The sum of a histogram per second is no mean: it stands above the same histogram's count."""
    expr = str(asked.target["expr"])
    for name in re.findall(r"rate\((\w+)_sum\b", expr):
        above, _, below = expr.partition(" / ")
        assert f"rate({name}_sum" in above
        assert f"rate({name}_count" in below


def test_every_metric_is_drawn() -> None:
    """A metric that no panel draws is worth a reason."""
    drawn = {
        row_of(one.name).name for asked in queries() for one, _ in selectors(parsed(asked)) if one.name not in NOT_OURS
    }
    variables = {"target_info"}
    assert {row.name for row in TABLE} - drawn - variables == set(NOT_DRAWN)
