"""What the dashboards take from the alerts: runbooks, and thresholds, so that a line on a chart is where one fires."""

RUNBOOKS = "https://github.com/vllm-sidecar/vllm-sidecar/blob/main/alerts/runbooks"
THRESHOLDS = {
    "preemptions_ratio": 0.01,
    "kv_pinned_ratio": 0.9,
    "burn_1_factor": 14.4,
    "abandoned_ratio": 0.1,
    "cold_ratio": 0.5,
    "not_polling_seconds": 60,
    "scrape_slow_seconds": 1,
    "cost_factor": 2,
}


def threshold(name: str) -> float:
    """A threshold of the alerts."""
    return THRESHOLDS[name]


def runbook(alert: str) -> str:
    """Where an alert's runbook is."""
    return f"{RUNBOOKS}/{alert}.md"
