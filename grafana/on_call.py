"""On call: is it up, is it the queue or the batch, is the cache full, are requests lost."""

from grafana.alerts import runbook, threshold
from grafana.dashboard import ALERT_SERIES, Dashboard
from grafana.panels import BLUE, GREEN, ORANGE, PURPLE, RED, Column, Panel, Query, Row, chart, stat, table
from grafana.queries import (
    aggregate,
    by_model,
    increase,
    or_zero,
    quantile,
    rate,
    ratio,
    series,
    total,
    weighted_mean,
    worst,
)

MODEL = "model_name"
STATE_COLORS = {"up": GREEN, "loading": BLUE, "asleep": PURPLE, "lost": RED}
SEVERITIES = {"critical": RED, "warning": ORANGE, "info": BLUE}


def dashboard() -> Dashboard:
    """What to look at first when paged."""
    return Dashboard(
        "on-call",
        "On call",
        "Is it up, is it the queue or the batch, is the cache full, are requests lost? Each panel links to the runbook "
        "of the alert that watches it.",
        (
            Row("Is it up?", _up()),
            Row("Is it the queue or the batch?", _queue_or_batch()),
            Row("Is the KV cache full?", _cache()),
            Row("Are requests lost?", _lost()),
            Row("Restarts, and the scraping itself", _scraping()),
        ),
    )


def _up() -> list[Panel]:
    up = 'up{job=~"$job", namespace=~"$namespace", pod=~"$pod", instance=~"$instance"}'
    # Of all jobs of a Prometheus those that had a sidecar lately: one that is down shows nothing else of itself.
    sidecars = f"({up} and on (job) count by (job) (present_over_time({series('config_valid')}[$__range])))"
    return [
        stat(
            "Targets by state",
            "Loading is an engine that has not served yet; lost is one that served and no longer answers.",
            Query(total("state", series("target_state")), "{{state}}"),
            width=8,
            colors=STATE_COLORS,
            alerts=("VLLMModelDown", "VLLMEngineLost", "VLLMTargetsMissing", "VLLMEnginesMissing"),
        ),
        stat(
            "Engines stalled",
            "Requests run or wait, and nothing moves. A stalled engine answers scrapes and health checks.",
            Query(total("", series("engine_stalled"))),
            steps=((1, RED),),
            alerts=("VLLMEngineStalled",),
        ),
        stat(
            "Targets unhealthy",
            "Nothing answers, or the engine's own health check fails. It is asked only when something looks wrong.",
            Query(f"count({series('target_healthy')}) - sum({series('target_healthy')})"),
            width=3,
            steps=((1, RED),),
            alerts=("VLLMEngineLost",),
        ),
        stat(
            "Sidecars down",
            "Of jobs with a sidecar in the time shown. Prometheus cannot scrape them; what they watch may well be up.",
            Query(f"count({sidecars}) - sum({sidecars})"),
            width=3,
            steps=((1, ORANGE),),
            alerts=("VLLMSidecarDown",),
        ),
        stat(
            "vLLM series missing",
            "Series that signals need and that the engine no longer exposes, for example renamed by an upgrade. Panels "
            "that need them are empty.",
            Query(or_zero(total("", series("source_series_missing")))),
            width=3,
            steps=((1, ORANGE),),
            alerts=("VLLMSidecarBlind",),
        ),
        stat(
            "Settings refused",
            "Sidecars whose settings are invalid; the last good ones stay in force.",
            Query(f"count({series('config_valid')}) - sum({series('config_valid')})"),
            width=3,
            steps=((1, ORANGE),),
            alerts=("VLLMSidecarConfigInvalid", "VLLMDiscoveryInvalid"),
        ),
        table(
            "Firing alerts",
            "Alerts about what is chosen above. Empty also where Prometheus has not loaded the rules.",
            Query(
                aggregate("max", "severity, alertname, namespace, pod, target, model_name, engine", ALERT_SERIES),
                "Firing",
            ),
            width=12,
            height=7,
            columns={
                "alertname": Column(link=("Runbook", runbook("${__value.raw}"))),
                "Firing": Column(words={1: ("firing", RED)}, width=90),
            },
            empty="No alert is firing, or the rules are not loaded",
        ),
        chart(
            "Targets by state over time",
            "A rolling restart is a narrow band of loading; a crash loop is a comb of lost.",
            Query(total("state", series("target_state")), "{{state}}"),
            width=12,
            height=7,
            stacked=True,
            colors=STATE_COLORS,
            decimals=0,
            alerts=("VLLMEngineLost", "VLLMEngineCrashLoop"),
        ),
    ]


def _part(of: str) -> str:
    """A part of the mean time to first token, weighted by the requests it is a mean of."""
    return weighted_mean("", series(of), rate("first_tokens_total"))


def _queue_or_batch() -> list[Panel]:
    promise = f"{MODEL}, slo"
    missed = ratio(total(promise, rate("slo_misses_total")), total(promise, rate("slo_events_total")))
    allowed = aggregate("min", promise, f"1 - {series('slo_objective_ratio')}")
    return [
        chart(
            "Engines past their objective, by cause",
            "Queue and prefill make the first token late, the batch makes the gaps long, preemption does both. Flat at "
            "zero: every engine meets its objectives.",
            Query(total("cause", series("latency_cause")), "{{cause}}"),
            stacked=True,
            decimals=0,
            alerts=("VLLMTTFTBudgetBurn", "VLLMTPOTBudgetBurn"),
        ),
        chart(
            "Mean time to first token, by part",
            "Mostly queue: add replicas or shed load. Mostly prefill: long prompts, or a cache that no longer hits.",
            Query(_part("ttft_queue_seconds"), "queue"),
            Query(_part("ttft_prefill_seconds"), "prefill"),
            unit="s",
            stacked=True,
            alerts=("VLLMTTFTBudgetBurn",),
        ),
        chart(
            "Error budget burn",
            "Share of requests (of gaps, for itl) past the threshold, over the share allowed. At 1 the budget lasts "
            "exactly its period.",
            Query(f"{missed} / {allowed}", "{{slo}} {{model_name}}"),
            steps=((threshold("burn_1_factor"), RED),),
            alerts=("VLLMTTFTBudgetBurn", "VLLMTPOTBudgetBurn"),
        ),
        chart(
            "Time to first token",
            "Queue and prefill included. Of the merged buckets of all engines; past the last bucket's edge a quantile "
            "is only that edge.",
            Query(quantile(0.5, "time_to_first_token_seconds", MODEL), "p50 {{model_name}}"),
            Query(quantile(0.99, "time_to_first_token_seconds", MODEL), "p99 {{model_name}}"),
            unit="s",
            alerts=("VLLMTTFTBudgetBurn",),
        ),
        chart(
            "Time between outputs",
            "Per step: with speculation one step can bring several tokens. Long with a short queue: the batch or the "
            "prefills between its steps.",
            Query(quantile(0.5, "inter_token_latency_seconds", MODEL), "p50 {{model_name}}"),
            Query(quantile(0.99, "inter_token_latency_seconds", MODEL), "p99 {{model_name}}"),
            unit="s",
            alerts=("VLLMITLBudgetBurn", "VLLMTPOTBudgetBurn"),
        ),
        chart(
            "Time per output token",
            "Per finished request, so a request late.",
            Query(quantile(0.5, "time_per_output_token_seconds", MODEL), "p50 {{model_name}}"),
            Query(quantile(0.99, "time_per_output_token_seconds", MODEL), "p99 {{model_name}}"),
            unit="s",
            alerts=("VLLMTPOTBudgetBurn",),
        ),
        chart(
            "Queue depth",
            "Requests waiting for capacity, or deferred: for an adapter, a KV transfer, a grammar. Deferred ones that "
            "stay while the cache is free are stuck.",
            Query(total("reason", series("waiting_requests")), "{{reason}}"),
            Query(quantile(0.99, "waiting_requests_time"), "p99 of the seconds"),
            alerts=("VLLMPredictedTTFTTooLong", "VLLMDeferredQueueStuck"),
        ),
        chart(
            "Predicted time to first token",
            "For a request that joins the longest queue now. Growing past the objective: shed load.",
            Query(worst(MODEL, series("predicted_ttft_seconds")), "{{model_name}}"),
            unit="s",
            alerts=("VLLMPredictedTTFTTooLong",),
        ),
        chart(
            "Queue growth",
            "Requests per second that the queues gain; below zero they drain.",
            Query(total(MODEL, series("queue_growth_requests_per_second")), "{{model_name}}"),
            unit="none",
            alerts=("VLLMPredictedTTFTTooLong",),
        ),
    ]


def _cache() -> list[Panel]:
    usage = series("kv_usage_ratio")
    return [
        chart(
            "Preemptions per arrival",
            "A request preempted computes its prompt again. A few per cent are a capacity fault long before a "
            "percentile shows it. Events: can pass 100 %.",
            Query(
                ratio(total(MODEL, rate("preemptions_total")), total(MODEL, rate("arrivals_total"))), "{{model_name}}"
            ),
            unit="percentunit",
            steps=((threshold("preemptions_ratio"), ORANGE),),
            alerts=("VLLMPreemptions",),
        ),
        chart(
            "KV cache in use",
            "Of the fullest engine and of the median one. Full with a queue: requests wait for the cache; full without "
            "one: well used.",
            Query(worst(MODEL, usage), "fullest {{model_name}}"),
            Query(f"quantile by ({MODEL}) (0.5, {usage})", "median {{model_name}}"),
            unit="percentunit",
            ceiling=1,
            steps=((threshold("kv_pinned_ratio"), ORANGE),),
            alerts=("VLLMKVCachePinned",),
        ),
        chart(
            "KV cache full in",
            "At the present slope, of the engine that is first. Absent while usage does not rise.",
            Query(aggregate("min", MODEL, series("kv_full_in_seconds")), "{{model_name}}"),
            unit="s",
            alerts=("VLLMKVCachePinned",),
        ),
    ]


def _lost() -> list[Panel]:
    abandoned = total(MODEL, by_model(rate("abandoned_requests_total")))
    offered = total(MODEL, by_model(rate("offered_requests_total")))
    per_minute = "60 * "
    return [
        chart(
            "Requests",
            "Offered counts what the HTTP layer saw, turned away ones included; arrivals what reached an engine.",
            Query(total("", rate("offered_requests_total")), "offered"),
            Query(total("", rate("arrivals_total")), "arrivals"),
            Query(total("", rate("first_tokens_total")), "got a first token"),
            Query(total("reason", rate("finished_requests_total")), "finished: {{reason}}"),
            unit="reqps",
            alerts=("VLLMEngineOutlier",),
        ),
        chart(
            "Errors per minute",
            "Responses other than 2xx, requests turned away at a queue limit, and those that an engine ended in error.",
            Query(per_minute + total("status", rate("http_responses_total", 'status!="2xx"')), "HTTP {{status}}"),
            Query(per_minute + total("reason", rate("admission_rejections_total")), "rejected: {{reason}}"),
            Query(per_minute + total("kind", rate("kv_transfer_failures_total")), "KV transfer failed: {{kind}}"),
            Query(per_minute + total("", rate("finished_requests_total", 'reason="error"')), "finished with an error"),
            alerts=("VLLMServerErrors", "VLLMRequestErrors", "VLLMAdmissionRejections", "VLLMKVTransferFailures"),
        ),
        chart(
            "Abandoned requests",
            "Clients that left before their answer was complete, of all requests offered. vLLM logs them as 200, and "
            "no latency series holds them.",
            Query(f"clamp_max({ratio(abandoned, offered)}, 1)", "{{model_name}}"),
            unit="percentunit",
            ceiling=1,
            steps=((threshold("abandoned_ratio"), RED),),
            alerts=("VLLMRequestsAbandoned",),
        ),
    ]


def _scraping() -> list[Panel]:
    return [
        chart(
            "Engine restarts",
            "In the minute or so before each point, and marked on every chart with the engine's name.",
            Query(total(MODEL, increase("engine_restarts_total")), "{{model_name}}"),
            decimals=0,
            alerts=("VLLMEngineCrashLoop",),
        ),
        chart(
            "Age of the youngest engine",
            "Time since it began. A young engine is cold.",
            Query(aggregate("min", MODEL, f"time() - {series('engine_start_timestamp_seconds')}"), "{{model_name}}"),
            unit="s",
            alerts=("VLLMEngineCrashLoop",),
        ),
        chart(
            "Failed scrapes per minute",
            "Of all targets; by reason where there are any.",
            Query(f"60 * {total('', rate('scrape_failures_total'))}", "all"),
            Query(f"60 * {total('reason', rate('scrape_failures_total'))} > 0", "{{reason}}"),
            Query(f"60 * {total('', rate('parse_errors_total'))}", "lines that could not be read"),
            Query(f"60 * {total('', rate('dropped_series_total'))}", "series dropped: too many came and went"),
            alerts=("VLLMSidecarBlind",),
        ),
        chart(
            "Time since the last good scrape",
            "Of the target that is worst. Engine gauges go when it passes 10 seconds.",
            Query(worst("", f"time() - {series('last_success_timestamp_seconds')}"), "oldest"),
            Query(worst("", series("scrape_interval_seconds")), "longest interval in force"),
            unit="s",
            steps=((threshold("not_polling_seconds"), ORANGE),),
            alerts=("VLLMSidecarNotPolling",),
        ),
        chart(
            "Duration of a scrape",
            "The engine answers on the event loop that streams its tokens: slow scrapes are a busy loop.",
            Query(worst("", series("scrape_duration_seconds")), "slowest"),
            unit="s",
            steps=((threshold("scrape_slow_seconds"), ORANGE),),
            alerts=("VLLMScrapeSlow",),
        ),
        chart(
            "Engines whose quantile is only a bound",
            "Below the first bucket's edge, or above the last: the charts of that latency then show the edge.",
            Query(total("latency, q", series("latency_quantile_bounded", 'q=~"0.5|0.99"')), "{{latency}} {{q}}"),
            decimals=0,
            empty="No data, or all quantiles lie within their buckets",
        ),
    ]
