"""Engines with hardware and a model in their settings, by hand and from recordings, for tests of the live economics."""

from exporter.replay import replay
from exporter.schema import Config
from tests.bodies import Body, Fed, samples
from tests.recordings import entries

DENSE_70B = {"total_params": 70e9, "layers": 80, "kv_heads": 8, "head_dim": 128, "kv_cache": "fp8"}
FOUR_H100 = {
    "hardware": {"profile": "h100-sxm", "mbu": 0.68, "mfu": 0.42},
    "model": DENSE_70B,
    "gpus_per_engine": 4,
}
"""The running example of docs/economics.md: crossover 182.34 positions, 11,868 positions per second."""

TINY = {
    "model": {"total_params": 4.67e6, "layers": 4, "kv_heads": 4, "head_dim": 32},
    "hardware": {"peak_flops": 2e11, "bandwidth_bytes_per_second": 2e10},
}
"""The recorded engine's model; its CPU's peaks are made up, and so is what follows from them alone."""


def target(**settings):
    """The settings of one target."""
    return Config(**settings).all_targets()[0]


def engine(capacity_tokens=None):
    """An engine of one API server that says how large its KV cache is, before its first request."""
    body = Body().process()
    for source in ("local_compute", "local_cache_hit", "external_kv_transfer"):
        body.set("vllm:prompt_tokens_by_source_total", 0, source=source)
    body.set("vllm:prompt_tokens_cached_total", 0)
    if capacity_tokens is not None:
        cache(body, kv_cache_size_tokens=capacity_tokens)
    return body


def cache(body, engine="0", block_size=16, **labels):
    """What ``cache_config_info`` says of an engine."""
    return body.own("vllm:cache_config_info", 1, engine=engine, block_size=block_size, **labels)


def steps(body, count, *, sequences=0, prefill=0, drafted=None, accepted=0, step_seconds=0.02):
    """So many steps, each with these sequences in decode, prompt tokens, and drafts for the sequences together."""
    body.decode(sequences, count, step_seconds)
    body.tokens(prompt=prefill * count)
    body.add("vllm:prompt_tokens_by_source_total", prefill * count, source="local_compute")
    if drafted is not None:
        body.add("vllm:spec_decode_num_drafts_total", sequences * count)
        body.add("vllm:spec_decode_num_draft_tokens_total", drafted * count)
        body.add("vllm:spec_decode_num_accepted_tokens_total", accepted * count)
        body.tokens(generated=accepted * count)
    return body


def busy(fed, body, seconds, each_second, running=16):
    """Scrape once a second while the engine runs, doing the same each second; returns the pipeline."""
    start = fed.at
    body.running(running)
    fed.scrape(start, body)
    for second in range(1, seconds + 1):
        each_second(body)
        fed.scrape(start + second, body)
    return fed


def fed(**settings):
    """A pipeline with these settings, scraped once a second."""
    pipeline = Fed(target(**settings))
    pipeline.pipeline.interval_seconds = 1.0
    return pipeline


def recorded(name, **settings):
    """(unix seconds, samples) after each scrape of a recording, as replay prints them."""
    config = Config(**settings)
    replayed = replay(entries(name), config.all_targets()[0], config.options())
    return [(at, samples(families)) for at, families in replayed]


def named(shown, name, **labels):
    """The value of the one sample of a name with these labels among its own; None where there is none."""
    found = [value for (each, pairs), value in shown.items() if each == name and labels.items() <= dict(pairs).items()]
    assert len(found) <= 1
    return found[0] if found else None


def recorded_view(name, **settings):
    """A recording's target as it stands at its last scrape that shows work."""
    one, shown = fed(**settings), None
    for at, outcome in entries(name):
        one.pipeline.observe(outcome, at=at, unix=at)
        view = one.pipeline.view(at)
        if any(engine.now.last("running") for engine in view.engines):
            shown = view
    return shown
