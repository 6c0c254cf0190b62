"""Money: what GPUs cost by what they did, over the tokens and requests that came of it.

All of it is the target's: engines behind one port share the bill.
"""

from collections.abc import Iterable

from exporter.schema import Role
from exporter.signals.arrivals import FINISHED
from exporter.signals.view import Labelled, State, TargetView, Value
from exporter.signals.window import Window, divide, plus

BUSY, IDLE, UNAVAILABLE = "busy", "idle", "unavailable"
OUTPUT, PROMPT, COMPUTED = "tokens_generated", "tokens_prompted", "tokens_computed"
"""Columns of ours: sums over a target's engines, those included that are gone: their dollars are in the bill."""
MILLION = 1e6
HOUR_SECONDS = 3600.0


def dollars(
    state: State,
    seconds: float,
    gpu_hour_dollars: float,
    gpus_per_engine: int,
    engine_busy_seconds: Iterable[float],
) -> dict[str, float]:
    """The bill of a stretch of time: price x GPUs x time, split by what the GPUs did.

    Args:
        state: of the target; loading, asleep and lost are billed as unavailable.
        seconds: length of the stretch.
        gpu_hour_dollars: price of one GPU for an hour.
        gpus_per_engine: GPUs that one engine holds.
        engine_busy_seconds: for each engine behind the port, how much of the stretch it was stepping.
    """
    per_second = gpu_hour_dollars * gpus_per_engine / HOUR_SECONDS
    busy_seconds = tuple(engine_busy_seconds)
    bill = per_second * seconds * max(1, len(busy_seconds))
    if state is not State.UP:
        return {BUSY: 0.0, IDLE: 0.0, UNAVAILABLE: bill}
    busy = min(bill, per_second * sum(busy_seconds))
    return {BUSY: busy, IDLE: bill - busy, UNAVAILABLE: 0.0}


def cost_dollars(view: TargetView) -> Labelled:
    """Price x GPUs x time since the sidecar's start, by what the GPUs did: busy (stepping), idle, unavailable
    (engine loading, asleep or lost). Absent without a price.
    """
    return {} if view.dollars is None else {(state,): value for state, value in view.dollars.items()}


def gpu_hour_dollars(view: TargetView) -> Value:
    """Configured price of one GPU for an hour."""
    return view.config.gpu_hour_dollars


def per_million_tokens(view: TargetView) -> Labelled:
    """All dollars of the window over its tokens. Basis output puts them on output tokens, all on input and output
    alike, weighted on computed input, cached input and output by the token_weights set. Prices x tokens of a basis add
    up to the bill. Absent without a price, without output and with role prefill.
    """
    return _per_million(view, (BUSY, IDLE, UNAVAILABLE))


def busy_per_million_tokens(view: TargetView) -> Labelled:
    """The same from busy dollars only, which a lull does not move."""
    return _per_million(view, (BUSY,))


def baseline(view: TargetView) -> Value:
    """Configured normal busy cost per million output tokens."""
    return view.config.baseline.busy_dollars_per_million_output_tokens


def baseline_multiple(view: TargetView) -> Labelled:
    """Busy cost per million output tokens over its baseline: 1 is normal, and a lull does not move it. Absent without
    a baseline or a price, and without output.
    """
    busy = busy_per_million_tokens(view)
    return {(name,): divide(busy.get(("output", "output", name)), baseline(view)) for name in view.windows}


def requests_per_dollar(view: TargetView) -> Labelled:
    """Finished requests per dollar."""
    return {
        (name,): divide(window.increase(FINISHED), _spent(window, (BUSY, IDLE, UNAVAILABLE)))
        for name, window in view.windows.items()
    }


def _per_million(view: TargetView, states: tuple[str, ...]) -> Labelled:
    found: dict[tuple[str, ...], Value] = {}
    if view.config.role is Role.PREFILL:
        return found  # its output is KV; the one token that it makes of each request says nothing of the price
    for name, window in view.windows.items():
        spent = _spent(window, states)
        output, prompt = window.increase(OUTPUT), window.increase(PROMPT)
        if spent is None or not output:
            continue
        found["output", "output", name] = spent / output * MILLION
        found["all", "all", name] = None if prompt is None else spent / (output + prompt) * MILLION
        for token_type, dollars in _weighted(view, spent, prompt, window.increase(COMPUTED), output).items():
            found["weighted", token_type, name] = dollars * MILLION
    return found


def _weighted(view: TargetView, spent: float, prompt: Value, computed: Value, output: float) -> dict[str, float]:
    """Dollars per token of each type, in the proportion of the weights; empty where the types are not known."""
    if prompt is None or computed is None:
        return {}
    computed = max(0.0, computed)  # before vLLM 0.16 prompts less hits, which can be counted several times
    weights, cached = view.config.token_weights, max(0.0, prompt - computed)
    unit = divide(spent, weights.input * computed + weights.cached_input * cached + weights.output * output)
    by_type = {"input": weights.input, "cached_input": weights.cached_input, "output": weights.output}
    return {} if unit is None else {token_type: unit * weight for token_type, weight in by_type.items()}


def _spent(window: Window, states: tuple[str, ...]) -> Value:
    return plus(*(window.increase("dollars", state) for state in states))
