"""Economics: what a million tokens cost, and where the money goes."""

from grafana.alerts import threshold
from grafana.dashboard import Dashboard
from grafana.panels import GREEN, ORANGE, RED, Column, Panel, Query, Row, chart, stat, table
from grafana.queries import RANGE, TARGET, aggregate, by_model, increase, rate, ratio, series, total, worst

MODEL = "model_name"
STATE_COLORS = {"busy": GREEN, "idle": ORANGE, "unavailable": RED}
PER_HOUR = "3600 * "
PER_MILLION = "1e6 * "
WINDOW = 'window="$window"'


def dashboard() -> Dashboard:
    """What the tokens cost."""
    return Dashboard(
        "economics",
        "Economics",
        "What a million tokens cost, and where the money goes. Empty without gpu_hour_dollars, the price of a GPU.",
        (Row("Now", _now()), Row("Over time", _over_time()), Row("By model", _by_model())),
        by_window=True,
    )


def _dollars(by: str, own: str = "") -> str:
    """Dollars per second."""
    return total(by, rate("gpu_cost_dollars_total", own))


def _price(*, busy: bool = False) -> str:
    """Dollars per million tokens of several targets: the whole bill over the tokens that it bought.

    A target's tokens, weighted as its settings say, are its dollars over its price; they are not exported themselves.
    """
    name, own = "cost_dollars_per_million_tokens", ""
    if busy:
        name, own = f"busy_{name}", 'state="busy"'
    price = f"(max by ({TARGET}, basis, token_type) ({series(name, WINDOW)}) > 0)"
    bought = total("basis, token_type", f"{_dollars(TARGET, own)} / on ({TARGET}) group_right () {price}")
    return f"{_dollars('', own)} / on () group_right () ({bought} > 0)"


def _now() -> list[Panel]:
    output = total("", rate("generation_tokens_total"))
    return [
        stat(
            "GPU cost per hour",
            "What the GPUs cost now, whatever they do: busy, idle, loading or lost.",
            Query(PER_HOUR + _dollars("")),
            unit="currencyUSD",
        ),
        stat(
            "Cost of 1M output tokens",
            "The whole bill on the output tokens: the price to compare with an API's, if input is cheap.",
            Query(PER_MILLION + ratio(_dollars(""), output)),
            unit="currencyUSD",
        ),
        stat(
            "Of busy time only",
            "The same from busy dollars: it does not move with a lull, so what moves it is the batch, the lengths or "
            "the cache.",
            Query(PER_MILLION + ratio(_dollars("", 'state="busy"'), output)),
            unit="currencyUSD",
        ),
        stat(
            "Requests per dollar",
            "Finished requests over the whole bill.",
            Query(ratio(total("", rate("finished_requests_total")), _dollars(""))),
        ),
        stat(
            "Share of the bill at work",
            "Busy dollars of all dollars.",
            Query(ratio(_dollars("", 'state="busy"'), _dollars(""))),
            unit="percentunit",
            ceiling=1,
        ),
        stat(
            "Prompt tokens cached",
            "Share of prompt tokens that were not computed again.",
            Query(_cached("")),
            unit="percentunit",
            ceiling=1,
        ),
    ]


def _cached(by: str) -> str:
    known = 'source=~"cached|computed"'
    return ratio(
        total(by, rate("prompt_tokens_total", 'source="cached"')), total(by, rate("prompt_tokens_total", known))
    )


def _over_time() -> list[Panel]:
    output = total("", rate("generation_tokens_total"))
    return [
        chart(
            "Cost of 1M tokens, by basis",
            "Each basis puts the whole bill on tokens: output on output tokens alone, all on every token alike, "
            "weighted by the settings' weights of input, cached input and output.",
            Query(_price(), "{{basis}}: {{token_type}}"),
            unit="currencyUSD",
        ),
        chart(
            "Cost of 1M tokens of busy time, by basis",
            "As above, from busy dollars.",
            Query(_price(busy=True), "{{basis}}: {{token_type}}"),
            unit="currencyUSD",
        ),
        chart(
            "Cost of 1M output tokens against the baseline",
            "All dollars move with the traffic; busy dollars only with the work itself. Busy far above the baseline is "
            "a regression.",
            Query(PER_MILLION + ratio(_dollars(""), output), "all dollars"),
            Query(PER_MILLION + ratio(_dollars("", 'state="busy"'), output), "busy dollars"),
            Query(worst("", series("cost_baseline_dollars_per_million_tokens")), "baseline"),
            unit="currencyUSD",
            alerts=("VLLMCostAboveBaseline",),
        ),
        chart(
            "Busy cost over its baseline",
            "Of the target furthest above it.",
            Query(worst("", series("busy_cost_baseline_multiple_ratio", WINDOW)), "multiple"),
            steps=((threshold("cost_factor"), ORANGE),),
            alerts=("VLLMCostAboveBaseline",),
        ),
        chart(
            "Dollars per hour, by what the GPUs did",
            "Unavailable is loading, asleep or lost: billed all the same.",
            Query(PER_HOUR + _dollars("state"), "{{state}}"),
            unit="currencyUSD",
            stacked=True,
            colors=STATE_COLORS,
        ),
        chart(
            "Waste per hour, by kind",
            "Money that bought no token of an answer. Kinds do not overlap; of preemption it is an upper bound.",
            Query(PER_HOUR + total("kind", rate("waste_dollars_total")), "{{kind}}"),
            unit="currencyUSD",
            stacked=True,
        ),
        chart(
            "Tokens per second",
            "Generated, prompt tokens computed, and prompt tokens from the cache.",
            Query(output, "output"),
            Query(total("source", rate("prompt_tokens_total")), "input, {{source}}"),
        ),
        chart(
            "Prompt tokens from cache",
            "A fall under pressure: shared prefixes are evicted, and computed again.",
            Query(_cached(MODEL), "{{model_name}}"),
            unit="percentunit",
            ceiling=1,
        ),
        chart(
            "Prompt tokens computed per arrival",
            "Rises when prompts grow or the cache no longer holds them.",
            Query(
                ratio(
                    total(MODEL, rate("prompt_tokens_total", 'source="computed"')), total(MODEL, rate("arrivals_total"))
                ),
                "{{model_name}}",
            ),
        ),
    ]


def _by_model() -> list[Panel]:
    spent = total(MODEL, by_model(increase("gpu_cost_dollars_total", over=RANGE), RANGE))
    output = total(MODEL, increase("generation_tokens_total", over=RANGE))
    busy = total(MODEL, by_model(increase("gpu_cost_dollars_total", 'state="busy"', over=RANGE), RANGE))
    dollars = total(MODEL, by_model(rate("gpu_cost_dollars_total")))
    return [
        table(
            "Cost by model, in the time chosen",
            "A target that serves several models is called several: its bill is not split, so it has no price.",
            Query(spent, "Spent"),
            Query(ratio(busy, spent), "At work"),
            Query(output, "Output tokens"),
            Query(f"1e6 * {ratio(spent, output)}", "$ per 1M output"),
            Query(f"1e6 * {ratio(busy, output)}", "$ per 1M, busy"),
            Query(ratio(total(MODEL, increase("finished_requests_total", over=RANGE)), spent), "Requests per $"),
            Query(aggregate("min", MODEL, by_model(series("gpu_hour_dollars"))), "GPU-hour from"),
            Query(worst(MODEL, by_model(series("gpu_hour_dollars"))), "GPU-hour to"),
            columns={
                "Spent": Column("currencyUSD"),
                "At work": Column("percentunit"),
                "$ per 1M output": Column("currencyUSD"),
                "$ per 1M, busy": Column("currencyUSD"),
                "Requests per $": Column(),
                "GPU-hour from": Column("currencyUSD"),
                "GPU-hour to": Column("currencyUSD"),
            },
            sort=("Spent",),
            height=8,
            alerts=("VLLMSettingsDiffer",),
        ),
        chart(
            "GPU cost per hour, by model",
            "What each model's GPUs cost.",
            Query(PER_HOUR + dollars, "{{model_name}}"),
            unit="currencyUSD",
            stacked=True,
        ),
        chart(
            "Requests per dollar, by model",
            "Finished requests over the whole bill.",
            Query(ratio(total(MODEL, rate("finished_requests_total")), dollars), "{{model_name}}"),
        ),
        chart(
            "Requests that met their objectives",
            "Of the engine that did worst. Bounds, since vLLM's metrics do not say which request met both objectives.",
            Query(aggregate("min", f"{MODEL}, bound", series("goodput_ratio", WINDOW)), "{{bound}} {{model_name}}"),
            unit="percentunit",
            ceiling=1,
            alerts=("VLLMTTFTBudgetBurn", "VLLMTPOTBudgetBurn"),
        ),
    ]
