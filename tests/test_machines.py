"""Long random lives of a history and of a reader's negotiation, each held against a model that cannot be wrong."""

import asyncio
import gzip
import time

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from exporter.app import Sidecar
from exporter.exposition import Scraped
from exporter.history import History
from exporter.schema import Config
from exporter.snapshot import TARGET, Engine, Layout, Snapshot
from exporter.upstream import Column
from tests.bodies import Body

LIVES = settings(max_examples=20, stateful_step_count=30, deadline=None)
ENGINES = [Engine("m", "0"), Engine("m", "1")]
COUNTERS = [Column("generation_tokens"), Column("prompt_tokens"), Column("preemptions")]
KEPT_SECONDS = 60.0


class HistoryOfAProcess(RuleBasedStateMachine):
    """Two engines of one process that says when it started: it serves, restarts, and loses series for a while.

    The model: what a counter rose by while it was watched. What a process did after its last scrape is lost with it;
    what the next one did before its first scrape is all of that one's count.
    """

    def __init__(self):
        super().__init__()
        self.layout = Layout()
        self.history = History(self.layout, KEPT_SECONDS)
        self.at, self.started = 0.0, 1.0
        keys = [(engine, column) for engine in ENGINES for column in COUNTERS]
        self.stands = dict.fromkeys(keys, 1000)
        self.seen = dict(self.stands)
        self.expected = dict.fromkeys(keys, 0)
        self.lost = set()
        self.shown = []
        self.scrape(seconds=1)

    @rule(engine=st.sampled_from(ENGINES), column=st.sampled_from(COUNTERS), count=st.integers(0, 10**9))
    def serve(self, engine, column, count):
        self.stands[engine, column] += count

    @rule(keep=st.booleans(), count=st.integers(0, 10**6))
    def restart(self, keep, count):
        """Whatever the new process counts before it is seen, even more than the old one had."""
        self.started += 1.0
        for key in self.stands:
            self.stands[key] = count if keep else 0
            self.seen[key] = 0

    @rule(key=st.tuples(st.sampled_from(ENGINES), st.sampled_from(COUNTERS)))
    def lose(self, key):
        self.lost.add(key)

    @precondition(lambda self: self.lost)
    @rule()
    def find_again(self):
        self.lost.clear()

    @rule(seconds=st.integers(1, 30))
    def scrape(self, seconds):
        self.at += seconds
        slots = {self.layout.slot(TARGET, Column("process_start")): self.started}
        for key, value in self.stands.items():
            if key not in self.lost:
                slots[self.layout.slot(*key)] = value
                self.expected[key] += value - self.seen[key]
                self.seen[key] = value
        self.history.observe(Snapshot([slots.get(place) for place in range(len(self.layout.slots))]), self.at)
        self.shown.append((self.at, dict(self.expected), set(self.lost)))

    @invariant()
    def totals_are_those_of_the_model(self):
        _, expected, lost = self.shown[-1]
        for engine, column in expected:
            total = self.history.last_two(engine).last_of(column)
            assert total == (None if (engine, column) in lost else expected[engine, column])

    @invariant()
    def increases_are_differences_and_never_below_zero(self):
        at, expected, lost = self.shown[-1]
        for seconds in (10.0, KEPT_SECONDS):
            aim = at - seconds
            began, before, lost_then = min(self.shown, key=lambda row: (abs(row[0] - aim), -row[0]))
            for engine, column in expected:
                window = self.history.window(engine, seconds, at)
                increase = window.increase_of(column)
                assert window.rows[0].at == began
                if (engine, column) in lost | lost_then:
                    assert increase is None
                else:
                    assert increase == expected[engine, column] - before[engine, column] >= 0


FORMATS = ["", "*/*", "text/plain;version=0.0.4", "text/plain;version=1.0.0;escaping=allow-utf-8"]
OPENMETRICS = "application/openmetrics-text"
ACCEPT = st.one_of(
    st.sampled_from([*FORMATS, f"{OPENMETRICS};version=1.0.0", f"{OPENMETRICS};version=0.0.1;q=0.5,text/plain;q=0.1"]),
    st.lists(st.sampled_from([*FORMATS, OPENMETRICS, ";", "q=x", "text/html", "version=9"]), max_size=4).map(",".join),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40),
)


class ReadersOfOneSidecar(RuleBasedStateMachine):
    """Readers of every taste while the engine goes on: each gets what its type says, all the same series."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.sidecar = Sidecar()
        self.body = Body().process()
        settings = Config.model_validate({"url": "http://127.0.0.1:9", "scrape": {"interval_seconds": 60}})
        self.loop.run_until_complete(self.use(settings))
        self.names = None
        self.serve(count=1)

    async def use(self, settings):
        self.sidecar.use(settings)

    @rule(count=st.integers(0, 1000))
    def serve(self, count):
        """The engine's next scrape, which changes the metrics for all readers."""
        self.body.running(1).first_tokens(0.2).decode(4, 10).tokens(count)
        [target] = self.sidecar.targets
        target.pipeline.observe(Scraped(self.body.text(), False, 0.01), at=time.monotonic(), unix=time.time())
        target.version += 1
        self.names = None
        self.sidecar._rendered.clear()  # readers share one for a second

    @rule(accept=ACCEPT, compressed=st.booleans())
    def read(self, accept, compressed):
        body, content_type = self.loop.run_until_complete(self.sidecar.render(accept, compressed=compressed))
        text = (gzip.decompress(body) if compressed else body).decode()
        openmetrics = content_type.startswith(OPENMETRICS)
        assert openmetrics or content_type.startswith("text/plain; version=")
        assert text.endswith("# EOF\n") is openmetrics
        families = list((openmetrics_families if openmetrics else text_families)(text))
        samples = [(sample.name, tuple(sorted(sample.labels.items()))) for each in families for sample in each.samples]
        assert len(samples) == len(set(samples)) > 50
        assert self.names in (None, set(samples))
        self.names = set(samples)

    def teardown(self):
        self.loop.run_until_complete(self.sidecar.targets.stop())
        self.loop.close()


TestHistory = HistoryOfAProcess.TestCase
TestHistory.settings = LIVES
TestReaders = ReadersOfOneSidecar.TestCase
TestReaders.settings = settings(LIVES, max_examples=6, stateful_step_count=12)
