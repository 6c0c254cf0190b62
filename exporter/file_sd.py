"""Targets from files in the form of Prometheus's file_sd, JSON or YAML."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from exporter.aside import aside
from exporter.files import file_version, parse_yaml, read_file
from exporter.schema import Config, TargetConfig, merge, shared_settings
from exporter.schema_types import in_words

SETTING_LABEL = "__sidecar_"
MAX_BYTES = 16 * 2**20


class BadSourceError(ValueError):
    """A source of targets that cannot be used, as one line."""


class Answer(NamedTuple):
    """What a source names, None if it cannot be known, and what is wrong, if anything."""

    found: Sequence[TargetConfig] | None
    problem: str | None


def parse_file_sd(content: bytes, config: Config) -> list[TargetConfig]:
    """The targets of one file: a list of groups, each with ``targets`` and ``labels``.

    ``__scheme__`` and ``__metrics_path__`` mean what they mean to Prometheus, ``__sidecar_<setting>`` is a setting of
    the target (``__`` goes one level down), except of files to read. Other labels are passed through under the names
    set for them.

    Raises:
        BadSourceError: with what is wrong.
    """
    try:
        # JSON is a subset, but for tabs and for speed.
        groups = json.loads(content) if content.lstrip()[:1] == b"[" else parse_yaml(content)
    except (ValueError, RecursionError) as error:
        raise BadSourceError(f"neither JSON nor YAML: {error}") from None
    if not isinstance(groups, list):
        raise BadSourceError("not a list of groups")
    return [
        target for position, group in enumerate(groups) for target in _group(group, f"group {position + 1}", config)
    ]


def _group(group: object, where: str, config: Config) -> list[TargetConfig]:
    if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
        raise BadSourceError(f"{where} has no list of targets")
    if unknown := group.keys() - {"targets", "labels"}:
        raise BadSourceError(f"{where}: unknown key {min(map(str, unknown))}")
    labels = group.get("labels") or {}
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise BadSourceError(f"{where}: labels must be strings by name")
    if not all(isinstance(address, str) and address and "/" not in address for address in group["targets"]):
        raise BadSourceError(f"{where}: a target must be HOST:PORT")
    settings = _settings(labels, where, config)
    scheme = labels.get("__scheme__", "http")
    try:
        return [
            TargetConfig.model_validate({**settings, "url": f"{scheme}://{address}"}) for address in group["targets"]
        ]
    except ValidationError as error:
        raise BadSourceError(f"{where}: {in_words(error)}") from None


def _settings(labels: dict[str, str], where: str, config: Config) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if "__metrics_path__" in labels:
        own = {"scrape": {"path": labels["__metrics_path__"]}}
    for label, value in labels.items():
        if not label.startswith(SETTING_LABEL):
            continue
        path = label.removeprefix(SETTING_LABEL).split("__")
        if path[-1].endswith("_file") or path[0] in ("url", "labels"):
            raise BadSourceError(f"{where}: {label} cannot be set here")
        nested: Any = value
        for key in reversed(path):
            nested = {key: nested}
        own = merge(own, nested)
    passed = {name: labels[label] for label, name in config.discovery.labels.items() if label in labels}
    return merge(shared_settings(config), {**own, "labels": passed})


class Files:
    """The files of one pattern. Each is read again when it changes, and keeps its last good targets when invalid.

    Attributes:
        found: the last good targets by file.
        missing: whether a file was not there when last asked.
    """

    def __init__(self, pattern: Path) -> None:
        self._pattern = pattern
        self._stamps: dict[Path, object] = {}
        self.found: dict[Path, list[TargetConfig]] = {}
        self._problems: dict[Path, str] = {}
        self.missing = False

    async def __call__(self, config: Config) -> Answer:
        """The targets of all files, and what is wrong with the first that is wrong."""
        several = "*" in self._pattern.name
        paths = sorted(self._pattern.parent.glob(self._pattern.name)) if several else [self._pattern]
        for known in (self._stamps, self.found, self._problems):
            for path in known.keys() - set(paths):
                del known[path]
        self.missing = False
        for path in paths:
            await self._read(path, config)
        found = [target for path in paths for target in self.found.get(path, ())]
        return Answer(found, next(iter(self._problems.values()), None))

    async def _read(self, path: Path, config: Config) -> None:
        try:
            stamp = file_version(path)
            if self._stamps.get(path) == stamp:
                return
            self.found[path] = await aside(lambda: parse_file_sd(read_file(path, MAX_BYTES), config))
        except OSError as error:
            self.missing = self.missing or isinstance(error, FileNotFoundError)
            self._stamps.pop(path, None)
            self._problems[path] = f"cannot read {path}: {error.strerror}"
        except BadSourceError as error:
            self._stamps[path] = stamp
            self._problems[path] = f"{path}: {error}"
        else:
            self._stamps[path] = stamp
            self._problems.pop(path, None)
