"""A dashboard: its variables, links and annotations, which are the same for all, around its own panels."""

from collections.abc import Sequence
from dataclasses import dataclass

from grafana.panels import DATASOURCE, Json, Row, placed
from grafana.queries import SIDECAR, increase, metric

SCHEMA_VERSION = 39
TAG = "vllm-sidecar"
TITLE_PREFIX = "vLLM sidecar"
GPU_DASHBOARD = "https://grafana.com/grafana/dashboards/12239-nvidia-dcgm-exporter-dashboard/"

ALERT_SERIES = (
    'ALERTS{alertstate="firing", alertname=~"VLLM.+", alertname!="VLLMWatchdog", '
    'namespace=~"$namespace|", pod=~"$pod|", target=~"$target|", model_name=~"$model_name|"}'
)
"""Alerts of what is chosen, but the one that always fires; one about a whole model or namespace has no pod."""


ANNOTATED_OVER = "2m"
"""Grafana does not promise ``$__rate_interval`` to annotations; this is four scrapes of 30 s."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard; its name is the file's, and its ``uid``'s. ``by_window`` lets choose a window of the settings."""

    name: str
    title: str
    describes: str
    rows: Sequence[Row]
    by_window: bool = False

    def json(self) -> Json:
        """As Grafana imports it, from a page, a file or a ConfigMap."""
        return {
            "annotations": {"list": _annotations()},
            "description": self.describes,
            "editable": False,
            "fiscalYearStartMonth": 0,
            "graphTooltip": 1,
            "id": None,
            "links": _links(),
            "liveNow": False,
            "panels": placed(self.rows),
            "refresh": "30s",
            "schemaVersion": SCHEMA_VERSION,
            "tags": ["vllm", TAG],
            "templating": {"list": [*_variables(), *([_window()] * self.by_window), _replica()]},
            "time": {"from": "now-1h", "to": "now"},
            "timepicker": {},
            "timezone": "browser",
            "title": f"{TITLE_PREFIX} / {self.title}",
            "uid": f"{TAG}-{self.name}",
            "version": 1,
            "weekStart": "",
        }


def _variables() -> list[Json]:
    """The data source, then what to choose among, each within what stands before it.

    A label that a deployment does not have matches too: hence ``.*``. ``job`` and ``instance`` are always there.
    """
    described_by = {"target": "engine_restarts_total", "model_name": "target_info", "engine": "engine_restarts_total"}
    found: list[Json] = [_datasource()]
    before: list[str] = []
    for label in (*SIDECAR, "target", "model_name", "engine"):
        matchers = ", ".join(f'{one}=~"${one}"' for one in before)
        name = metric(described_by.get(label, "target_up")).full_name
        query = f"label_values({name}{{{matchers}}}, {label})"
        found.append(_choice(label, query, all_value=".+" if label in ("job", "instance") else ".*"))
        if label != "model_name":
            before.append(label)
    return found


def _window() -> Json:
    """One of the windows that the settings name, for what the sidecar has already divided."""
    chosen = ", ".join(f'{one}=~"${one}"' for one in SIDECAR)
    query = f"label_values({metric('cost_dollars_per_million_tokens').full_name}{{{chosen}}}, window)"
    return _choice("window", query, all_value="") | {
        "multi": False,
        "includeAll": False,
        "allValue": None,
        "current": {},
    }


def _datasource() -> Json:
    return {
        "name": "datasource",
        "label": "Data Source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "hide": 0,
        "current": {},
        "options": [],
    }


def _choice(name: str, query: str, all_value: str) -> Json:
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": "StandardVariableQuery"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": all_value,
        "hide": 0,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "options": [],
    }


def _replica() -> Json:
    """Finds out by itself which label tells replicas apart: ``target`` where a sidecar has several, else the pod."""
    chosen = ", ".join(f'{one}=~"${one}"' for one in SIDECAR)
    up = f"{metric('target_up').full_name}{{{chosen}}}"
    label = 'label_replace({}, "by", "{}", "", "")'
    target = label.format(f"count(count by (job, instance) ({up}) > 1)", "target")
    pod = label.format(f'count({up[:-1]}, pod!=""}})', "pod")
    instance = label.format(f"count({up})", "instance")
    query = f"query_result({target} or on () {pod} or on () {instance})"
    return {
        "name": "replica",
        "label": "Replicas differ by",
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": "StandardVariableQuery"},
        "definition": query,
        "regex": '/by="([^"]+)"/',
        "refresh": 2,
        "sort": 0,
        "multi": False,
        "includeAll": False,
        "hide": 2,
        "current": {},
        "options": [],
    }


def _links() -> list[Json]:
    return [
        {
            "title": "vLLM sidecar",
            "type": "dashboards",
            "tags": [TAG],
            "asDropdown": False,
            "includeVars": True,
            "keepTime": True,
            "targetBlank": False,
        },
        {
            "title": "vLLM's own",
            "type": "dashboards",
            "tags": ["vllm"],
            "asDropdown": True,
            "includeVars": True,
            "keepTime": True,
            "targetBlank": False,
        },
        {"title": "GPUs (DCGM)", "type": "link", "url": GPU_DASHBOARD, "icon": "external link", "targetBlank": True},
    ]


def _annotations() -> list[Json]:
    counted = increase("engine_restarts_total", over=ANNOTATED_OVER)
    restarts = f"sum by (pod, target, model_name, engine) ({counted}) > 0"
    return [
        _annotation("Engine restarts", restarts, "blue", "Engine restarted", "pod,target,model_name,engine"),
        _annotation("Alerts", ALERT_SERIES, "red", "{{alertname}}", "severity,namespace,pod,target,model_name"),
    ]


def _annotation(name: str, expr: str, color: str, title: str, tags: str) -> Json:
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "expr": expr,
        "iconColor": color,
        "step": "30s",
        "titleFormat": title,
        "tagKeys": tags,
    }
