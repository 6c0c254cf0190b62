"""The labels of `vllm:cache_config_info`."""

from exporter.lab.engine import Engine


def cache_config_labels(engine: Engine) -> dict[str, str]:
    """Every field of vLLM's CacheConfig as a label; what does not apply here is as vLLM's defaults have it."""
    profile = engine.profile
    labels = dict.fromkeys(
        (
            *("cache_hit_alignment_tokens", "hash_block_size", "kv_cache_layout", "kv_offloading_size"),
            *("mamba_block_size", "mamba_page_size_padded", "num_cpu_blocks", "num_gpu_blocks_override"),
            *("prefix_match_unit", "skip_page_size_padded", "sliding_window", "kv_cache_memory_bytes"),
        ),
        "None",
    )
    labels |= dict.fromkeys(
        (
            *("enable_mamba_shared_prefix_checkpoint", "is_attention_free", "kv_sharing_fast_prefill"),
            *("use_kda_recoverssm", "use_replayssm", "user_specified_block_size"),
        ),
        "False",
    )
    return labels | {
        "_block_size_resolved": "True",
        "block_size": str(profile.block_size),
        "cache_dtype": "auto",
        "effective_attention_block_size": str(profile.block_size),
        "enable_prefix_caching": str(profile.prefix_caching),
        "gpu_memory_utilization": "0.92",
        "kv_cache_dtype_skip_layers": "[]",
        "kv_cache_max_concurrency": str(profile.blocks * profile.block_size / profile.max_model_len),
        "kv_cache_size_tokens": str(profile.blocks * profile.block_size),
        "kv_offloading_backend": "native",
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_ssm_cache_dtype": "float32",
        # vLLM repeats the sum over the server's engines on each engine's series
        "num_gpu_blocks": str(profile.blocks * engine.siblings),
        "prefix_cache_retention_interval": "0",
        "prefix_caching_hash_algo": "sha256",
        "replayssm_buffer_len": "16",
        "swa_bounded_replay": "True",
    }
