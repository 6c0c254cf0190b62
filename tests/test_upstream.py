"""The table of vLLM series: whole names, right kinds, no name claimed twice."""

import pytest

from exporter.upstream import PREFIXES, REQUIRED, SAMPLES, SERIES, TABLE, Kind, Part, filter_names


def test_counters_are_named_as_they_are_exposed():
    """The Python client exposes every counter with ``_total``: a name without it would read nothing."""
    names = [name for row in TABLE if row.kind is Kind.COUNTER for name in (row.name, *(a.name for a in row.aliases))]

    assert [name for name in names if not name.endswith("_total")] == []


def test_iteration_tokens_total_is_a_histogram():
    """Despite its suffix: its three samples carry ``_total`` before their own."""
    assert SERIES["steps"].kind is Kind.HISTOGRAM
    assert SAMPLES["vllm:iteration_tokens_total_count"].part is Part.COUNT
    assert "vllm:iteration_tokens_total" not in SAMPLES


def test_a_name_that_begins_another_is_another_series():
    """The queue is not counted twice."""
    assert SAMPLES["vllm:num_requests_waiting"].series.key == "waiting"
    assert SAMPLES["vllm:num_requests_waiting_by_reason"].series.key == "waiting_by_reason"


def test_created_series_are_none_of_ours():
    """Their values are unix times."""
    assert [name for name in SAMPLES if name.endswith("_created")] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"),
        ("vllm:gpu_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"),
        ("vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"),
        ("vllm:time_per_output_token_seconds_sum", "vllm:inter_token_latency_seconds_sum"),
    ],
)
def test_an_old_name_is_an_alias_and_older(old, new):
    """Renamed with the same meaning: read, and outranked where both are there."""
    assert SAMPLES[old].series is SAMPLES[new].series
    assert SAMPLES[old].part is SAMPLES[new].part
    assert SAMPLES[old].rank > SAMPLES[new].rank == 0


@pytest.mark.parametrize("prefix", ["vllm:", "ray_vllm:", "ray_vllm_", "kserve_vllm:"])
def test_prefixes_are_the_known_ones(prefix):
    """vLLM, Ray Serve in its two spellings, KServe's aggregated endpoint."""
    assert prefix in PREFIXES
    assert SAMPLES[f"{prefix}num_requests_running"].series.key == "running"


def test_series_of_the_http_layer_and_the_process_have_no_prefix():
    """They come from other libraries."""
    assert SAMPLES["http_requests_total"].series.key == "http_requests"
    assert "vllm:http_requests_total" not in SAMPLES


def test_the_server_side_filter_names_all_we_read_and_nothing_twice():
    """A filter that forgot a name would make it missing; the two that show restarts and answers are in it."""
    asked = filter_names()

    assert len(asked) == len(set(asked))
    assert {"process_start_time_seconds", "http_requests_total"} <= set(asked)
    assert {SAMPLES[name].series.key for name in asked} == set(SERIES)
    assert "vllm:gpu_cache_usage_perc" in asked
    assert [name for name in asked if name.startswith(("ray_", "kserve_"))] == []


def test_what_depends_on_version_or_configuration_is_not_required():
    """LoRA, speculation, sleep, HTTP metrics and multiprocess mode: their absence is no fault."""
    required = {row.key for row in REQUIRED}

    assert required.isdisjoint(
        {"drafts", "draft_tokens", "accepted_tokens", "sleep_state", "waiting_by_reason", "rejections", "tpot"}
        | {"http_requests", "http_seen", "process_start", "prompt_tokens_by_source", "prompt_tokens_cached"}
    )
    assert {"running", "waiting", "kv_usage", "ttft", "itl", "steps", "preemptions"} <= required
