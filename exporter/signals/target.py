"""The state of a target and of scraping it."""

from exporter.signals.view import Labelled, State, TargetView, Value


def info(view: TargetView) -> Labelled:
    """Model and role of a target."""
    names = view.model_names if view.config.model_name is None else (view.config.model_name,)
    return {(name, view.config.role.value): 1.0 for name in names or ("",)}


def up(view: TargetView) -> Value:
    """1 if the last scrape of the target succeeded, 0 if not."""
    return None if view.up is None else float(view.up)


def state(view: TargetView) -> Labelled:
    """1 for the target's state: loading (never seen yet, or answering without series), up, asleep, lost (was up)."""
    return {(each.value,): float(each is view.state) for each in State}


def healthy(view: TargetView) -> Value:
    """0 if the engine's health check failed or nothing answered, else 1.

    It is asked only when something looks wrong.
    """
    return None if view.healthy is None else float(view.healthy)


def scrape_seconds(view: TargetView) -> Value:
    """Duration of the last scrape; absent where it failed."""
    return view.scrape_seconds


def body_bytes(view: TargetView) -> Value:
    """Size of the last scrape's body, decompressed; absent where it failed."""
    return view.body_bytes


def interval_seconds(view: TargetView) -> Value:
    """Interval in force: as set, or longer so that scraping stays under 1 % of the engine's event loop."""
    return view.interval_seconds


def last_success(view: TargetView) -> Value:
    """Unix time of the last good scrape; absent before."""
    return view.last_success_unix_seconds


def failures(view: TargetView) -> Labelled:
    """Failed scrapes by reason."""
    return {(reason,): float(count) for reason, count in view.failures.items()}


def parse_errors(view: TargetView) -> Value:
    """Lines of expositions that could not be read."""
    return float(view.bad_lines)


def dropped_series(view: TargetView) -> Value:
    """Series of the engine that were gone longest when scrape.max_series places were used up, and were dropped."""
    return float(view.dropped_series)


def missing(view: TargetView) -> Labelled:
    """1 for a series of vLLM's that signals need and that the engine, serving, does not expose; also for an engine
    that was asked for by name and is not there, as {engine="0"}.
    """
    return {(name,): 1.0 for name in view.missing}
