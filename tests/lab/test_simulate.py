"""The simulated server over real HTTP."""

import asyncio
import json
import math
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from exporter.lab.profiles import PROFILES
from exporter.lab.serving import Layout
from exporter.lab.simulate import Simulator, main, serving

FAST = replace(PROFILES["demo"], weight_read_seconds=0.002, positions_per_second=100_000)
SLOW = replace(FAST, weight_read_seconds=0.05)


class Client:
    """The server's port and the control port."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{simulator.listener.port}", trust_env=False)
        self.control = httpx.AsyncClient(base_url=f"http://127.0.0.1:{simulator.control.port}", trust_env=False)

    async def complete(self, **fields: Any) -> httpx.Response:
        body = {"prompt": "hello world", "max_tokens": 3, "ignore_eos": True} | fields
        return await self.http.post("/v1/completions", json=body, timeout=20)

    async def value(self, series: str) -> float | None:
        for line in (await self.http.get("/metrics")).text.splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        return None

    async def fault(self, name: str, **arguments: Any) -> None:
        (await self.control.put(f"/faults/{name}", json=arguments)).raise_for_status()

    async def until(self, series: str, value: float) -> None:
        async with asyncio.timeout(10):
            while await self.value(series) != value:  # noqa: ASYNC110 - seen from outside only
                await asyncio.sleep(0.005)


RUNNING = 'vllm:num_requests_running{engine="0",model_name="simulated"}'
WAITING = 'vllm:num_requests_waiting{engine="0",model_name="simulated"}'
TOKENS = 'vllm:generation_tokens_total{engine="0",model_name="simulated"}'


async def connected(layout: Layout) -> AsyncIterator[Client]:
    async with serving(layout) as simulator:
        client = Client(simulator)
        async with client.http, client.control:
            yield client


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async for found in connected(Layout(FAST)):
        yield found


@pytest.fixture
async def slow() -> AsyncIterator[Client]:
    async for found in connected(Layout(SLOW)):
        yield found


def events(body: str) -> list[Any]:
    found = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    assert found[-1] == "[DONE]"
    return [json.loads(event) for event in found[:-1]]


async def test_a_completion_has_its_tokens_and_usage(client: Client) -> None:
    """Eleven bytes of text are three tokens of four bytes."""
    answer = (await client.complete()).json()
    assert answer["object"] == "text_completion"
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"]
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3}


async def test_a_streamed_completion_ends_with_usage_if_asked(client: Client) -> None:
    response = await client.complete(prompt=[5, 6, 7, 8], stream=True, stream_options={"include_usage": True})
    *chunks, last = events(response.text)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert (last["choices"], last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == ([], 4, 3)
    assert all("usage" not in chunk for chunk in chunks)


async def test_a_chat_streams_its_role_first(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "ignore_eos": True, "stream": True}
    chunks = events((await client.http.post("/v1/chat/completions", json=body)).text)
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == " the engine"


async def test_a_chat_without_a_limit_stops_by_itself(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    answer = (await client.http.post("/v1/chat/completions", json=body, timeout=60)).json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["choices"][0]["finish_reason"] in {"stop", "length"}


async def test_several_prompts_and_samples_are_choices_of_one_answer(client: Client) -> None:
    answer = (await client.complete(prompt=[[1, 2], [3]], n=2)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 15, "completion_tokens": 12}


async def test_the_same_prompt_twice_hits_the_prefix_cache(client: Client) -> None:
    """100 tokens are 6 full blocks of 16: the second time 96 of them are found."""
    for _ in range(2):
        await client.complete(prompt=list(range(100)))
    hits = await client.value('vllm:prefix_cache_hits_total{engine="0",model_name="simulated"}')
    assert hits == 96


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "other"}, 404, "The model `other` does not exist. Valid aliases: simulated."),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"),
        ({"max_tokens": 99999}, 400, "prompt and max_tokens=99999 cannot be greater than max_model_len=8192 together."),
        ({"prompt": ""}, 400, "The decoder prompt cannot be empty"),
        ({"prompt": {"a": 1}}, 400, "prompt must be text or token numbers"),
        ({"prompt": None}, 400, "prompt must be text or token numbers"),
        ({"n": "two"}, 400, "n must be at least 1, got two. (parameter=n, value=two)"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_a_bad_request_is_refused(client: Client, fields: dict[str, Any], status: int, message: str) -> None:
    response = await client.complete(**fields)
    assert response.status_code == status
    assert response.json()["error"]["message"] == message


@pytest.mark.parametrize("content", [b"{bad", b"[1]", b"\xff"])
async def test_a_body_that_is_no_object_is_refused(client: Client, content: bytes) -> None:
    response = await client.http.post("/v1/completions", content=content)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "Bad Request"


async def test_chat_needs_messages(client: Client) -> None:
    response = await client.http.post("/v1/chat/completions", json={"messages": []})
    assert response.status_code == 400


async def test_models_version_and_health(client: Client) -> None:
    models = (await client.http.get("/v1/models")).json()["data"]
    assert [(model["id"], model["max_model_len"]) for model in models] == [("simulated", 8192)]
    assert (await client.http.get("/version")).json() == {"version": "0.32.0"}
    health = await client.http.get("/health")
    assert (health.status_code, health.content) == (200, b"")


async def test_metrics_ignores_accept_and_names_and_its_slash_does_not(client: Client) -> None:
    """As on vLLM: bare /metrics is classic text and whole, /metrics/ negotiates and filters by sample name."""
    wanted = {"name[]": ["vllm:prompt_tokens_total", "vllm:num_requests_running"]}
    openmetrics = {"accept": "application/openmetrics-text"}
    bare = await client.http.get("/metrics", params=wanted, headers=openmetrics)
    assert bare.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    assert "vllm:generation_tokens_total" in bare.text
    slash = await client.http.get("/metrics/", params=wanted)
    assert slash.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    names = {line.split("{")[0] for line in slash.text.splitlines() if not line.startswith("#")}
    assert names == {"vllm:prompt_tokens_total", "vllm:num_requests_running"}
    negotiated = await client.http.get("/metrics/", headers=openmetrics)
    assert negotiated.headers["content-type"].startswith("application/openmetrics-text")
    assert negotiated.text.endswith("# EOF\n")
    assert (await client.http.head("/metrics")).status_code == 200


async def test_the_filter_of_several_api_servers_gives_an_empty_body() -> None:
    async for client in connected(Layout(FAST, api_servers=2)):
        response = await client.http.get("/metrics/", params={"name[]": "vllm:prompt_tokens_total"})
        assert (response.status_code, response.text) == (200, "")
        whole = (await client.http.get("/metrics")).text
        assert "_created" not in whole
        assert "process_" not in whole


async def test_responses_are_counted_when_they_end_and_not_for_probes(client: Client) -> None:
    await client.http.get("/health")
    await client.http.get("/nothing")
    await client.http.get("/v1/completions")
    await client.complete()
    await client.complete(max_tokens=0)
    body = (await client.http.get("/metrics")).text
    counted = {line for line in body.splitlines() if line.startswith("http_requests_total")}
    assert counted == {
        'http_requests_total{handler="none",method="GET",status="4xx"} 2.0',
        'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 1.0',
        'http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 1.0',
    }


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_is_aborted_and_counted_as_2xx_only(slow: Client, stream: bool) -> None:
    body = {"prompt": "hello", "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    leaving = asyncio.create_task(slow.http.post("/v1/completions", json=body, timeout=60))
    await slow.until(RUNNING, 1)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await slow.until(RUNNING, 0)
    await slow.until('http_requests_total{handler="/v1/completions",method="POST",status="2xx"}', 1)
    aborted = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="simulated"}'
    assert await slow.value(aborted) == 0


async def test_models_and_engines_are_kept_apart() -> None:
    async for client in connected(Layout(SLOW, models=("a", "b"), engines=2)):
        await asyncio.gather(*(client.complete(model="b", max_tokens=10) for _ in range(4)))
        success = 'vllm:request_success_total{{engine="{}",finished_reason="length",model_name="{}"}}'
        counts = [await client.value(success.format(index, model)) for model in "ab" for index in (0, 1)]
        assert counts == [0, 0, 2, 2]


async def test_a_hung_engine_looks_well_and_does_nothing(slow: Client) -> None:
    stuck = asyncio.create_task(slow.complete(max_tokens=200))
    await slow.until(RUNNING, 1)
    await slow.fault("hang")
    await asyncio.sleep(0.06)
    before = await slow.value(TOKENS)
    await asyncio.sleep(0.06)
    assert await slow.value(TOKENS) == before
    assert (await slow.http.get("/health")).status_code == 200
    await slow.control.delete("/faults/hang")
    await slow.fault("slow", factor=0.01)
    assert (await stuck).status_code == 200


async def test_a_dead_engine_fails_its_requests_and_freezes_its_metrics(slow: Client) -> None:
    dying = asyncio.create_task(slow.complete(max_tokens=500))
    streaming = asyncio.create_task(slow.complete(max_tokens=500, stream=True))
    await slow.until(RUNNING, 2)
    await slow.fault("die")
    assert (await dying).status_code == 500
    assert events((await streaming).text)[-1]["error"]["code"] == 500
    assert (await slow.http.get("/health")).status_code == 503
    assert await slow.value(RUNNING) == 2
    assert (await slow.complete()).status_code == 500
    refused = await slow.control.delete("/faults/die")
    assert refused.status_code == 400


async def test_a_reset_refuses_connections_and_starts_from_nothing(client: Client) -> None:
    await client.complete()
    started = await client.value("process_start_time_seconds")
    assert started is not None
    await client.fault("lose", series="vllm:num_requests_running")
    await client.fault("reset", down_seconds=0.2)
    seen: list[str] = []
    async with asyncio.timeout(10):
        while seen[-2:] != ["down", "up"]:
            try:
                tokens = await client.value(TOKENS)
            except httpx.TransportError:
                state = "down"
            else:
                state = "up" if tokens == 0 else "old"
            if seen[-1:] != [state]:
                seen.append(state)
            await asyncio.sleep(0.01)
    again = await client.value("process_start_time_seconds")
    assert again is not None
    assert again > started
    assert await client.value(RUNNING) == 0
    assert (await client.complete()).status_code == 200


async def test_a_client_that_leaves_before_its_request_has_come_is_a_bad_request(client: Client) -> None:
    """As FastAPI has it, and nothing is logged as if the server had failed."""
    port = client.simulator.listener.port
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: engine\r\nContent-Length: 9\r\n\r\n{")
    await writer.drain()
    writer.close()
    await client.until('http_requests_total{handler="/v1/completions",method="POST",status="4xx"}', 1)


async def test_a_second_reset_waits_for_the_first(client: Client) -> None:
    """Two at once would both listen again, one of them on a port that is taken. The end waits for neither."""
    await client.fault("reset", down_seconds=0.3)
    refused = await client.control.put("/faults/reset", json={})
    assert (refused.status_code, refused.json()["error"]) == (400, "reset: one is under way")
    async with asyncio.timeout(10):
        while client.simulator.faults.restarting:  # noqa: ASYNC110 - seen from outside only
            await asyncio.sleep(0.01)
    assert (await client.complete()).status_code == 200
    await client.fault("reset", down_seconds=3600)


async def test_a_paused_engine_queues_and_a_sleeping_one_aborts(slow: Client) -> None:
    awake = 'vllm:engine_sleep_state{engine="0",model_name="simulated",sleep_state="awake"}'
    await slow.fault("pause")
    waiting = asyncio.create_task(slow.complete(max_tokens=1))
    await slow.until(WAITING, 1)
    await slow.fault("sleep", level=2)
    assert (await waiting).json()["choices"][0]["finish_reason"] == "abort"
    assert await slow.value(awake) == 0
    await slow.control.delete("/faults/sleep")
    assert await slow.value(awake) == 1
    assert (await slow.complete(max_tokens=1)).json()["choices"][0]["finish_reason"] == "length"


async def test_scrapes_can_be_spoilt(client: Client) -> None:
    await client.fault("garbage")
    assert (await client.http.get("/metrics")).text.startswith("<html>")
    await client.fault("garbage", kind="truncated")
    assert not (await client.http.get("/metrics")).content.endswith(b"\n\n")
    await client.control.delete("/faults/garbage")
    await client.fault("lose", series="vllm:generation_tokens_total")
    assert await client.value(TOKENS) is None
    await client.control.delete("/faults/lose")
    await client.fault("freeze")
    await client.complete()
    assert await client.value(RUNNING) == 0
    assert await client.value(TOKENS) == 3
    await client.control.delete("/faults/freeze")
    await client.fault("slow", metrics_seconds=0.5)
    with pytest.raises(httpx.ReadTimeout):
        await client.http.get("/metrics", timeout=0.1)
    await client.control.delete("/faults/slow")
    assert (await client.control.get("/faults")).json()["active"] == {}


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("vanish", {}, "no fault 'vanish'; there are die, freeze, garbage, hang, lose, pause, reset, sleep, slow"),
        ("garbage", {"kind": "x"}, "garbage: kind is one of binary, empty, html, truncated"),
        ("slow", {"factor": 0}, "slow: factor must be above 0, metrics_seconds at least 0"),
        ("sleep", {"level": 3}, "sleep: level is 1 or 2"),
        ("reset", {"down_seconds": -1}, "reset: down_seconds must be at least 0"),
        ("slow", {"metrics_seconds": math.nan}, "slow: factor must be above 0, metrics_seconds at least 0"),
        ("reset", {"down_seconds": math.nan}, "reset: down_seconds must be at least 0"),
        ("reset", {"down_seconds": math.inf}, "reset: down_seconds must be at least 0"),
        ("hang", [1], "hang: arguments are an object"),
    ],
)
async def test_a_fault_that_makes_no_sense_is_refused(client: Client, name: str, arguments: Any, message: str) -> None:
    """Python's JSON knows NaN and Infinity, and no server would come back from either."""
    response = await client.control.put(f"/faults/{name}", content=json.dumps(arguments))
    assert (response.status_code, response.json()["error"]) == (400, message)


async def test_the_truth_is_told_on_request(client: Client) -> None:
    """One request of three tokens: one step of prefill and two of one decoding sequence."""
    await client.complete()
    [engine] = (await client.control.get("/truth", params={"seconds": 60})).json()["engines"]
    assert (engine["engine"], engine["arrivals"], engine["output_steps"]) == ("0", 1, 3)
    assert engine["decode_sequences_per_output_step"] == pytest.approx(2 / 3)
    for parameters in ({"seconds": "x"}, {"seconds": -1}):
        assert (await client.control.get("/truth", params=parameters)).status_code == 400


def test_arguments_that_make_no_sense_end_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, message in (
        (["--max-num-batched-tokens", "8"], "max_num_batched_tokens 8 is below one block of 16 tokens"),
        (["--positions-per-second", "0"], "positions_per_second must be above 0, not 0.0"),
        (["--weight-read-seconds", "nan"], "--weight-read-seconds must be a finite number, not nan"),
        (["--port", "0", "--control-port", "65536"], "a port lies between 0 and 65535, so 65536 is none"),
        (["--engines", "0"], "there is at least one engine and one API server"),
        (["--model", "a", "--model", "a"], "models need names, each its own"),
        (["--speculate", "4", "--acceptance", "2"], "acceptance is a ratio from 0 to 1, not 2.0"),
    ):
        assert main(argv) == 2
        assert capsys.readouterr().err == f"vllm-sidecar simulate: {message}\n"


def test_a_port_in_use_ends_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["--port", str(taken.getsockname()[1]), "--control-port", "0"]) == 2
    found = capsys.readouterr().err
    assert found.startswith("vllm-sidecar simulate: [Errno 98] Address already in use")
    assert found.count("\n") == 1
