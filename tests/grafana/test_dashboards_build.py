"""The files are what their source makes, byte for byte; what the catalogue does not have is refused by name."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from exporter import catalogue
from grafana import alerts, build
from grafana.alerts import threshold
from grafana.panels import Query, Row, chart, placed, stat
from grafana.queries import NotInCatalogueError, metric, rate, series
from tests.grafana.asked import NAMES, dashboard, panels
from tests.programs import ROOT

WAITING = Query(series("waiting_requests"))


def test_files_are_what_the_source_makes() -> None:
    """Building again, in another process with other hash seeds, gives the bytes that are committed."""
    command = [sys.executable, "-c", "import json; from grafana import build; print(json.dumps(build.dashboards()))"]
    built = json.loads(subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout)
    assert built == {path.name: path.read_text() for path in build.DIRECTORY.iterdir()}
    assert set(built) == {f"{name}.json" for name in NAMES}


def test_a_renamed_metric_stops_the_build(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line names what is gone, and nothing is written."""
    rows = {name: row for name, row in catalogue.METRICS.items() if name != "preemptions_total"}
    monkeypatch.setattr("grafana.queries.METRICS", rows)
    before = {path: path.stat().st_mtime_ns for path in build.DIRECTORY.iterdir()}
    assert build.main() == 1
    said = capsys.readouterr().err
    assert said == "grafana: vllm_sidecar_preemptions_total is not a sample that exporter/catalogue.py exports\n"
    assert before == {path: path.stat().st_mtime_ns for path in build.DIRECTORY.iterdir()}


def test_a_metric_without_help_stops_the_build(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A panel's description is its metrics' help, so there must be one."""
    mute = replace(catalogue.METRICS["kv_usage_ratio"], fill=lambda view: None)
    monkeypatch.setattr("grafana.queries.METRICS", {**catalogue.METRICS, "kv_usage_ratio": mute})
    assert build.main() == 1
    assert capsys.readouterr().err == "grafana: vllm_sidecar_kv_usage_ratio has no help in exporter/catalogue.py\n"


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: metric("arrivals"), "vllm_sidecar_arrivals is not"),
        (lambda: metric("e2e_seconds"), "vllm_sidecar_e2e_seconds is not"),
        (lambda: metric("kv_usage_ratio_bucket"), "vllm_sidecar_kv_usage_ratio_bucket is not"),
        (lambda: series("target_state", 'stat="up"'), "vllm_sidecar_target_state has no label stat"),
        (lambda: rate("arrivals_total", 'engine_id="0"'), "vllm_sidecar_arrivals_total has no label engine_id"),
    ],
    ids=["no _total", "no part of a histogram", "part of a gauge", "no such label", "no such label of a counter"],
)
def test_what_is_refused(ask, said) -> None:
    """A name that the exporter does not expose, or a label that it does not have."""
    with pytest.raises(NotInCatalogueError, match=said):
        ask()


def test_a_panel_says_what_it_answers() -> None:
    """A title alone is refused, by its name."""
    silent = stat("Waiting", "", WAITING)
    with pytest.raises(NotInCatalogueError, match="'Waiting' does not say what it answers"):
        silent.description()


def test_placing_fills_lines() -> None:
    """24 columns a line: 8 + 8 + 8 fit, the fourth begins the next; a row's head is one line high."""
    some = [chart(name, "Asks.", WAITING, height=8) for name in "abcd"]
    head, *placed_panels = placed([Row("All", some)])
    assert (head["gridPos"], head["type"]) == ({"x": 0, "y": 0, "w": 24, "h": 1}, "row")
    assert [(one["gridPos"]["x"], one["gridPos"]["y"]) for one in placed_panels] == [(0, 1), (8, 1), (16, 1), (0, 9)]


def test_thresholds_are_those_of_the_alerts() -> None:
    """Where an alert fires, its panel changes colour: the number stands in one place."""
    steps = {
        panel["title"]: [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
        for panel in panels("on-call")
    }
    assert steps["Preemptions per arrival"] == [None, threshold("preemptions_ratio")]
    assert steps["KV cache in use"] == [None, threshold("kv_pinned_ratio")]
    assert steps["Error budget burn"] == [None, threshold("burn_1_factor")]
    assert steps["Abandoned requests"] == [None, threshold("abandoned_ratio")]


WATCHED_BY_NONE = {
    "Firing alerts": "each row links to its own runbook",
    "Engines whose quantile is only a bound": "how to read other panels",
}


def test_on_call_panels_link_to_runbooks() -> None:
    """From what is seen to what to do, in one click, and nowhere to a page that is not there."""
    links = {panel["title"]: [link["url"] for link in panel["links"]] for panel in panels("on-call")}
    assert {title for title, urls in links.items() if not urls} == set(WATCHED_BY_NONE)
    linked = [link["url"] for name in NAMES for panel in panels(name) for link in panel["links"]]
    found = [re.fullmatch(r"https://\S+/(alerts/runbooks/VLLM\w+\.md)", url) for url in linked]
    assert [url for url, match in zip(linked, found, strict=True) if not match or not (ROOT / match[1]).exists()] == []


def test_alerts_link_to_dashboards() -> None:
    """Where an alert says to look there is one of ours."""
    rules = "".join(path.read_text() for path in (ROOT / "alerts" / "rules").rglob("*.yaml"))
    assert set(re.findall(r"/d/([\w-]+)", rules)) == {dashboard(name)["uid"] for name in NAMES}


def test_a_threshold_that_is_gone_stops_the_build(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line names it."""
    known = {name: value for name, value in alerts._values().items() if name != "kv_pinned_ratio"}
    monkeypatch.setattr(alerts, "_values", lambda: known)
    assert build.main() == 1
    assert capsys.readouterr().err == "grafana: kv_pinned_ratio is not in alerts/thresholds.yaml\n"


def test_one_panel_is_a_few_lines() -> None:
    """A changed description changes one line of a file: panels' ids and order do not depend on each other's text."""
    text = (build.DIRECTORY / "on-call.json").read_text()
    found = dashboard("on-call")
    next(panel for panel in found["panels"] if panel["title"] == "Queue depth")["description"] = "Other."
    changed = json.dumps(found, indent=2, sort_keys=True) + "\n"
    assert sum(one != other for one, other in zip(text.splitlines(), changed.splitlines(), strict=True)) == 1


@pytest.mark.parametrize("name", NAMES)
def test_fits_a_configmap(name: str) -> None:
    """``kubectl apply`` keeps a copy in an annotation, and annotations end at 256 KiB."""
    assert (build.DIRECTORY / f"{name}.json").stat().st_size < 256 * 1024 * 0.9
    assert f"(../grafana/dashboards/{name}.json)" in (ROOT / "docs" / "dashboards.md").read_text()
