"""Make the rule files from their one source: `python alerts/build.py`.

`source/*.yaml` holds the rules with `<<names>>` in place of thresholds and of labels that differ by the way we run;
`thresholds.yaml` holds what the names stand for. `--set NAME=VALUE` and `--thresholds FILE` change thresholds,
`--output DIRECTORY` leaves the committed files alone.
"""

import argparse
import itertools
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
PLACEHOLDER = re.compile(r"<<(\w+)>>")
DURATION = re.compile(r"(\d+)(s|m|h|d)")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

PACKS = {"sidecar": "rules/sidecar", "fleet": "rules/fleet", "raw": "rules-raw"}
"""What is made, and where it goes."""

LABELS: dict[str, dict[str, str]] = {
    "sidecar": {
        "replica": "namespace, pod",
        "target": "namespace, pod, target",
        "replica_name": "{{ $labels.namespace }}/{{ $labels.pod }}",
        "target_name": "{{ $labels.target }} in {{ $labels.namespace }}/{{ $labels.pod }}",
        "in_namespace": " in namespace {{ $labels.namespace }}",
    },
    "fleet": {
        "replica": "namespace, target",
        "target": "namespace, target",
        "replica_name": "{{ $labels.target }}",
        "target_name": "{{ $labels.target }}",
        "in_namespace": "",
    },
    "raw": {
        "replica": "namespace, pod",
        "replica_name": "{{ $labels.namespace }}/{{ $labels.pod }}",
        "in_namespace": " in namespace {{ $labels.namespace }}",
    },
}
"""What tells one replica, and one target, from another: the pod, or in a fleet the sidecar's own label."""

VARIABLES: dict[str, dict[str, tuple[str, ...]]] = {
    pack: {
        "none": (),
        "replica": own,
        "engine": (*own, "model_name", "engine"),
        "model": (*(label for label in own if label == "namespace"), "model_name"),
    }
    for pack, own in {"sidecar": ("namespace", "pod"), "fleet": ("target",), "raw": ("namespace", "pod")}.items()
}
"""Dashboard variables that an alert's link sets, by what the alert is about."""


BUCKET_EDGES = {
    "raw_ttft_seconds": (
        0.001,
        0.005,
        0.01,
        0.02,
        0.04,
        0.06,
        0.08,
        0.1,
        0.25,
        0.5,
        0.75,
        1,
        2.5,
        5,
        7.5,
        10,
        20,
        40,
        80,
    ),
    "raw_tpot_seconds": (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
}
"""Edges of vLLM's own buckets, which PromQL must name exactly; the sidecar reads them from the engine."""


class BadThresholdError(Exception):
    """A threshold that makes no sense; the message begins with its name."""


def seconds(duration: str) -> int:
    """``5m``, ``1d`` in seconds; 0 for what is none."""
    found = DURATION.fullmatch(duration)
    return int(found[1]) * SECONDS[found[2]] if found else 0


def _check(name: str, value: Any) -> None:
    """A name's last word is its kind."""
    kind = name.rsplit("_", 1)[-1]
    if kind in ("for", "window", "long", "short", "hold", "interval", "step"):
        if not seconds(str(value)):
            raise BadThresholdError(f"{name}: {value!r} is not a duration above 0 such as 5m")
    elif kind in ("url", "selector", "regex"):
        if not isinstance(value, str) or not value or re.search(r"[\s<>]", value):
            raise BadThresholdError(f"{name}: {value!r} is not a {kind}")
    elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise BadThresholdError(f"{name}: {value!r} is not a number above 0")
    elif kind == "ratio" and value >= 1:
        raise BadThresholdError(f"{name}: {value!r} is not a share between 0 and 1")
    elif kind == "count" and int(value) != value:
        raise BadThresholdError(f"{name}: {value!r} is not a whole number")


def thresholds(path: Path, changes: Mapping[str, Any]) -> dict[str, str]:
    """The thresholds in force, as rules write them.

    Raises:
        BadThresholdError: an unknown name, or a value that makes no sense.
    """
    try:
        given = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise BadThresholdError(f"{path}: {' '.join(str(error).split())}") from None
    known = {name: entry["value"] for name, entry in given.items()}
    for name, value in changes.items():
        if name not in known:
            raise BadThresholdError(f"{name}: unknown threshold; thresholds.yaml lists them")
        known[name] = value
    for name, value in known.items():
        if name != "expected_engines":
            _check(name, value)
    _check_together(known)
    found = {name: str(value) for name, value in known.items()}
    found |= {name.replace("_seconds", "_edge"): repr(float(known[name])) for name in BUCKET_EDGES}
    found |= {f"{name}_seconds": str(seconds(str(value))) for name, value in known.items() if seconds(str(value))}
    return found


def _check_together(known: Mapping[str, Any]) -> None:
    for name, value in known.items():
        if name.endswith(("window", "short")) and seconds(value) < 4 * seconds(known["scrape_interval"]):
            raise BadThresholdError(
                f"{name}: {value} is shorter than four scrape intervals of {known['scrape_interval']}"
            )
        short = name.removesuffix("_long") + "_short"
        partner = short if short in known else "window"
        if name.endswith("_long") and seconds(value) <= seconds(known[partner]):
            raise BadThresholdError(f"{name}: {value} is not longer than {partner}, {known[partner]}")
    burns = [name for name in known if re.fullmatch(r"burn_\d_(long|short)", name)]
    for name in burns:
        same = [
            other for other in ("window", *burns) if other != name and seconds(known[other]) == seconds(known[name])
        ]
        if same:
            raise BadThresholdError(f"{name}: {known[name]} is also {same[0]}; each window is recorded once")
    for name, edges in BUCKET_EDGES.items():
        if known[name] not in edges:
            raise BadThresholdError(f"{name}: {known[name]} is not an edge of vLLM's buckets")
    expected = known["expected_engines"]
    keys = {"namespace", "model_name", "engines"}
    for entry in expected if isinstance(expected, list) else [expected]:
        if not isinstance(entry, dict) or set(entry) != keys or not str(entry["engines"]).isdigit():
            raise BadThresholdError(
                "expected_engines: each entry has namespace, model_name and engines, a whole number"
            )


def fill(text: str, names: Mapping[str, str]) -> str:
    """Text with every ``<<name>>`` replaced, also within what replaces it. Lines keep the first one's indentation."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in names:
            raise BadThresholdError(f"{found[1]}: the rules use it, thresholds.yaml does not hold it")
        before = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        return fill(names[found[1]], names).replace("\n", "\n" + " " * (len(before) - len(before.lstrip())))

    return PLACEHOLDER.sub(value, text)


def _rules(rule: dict[str, Any], names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """A rule of the source as the rules it stands for: one for each entry of ``each``, or each pair of its lists."""
    body = {key: value for key, value in rule.items() if key != "each"}
    for entry in entries(rule):
        yield _filled(body, {**names, **entry})


def entries(rule: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """What ``each`` of a rule gives its names, rule by rule."""
    each = rule.get("each", [{}])
    for several in itertools.product(*each if isinstance(each[0], list) else [each]):
        yield {name: value for entry in several for name, value in entry.items()}


def _filled(node: Any, names: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
        return {fill(key, names): _filled(value, names) for key, value in node.items()}
    return fill(str(node), names) if isinstance(node, str | int | float) else node


def _annotate(rule: dict[str, Any], pack: str, names: Mapping[str, str]) -> dict[str, Any]:
    """An alert with the links that every alert carries."""
    about, board = rule.pop("about"), rule.pop("dashboard")
    del rule["question"]
    query = "&".join(f"var-{label}={{{{ $labels.{label} | urlquery }}}}" for label in VARIABLES[pack][about])
    annotations = rule["annotations"]
    annotations["description"] = " ".join(annotations["description"].split())
    annotations["runbook_url"] = f"{names['runbook_url']}/{rule['alert']}.md"
    annotations["dashboard_url"] = f"{names['grafana_url']}/d/{board}" + (f"?{query}" if query else "")
    return rule


def render(pack: str, names: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The rule files of a pack by name, from the thresholds in force."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(HERE.glob("source/*.yaml")):
        groups = []
        for group in yaml.safe_load(path.read_text())["groups"]:
            if pack not in group["packs"]:
                continue
            rules = [
                _annotate(made, pack, names) if "alert" in made else made
                for rule in group["rules"]
                if pack in rule.pop("packs", group["packs"])
                for made in _rules(rule, {**names, **LABELS[pack]})
            ]
            groups.append({"name": group["name"], "rules": rules})
        if groups:
            found[path.name] = {"groups": groups}
    return found


def expected(path: Path, changes: Mapping[str, Any]) -> dict[str, Any] | None:
    """The rule file that says how many engines a model should have; None if no model is listed."""
    entries = changes.get("expected_engines", yaml.safe_load(path.read_text())["expected_engines"]["value"])
    rules = [
        {
            "record": "model:vllm_sidecar_expected_engines:sum",
            "expr": f"vector({entry['engines']})",
            "labels": {"namespace": entry["namespace"], "model_name": entry["model_name"]},
        }
        for entry in entries
    ]
    return {"groups": [{"name": "vllm-sidecar-expected.rules", "rules": rules}]} if rules else None


class _Dumper(yaml.SafeDumper):
    """YAML as people write it: lists indented, expressions as blocks."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, indentless=False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _dump(content: dict[str, Any]) -> str:
    made = yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return "# Made by alerts/build.py from alerts/source and alerts/thresholds.yaml.\n" + made


def files(path: Path, changes: Mapping[str, Any]) -> dict[str, str]:
    """Everything that is made, by its path below alerts/."""
    names = thresholds(path, changes)
    found: dict[str, str] = {}
    for pack, directory in PACKS.items():
        made = render(pack, names)
        extra = expected(path, changes)
        if extra is not None:
            made["expected.yaml"] = extra
        for name, content in made.items():
            found[f"{directory}/{name}"] = _dump(content)
        resource = {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": f"vllm-sidecar-{pack}", "labels": {"app.kubernetes.io/name": "vllm-sidecar"}},
            "spec": {"groups": [group for content in made.values() for group in content["groups"]]},
        }
        found[f"prometheus-rule/{pack}.yaml"] = _dump(resource)
    return found


def main(argv: list[str] | None = None) -> int:
    """Write the files; returns the exit code."""
    parser = argparse.ArgumentParser(description="Make the rule files from their one source.", allow_abbrev=False)
    parser.add_argument("--thresholds", type=Path, default=HERE / "thresholds.yaml", metavar="FILE")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change a threshold")
    parser.add_argument("--output", type=Path, default=HERE, metavar="DIRECTORY")
    options = parser.parse_args(argv)
    pairs = (change.partition("=") for change in options.set)
    try:
        made = files(options.thresholds, {name: yaml.safe_load(value) for name, _, value in pairs})
    except BadThresholdError as error:
        print(f"alerts/build.py: {error}", file=sys.stderr)
        return 2
    for name, content in made.items():
        path = options.output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
