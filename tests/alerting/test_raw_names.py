"""The raw pack names what real engines expose, from vLLM 0.11 to 0.32."""

import re
from pathlib import Path

import pytest

import exporter
from exporter.exposition import Scraped
from exporter.recording import read_log
from tests.alerting.promql import Parser, nodes
from tests.alerting.rules import load

DATA = Path(__file__).parent.parent / "data" / "scrapes"
BURST = Path(exporter.__file__).parent / "data" / "burst.scrapes.xz"


def of_0_32() -> str:
    """The last good scrape of a recorded vLLM 0.32.0."""
    return [each.outcome.body for each in read_log(BURST) if isinstance(each.outcome, Scraped)][-1].decode()


SCRAPES = {
    "0.11": (DATA / "05-v1-early-after-traffic-qwen25-3b-later.txt").read_text(),
    "0.16": (DATA / "06-v1-cpu-tinyllama-kserve.txt").read_text(),
    "0.25": (DATA / "15-v1-under-load-nixl-leading-comments.txt").read_text(),
    "0.32": of_0_32(),
}


@pytest.mark.parametrize("version", SCRAPES)
def test_every_series_is_in_a_real_scrape(version: str, parser: Parser) -> None:
    """Sample name and every label that the rules match or keep, `le` with its value."""
    exposed = [line for line in SCRAPES[version].splitlines() if line and not line.startswith("#")]
    selectors = [
        node
        for rule in load("raw")
        for node in nodes(parser.parse(rule.body["expr"]))
        if node["type"] in ("vectorSelector", "matrixSelector") and node["name"].startswith("vllm:")
    ]
    assert len({node["name"] for node in selectors}) == 12
    for node in selectors:
        lines = [line for line in exposed if re.match(rf"{re.escape(node['name'])}[{{ ]", line)]
        assert lines, f"{node['name']} is not exposed by vLLM {version}"
        for matcher in node["matchers"]:
            if matcher["name"] == "le":
                assert any(f'le="{matcher["value"]}"' in line for line in lines), node["name"]
        assert all('model_name="' in line and 'engine="' in line for line in lines)
