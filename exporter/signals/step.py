"""Engine steps: how long one takes, what positions it computes, how long the engine was busy at all."""

import math

from exporter.signals.view import EngineView, Labelled, Value
from exporter.signals.window import Window, divide, plus
from exporter.upstream import Part


def steps_in(window: Window) -> Value:
    """Steps that produced output. A step that only advances a prompt's chunk is not counted by vLLM."""
    return window.increase("steps", part=Part.COUNT)


def busy_seconds(
    seconds: float,
    steps: float | None,
    running_before: float | None,
    running_now: float | None,
    step_seconds: float | None,
    *,
    at_most: float | None,
) -> float:
    """How much of the time between two scrapes an engine was stepping.

    All of it with requests running at both ends; otherwise the steps taken times the mean step. With steps in it no
    more than some request was on its way to an output: short requests can be there at both ends with idle in between.

    Args:
        seconds: between the scrapes.
        steps: output-producing steps between them.
        running_before: requests scheduled at the earlier scrape.
        running_now: at the later one.
        step_seconds: the mean step, from the last stretch with requests running at both ends.
        at_most: seconds that requests spent on their way to an output; None where that is not known.
    """
    throughout = bool(running_before and running_now)
    if not steps:
        return seconds if throughout else 0.0
    stepping = seconds if throughout else steps * (step_seconds or 0.0)
    return min(seconds, stepping, math.inf if at_most is None else at_most)


def seconds_to_outputs(window: Window) -> Value:
    """Request-seconds from arrival to first output and from each output to the next, as far as these came.

    Each step had one of these outputs at least: None where vLLM has counted fewer of them, as its Rust frontend, which
    counts gaps some time later.
    """
    outputs = plus(*(window.increase(series, part=Part.COUNT) for series in ("ttft", "itl")))
    steps = steps_in(window)
    if outputs is None or steps is None or outputs < steps:
        return None
    return plus(*(window.increase(series, part=Part.SUM) for series in ("ttft", "itl")))


def step_seconds(view: EngineView) -> Value:
    """Duration of an output-producing step: busy time over steps. Absent with several API servers."""
    if view.several_api_servers:
        return None
    return divide(view.now.increase("busy_seconds"), steps_in(view.now))


def positions(view: EngineView) -> Labelled:
    """Positions computed per step: prefill (prompt tokens), decode (sequences and drafted tokens).

    Absent with several API servers.
    """
    if view.several_api_servers:
        return {}
    steps = steps_in(view.now)
    return {
        ("prefill",): divide(computed_prompt_tokens(view.now), steps),
        ("decode",): divide(decode_positions(view.now), steps),
    }


def positions_in(window: Window) -> Value:
    """All positions computed: of prompts and of decode."""
    return plus(computed_prompt_tokens(window), decode_positions(window))


def decode_positions(window: Window) -> Value:
    """Positions spent on decode: one a sequence a step, and one more for each token drafted for it."""
    sequences = window.increase("itl", part=Part.COUNT)
    return None if sequences is None else sequences + (window.increase("draft_tokens") or 0.0)


def computed_prompt_tokens(window: Window) -> Value:
    """Prompt tokens an engine computed itself: from 0.16 as vLLM says, before that all less the prefix cache's hits."""
    local = window.increase("prompt_tokens_by_source", "local_compute")
    if local is not None:
        return local
    prompt, hits = window.increase("prompt_tokens"), window.increase("prefix_hits")
    return None if prompt is None or hits is None else max(0.0, prompt - hits)
