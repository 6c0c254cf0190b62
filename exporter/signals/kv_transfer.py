"""KV blocks on their way from one engine to another."""

from exporter.signals.view import EngineView, Labelled

KINDS = {"transfer": "kv_failed_transfers", "expired": "kv_expired_requests"}


def failures(view: EngineView) -> Labelled:
    """Failed KV transfers by kind: transfer (handshakes and notifications included), or expired, given up by the
    prefill side before they were fetched (from vllm:nixl_num_failed_transfers, vllm:nixl_num_kv_expired_reqs).
    """
    return {(kind,): view.now.last(series) for kind, series in KINDS.items()}
