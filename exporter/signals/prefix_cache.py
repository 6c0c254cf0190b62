"""The prefix cache: how much of the prompts it saves, and how much work is left per request."""

from exporter.signals.step import computed_prompt_tokens
from exporter.signals.view import EngineView, Labelled, Value
from exporter.signals.window import Window, divide


def hit_ratio(view: EngineView) -> Labelled:
    """Prompt tokens found in a cache over all prompt tokens; before vLLM 0.16 hits over queries, biased under
    queueing.
    """
    return {(name,): hit_ratio_in(window) for name, window in view.windows.items()}


def hit_ratio_in(window: Window) -> Value:
    """The same over one window."""
    # Before 0.16 hits over queries, which up to 0.26 counted every failed attempt to admit the head of the queue.
    cached = window.increase("prompt_tokens_cached")
    if cached is not None:
        return divide(cached, window.increase("prompt_tokens"))
    return divide(window.increase("prefix_hits"), window.increase("prefix_queries"))


def computed_per_arrival(view: EngineView) -> Labelled:
    """Prompt tokens computed per arrival. Rises when pressure evicts shared prefixes."""
    return {
        (name,): divide(computed_prompt_tokens(window), window.increase("arrivals"))
        for name, window in view.windows.items()
    }
