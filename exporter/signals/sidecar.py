"""The sidecar itself."""

from exporter.signals.view import Labelled, SelfView, Value


def build_info(view: SelfView) -> Labelled:
    """Versions of the sidecar and of Python."""
    return {(view.version, view.python_version): 1.0}


def config_valid(view: SelfView) -> Value:
    """1 if the settings last read are in force, 0 if they were refused."""
    return float(view.config_valid)


def config_reloaded(view: SelfView) -> Value:
    """Unix time at which settings were last taken in."""
    return view.config_reload_unix_seconds
