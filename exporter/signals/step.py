"""Engine steps: how long one takes, what positions it computes, how long the engine was busy at all."""

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
) -> float:
    """How much of the time between two scrapes an engine was stepping.

    All of it with requests running at both ends; otherwise the steps taken times the mean step, at most all of it.

    Args:
        seconds: between the scrapes.
        steps: output-producing steps between them.
        running_before: requests scheduled at the earlier scrape.
        running_now: at the later one.
        step_seconds: the mean step, from a stretch that was busy throughout.
    """
    if running_before and running_now:
        return seconds
    if not steps or step_seconds is None:
        return 0.0
    return min(seconds, steps * step_seconds)


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
