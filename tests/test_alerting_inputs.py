"""What the alert rules build on: series that are there before their first event and keep their labels."""

from exporter import collect
from exporter.exposition import Failure, Reason, Scraped
from exporter.pipeline import Pipeline
from exporter.schema import Config
from exporter.signals.view import SelfView

LABELS = 'engine="0",model_name="m"'
SERVING = f"""
vllm:num_requests_running{{{LABELS}}} 1
vllm:generation_tokens_total{{{LABELS}}} 7
http_request_duration_highr_seconds_count 1
http_requests_total{{handler="/v1/completions",method="POST",status="2xx"}} 1
"""


def exported(pipeline: Pipeline, at: float) -> dict:
    """Values by (name, labels), as on /metrics."""
    families = collect.families(
        SelfView("", "", config_valid=True, config_reload_unix_seconds=None), [pipeline.view(at)]
    )
    return {
        (sample.name.removeprefix("vllm_sidecar_"), *sorted(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def pipeline_of(**settings) -> Pipeline:
    """A pipeline that has seen nothing yet."""
    config = Config(name="t", **settings)
    return Pipeline(config.all_targets()[0], config.options(), at=0.0)


def scraped(body: str) -> Scraped:
    """A good scrape."""
    return Scraped(body.encode(), openmetrics=False, seconds=0.01)


def test_status_classes_are_there_before_their_first_response():
    """A counter that appears with its first 5xx has no increase over it: PromQL never sees the step from nothing."""
    pipeline = pipeline_of()
    pipeline.observe(scraped(SERVING), at=0.0, unix=1e9)
    assert exported(pipeline, 0.0)["http_responses_total", "5xx", "t"] == 0.0
    failed = SERVING + 'http_requests_total{handler="/v1/completions",method="POST",status="5xx"} 12\n'
    pipeline.observe(scraped(failed), at=2.0, unix=1e9 + 2)
    assert exported(pipeline, 2.0)["http_responses_total", "5xx", "t"] == 12.0


def test_status_classes_are_absent_where_http_is_not_measured():
    """Unknown is absent: without vLLM's HTTP metrics nobody knows of any response."""
    pipeline = pipeline_of()
    pipeline.observe(scraped(f"vllm:num_requests_running{{{LABELS}}} 1\n"), at=0.0, unix=1e9)
    assert not [key for key in exported(pipeline, 0.0) if key[0] == "http_responses_total"]


def test_a_lost_target_keeps_the_name_of_its_model():
    """Its counters go after an hour; the page that names the model must not become another one then."""
    pipeline = pipeline_of()
    pipeline.observe(scraped(SERVING), at=0.0, unix=1e9)
    pipeline.observe(Failure(Reason.CONNECT, "refused"), at=2.0, unix=1e9 + 2)
    later = exported(pipeline, 2 * 3600.0)
    assert later["target_info", "both", "m", "t"] == 1.0
    assert later["target_state", "lost", "t"] == 1.0


def test_failed_kv_transfers_count_by_kind():
    """Two failures between scrapes, one expiry; nothing without a connector."""
    pipeline = pipeline_of()
    before = (
        SERVING
        + f"vllm:nixl_num_failed_transfers_total{{{LABELS}}} 40\nvllm:nixl_num_kv_expired_reqs_total{{{LABELS}}} 5\n"
    )
    after = before.replace("} 40", "} 42").replace("reqs_total{" + LABELS + "} 5", "reqs_total{" + LABELS + "} 6")
    pipeline.observe(scraped(before), at=0.0, unix=1e9)
    pipeline.observe(scraped(after), at=2.0, unix=1e9 + 2)
    found = exported(pipeline, 2.0)
    assert found["kv_transfer_failures_total", "0", "m", "transfer"] == 2.0
    assert found["kv_transfer_failures_total", "0", "expired", "m"] == 1.0
    plain = pipeline_of()
    plain.observe(scraped(SERVING), at=0.0, unix=1e9)
    assert not [key for key in exported(plain, 0.0) if key[0] == "kv_transfer_failures_total"]
