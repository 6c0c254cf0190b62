"""A plan as text for a person."""

from typing import Final

from rich.console import Console
from rich.table import Table

from exporter.lab.plan_inputs import Plan, Row

SECTIONS: Final = {
    "assumptions": ("Assumptions", "ceilings are what the engine reaches at best; calibrate them on yours"),
    "roofline": ("Roofline", "steps with fewer positions than the crossover are memory-bound"),
    "step_by_batch": (
        "Step time by batch",
        "decode: nothing but decode; mixed: each token brings its share of prefill",
    ),
    "kv": ("KV cache", "residents are length-biased: long requests are met more often than they arrive"),
    "context": ("By context", "half-batch: KV reads as long as the weights; ceiling: KV reads alone"),
    "chunk_budget": (
        "Chunk budget",
        "gap: what decodes wait beside a full chunk; lost: prefill throughput to the largest",
    ),
    "speculation": (
        "Speculation: speedup by batch",
        "above 1 gains; throughput carries the prefill of the faster turnover",
    ),
    "speculation_break_even": ("Speculation: break-even", "- means no batch loses; 0 that none gains"),
    "draft_kv": ("What the draft model takes from the KV pool", "each line on top of the one before"),
    "tensor_parallel": ("Other GPU counts", "communication is not modelled: wide groups reach less than this"),
    "formats": ("Other number formats", "at the batch limit; ratios against the planned engine"),
    "demand": ("What the traffic needs", "engines for the peak; batch and step at the mean rate"),
    "time_to_first_token": (
        "Time to first token",
        "one mean step of admission wait, then chunks beside the decode batch",
    ),
    "burst_per_engine": ("Burst, fluid model", "- for drain: the base rate is not below the service rate"),
    "preemption": ("Preemption", "worst case: every victim the longest request at its end"),
    "cost_per_million_tokens": ("Cost per million tokens", "every basis adds up to the same bill"),
    "cost_per_request": ("Cost per request", ""),
    "thinking": ("Thinking tokens", "priced as output, which they are"),
}

PIPE_WIDTH: Final = 180
_GIGA: Final = 1e9
_SHOWN_UNITS: Final = ("_seconds", "_ratio", "_bytes")


def print_plan(plan: Plan, console: Console | None = None) -> None:
    """Print each section: one row as a list of names and values, several as a table."""
    console = console or _console()
    for name, rows in plan.items():
        title, note = SECTIONS[name]
        console.print(_list(title, rows[0]) if len(rows) == 1 else _table(title, rows))
        console.print(note, style="dim")
        console.print()


def _console() -> Console:
    """The terminal; into a pipe, wide enough that no table folds."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def _list(title: str, row: Row) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None)
    table.add_column()
    table.add_column(overflow="fold")
    for key, value in row.items():
        table.add_row(_label(key), format_value(key, value))
    return table


def _table(title: str, rows: list[Row]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, header_style="italic")
    for key, value in rows[0].items():
        table.add_column(_label(key), justify="left" if isinstance(value, str) else "right", overflow="fold")
    for row in rows:
        table.add_row(*(format_value(key, value) for key, value in row.items()))
    return table


def _label(key: str) -> str:
    """The key without the unit its value shows."""
    for unit in _SHOWN_UNITS:
        key = key.removesuffix(unit)
    return key.replace("_per_second", "/s").replace("_", " ")


def format_value(key: str, value: float | str | None) -> str:
    """A value with its unit, four digits or whole thousands; ``-`` for none."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if "dollars" in key and not key.startswith("requests_"):
        return f"${value:,.2f}" if value >= 1 else f"${value:.4g}"
    if key.endswith("_seconds"):
        return f"{value * 1000:.2f} ms" if value < 1 else f"{value:.1f} s"
    if "bytes" in key and value >= _GIGA:
        return f"{value / _GIGA:,.1f} GB"
    if key.endswith("_ratio"):
        return f"{value:.3f}"
    if isinstance(value, int) or value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
