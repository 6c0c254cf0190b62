"""The fleet: what is watched, where targets come from, and totals by model and role.

Totals are of gauges only: a sum of counters would fall whenever a target goes, and Prometheus sums them itself.
"""

from collections import Counter
from collections.abc import Iterator

from exporter.signals.view import EngineView, Labelled, SelfView, TargetView, Value


def targets(view: SelfView) -> Labelled:
    """Targets watched, by model, role and state. The model is empty while it is not known, and a target with several
    models behind its port counts for each.
    """
    return _floats(Counter((*key, target.state.value) for target in view.targets for key in _keys(target)))


def engines(view: SelfView) -> Labelled:
    """Engines that answered their last scrape, by model and role."""
    return _floats(Counter(key for key, _ in _fresh(view)))


def running(view: SelfView) -> Labelled:
    """Requests scheduled on all engines that answer, by model and role."""
    return _sum(view, "running")


def waiting(view: SelfView) -> Labelled:
    """Requests waiting on all engines that answer, by model and role."""
    return _sum(view, "waiting")


def expected(view: SelfView) -> Value:
    """Targets that there should be, as set; absent where it is not set."""
    return None if view.expected_targets is None else float(view.expected_targets)


def fewer(view: SelfView) -> Value:
    """How many targets fewer than expected are watched: engines that discovery has lost sight of."""
    return None if view.expected_targets is None else float(max(0, view.expected_targets - len(view.targets)))


def desired_replicas(view: SelfView) -> Labelled:
    """Engines that a model wants, as advice: for its arrivals at replicas.target_utilization_ratio of what one
    sustains, or to be through with its queue in replicas.drain_seconds. Absent before an engine has been seen at work
    with a queue, unless replicas.tokens_per_second is set.
    """
    return {(model,): float(replicas) for model, replicas in view.desired_replicas.items()}


def discovered(view: SelfView) -> Labelled:
    """Targets that a source names, by its last good answer."""
    return {(source.name,): float(source.targets) for source in view.sources}


def dropped(view: SelfView) -> Labelled:
    """Targets that a source names and that are not watched: found twice, or too many."""
    return {(source.name,): float(source.dropped) for source in view.sources}


def valid(view: SelfView) -> Labelled:
    """1 if the source's last answer was good, 0 if it was not and the one before stays in force."""
    return {(source.name,): float(source.valid) for source in view.sources}


def last_success(view: SelfView) -> Labelled:
    """Unix time of the source's last good answer; absent before."""
    return {(source.name,): source.good_unix_seconds for source in view.sources}


def _model(target: TargetView, engine: EngineView) -> tuple[str, str]:
    return target.config.model_name or engine.engine.model_name, target.config.role.value


def _keys(target: TargetView) -> set[tuple[str, str]]:
    return {_model(target, engine) for engine in target.engines} or {
        (target.config.model_name or "", target.config.role.value)
    }


def _fresh(view: SelfView) -> Iterator[tuple[tuple[str, str], EngineView]]:
    return (
        (_model(target, engine), engine)
        for target in view.targets
        if target.up
        for engine in target.engines
        if engine.fresh
    )


def _sum(view: SelfView, series: str) -> Labelled:
    found: dict[tuple[str, ...], float] = {}
    for key, engine in _fresh(view):
        level = engine.now.last(series)
        if level is not None:
            found[key] = found.get(key, 0.0) + level
    return found


def _floats(counts: Counter[tuple[str, ...]]) -> Labelled:
    return {key: float(count) for key, count in counts.items()}
