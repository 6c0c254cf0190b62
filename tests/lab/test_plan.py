"""``vllm-sidecar plan``: the command, its sections and its bad input."""

import json
import re
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.hardware import Roofline, hardware_profile
from exporter.lab.economics import RequestClass, Traffic
from exporter.lab.plan import main
from exporter.lab.plan_inputs import Draft, PlanInputs
from exporter.lab.plan_picture import draw_plan, operating_points
from exporter.lab.plan_report import SECTIONS, format_value
from exporter.lab.planning import make_plan
from exporter.lab.steady_state import engine_of, time_to_first_token
from exporter.model_geometry import ModelGeometry

MODEL = ModelGeometry(70e9, 70e9, layers=80, kv_heads=8, head_dim=128, kv_bytes_per_element=1)
DRAFT_MODEL = ModelGeometry(1e9, 1e9, layers=16, kv_heads=8, head_dim=64, kv_bytes_per_element=1)
TP4 = Roofline(hardware_profile("h100-sxm"), MODEL, gpus=4, mbu=0.68, mfu=0.42)
CHAT = Traffic(4.0, 11.0, (RequestClass(1.0, 1377, 272),))
INPUTS = PlanInputs(TP4, CHAT)
EVERYTHING = replace(
    INPUTS,
    gpu_hour_dollars=2.5,
    itl_slo_seconds=0.08,
    draft=Draft(0.68, 4, 1 / 70, DRAFT_MODEL),
    burst_requests_per_second=30.0,
    burst_seconds=120,
    preemptions_per_minute=18,
    thinking_tokens=72,
)

COMMAND = (
    *("--gpu", "h100-sxm", "--gpus", "4"),
    *("--params", "70B", "--layers", "80", "--kv-heads", "8", "--head-dim", "128", "--kv-cache", "fp8"),
    *("--rate", "4", "--peak-rate", "11", "--mix", "1:1377:272"),
)
EXTRAS = (
    *(
        "--gpu-hour",
        "2.5",
        "--itl-slo",
        "0.08",
        "--burst-rate",
        "30",
        "--burst-seconds",
        "120",
        "--preemptions-per-minute",
        "18",
    ),
    *("--alpha", "0.68", "--draft-cost", "1/70", "--draft-params", "1B", "--draft-layers", "16"),
    *("--draft-kv-heads", "8", "--draft-head-dim", "64", "--thinking-tokens", "72"),
)


def row(rows, **wanted):
    """The one row with those values."""
    (found,) = [row for row in rows if wanted.items() <= row.items()]
    return found


def test_sections_follow_what_was_asked():
    """No price, no cost; no alpha, no speculation; all options, all sections."""
    bare = make_plan(INPUTS)

    assert not {"cost_per_request", "speculation", "burst_per_engine", "preemption", "thinking"} & set(bare)
    assert set(make_plan(EVERYTHING)) == set(SECTIONS)
    ngram = make_plan(replace(INPUTS, draft=Draft(0.68, 4, 0.0), gpu_hour_dollars=2.5))
    assert {"speculation", "cost_per_request"} <= set(ngram)
    assert not {"draft_kv", "thinking"} & set(ngram)


def test_roofline_section():
    """182.3 positions, 30 sequences of 1,377 in and 272 out."""
    (roofline,) = make_plan(INPUTS)["roofline"]

    assert round(roofline["crossover_positions"], 1) == 182.3
    assert round(roofline["crossover_positions_at_peaks"]) == 295
    assert round(roofline["batch_at_crossover_sequences"]) == 30


def test_step_table():
    """Batch 16 carries 16 x 6.0625 = 97 positions, under the crossover; batch 32 carries 194, over it."""
    steps = make_plan(INPUTS)["step_by_batch"]

    assert row(steps, batch_sequences=16)["mixed_positions"] == pytest.approx(97)
    assert row(steps, batch_sequences=16)["bound"] == "memory"
    assert row(steps, batch_sequences=32)["bound"] == "compute"


def test_step_table_separates_the_kv_term():
    """64 sequences hold 64 x (1,377 + 136) tokens of 163,840 B: 15.87 GB over 4 x 3.35e12 x 0.68 B/s is 1.74 ms."""
    step = row(make_plan(INPUTS)["step_by_batch"], batch_sequences=64)
    term = step["decode_step_seconds"] - step["decode_step_without_kv_seconds"]

    assert term * 1e3 == pytest.approx(1.74, abs=0.005)


def test_kv_section():
    """138.4 GB / 163,840 = 844,727 tokens; residents of 1,377 + 272/2 tokens: 844,727 / 1,513 = 558 sequences."""
    (kv,) = make_plan(INPUTS)["kv"]

    assert round(kv["capacity_tokens"]) == 844_727
    assert round(kv["preemption_point_sequences"]) == 558
    assert (kv["batch_limit_sequences"], kv["batch_limit_by"]) == (256, "max_num_seqs")


def test_batch_limit_by_kv_pool():
    """Requests of 100,000 tokens: 844,727 / 100,050 = 8."""
    long = replace(INPUTS, traffic=Traffic(0.01, 0.01, (RequestClass(1, 100_000, 100),)))
    (kv,) = make_plan(long)["kv"]

    assert (kv["batch_limit_sequences"], kv["batch_limit_by"]) == (8, "KV pool")


def test_batch_limit_by_itl_slo():
    """The largest batch whose mean step is within the SLO: the next one is not."""
    inputs = replace(INPUTS, itl_slo_seconds=0.05)
    engine = engine_of(inputs, TP4)
    batch, limit = engine.batch_limit

    assert limit == "ITL SLO"
    assert engine.step_seconds(batch) <= 0.05 < engine.step_seconds(batch + 1)


def test_chunk_table():
    """Against 80 ms: 512 positions take 43 ms, 1,024 take 86 ms."""
    chunks = make_plan(EVERYTHING)["chunk_budget"]

    assert row(chunks, budget_positions=512)["meets_itl_slo"] == "yes"
    assert row(chunks, budget_positions=1024)["meets_itl_slo"] == "no"


def test_chunk_table_includes_the_configured_budget():
    """A budget of one's own, here below the crossover, is marked."""
    chunks = make_plan(replace(INPUTS, max_num_batched_tokens=128))["chunk_budget"]

    assert row(chunks, budget_positions=128)["above_crossover"] == "no"
    # 128 positions take the weight read of 182.3: 30 % of the throughput of the largest budget shown is lost.
    assert row(chunks, budget_positions=128)["throughput_lost_ratio"] == pytest.approx(1 - 128 / 182.344, rel=1e-4)
    assert row(chunks, budget_positions=8192)["throughput_lost_ratio"] == pytest.approx(0.0)


def test_speculation_table():
    """At batch 64 and a crossover of 182.3: 1.47 for decode alone, 0.87 for throughput with the mix's prefill."""
    at_64 = row(make_plan(EVERYTHING)["speculation"], batch_sequences=64)

    assert at_64["pure_decode_speedup_ratio"] == pytest.approx(2.6706 / (320 / 182.344 + 4 / 70), rel=1e-4)
    assert round(at_64["mix_throughput_speedup_ratio"], 2) == 0.87


def test_speculation_break_even_by_objective():
    """2.6135 x 182.344 / 5 = 95.3 alone; throughput with prefill 2.6135 x 182.344 / 18.52 = 25.7; latency never."""
    rows = make_plan(EVERYTHING)["speculation_break_even"]

    assert round(row(rows, objective="throughput")["break_even_pure_decode_sequences"], 1) == 95.3
    assert round(row(rows, objective="throughput")["break_even_mix_sequences"], 1) == 25.7
    assert row(rows, objective="latency")["break_even_mix_sequences"] is None


def test_draft_model_bites_the_pool_three_times():
    """2 GB of weights; 16,384 B of KV beside 163,840; 4 slots beside 1,513 tokens."""
    none, weights, kv, slots = make_plan(EVERYTHING)["draft_kv"]

    assert weights["capacity_tokens"] == pytest.approx(136.4e9 / 163_840)
    assert kv["capacity_tokens"] == pytest.approx(136.4e9 / (163_840 + 16_384))
    assert kv["preemption_point_sequences"] / slots["preemption_point_sequences"] == pytest.approx(1517 / 1513)
    assert none["capacity_tokens"] == pytest.approx(138.4e9 / 163_840)


def test_tensor_parallel_does_not_move_the_crossover():
    """Weights, bandwidth and compute divide alike: the claim that TP=2 halves a break-even is wrong."""
    rows = make_plan(INPUTS)["tensor_parallel"]

    assert len({round(each["crossover_positions"], 6) for each in rows}) == 1
    assert row(rows, gpus=2)["batch_limit_by"] == "does not fit"
    assert row(rows, gpus=2)["cost_per_token_ratio"] is None
    assert row(rows, gpus=4)["cost_per_token_ratio"] == pytest.approx(1.0)
    # Compute-bound at 256 sequences with half of each time: twice the tokens for twice the price.
    assert row(rows, gpus=8)["throughput_ratio"] == pytest.approx(2.0)
    assert row(rows, gpus=8)["cost_per_token_ratio"] == pytest.approx(1.0)


def test_formats():
    """bf16 with fp8 KV is the engine itself; FP8 reads half, INT4 a quarter; weight-only computes no faster."""
    rows = make_plan(INPUTS)["formats"]

    assert row(rows, format="bf16, KV fp8")["throughput_ratio"] == pytest.approx(1.0)
    assert row(rows, format="fp8, KV fp8")["weight_read_seconds"] == TP4.weight_read_seconds / 2
    assert row(rows, format="int4 weight-only, KV fp8")["crossover_positions"] == pytest.approx(182.344 / 4, rel=1e-4)
    assert row(rows, format="fp8 weight-only, KV fp8")["throughput_ratio"] == pytest.approx(1.0)


def test_demand_buys_for_the_peak():
    """Compute-bound at 256: step = 256 x (6.0625 / 11,868 + 1,513 x 163,840 / 9.112e12) = 137.7 ms, 6.83 requests/s.

    11 / (6.83 x 0.8) = 2.01: three engines, twelve GPUs, $30 an hour.
    """
    (demand,) = make_plan(replace(EVERYTHING, itl_slo_seconds=None))["demand"]
    step = 256 * (6.0625 / 11_868 + 1_513 * 163_840 / 9.112e12)

    assert demand["capacity_requests_per_second_per_engine"] == pytest.approx(256 / step / 272)
    assert (demand["engines"], demand["gpus"], demand["dollars_per_hour"]) == (3, 12, 30.0)
    assert demand["compute_utilization_ratio"] == pytest.approx(4 / 3 * (1377 + 272) / 11_868)


def test_cost_reconciles_with_the_bill():
    """$30 an hour over 4 requests/s: 14,400 requests, $0.00208 each; 3.9168M output tokens, $7.66 a million."""
    plan = make_plan(EVERYTHING)

    assert plan["cost_per_request"][0]["dollars_per_request"] == pytest.approx(30 / 14_400)
    assert row(plan["cost_per_million_tokens"], basis="output")["dollars"] == pytest.approx(30 / 3.9168)
    assert plan["thinking"][0]["dollars_per_1000_requests"] == pytest.approx(30 / 14.4)
    assert plan["thinking"][0]["dollars_per_1000_requests_without"] == pytest.approx(30 / 14.4 * 200 / 272)


def test_cached_prompt_tokens_have_their_own_price():
    """Half of the prompts cached: computed, cached and output tokens at their prices are the bill."""
    traffic = replace(CHAT, cached_share=0.5)
    plan = make_plan(replace(INPUTS, traffic=traffic, gpu_hour_dollars=2.5))
    prices = {each["token_type"]: each["dollars"] for each in plan["cost_per_million_tokens"] if each["basis"] == "all"}
    per_hour = 4 * 3600 / 1e6

    billed = per_hour * (688.5 * prices["input"] + 688.5 * prices["cached_input"] + 272 * prices["output"])
    assert billed == pytest.approx(plan["demand"][0]["dollars_per_hour"])


def test_cached_prompt_tokens_are_attended_to_in_the_plan():
    """688.5 computed behind 688.5 cached tokens: three quarters of the attention of 1,377, 1.79 ms."""
    inputs = replace(
        INPUTS,
        traffic=replace(CHAT, cached_share=0.5),
        roofline=replace(TP4, model=replace(MODEL, query_heads=64)),
    )
    (ttft,) = make_plan(inputs)["time_to_first_token"]
    batch = make_plan(inputs)["demand"][0]["batch_sequences"]
    kv_read = TP4.kv_read_seconds(batch * 1513)

    assert ttft["attention_seconds"] * 1e3 == pytest.approx(0.75 * 1.79, abs=0.01)
    assert ttft["ttft_seconds"] == pytest.approx(
        ttft["admission_wait_seconds"]
        + (688.5 + batch) / TP4.positions_per_second
        + kv_read
        + ttft["attention_seconds"]
    )


def test_each_sequence_brings_its_share_of_prompt_attention():
    """A token in 272 comes with a prompt: the KV read of 1,513 tokens and 1.795 ms / 272."""
    attending = replace(TP4, model=replace(MODEL, query_heads=64))
    share = engine_of(INPUTS, attending).attention_seconds_per_sequence

    assert share == pytest.approx(1_513 * 163_840 / 9.112e12 + 1.795e-3 / 272, rel=1e-3)


def test_operating_point_beyond_the_crossover():
    """With an overhead larger batches still make more: 97 % of capacity is met on the compute-bound side."""
    engine = engine_of(INPUTS, replace(TP4, step_overhead_seconds=5e-3))
    asked = 0.97 * engine.capacity_requests_per_second
    batch = engine.batch_at(asked)

    assert batch > TP4.batch_at_crossover(1377, 272)
    assert engine.tokens_per_second(batch) == pytest.approx(asked * 272)


def test_burst_is_per_engine():
    """30/s over three engines is 10/s each: (10 - capacity) x 120 s wait in front of each."""
    plan = make_plan(EVERYTHING)
    (burst,), (demand,) = plan["burst_per_engine"], plan["demand"]
    capacity = demand["capacity_requests_per_second_per_engine"]

    assert demand["engines"] == 3
    assert burst["queued_requests"] == pytest.approx((10 - capacity) * 120)
    assert burst["last_wait_seconds"] == pytest.approx((10 - capacity) * 120 / capacity)
    assert burst["drain_seconds"] == pytest.approx((10 - capacity) * 120 / (capacity - 4 / 3))


def test_a_limit_that_does_not_bind_is_not_named():
    """An SLO that every batch meets leaves the seats as the limit."""
    (kv,) = make_plan(replace(INPUTS, itl_slo_seconds=10.0))["kv"]

    assert kv["batch_limit_by"] == "max_num_seqs"


def test_free_hardware_costs_nothing(tmp_path):
    """A price of 0 is a price: tokens cost 0, and there is no number of requests per dollar."""
    path = tmp_path / "plan.svg"
    plan = make_plan(replace(INPUTS, gpu_hour_dollars=0.0))
    draw_plan(replace(INPUTS, gpu_hour_dollars=0.0), plan, path)

    assert plan["cost_per_request"] == [{"dollars_per_request": 0.0, "requests_per_dollar": None}]
    assert path.stat().st_size > 0


@given(
    rate=st.floats(0.01, 0.99),
    overhead=st.sampled_from([0.0, 2e-3]),
    prompt=st.integers(1, 20_000),
    output=st.integers(1, 4_000),
    query_heads=st.sampled_from([None, 64]),
)
def test_operating_point_serves_the_rate(*, rate, overhead, prompt, output, query_heads):
    """Little's law: the batch over its step time makes exactly the tokens that are asked for."""
    traffic = Traffic(1, 1, (RequestClass(1, prompt, output),))
    roofline = replace(TP4, model=replace(MODEL, query_heads=query_heads), step_overhead_seconds=overhead)
    engine = engine_of(replace(INPUTS, traffic=traffic), roofline)
    asked = rate * engine.capacity_requests_per_second
    batch = engine.batch_at(asked)

    assert engine.tokens_per_second(batch) == pytest.approx(asked * output)
    assert engine.batch_at(engine.capacity_requests_per_second) is None


def test_ttft_is_the_wait_and_the_prompt():
    """One step of 15.36 ms and 1,377 or 3,944 positions at 11,868/s: 131.4 and 347.7 ms."""
    wait = TP4.weight_read_seconds

    assert time_to_first_token(TP4, 1377, wait) * 1e3 == pytest.approx(15.36 + 116.03, abs=0.01)
    assert time_to_first_token(TP4, 3944, wait) * 1e3 == pytest.approx(15.36 + 332.32, abs=0.01)


def test_ttft_waits_for_a_step_with_its_kv():
    """The step at the crossover holds 30 sequences of 1,649 tokens: 15.36 + 0.89 = 16.25 ms, and 132 ms in all."""
    wait = TP4.step_seconds(30, kv_tokens=30 * 1649)

    assert wait * 1e3 == pytest.approx(16.25, abs=0.01)
    assert round(time_to_first_token(TP4, 1377, wait) * 1e3) == 132


def test_ttft_with_the_attention_of_the_prompt():
    """132 and 361 ms: a step of 14.3 ms, positions at 11,868/s, and attention at FlashAttention-2's 35 % of the peak.

    4 x 80 x 64 x 128 x n^2 / 2 FLOPs over 4 x 989e12 x 0.35: 1.79 ms for 1,377 tokens and 14.7 ms for 3,944.
    With the weight read of 15.4 ms for a step both are a millisecond longer.
    """
    roofline = replace(TP4, model=replace(MODEL, query_heads=64))

    assert roofline.attention_seconds(1377) * 1e3 == pytest.approx(1.79, abs=0.01)
    assert roofline.attention_seconds(3944) * 1e3 == pytest.approx(14.7, abs=0.05)
    assert round(time_to_first_token(roofline, 1377, 14.3e-3) * 1e3) == 132
    assert round(time_to_first_token(roofline, 3944, 14.3e-3) * 1e3) == 361
    assert round(time_to_first_token(roofline, 1377, 15.4e-3) * 1e3) == 133
    assert round(time_to_first_token(roofline, 3944, 15.4e-3) * 1e3) == 362


def test_cached_tokens_are_attended_to_not_computed():
    """Half of 2,000 cached: 1,000 x (1,000 + 500) pairs instead of 2,000 x 1,000, three quarters of the attention."""
    model = replace(MODEL, query_heads=64)

    assert model.attention_flops(1000, 1000) == pytest.approx(0.75 * model.attention_flops(2000))


def test_ttft_in_chunks_beside_decodes():
    """Budget 512 with 112 decodes leaves 400: 1,000 tokens take 2 full steps and one of 200 + 112 positions."""
    ttft = time_to_first_token(TP4, 1000, 0.0, budget=512, batch=112)

    assert ttft == pytest.approx((2 * 512 + 312) / TP4.positions_per_second)


def test_ttft_without_room_is_none():
    """Decodes fill the budget; a prompt gets no position."""
    assert time_to_first_token(TP4, 1000, 0.0, budget=64, batch=64) is None


def test_json(capsys):
    """The command gives the same plan as JSON, with None as null and no NaN."""
    assert main([*COMMAND, *EXTRAS, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)

    assert printed == json.loads(json.dumps(make_plan(EVERYTHING)))


def test_text(capsys):
    """Every section has its title; the crossover is on the page."""
    assert main([*COMMAND, *EXTRAS]) == 0
    text = capsys.readouterr().out

    assert [title for title, _ in SECTIONS.values() if title not in text] == []
    assert re.search(r"crossover positions +182\.3", text)


@pytest.mark.parametrize("extension", ["png", "svg"])
def test_picture(tmp_path, extension):
    """The picture is written in the format of its name."""
    path = tmp_path / f"plan.{extension}"
    assert main([*COMMAND, *EXTRAS, "--json", "--picture", str(path)]) == 0

    content = path.read_bytes()
    assert content.startswith(b"\x89PNG") if extension == "png" else b"<svg" in content


def test_operating_points_are_the_plans():
    """The lines of the picture are numbers of the plan."""
    plan = make_plan(INPUTS)

    points = operating_points(plan)
    assert list(points) == ["mean rate", "crossover", "preemption point", "limit"]
    assert points["limit"] == 256
    assert points["mean rate"] == plan["demand"][0]["batch_sequences"]


def test_missing_extra_is_said(capsys, monkeypatch):
    """Without the libraries of the extra the text says how to get them; JSON works."""
    monkeypatch.delitem(sys.modules, "exporter.lab.plan_report")
    monkeypatch.setitem(sys.modules, "rich.console", None)

    assert main([*COMMAND]) == 2
    assert "is not installed: pip install 'vllm-sidecar[lab]'" in capsys.readouterr().err
    assert main([*COMMAND, "--json"]) == 0


def test_config_file(tmp_path, capsys):
    """A model from its config.json: Llama 70B is 70.55B parameters and 327,680 B of bf16 KV per token."""
    path = tmp_path / "config.json"
    config = {
        "hidden_size": 8192,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "intermediate_size": 28672,
        "vocab_size": 128256,
    }
    path.write_text(json.dumps(config))

    traffic = ("--rate", "1", "--mix", "1:1377:272")
    assert main(["--gpu", "h200", "--gpus", "2", "--config", str(path), *traffic, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["assumptions"][0]["total_params"] == pytest.approx(70.55e9, rel=1e-3)
    assert plan["kv"][0]["kv_bytes_per_token"] == 327_680


BAD = {
    "unknown hardware": (("--gpu", "h1000"), r"unknown hardware profile 'h1000'; known: h100-sxm, h100-pcie, h200"),
    "efficiency above 1": (("--mbu", "1.2"), r"mbu is a ceiling in \(0, 1\], not 1.2"),
    "efficiency of 0": (("--mfu", "0"), r"mfu is a ceiling in \(0, 1\]"),
    "alpha of 1": (("--alpha", "1"), r"alpha is an acceptance rate in \[0, 1\), not 1"),
    "alpha below 0": (("--alpha=-0.1",), r"alpha is an acceptance rate in \[0, 1\)"),
    "no traffic": (("--rate", "0", "--peak-rate", "0"), "the request rate must be above 0, not 0"),
    "not a number": (("--rate", "nan"), "argument --rate: 'nan' is not a finite number"),
    "infinite": (("--rate", "inf"), "argument --rate: 'inf' is not a finite number"),
    "no number": (("--rate", "lots"), "argument --rate: 'lots' is not a number"),
    "peak below mean": (("--peak-rate", "1"), "peak rate 1 is below the mean 4"),
    "odd mixture": (("--mix", "1:2"), "'1:2' is not WEIGHT:PROMPT:OUTPUT"),
    "mixture of no output": (("--mix", "1:100:0"), "output tokens above 0"),
    "does not fit": (("--gpus", "1"), "140 GB of weights do not fit 1 x h100-sxm"),
    "SLO under one step": (("--itl-slo", "0.001"), "not one sequence of this mix can run .* the ITL SLO"),
    "half a burst": (("--burst-rate", "11"), "a burst needs both its rate and its duration"),
    "negative reserve": (("--reserve=-1",), "reserve_bytes_per_gpu must not be below 0"),
    "SLO of 0": (("--itl-slo", "0"), "itl_slo_seconds must be above 0"),
    "negative price": (("--gpu-hour=-1",), "the price must not be below 0"),
    "no seats": (("--max-num-seqs", "0"), "max_num_seqs must be at least 1"),
    "all thinking": (("--thinking-tokens", "272"), "thinking tokens are part of the mean output of 272"),
    "negative preemptions": (("--preemptions-per-minute=-1",), "preemptions per minute must not be below 0"),
    "full target": (("--target-utilization", "1.5"), r"target utilisation must be in \(0, 1\]"),
    "negative draft cost": (("--alpha", "0.5", "--draft-cost=-1"), "draft cost must not be below 0"),
    "half a draft model": (("--alpha", "0.5", "--draft-params", "1B"), "also needs --draft-layers"),
    "unknown option": (("--tensor-parallel", "4"), "unrecognized arguments: --tensor-parallel"),
    "missing file": (("--config", "/nonexistent/config.json"), "/nonexistent/config.json: No such file"),
    "picture format": (("--picture", "plan.docx"), "Format 'docx' is not supported"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, message):
    """One clear line on stderr, nothing on stdout."""
    assert main([*COMMAND, *arguments]) == 2
    captured = capsys.readouterr()

    assert captured.out == ""
    assert re.fullmatch(rf"vllm-sidecar plan: .*{message}.*\n", captured.err)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{}", "config.json has no"), ("[1]", "is not a JSON object"), ("{", "is not JSON"), ("\xff", "is not JSON")],
)
def test_bad_config_file(tmp_path, capsys, content, message):
    """A file without the fields, or that is no such file, is named in one line."""
    path = tmp_path / "config.json"
    path.write_text(content, encoding="latin-1")

    assert main([*COMMAND, "--config", str(path)]) == 2
    assert re.fullmatch(rf"vllm-sidecar plan: .*{message}.*\n", capsys.readouterr().err)


def test_a_model_is_needed(capsys):
    """No --config and no --params: said, with what to give."""
    assert main(["--gpu", "h200", "--rate", "1", "--mix", "1:10:10"]) == 2
    assert "name a model" in capsys.readouterr().err


def test_mean_rate_at_capacity_is_refused():
    """Planning on 100 % of capacity at a flat rate has no steady state."""
    capacity = engine_of(INPUTS, TP4).capacity_requests_per_second
    flat = replace(INPUTS, traffic=replace(CHAT, requests_per_second=capacity, peak_requests_per_second=capacity))

    with pytest.raises(ValueError, match="the mean rate is at capacity"):
        make_plan(replace(flat, target_utilization=1.0))


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("step_seconds", 0.0154, "15.40 ms"),
        ("last_wait_seconds", 64.8, "64.8 s"),
        ("pool_bytes", 138.4e9, "138.4 GB"),
        ("kv_bytes_per_token", 163_840, "163,840"),
        ("throughput_ratio", 0.8712, "0.871"),
        ("dollars_per_hour", 1234.5, "$1,234.50"),
        ("dollars_per_request", 0.00208333, "$0.002083"),
        ("requests_per_dollar", 480.0, "480"),
        ("drain_seconds", None, "-"),
        ("bound", "memory", "memory"),
        ("half_batch_sequences", 208.61, "208.6"),
    ],
)
def test_values_show_their_unit(key, value, shown):
    """A reader needs no key to the units; none is a dash, not a zero."""
    assert format_value(key, value) == shown
