"""The KV cache: how full. Blocks that are cached but not referenced count as free, so this is not warmness."""

from exporter.signals.view import EngineView, Value


def usage(view: EngineView) -> Value:
    """Share of KV blocks in use; cached blocks that nothing references are free (from vllm:kv_cache_usage_perc)."""
    return view.now.last("kv_usage")
