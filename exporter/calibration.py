"""Ceilings of an engine: as configured, else the best that was seen of it, else what is ordinary. Value in, value out.

The best bandwidth utilisation counts from small steps, where reading weights is the limit, the best FLOP/s utilisation
from large ones. Never both from one moment: divided by each other the peaks cancel, and what is left says nothing.
"""

from dataclasses import dataclass, replace

from exporter.hardware import DEFAULT_MBU, DEFAULT_MFU, Roofline
from exporter.signals import roofline as measured
from exporter.signals.step import positions_in, steps_in
from exporter.signals.window import Window, divide

SMALL, LARGE = 0.5, 2.0
"""Positions per step over the crossover at the default ceilings: at most, and at least. Between them neither counts."""
BUSY_SHARE = 0.999


@dataclass(slots=True)
class Calibration:
    """The best utilisations of one engine so far. They never fall, and are kept while the paper engine is the same.

    Attributes:
        mbu: of memory bandwidth, on small steps; None before any.
        mfu: of FLOP/s, on large steps.
    """

    mbu: float | None = None
    mfu: float | None = None
    _of: Roofline | None = None

    def observe(self, window: Window, paper: Roofline) -> None:
        """Take in a window of an engine behind one API server; only one that was busy throughout tells of a ceiling."""
        if paper != self._of:
            self.mbu = self.mfu = None
            self._of = paper
        busy = divide(window.increase("busy_seconds"), window.seconds)
        per_step = divide(positions_in(window), steps_in(window))
        if busy is None or busy < BUSY_SHARE or per_step is None:
            return
        load = per_step / replace(paper, mbu=DEFAULT_MBU, mfu=DEFAULT_MFU).crossover_positions
        if load <= SMALL:
            self.mbu = _best(self.mbu, measured.bandwidth_utilization(window, paper))
        elif load >= LARGE:
            self.mfu = _best(self.mfu, measured.flops_utilization(window, paper))


def _best(known: float | None, seen: float | None) -> float | None:
    # Above 1 the configured peak is wrong: that is no ceiling.
    if seen is None or not 0 < seen <= 1:
        return known
    return seen if known is None else max(known, seen)


def ceilings(
    configured_mbu: float | None, configured_mfu: float | None, best: Calibration
) -> dict[str, tuple[float, str]]:
    """The ceiling in force and its source, by resource: bandwidth and compute."""
    return {
        "bandwidth": _ceiling(configured_mbu, best.mbu, DEFAULT_MBU),
        "compute": _ceiling(configured_mfu, best.mfu, DEFAULT_MFU),
    }


def _ceiling(configured: float | None, calibrated: float | None, default: float) -> tuple[float, str]:
    if configured is not None:
        return configured, "configured"
    return (default, "default") if calibrated is None else (calibrated, "calibrated")
