"""The KV cache: how full, how large in tokens and sequences, when full, and whether it has been filled once."""

import math
import re
from collections.abc import Callable

from exporter.signals.prefix_cache import hit_ratio_in
from exporter.signals.queue import slope
from exporter.signals.view import EngineView, Value
from exporter.signals.window import Window, divide, plus
from exporter.upstream import Column, Part

LOW_USAGE = 0.01
"""Below this usage running over usage is noise."""
_COUNT = re.compile(r"[1-9][0-9]{0,14}")
HORIZON_SECONDS = 3600.0
"""A slope over seconds says nothing of what lies beyond."""


def usage(view: EngineView) -> Value:
    """Share of KV blocks in use; cached blocks that nothing references are free (from vllm:kv_cache_usage_perc)."""
    return view.now.last("kv_usage")


def capacity_tokens(view: EngineView) -> Value:
    """Tokens that the KV cache holds (from vllm:cache_config_info). Absent where the engine does not say."""
    return view.kv_capacity_tokens


def capacity_of(target: Window, engine: str) -> Value:
    """Tokens of an engine's KV cache, from the target's ``cache_config_info`` as of the last scrape.

    From 0.24 as vLLM says; before that blocks x block size, the blocks being summed over all engines of the server.
    Before 0.9 the series does not name an engine.
    """
    present = [labels for labels in target.labelled("cache_config") if target.last("cache_config", *labels)]
    own = next((labels for name in (engine, "") for labels in present if labels[0] == name), None)
    if own is None:
        return None
    _, tokens, blocks, block_size = own
    if _count(tokens) is not None:
        return _count(tokens)
    return divide(_product(_count(blocks), _count(block_size)), len(present))


def _count(label: str) -> Value:
    """A label's number; None for None, for what is missing and for what is no count."""
    return float(label) if _COUNT.fullmatch(label) else None


def _product(one: Value, other: Value) -> Value:
    return None if one is None or other is None else one * other


def resident_tokens(view: EngineView) -> Value:
    """Tokens of KV in use: mean usage x capacity."""
    return _product(view.now.mean_level("kv_usage"), view.kv_capacity_tokens)


def preemption_point(view: EngineView) -> Value:
    """Sequences at which the KV cache is full: mean running over mean usage, so by what residents hold now. Below 1 %
    usage capacity over the mean tokens of requests that finished lately, which is too hopeful by up to 2x. Absent
    where neither is known.
    """
    level = view.now.mean_level("kv_usage")
    if level is not None and level >= LOW_USAGE:
        return divide(view.now.mean_level("running"), level) or None
    finished = [view.long.increase("finished", *labels) for labels in view.long.labelled("finished")]
    tokens = plus(view.long.increase("prompt_tokens"), view.long.increase("generation_tokens"))
    per_sequence = divide(tokens, sum(count or 0.0 for count in finished))
    return divide(view.kv_capacity_tokens, per_sequence)


def headroom(view: EngineView) -> Value:
    """Sequences that fit before the preemption point; 0 past it. Absent where the point is not known."""
    point, running = preemption_point(view), view.now.last("running")
    return None if point is None or running is None else max(0.0, point - running)


def full_in_seconds(view: EngineView) -> Value:
    """Time until the KV cache is full if usage goes on rising as over the last scrapes. Absent while it does not rise
    and where that lies more than an hour ahead.
    """
    level = view.now.last("kv_usage")
    seconds = divide(None if level is None else 1.0 - level, slope(view.now.levels("kv_usage")))
    return seconds if seconds is not None and seconds <= HORIZON_SECONDS else None


def written_tokens(raw: Callable[[Column], Value]) -> Value:
    """Tokens an engine has put into its KV cache since it started, from counters as it exposes them."""
    generated = raw(Column("generation_tokens"))
    computed = raw(Column("prompt_tokens_by_source", Part.VALUE, ("local_compute",)))
    if computed is None:
        prompt, hits = raw(Column("prompt_tokens")), raw(Column("prefix_hits"))
        computed = None if prompt is None or hits is None else max(0.0, prompt - hits)
    written = plus(generated, computed)
    return written if written is not None and 0 <= written < math.inf else None


def warmness(view: EngineView) -> Value:
    """Tokens written to the KV cache since the engine started or woke, over its capacity, at most 1; with a baseline
    prefix_cache_hit_ratio set, the lower of that and the hit ratio of the last minute over it. Absent without a known
    capacity.
    """
    filled = divide(view.written_tokens, view.kv_capacity_tokens)
    if filled is None:
        return None
    hits = divide(hit_ratio_in(view.minute), view.config.baseline.prefix_cache_hit_ratio)
    return min(1.0, filled, 1.0 if hits is None else hits)
