"""vLLM Sidecar: a Prometheus exporter and alerting sidecar for vLLM engines."""

__version__ = "0.1.0"

DEFAULT_PORT = 10077
"""The one default port of the sidecar; Dockerfile, chart and README are tested against it."""
