"""The dashboards as pictures: nothing is cut, nothing overlaps, every number reads as one."""

import copy
from typing import Any

from grafana.render import chromium
from grafana.render.ask import answered
from tests.grafana.asked import NAMES, dashboard
from tests.grafana.stored_fleet import BEGAN, ENDED, EVERY_SECONDS
from tests.programs import system
from tests.prometheus import Prometheus

TIMES = range(BEGAN + 60, ENDED + 1, EVERY_SECONDS)


def drawn(prometheus: Prometheus, name: str, **chosen: str) -> dict[str, Any]:
    def ask(expr: str, moment: bool) -> list[dict[str, Any]]:
        return prometheus.instant(expr, ENDED) if moment else prometheus.range(expr, TIMES[0], TIMES[-1], TIMES.step)

    return answered(dashboard(name), ask, chosen, TIMES)


def times(found: dict[str, Any], copies: int) -> dict[str, Any]:
    """The same with more pods: each series that names one, so many times over under long names."""
    more = copy.deepcopy(found)
    for answers in more["answers"].values():
        for series in answers:
            for one in [one for one in series if "pod" in one["metric"]]:
                for number in range(copies - 1):
                    pod = f"{one['metric']['pod']}-deployment-7d9c5b6f4-{number:05}"
                    series.append({**one, "metric": {**one["metric"], "pod": pod}})
    return more


def test_a_busy_fleet(newest: Prometheus) -> None:
    """Three models, eight replicas, two of them not serving."""
    busy = [drawn(newest, name, job="vllm-sidecar", replica="pod") for name in NAMES]
    assert chromium.findings(system("chromium"), *busy) == []


def test_fifty_replicas(newest: Prometheus) -> None:
    """Charts are by model, so that their legends do not grow with the fleet; tables do, and scroll."""
    many = [times(drawn(newest, name, job="vllm-sidecar", replica="pod"), copies=7) for name in NAMES]
    replicas = max(len(series) for found in many for answers in found["answers"].values() for series in answers)
    assert replicas == 56
    assert chromium.findings(system("chromium"), *many) == []


def test_an_empty_fleet(newest: Prometheus) -> None:
    """Every panel says that it has no data."""
    nothing = [drawn(newest, name, job="nowhere", namespace="nowhere") for name in NAMES]
    assert all(series == [] for found in nothing for answers in found["answers"].values() for series in answers)
    assert chromium.findings(system("chromium"), *nothing) == []


def test_what_is_wrong_is_found(newest: Prometheus) -> None:
    """A title too long, a unit that is none and two panels on one place are reported."""
    found = drawn(newest, "economics", job="vllm-sidecar", replica="pod")
    _, cost, price, *_ = found["dashboard"]["panels"]
    cost["title"] = "GPU cost per hour of all the targets that are chosen"
    cost["fieldConfig"]["defaults"]["unit"] = "s"
    price["gridPos"] = {**price["gridPos"], "x": cost["gridPos"]["x"] + 1}
    said = chromium.findings(system("chromium"), found)
    assert f"{cost['title']}: title is cut" in said
    assert any("overlaps" in one for one in said)
