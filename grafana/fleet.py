"""Fleet: one row a replica, worst first; what the fleet holds and what it would hold with one replica less."""

from grafana.alerts import threshold
from grafana.dashboard import TAG, Dashboard
from grafana.panels import BLUE, CLEAR, ORANGE, PURPLE, RED, Column, Panel, Query, Row, chart, table
from grafana.queries import REPLICA, aggregate, by_model, quantile, rate, ratio, series, total, worst

MODEL = "model_name"
STATES = {0: ("up", CLEAR), 1: ("asleep", PURPLE), 2: ("loading", BLUE), 3: ("lost", RED)}
KEPT = "${datasource:queryparam}&${job:queryparam}&var-${replica}=${__value.raw}&${__url_time_range}"
ON_CALL = ("Look at it on call", f"/d/{TAG}-on-call?{KEPT}")


def dashboard() -> Dashboard:
    """All replicas."""
    return Dashboard(
        "fleet",
        "Fleet",
        "One row a replica, worst first. A replica is a pod; where one sidecar watches many engines, a target.",
        (
            Row("Replicas, worst first", [_replicas()]),
            Row("Is one out of line?", _balance()),
            Row("Does it hold with one replica less?", _headroom()),
            Row("Totals by model", [_models()]),
            Row("Does discovery find them all? For a sidecar that watches many engines", _discovery()),
        ),
    )


def _state() -> str:
    """The numbers of ``STATES``, largest where a target is worst off."""
    matched = ((f'state="{text}"', number) for number, (text, _) in STATES.items())
    states = [f"{series('target_state', own)} * {number}" for own, number in matched]
    return worst(REPLICA, " or ".join(states))


def _replicas() -> Panel:
    arrivals = total(REPLICA, rate("arrivals_total"))
    return table(
        "Replicas",
        "Sorted by state, then by the resource that is most used. Over the engines of a replica: the worst of shares, "
        "the sum of counts, quantiles of merged buckets. Click a replica to see it on call.",
        Query(_state(), "State"),
        Query(worst(REPLICA, series("saturation_ratio")), "Saturation"),
        Query(worst(REPLICA, series("kv_usage_ratio")), "KV in use"),
        Query(total(REPLICA, series("waiting_requests")), "Waiting"),
        Query(total(REPLICA, series("running_requests")), "Running"),
        Query(worst(REPLICA, series("predicted_ttft_seconds")), "Predicted TTFT"),
        Query(quantile(0.99, "time_to_first_token_seconds", REPLICA), "TTFT p99"),
        Query(quantile(0.99, "inter_token_latency_seconds", REPLICA), "ITL p99"),
        Query(ratio(total(REPLICA, rate("preemptions_total")), arrivals), "Preempted"),
        Query(total(REPLICA, rate("generation_tokens_total")), "Output tok/s"),
        Query(aggregate("min", REPLICA, series("warmness_ratio")), "Warm"),
        Query(total(REPLICA, series("engine_stalled")), "Stalled"),
        height=14,
        sort=("State", "Saturation"),
        columns={
            "pod": Column(link=ON_CALL),
            "target": Column(link=ON_CALL),
            "instance": Column(link=ON_CALL),
            "State": Column(words=STATES, width=80),
            "Saturation": Column(steps=((0.8, ORANGE), (1, RED)), decimals=2),
            "KV in use": Column("percentunit", steps=((threshold("kv_pinned_ratio"), ORANGE),), decimals=0),
            "Waiting": Column(decimals=0),
            "Running": Column(decimals=0),
            "Predicted TTFT": Column("s"),
            "TTFT p99": Column("s"),
            "ITL p99": Column("s"),
            "Preempted": Column("percentunit", steps=((threshold("preemptions_ratio"), ORANGE),)),
            "Output tok/s": Column(decimals=0),
            "Warm": Column("percentunit", decimals=0),
            "Stalled": Column(steps=((1, RED),), decimals=0),
        },
        alerts=("VLLMEngineOutlier", "VLLMEngineWatchedTwice"),
    )


def _balance() -> list[Panel]:
    load = total(
        f"{MODEL}, {REPLICA}",
        f"{series('running_requests')} + ignoring (reason) sum without (reason) ({series('waiting_requests')})",
    )
    return [
        chart(
            "Load of the busiest replica over the mean",
            "Requests running and waiting. 1 is perfect balance; 2 of 2 replicas is one doing all the work.",
            Query(ratio(worst(MODEL, load), aggregate("avg", MODEL, load)), "{{model_name}}"),
            alerts=("VLLMEngineOutlier",),
        ),
        chart(
            "KV cache in use: fullest, median, emptiest replica",
            "Far apart: the router sends long contexts, or shared prefixes, to a few.",
            Query(worst(MODEL, series("kv_usage_ratio")), "fullest {{model_name}}"),
            Query(f"quantile by ({MODEL}) (0.5, {series('kv_usage_ratio')})", "median {{model_name}}"),
            Query(aggregate("min", MODEL, series("kv_usage_ratio")), "emptiest {{model_name}}"),
            unit="percentunit",
            ceiling=1,
            steps=((threshold("kv_pinned_ratio"), ORANGE),),
            alerts=("VLLMKVCachePinned", "VLLMEngineOutlier"),
        ),
        chart(
            "Warmness of the coldest replica",
            "A cold replica computes prompts that the others have cached; health checks do not show it.",
            Query(aggregate("min", MODEL, series("warmness_ratio")), "{{model_name}}"),
            unit="percentunit",
            ceiling=1,
            steps=((threshold("cold_ratio"), BLUE),),
            alerts=("VLLMEngineCold",),
        ),
    ]


def _headroom() -> list[Panel]:
    point = series("kv_preemption_point_sequences")
    by_replica = total(f"{MODEL}, {REPLICA}", point)
    return [
        chart(
            "Sequences: running, and what one replica less would hold",
            "If running passes the line of N-1, losing the largest replica means preemptions. One replica has none.",
            Query(total(MODEL, series("running_requests")), "running {{model_name}}"),
            Query(
                f"({total(MODEL, point)} - {worst(MODEL, by_replica)}) > 0",
                "N-1 preemption point {{model_name}}",
            ),
            width=12,
            alerts=("VLLMNoSpareReplica",),
        ),
        chart(
            "Most used resource",
            "Of the most saturated replica: cache, compute, bandwidth, queue or seats. At 1 it is used up.",
            Query(worst("resource", series("saturation_ratio")), "{{resource}}"),
            width=12,
            steps=((1, ORANGE),),
        ),
    ]


def _models() -> Panel:
    return table(
        "Models",
        "Sums of counters; the worst replica's KV usage; quantiles of the merged buckets.",
        Query(total(MODEL, by_model(series("target_up"))), "Targets up"),
        Query(total(MODEL, rate("arrivals_total")), "Requests/s"),
        Query(total(MODEL, rate("generation_tokens_total")), "Output tok/s"),
        Query(total(MODEL, rate("prompt_tokens_total")), "Input tok/s"),
        Query(total(MODEL, series("running_requests")), "Running"),
        Query(total(MODEL, series("waiting_requests")), "Waiting"),
        Query(worst(MODEL, series("kv_usage_ratio")), "KV, fullest"),
        Query(total(MODEL, series("kv_capacity_tokens")), "KV tokens"),
        Query(quantile(0.99, "time_to_first_token_seconds", MODEL), "TTFT p99"),
        Query(quantile(0.99, "e2e_seconds", MODEL), "E2E p99"),
        Query(f"3600 * {total(MODEL, by_model(rate('gpu_cost_dollars_total')))}", "$/hour"),
        columns={
            "Targets up": Column(decimals=0),
            "Requests/s": Column("reqps"),
            "KV, fullest": Column("percentunit", steps=((threshold("kv_pinned_ratio"), ORANGE),), decimals=0),
            "TTFT p99": Column("s"),
            "E2E p99": Column("s"),
            "$/hour": Column("currencyUSD"),
        },
        sort=("Output tok/s",),
        height=8,
    )


def _discovery() -> list[Panel]:
    alerts = ("VLLMDiscoveryInvalid", "VLLMTargetsMissing")
    return [
        chart(
            "Targets by source",
            "Dropped are those found twice, or too many.",
            Query(total("source", series("discovery_targets")), "{{source}}"),
            Query(f"{total('source', series('discovery_dropped_targets'))} > 0", "dropped of {{source}}"),
            width=6,
            decimals=0,
            alerts=alerts,
        ),
        chart(
            "Targets missing",
            "Where the settings say how many there should be.",
            Query(total("", series("targets_missing")), "missing"),
            Query(total("", series("targets_expected")), "expected"),
            width=6,
            decimals=0,
            alerts=alerts,
        ),
        chart(
            "Sources that cannot be read",
            "What they last named stays watched.",
            Query(f"count({series('discovery_valid')}) - sum({series('discovery_valid')})", "sources"),
            width=6,
            decimals=0,
            alerts=alerts,
        ),
        chart(
            "Time since a source's last good answer",
            "Of each source, in the sidecar where it is longest.",
            Query(worst("source", f"time() - {series('discovery_last_success_timestamp_seconds')}"), "{{source}}"),
            unit="s",
            width=6,
            alerts=alerts,
        ),
    ]
