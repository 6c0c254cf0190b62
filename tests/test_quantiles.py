"""Our quantiles are those of PromQL on the same increases: a recorded engine, judged by a real Prometheus."""

import pytest

from exporter.replay import replay, write_openmetrics
from exporter.schema import Options, TargetConfig
from tests.prometheus import blocks_of, serving
from tests.recordings import entries, scrapes

HISTOGRAMS = {
    "ttft": "time_to_first_token_seconds",
    "itl": "inter_token_latency_seconds",
    "tpot": "time_per_output_token_seconds",
    "e2e": "e2e_seconds",
}
QUANTILES = (0.5, 0.9, 0.99)
WINDOW_SECONDS = 60.0


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """A Prometheus that holds our latency histograms of the recording ``burst``, as replayed."""
    directory = tmp_path_factory.mktemp("prometheus")
    replayed = (
        (at, [family for family in families if family.type == "histogram"])
        for at, families in replay(entries("burst"), TargetConfig(), Options({"1m": WINDOW_SECONDS}, QUANTILES))
    )
    with (directory / "openmetrics.txt").open("w", encoding="utf-8") as file:
        write_openmetrics(replayed, file)
    with serving(directory, blocks=blocks_of(directory / "openmetrics.txt", directory / "blocks")) as running:
        yield running


@pytest.mark.parametrize("latency", HISTOGRAMS)
def test_quantiles_are_those_of_histogram_quantile(prometheus, latency):
    """At eight scrapes, over the minute before each: the window begins at the scrape nearest to 60 s before."""
    good, compared = scrapes("burst"), 0
    for scrape in good[60::12]:
        before = min(good, key=lambda other: abs(other.at - (scrape.at - WINDOW_SECONDS)))
        bucket = f"vllm_sidecar_{HISTOGRAMS[latency]}_bucket"
        for q in QUANTILES:
            increases = f"({bucket} @ {scrape.at:.3f} - {bucket} @ {before.at:.3f})"
            found = prometheus.instant(f"histogram_quantile({q}, {increases})", scrape.at)
            theirs = [(one["metric"], float(one["value"][1])) for one in found]
            labels = {"engine": "0", "model_name": "tiny", "latency": latency, "q": f"{q:g}", "window": "1m"}
            ours = scrape.shown.get(("latency_quantile_seconds", tuple(sorted(labels.items()))))
            assert theirs == [({"engine": "0", "model_name": "tiny"}, pytest.approx(ours, rel=1e-9))]
            compared += 1

    assert compared >= 24
