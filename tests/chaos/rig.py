"""A simulated engine that breaks at random, a real sidecar beside it, and what must hold of it after each act.

    python -m tests.chaos.rig [ACTS] [SEED]

The engine runs in this process, so the truth is at hand. For a check it is stopped inside a step until the sidecar
has scraped it once more: then what is exported must be what the engine is.
"""

import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

import httpx

from exporter.lab.profiles import PROFILES
from exporter.lab.serving import Layout
from exporter.lab.simulate import Simulator, serving
from tests.sidecar import Sidecar, sidecar

PROFILE = replace(
    PROFILES["demo"], weight_read_seconds=0.005, positions_per_second=50_000, kv_tokens=2_000, max_num_seqs=16
)
INTERVAL_SECONDS, TIMEOUT_SECONDS, STALL_SECONDS = 0.2, 0.5, 1.0
REQUESTS_PER_SECOND, LEAVING = 12.0, 0.15
PATIENCE_SECONDS = 20.0
SETTLE_SECONDS = 0.3
"""What came while the engine was stopped is in no gauge before its next step has ended."""
ENGINE = 'engine="0",model_name="simulated"'
EXACT = ("generation_tokens_total", "first_tokens_total", "preemptions_total", "engine_steps_total")
REASONS = {"html": "parse", "binary": "parse", "empty": "empty", "truncated": "parse"}


@dataclass
class Rig:
    """What runs, and what the lives of the engine so far came to."""

    simulator: Simulator
    sidecar: Sidecar
    random: random.Random
    restarts: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    last: dict[str, float] = field(default_factory=dict)

    def live(self, *, hung: bool) -> None:
        """Stop the engine before the end of its step, or let it go on."""
        for live in self.simulator.serving.live.values():
            live.hung = hung

    def counts(self) -> Counter[str]:
        """Counters of all lives, from the engine's own observations and from its log of steps."""
        [engine] = self.simulator.serving.live
        seen = engine.observations
        now = Counter(
            generation_tokens_total=seen.generation_tokens,
            first_tokens_total=seen.time_to_first_token.count,
            preemptions_total=seen.preemptions,
            engine_steps_total=seen.iteration_tokens.count,
            scheduled=len(engine.truth.arrivals),
            submitted=engine.load + len(engine.truth.abandoned) + sum(seen.finished.values()),
        )
        return self.ended + now

    def levels(self) -> dict[str, float]:
        """Gauges, as the engine left them after its last whole step."""
        [engine] = self.simulator.serving.live
        seen = engine.observations
        return {
            "running_requests": seen.running,
            "waiting_requests": seen.waiting,
            "kv_usage_ratio": seen.kv_cache_usage,
        }

    def read(self) -> dict[str, float]:
        """What the sidecar exports now. Nothing in it may be infinite, and no counter may have fallen."""
        values = self.sidecar.values()
        for name, value in values.items():
            assert abs(value) < float("inf"), name
            if name.partition("{")[0].endswith(("_total", "_count", "_bucket")):
                assert value >= self.last.get(name, 0.0), f"{name} fell from {self.last[name]} to {value}"
                self.last[name] = value
        return values

    async def until(self, condition: Callable[[dict[str, float]], object], what: str) -> dict[str, float]:
        """Wait for something to be exported; fails where it is not in time."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition(values := self.read()):
            shown = {name: value for name, value in values.items() if "target" in name}
            assert time.monotonic() < deadline, f"{what} did not come about: {shown}"
            await asyncio.sleep(0.05)
        return values

    async def fails(self, reason: str) -> None:
        """The target is down for that reason, and what it was is not shown as if it were now for long."""
        name = next(
            name for name in self.read() if name.startswith("vllm_sidecar_scrape_failures_total{") and reason in name
        )
        before = self.last[name]
        values = await self.until(lambda values: values[name] >= before + 2, f"failures by {reason}")
        assert of_target("target_up", values) == 0

    async def check(self, *, go_on: bool = True) -> None:
        """Stop the engine, and hold all that is exported against it. Let go for a moment it would take a step."""
        await asyncio.sleep(SETTLE_SECONDS)
        self.live(hung=True)
        # Whatever was under way when it was stopped is over by the scrape after the next.
        await asyncio.sleep(2 * PROFILE.weight_read_seconds)
        stopped = time.time()
        success = "last_success_timestamp_seconds"
        values = await self.until(
            lambda values: (of_target(success, values) or 0) > stopped + 0.05 and of_target("target_up", values) == 1,
            "a scrape of the stopped engine",
        )
        state = 'vllm_sidecar_target_state{state="up",target="engine"}'
        assert values[state] == 1
        for name, true in self.levels().items():
            assert self.shown(values, name) == [true], (name, true, self.shown(values, name))
        counts = self.counts()
        for name in EXACT:
            assert self.shown(values, name) == [counts[name]], (name, counts[name], self.shown(values, name))
        # Between what the scheduler took in and what clients sent: the engine's inbox shows in no series. A request
        # that was in prefill when the engine died, or whose client left then, may not be told.
        [arrivals] = self.shown(values, "arrivals_total")
        slack = 2 + 0.02 * counts["submitted"]
        assert counts["scheduled"] - slack <= arrivals <= counts["submitted"] + 1, (counts, arrivals)
        assert self.shown(values, "engine_restarts_total") == [self.restarts]
        assert of_target("parse_errors_total", values) == 0
        if go_on:
            self.live(hung=False)

    def shown(self, values: dict[str, float], name: str) -> list[float]:
        """An engine's exported value, summed over its own labels; nothing where it is not exported."""
        found = [value for key, value in values.items() if key.startswith(f"vllm_sidecar_{name}{{{ENGINE}")]
        return [sum(found)] if found else []


def of_target(name: str, values: dict[str, float]) -> float | None:
    """The value of a target's series; of several, the first."""
    return next((value for key, value in values.items() if key.startswith(f"vllm_sidecar_{name}{{")), None)


async def calm(rig: Rig) -> None:
    """Nothing happens but traffic."""
    await asyncio.sleep(rig.random.uniform(0.2, 1.0))


async def hang(rig: Rig) -> None:
    """Steps stop while HTTP answers: that is no failure of a scrape, and with work it is a stall."""
    while not rig.levels()["running_requests"]:  # noqa: ASYNC110 - seen from outside only
        await asyncio.sleep(0.01)
    rig.live(hung=True)
    await rig.until(lambda values: rig.shown(values, "engine_stalled") == [1], "a stall")
    rig.live(hung=False)
    await rig.until(lambda values: rig.shown(values, "engine_stalled") == [0], "the end of a stall")


async def slow(rig: Rig) -> None:
    """Steps take three to ten times as long."""
    rig.simulator.faults.set("slow", {"factor": rig.random.uniform(3, 10)})
    await asyncio.sleep(rig.random.uniform(0.2, 1.0))
    rig.simulator.faults.clear("slow")


async def late(rig: Rig) -> None:
    """Answers come after the deadline."""
    rig.simulator.faults.set("slow", {"metrics_seconds": 4 * TIMEOUT_SECONDS})
    await rig.fails("timeout")
    rig.simulator.faults.clear("slow")


async def lie(rig: Rig) -> None:
    """What answers is no exposition, or half of one."""
    kind = rig.random.choice(sorted(REASONS))
    rig.simulator.faults.set("garbage", {"kind": kind})
    await rig.fails(REASONS[kind])
    rig.simulator.faults.clear("garbage")


async def lose(rig: Rig) -> None:
    """A gauge and a counter are gone for a while: absent, named as missing where required, never 0 and never old."""
    for series in ("vllm:num_requests_running", "vllm:num_preemptions"):
        rig.simulator.faults.set("lose", {"series": series})
    values = await rig.until(lambda values: not rig.shown(values, "running_requests"), "the loss of a gauge")
    assert not rig.shown(values, "preemptions_total")
    assert of_target("target_up", values) == 1
    rig.simulator.faults.clear("lose")


async def sleep(rig: Rig) -> None:
    """Asleep is a state of its own."""
    rig.simulator.faults.set("sleep", {"level": rig.random.choice([1, 2])})
    asleep = 'vllm_sidecar_target_state{state="asleep",target="engine"}'
    values = await rig.until(lambda values: values.get(asleep) == 1, "sleep")
    assert rig.shown(values, "engine_awake") == [0]
    rig.simulator.faults.clear("sleep")


async def restart(rig: Rig) -> None:
    """It dies and comes back with counters at zero. Stopped and scraped first, so that all it did is known."""
    await rig.check(go_on=False)
    rig.ended = rig.counts()
    rig.restarts += 1
    await rig.simulator.restart(rig.random.choice([0.0, 0.3, 1.0]))


async def outage(rig: Rig) -> None:
    """Nobody listens for longer than gauges are believed: they go, counters stay."""
    await rig.check(go_on=False)
    rig.ended = rig.counts()
    rig.restarts += 1
    restarting = asyncio.create_task(rig.simulator.restart(12.0))
    await rig.fails("connect")
    values = await rig.until(lambda values: not rig.shown(values, "running_requests"), "the end of old gauges")
    assert not rig.shown(values, "kv_usage_ratio")
    kept = rig.shown(values, "generation_tokens_total")
    assert kept == [rig.ended["generation_tokens_total"]], (kept, rig.ended)
    await restarting


ACTS: dict[Callable[[Rig], Awaitable[None]], int] = {
    calm: 3, hang: 2, slow: 3, late: 3, lie: 4, lose: 3, sleep: 3, restart: 4, outage: 1,
}  # fmt: skip
"""How often each comes, among the others."""


async def traffic(simulator: Simulator, chance: random.Random) -> None:
    """Completions of all lengths, some of whose clients leave, until cancelled."""
    url = f"http://127.0.0.1:{simulator.listener.port}/v1/completions"

    async def one(http: httpx.AsyncClient) -> None:
        body = {"prompt": [7] * chance.randint(10, 600), "max_tokens": chance.randint(1, 200), "ignore_eos": True}
        patience = chance.uniform(0.05, 0.5) if chance.random() < LEAVING else 60.0
        with contextlib.suppress(httpx.HTTPError):
            await http.post(url, json=body, timeout=patience)

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(trust_env=False, limits=limits) as http, asyncio.TaskGroup() as requests:
        while True:
            await asyncio.sleep(chance.expovariate(REQUESTS_PER_SECOND))
            requests.create_task(one(http))


@contextlib.asynccontextmanager
async def rig(seed: int) -> AsyncIterator[Rig]:
    """Engine, sidecar and traffic; the sidecar's first scrape is of an engine that has done nothing yet."""
    async with serving(Layout(PROFILE)) as simulator:
        settings = {
            "url": f"http://127.0.0.1:{simulator.listener.port}",
            "name": "engine",
            "stall_after_seconds": STALL_SECONDS,
            "scrape": {"interval_seconds": INTERVAL_SECONDS, "timeout_seconds": TIMEOUT_SECONDS},
        }
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(json.dumps(settings))
            file.flush()
            chance = random.Random(seed)
            with sidecar(f"--config.file={file.name}") as beside:
                found = Rig(simulator, beside, chance)
                await found.until(lambda values: of_target("target_up", values) == 1, "the first scrape")
                sending = asyncio.create_task(traffic(simulator, random.Random(seed + 1)))
                try:
                    yield found
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)


async def play(rig: Rig, acts: int, *, without: frozenset[Callable[[Rig], Awaitable[None]]] = frozenset()) -> None:
    """So many acts at random, everything checked after each."""
    choices = {act: weight for act, weight in ACTS.items() if act not in without}
    for number in range(acts):
        act = rig.random.choices(list(choices), list(choices.values()))[0]
        rig.acts[act.__name__] += 1
        try:
            await act(rig)
            await rig.check()
        except AssertionError as error:
            raise AssertionError(f"act {number}, {act.__name__}: {error}\n{rig.sidecar.log()[-2000:]}") from error


async def main() -> None:
    """Play, and say what was played."""
    acts, seed = (int(given) for given in (*sys.argv[1:], *("200", "1")[len(sys.argv) - 1 :]))
    began = time.monotonic()
    async with rig(seed) as found:
        await play(found, acts)
        counts = found.counts()
    played = ", ".join(f"{count} {name}" for name, count in sorted(found.acts.items()))
    print(f"{acts} acts in {time.monotonic() - began:.0f} s, nothing wrong, stale or missing: {played}")
    print(", ".join(f"{name} {count}" for name, count in counts.items()))


if __name__ == "__main__":
    asyncio.run(main())
