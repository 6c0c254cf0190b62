"""The examples do what they say, against the real API."""

import importlib.util
import re
import sys
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from exporter import DEFAULT_PORT
from exporter.engine_schema import Replicas
from exporter.schema import Config
from tests.programs import ROOT
from tests.test_api import Api, one

EXAMPLES = ROOT / "examples"
SIMPLE = {"prompt": "What is the capital of France?", "max_tokens": 100}
HARD = {"messages": [{"role": "user", "content": "Prove that there are infinitely many primes."}], "max_tokens": 100}


def loaded(name: str) -> ModuleType:
    """A module that is in no package."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / name / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


router = loaded("router")


async def streamed() -> AsyncIterator[bytes]:
    yield b'{"choices": []}'


class World:
    """Two tiers, their sidecars' answers and who was sent what."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.away: set[str] = set()
        self.asked: list[bool] = []
        self.said = {name: self.well(price) for name, price in (("small", 0.5), ("large", 5.0))}
        self.http = httpx.AsyncClient(transport=httpx.MockTransport(self.answer))
        self.tiers = [
            router.Tier("small", "http://small", "http://small-sidecar", 0.5, "http://small-speculating"),
            router.Tier("large", "http://large", "http://large-sidecar", 1.0),
        ]
        app = router.create_app(self.tiers, self.http)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router")

    @staticmethod
    def well(price: float) -> dict[str, Any]:
        return {
            "saturation": {"saturation_ratio": 0.4, "predicted_ttft_seconds": 0.1},
            "warmth": {"weight": 1.0},
            "speculation": {"engines": [{"advised": False}]},
            "signals": {"targets": [{"cost_dollars_per_million_tokens": {"output": {"output": {"1m": price}}}}]},
        }

    def answer(self, request: httpx.Request) -> httpx.Response:
        name, _, sidecar = request.url.host.partition("-")
        if sidecar == "sidecar":
            self.asked.append(all(tier.open for tier in self.tiers))
            found = self.said[name][request.url.path.rpartition("/")[2]]
            return httpx.Response(503, json={"error": "lost"}) if found is None else httpx.Response(200, json=found)
        if name in self.away:
            raise httpx.ConnectError("refused")
        self.sent.append(request.url.host)
        return httpx.Response(200, content=streamed())

    async def ask(self, *bodies: dict[str, Any]) -> list[httpx.Response]:
        for tier in self.tiers:
            await tier.ask(self.http)
        return [await self.client.post("/v1/chat/completions", json=body) for body in bodies]


async def test_simple_questions_go_to_the_small_tier_and_save_money() -> None:
    """Eight of ten at $0.50 and two at $5 cost 28 % of ten at $5."""
    world = World()
    await world.ask(*([SIMPLE] * 8), HARD, HARD)
    assert world.sent == ["small"] * 8 + ["large"] * 2
    found = (await world.client.get("/savings")).json()
    assert found["saved_ratio"] == pytest.approx(0.72)
    assert found["requests"] == {"small": 8, "large": 2}


async def test_the_price_of_now_decides_and_not_the_size() -> None:
    """A small tier that idles is dear per token: then a simple question is cheaper on the large one."""
    world = World()
    world.said["small"] |= {"signals": World.well(9.0)["signals"]}
    await world.ask(SIMPLE)
    assert world.sent == ["large"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"saturation": {"saturation_ratio": 1.2, "predicted_ttft_seconds": 0.1}},
        {"saturation": {"saturation_ratio": 0.4, "predicted_ttft_seconds": 65.0}},
        {"warmth": {"weight": 0.02}},
        {"warmth": None},
        {"saturation": None},
    ],
    ids=["saturated", "a long wait", "cold", "warmth not known", "lost"],
)
async def test_a_tier_that_is_not_well_is_left_alone_and_without_any_the_client_is_told(wrong: dict[str, Any]) -> None:
    world = World()
    world.said["small"] |= wrong
    await world.ask(SIMPLE)
    assert world.sent == ["large"]
    world.said["large"] |= wrong
    [refused] = await world.ask(SIMPLE)
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"


async def test_tiers_stay_open_while_their_sidecars_are_asked() -> None:
    """Four questions to each of two, each time: a request in between finds both as they last were."""
    world = World()
    await world.ask()
    world.asked.clear()
    await world.ask()
    assert world.asked == [True] * 8


async def test_a_tier_that_does_not_answer_is_passed_over_until_it_is_asked_again() -> None:
    world = World()
    world.away = {"small"}
    await world.ask(SIMPLE)
    assert world.sent == ["large"]
    assert not world.tiers[0].open
    world.away = {"small", "large"}
    [refused] = await world.ask(SIMPLE)
    assert refused.status_code == 503
    world.away = set()
    await world.ask(SIMPLE)
    assert world.sent == ["large", "small"]


async def test_an_answer_of_another_kind_closes_the_tier() -> None:
    """A proxy's page in JSON, or a sidecar of another version: not known is not well, and the watching goes on."""
    world = World()
    world.said["small"] |= {"saturation": {"error": "no"}}
    await world.ask(SIMPLE)
    assert world.sent == ["large"]
    assert "saturation_ratio" in world.tiers[0].said


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7"])
async def test_a_body_that_is_no_object_is_refused(content: bytes) -> None:
    assert (await World().client.post("/v1/completions", content=content)).status_code == 400


async def test_speculation_is_used_while_it_pays() -> None:
    world = World()
    world.said["small"] |= {"speculation": {"engines": [{"advised": True}]}}
    await world.ask(SIMPLE)
    world.said["small"] |= {"speculation": {"engines": [{"advised": None}]}}
    await world.ask(SIMPLE)
    assert world.sent == ["small-speculating", "small"]


async def test_the_router_reads_what_the_api_answers() -> None:
    """Its fields are those of a real sidecar: KV half full, 18,000 of 100,000 tokens written, no price set."""
    api = Api(one())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api.app)) as http:
        tier = router.Tier("small", "http://small", "http://sidecar", 0.5)
        await tier.ask(http)
    assert tier.said == "well"
    assert tier.saturation == 0.5
    assert tier.warmth == pytest.approx(0.18)
    assert tier.open
    assert not tier.speculate
    assert tier.dollars is None


async def test_keda_finds_its_numbers_where_it_looks() -> None:
    """Saturation 0.5, and with 200 tokens/s a replica as set: the 200 that it makes over 140 are 1.43, so 2."""
    scaled = yaml.safe_load((EXAMPLES / "keda" / "scaledobject.yaml").read_text())
    shown = one(model="simulated")
    shown.pipeline.pipeline.config = shown.pipeline.pipeline.config.model_copy(update={"model_name": "simulated"})
    api = Api(shown)
    api.fleet.observe([shown.view()], Replicas(tokens_per_second=200), 0.0)
    found = []
    for trigger in scaled["spec"]["triggers"]:
        parts = urlsplit(trigger["metadata"]["url"])
        value: Any = (await api.get(f"{parts.path.removeprefix('/api/v1/')}?{parts.query}")).json()
        for key in trigger["metadata"]["valueLocation"].split("."):
            value = value[int(key)] if isinstance(value, list) else value[key]
        found.append(value)
    assert found == [0.5, 2]


async def test_envoy_sees_a_cold_replica_as_unhealthy() -> None:
    """18,000 of 100,000 tokens written are warm enough for a tenth; a lost engine is not healthy at any weight."""
    cluster = yaml.safe_load((EXAMPLES / "envoy" / "cluster.yaml").read_text())
    path = cluster["health_checks"][0]["http_health_check"]["path"].removeprefix("/api/v1/")
    shown = one()
    assert (await Api(shown).get(path)).status_code == 200
    shown.pipeline.fail(shown.pipeline.at + 2)
    assert (await Api(shown).get(path)).status_code == 503


def test_the_api_is_where_the_examples_ask() -> None:
    """With the setting that their page names, and without it not: then it is on the loopback's next port."""
    page = (EXAMPLES / "README.md").read_text()
    [snippet] = re.findall(r"```yaml\n(.+?)```", page, re.DOTALL)
    served = Config.model_validate(yaml.safe_load(snippet)).served_page_address
    assert served == f":{DEFAULT_PORT}"
    assert Config().served_page_address == f"127.0.0.1:{DEFAULT_PORT + 1}"
    scaled = yaml.safe_load((EXAMPLES / "keda" / "scaledobject.yaml").read_text())
    cluster = yaml.safe_load((EXAMPLES / "envoy" / "cluster.yaml").read_text())
    [[replica]] = [locality["lb_endpoints"] for locality in cluster["load_assignment"]["endpoints"]]
    asked = {urlsplit(trigger["metadata"]["url"]).port for trigger in scaled["spec"]["triggers"]}
    asked |= {replica["endpoint"]["health_check_config"]["port_value"]}
    asked |= {int(port) for port in re.findall(r",http://\w+:(\d+)", page)}
    assert asked == {DEFAULT_PORT}
