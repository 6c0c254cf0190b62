"""Counters of traffic, each integrated by the sidecar from its first scrape of the engine."""

from exporter.signals.arrivals import RESPONSES
from exporter.signals.view import EngineView, Labelled, TargetView, Value
from exporter.signals.window import Window
from exporter.upstream import Part


def arrivals(view: EngineView) -> Value:
    """Requests that came: running maximum of first tokens + waiting, or of answered + running + waiting where
    one engine is behind the port. With several, net of requests abandoned before their first token. n > 1
    counts sequences.
    """
    return view.now.last("arrivals")


def first_tokens(view: EngineView) -> Value:
    """Requests that got a first token (from vllm:time_to_first_token_seconds)."""
    return view.now.last("ttft", part=Part.COUNT)


def finished(view: EngineView) -> Labelled:
    """Finished requests by reason; clients that left are in none (from vllm:request_success)."""
    return _by_label(view.now, "finished")


def preemptions(view: EngineView) -> Value:
    """Preemptions, reported when the request resumes and lost if its client leaves first (from
    vllm:num_preemptions).
    """
    return view.now.last("preemptions")


def prompt_tokens(view: EngineView) -> Labelled:
    """Prompt tokens of requests that got a first token, by source: computed, cached, or unknown before vLLM 0.16."""
    computed = view.now.last("prompt_tokens_by_source", "local_compute")
    cached = view.now.last("prompt_tokens_cached")
    if computed is None or cached is None:
        return {("unknown",): view.now.last("prompt_tokens")}
    return {("computed",): computed, ("cached",): cached}


def generation_tokens(view: EngineView) -> Value:
    """Tokens generated, those of aborted requests included (from vllm:generation_tokens)."""
    return view.now.last("generation_tokens")


def steps(view: EngineView) -> Value:
    """Steps that produced output (from vllm:iteration_tokens_total); several API servers count some of them each."""
    return view.now.last("steps", part=Part.COUNT)


def decode_sequence_steps(view: EngineView) -> Value:
    """Decode sequences, summed over steps (from vllm:inter_token_latency_seconds)."""
    return view.now.last("itl", part=Part.COUNT)


def decode_sequence_seconds(view: EngineView) -> Value:
    """Seconds between outputs, summed over sequences (from vllm:inter_token_latency_seconds)."""
    return view.now.last("itl", part=Part.SUM)


def drafts(view: EngineView) -> Value:
    """Request-steps with a draft (from vllm:spec_decode_num_drafts)."""
    return view.now.last("drafts")


def draft_tokens(view: EngineView) -> Value:
    """Tokens drafted (from vllm:spec_decode_num_draft_tokens)."""
    return view.now.last("draft_tokens")


def accepted_tokens(view: EngineView) -> Value:
    """Drafted tokens accepted (from vllm:spec_decode_num_accepted_tokens)."""
    return view.now.last("accepted_tokens")


def offered(view: TargetView) -> Value:
    """Requests put to the target: answered, in flight, turned away or failed (from http_requests_total of
    generation routes). Absent without vLLM's HTTP metrics.
    """
    return None if view.last is None else view.last.last("offered")


def abandoned(view: TargetView) -> Value:
    """Requests whose clients left: logged 2xx, finished by no engine (http_requests_total less vllm:request_success).

    Too low where requests ask for n > 1. Absent without vLLM's HTTP metrics, and where the setting engines leaves
    some of the port's out.
    """
    return None if view.last is None else view.last.last("abandoned")


def http_responses(view: TargetView) -> Labelled:
    """Responses of generation routes by status class (from http_requests_total)."""
    return {} if view.last is None else _by_label(view.last, RESPONSES)


def rejections(view: TargetView) -> Labelled:
    """Requests turned away at a queue limit (from vllm:admission_rejections)."""
    return {} if view.last is None else _by_label(view.last, "rejections")


def _by_label(window: Window, series: str) -> Labelled:
    return {labels: window.last(series, *labels) for labels in window.labelled(series)}
