"""Nothing an engine sends crashes or misleads us: real scrapes with hostile changes, through the whole path."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest

from exporter.collect import families, signals
from fuzz.checks import CONFIG, possible
from tests.bodies import NOBODY, Fed, samples

SCRAPES = Path(__file__).parent / "data" / "scrapes"
NAMES = ("05-v1-early-after-traffic-qwen25-3b-later", "15-v1-under-load-nixl-leading-comments", "01-v0-054-llama31-fp8")
BODIES = {name: (SCRAPES / f"{name}.txt").read_text(encoding="utf-8").splitlines() for name in NAMES}
OURS = {
    name: [n for n, line in enumerate(lines) if line.startswith(("vllm:", "http_requests_total", "process_start"))]
    for name, lines in BODIES.items()
}

VALUE = st.sampled_from(
    ["NaN", "+Inf", "-Inf", "-1", "0", "1e308", "1e-320", "0.5", "1e400", "99999999999999999999", "x"]
)
CHANGE = st.one_of(
    st.tuples(st.just("value"), VALUE),
    st.tuples(st.just("drop"), st.none()),
    st.tuples(st.just("twice"), VALUE),
    st.tuples(st.just("edge"), st.sampled_from(["-1.0", "0.0", "NaN", "+Inf", "1e400", "0.0123", "x"])),
    st.tuples(st.just("engine"), st.sampled_from(["7", "", "{}", "\\n"])),
)


@st.composite
def bodies(draw):
    """A few scrapes of one engine, each with some of our lines changed."""
    name = draw(st.sampled_from(NAMES))
    made = []
    for _ in range(draw(st.integers(2, 4))):
        lines = list(BODIES[name])
        for position, (kind, what) in draw(
            st.lists(st.tuples(st.sampled_from(OURS[name]), CHANGE), min_size=1, max_size=30)
        ):
            lines[position] = changed(lines[position], kind, what)
        made.append(("\n".join(lines) + "\n").encode())
    return made


def changed(line, kind, what):
    head, _, value = line.rpartition(" ")
    if kind == "value":
        return f"{head} {what}"
    if kind == "drop":
        return ""
    if kind == "twice":
        return f"{line}\n{head} {what}"
    label = {"edge": 'le="', "engine": 'engine="'}[kind]
    before, found, after = head.partition(label)
    return f"{before}{found}{what}{after[after.index(chr(34)) :]} {value}" if found else line


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # it would hide what failed
@given(bodies())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_hostile_engine_crashes_nothing_and_shows_nothing_that_cannot_be(made):
    """No exception from reading to rendering; no series twice; all finite and none below 0, no share above 1."""
    fed = Fed(CONFIG)
    for turn, body in enumerate(made):
        fed.scrape(20.0 * turn, body)
        view = fed.view()
        found = list(families(NOBODY, [view]))
        shown = samples(found)
        assert [(name, value) for (name, _), value in shown.items() if not possible(name, value)] == []
        assert signals([view])
        assert generate_latest(type("Collected", (), {"collect": lambda _, found=found: found})())
