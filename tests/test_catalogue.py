"""The catalogue is an interface: names, types and labels are held here, and everything exported comes from it."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from exporter.catalogue import METRICS, PREFIX, TABLE, Scope, Type
from exporter.collect import families
from exporter.schema import Group
from exporter.upstream import SAMPLES
from tests.bodies import NOBODY, Fed, samples
from tests.programs import newer, system
from tests.recordings import scrapes
from tests.rich import PRICED, busy_engine

HELD = Path(__file__).parent / "data" / "metrics.txt"
SCRAPES = Path(__file__).parent / "data" / "scrapes"


@pytest.fixture(scope="module")
def rich():
    """Everything that a busy engine's target exports, as families."""
    return busy_engine().families()


class Collected:
    """Families as prometheus_client's encoders read them."""

    def __init__(self, found):
        self.found = found

    def collect(self):
        return self.found


def line(row):
    owner = {Scope.SELF: (), Scope.TARGET: ("target",), Scope.ENGINE: ("model_name", "engine")}[row.scope]
    return f"{row.full_name} {row.type.value} {','.join((*owner, *row.labels)) or '-'}"


def test_names_types_and_labels_are_held():
    """They are API. A line less or changed here is a breaking change, and goes under Removed in the changelog."""
    held = [text for text in HELD.read_text(encoding="utf-8").splitlines() if not text.startswith("#")]

    assert [line(row) for row in TABLE] == held


def test_what_is_exported_is_in_the_catalogue_with_its_type_and_labels(rich):
    """No series outside it."""
    for family in rich:
        row = METRICS.get(family.name.removeprefix(PREFIX)) or METRICS[f"{family.name.removeprefix(PREFIX)}_total"]
        held = set(line(row).split()[2].split(",")) - {"-"}
        assert family.type == row.type.value
        assert {frozenset(sample.labels) - {"le"} for sample in family.samples} == {frozenset(held)}


def test_every_row_of_the_catalogue_is_shown(rich):
    """A busy engine that speculates, preempts, queues and rejects shows them all: none is a dead row."""
    shown = {family.name for family in rich}

    assert {row.full_name.removesuffix("_total") for row in TABLE} - shown == set()


def test_no_series_comes_twice(rich):
    """Prometheus would refuse the whole scrape."""
    assert len(samples(rich)) == sum(len(family.samples) for family in rich)
    assert len({family.name for family in rich}) == len(rich)


def test_names_are_base_units_and_ratios():
    """Seconds, bytes, ratios 0-1, dollars; never milliseconds or percent; counters and only they end in _total."""
    for row in TABLE:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", row.name)
        assert not re.search(r"_(ms|milliseconds|percent|perc|minutes|hours|kb|mb|gb)(_|$)", row.name), row.name
        assert row.name.endswith("_total") == (row.type is Type.COUNTER), row.name
        assert not row.name.endswith(("_created", "_bucket", "_count", "_sum")), row.name


def test_no_name_of_ours_is_one_of_vllms():
    """Nor would be with an underscore for the colon, as OpenMetrics without UTF-8 has it: nothing is counted twice."""
    theirs = {name.replace(":", "_") for name in SAMPLES}

    assert {row.full_name for row in TABLE} & theirs == set()
    assert not any(row.full_name.startswith("vllm_") and not row.full_name.startswith(PREFIX) for row in TABLE)


def test_labels_that_prometheus_adds_are_not_ours():
    """pod, namespace, job, instance; and promtool refuses quantile on a gauge."""
    ours = {label for row in TABLE for label in row.labels}

    assert ours & {"pod", "namespace", "job", "instance", "quantile", "le", "target", "engine", "exported_job"} == set()


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_every_metric_says_what_it_is(row):
    """In whole sentences, on one line, without markup."""
    assert re.fullmatch(r"[A-Z0-9][^\n`]{10,}\.", row.help)
    assert "  " not in row.help


def test_groups_are_those_that_can_be_switched_off():
    """Besides those about the sidecar, its targets and engines, which cannot."""
    assert {row.group for row in TABLE} - {"self", "target", "engine"} <= set(get_args(Group))


@pytest.mark.parametrize("group", sorted({row.group for row in TABLE} & set(get_args(Group))))
def test_a_group_that_is_switched_off_is_gone_and_nothing_else_is(group, rich):
    view = busy_engine().view()
    found = {family.name for family in families(replace(NOBODY, targets=[view]), [view], disabled_groups=[group])}
    left_out = {row.full_name.removesuffix("_total") for row in TABLE if row.group == group}

    assert found == {family.name for family in rich} - left_out


@pytest.mark.parametrize("name", ["burst", "spec", "mfu", "giveup"])
def test_an_engine_costs_at_most_250_series(name):
    """With everything on and vLLM's own buckets, those of its target included."""
    most = max(len(scrape.shown) for scrape in scrapes(name))

    assert 100 < most <= 250


@pytest.fixture(scope="module")
def hostile():
    """What is exported of models whose names hold quotes, backslashes, line feeds, braces."""
    pipeline = Fed()
    pipeline.scrape(0, (SCRAPES / "made-42-hostile-label-values.txt").read_bytes())
    return pipeline.families()


@pytest.mark.parametrize("program", [system, newer], ids=["2.42", "3.5"])
@pytest.mark.parametrize("scenario", ["rich", "hostile"])
def test_promtool_finds_nothing_to_say(program, scenario, request):
    """Of the whole output, whatever the labels."""
    body = generate_latest(Collected(request.getfixturevalue(scenario)))
    promtool = [program("promtool"), "check", "metrics"]
    done = subprocess.run(promtool, input=body, capture_output=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("scenario", ["rich", "hostile"])
def test_openmetrics_reads_back_as_it_was(scenario, request):
    """By the client library's own parser, which is strict."""
    found = request.getfixturevalue(scenario)
    text = generate_openmetrics(Collected(found)).decode()

    assert samples(text_string_to_metric_families(text)) == samples(found)


def test_several_targets_are_told_apart_by_a_label():
    """Two engines of the same name behind two ports: target is on every series of theirs, and none comes twice."""
    views = [busy_engine(PRICED.model_copy(update={"name": name})).view() for name in ("first", "second")]
    found = samples(families(NOBODY, views))
    ours = {row.full_name.removeprefix(PREFIX) for row in TABLE if row.scope is Scope.SELF}

    assert {dict(labels).get("target") for (name, labels) in found if name not in ours} == {"first", "second"}


def test_an_idle_target_shows_no_ratio():
    """Before the first scrape only what is known: the sidecar, the target's state, its settings."""
    shown = {name for name, _ in Fed().shown()}

    assert shown == {
        *("build_info", "config_valid", "config_last_reload_timestamp_seconds"),
        *("fleet_targets", "targets_expected", "targets_missing", "discovery_targets", "discovery_dropped_targets"),
        *("discovery_valid", "discovery_last_success_timestamp_seconds", "desired_replicas"),
        *("target_info", "target_state", "scrape_interval_seconds"),
        *("scrape_failures_total", "parse_errors_total", "dropped_series_total"),
    }
