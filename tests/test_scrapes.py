"""Real scrapes of many versions and configurations: every number read is the one that stands in the file."""

import math
import re
from pathlib import Path

import pytest

from exporter.exposition import Failure, Parser, Reason
from exporter.snapshot import TARGET, Engine, Layout
from exporter.upstream import SAMPLES, Kind, Part
from tests.bodies import Fed
from tests.programs import ROOT

SCRAPES = Path(__file__).parent / "data" / "scrapes"
FILES = sorted(path.name for path in SCRAPES.glob("*.txt"))

LLAMA_V0 = Engine("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8", "")
QWEN15 = Engine("Qwen/Qwen1.5-0.5B", "0")
QWEN25 = Engine("Qwen/Qwen2.5-3B-Instruct", "0")
TINY = Engine("TinyLlama", "0")
MINIMAX = Engine("MiniMaxAI/MiniMax-M2.5", "0")
LLAMA = Engine("unsloth/Meta-Llama-3.1-8B-Instruct", "0")
GLM = Engine("zai-org/GLM-4.5", "0")
COMPLETIONS = ("/v1/completions", "POST", "2xx")


def read(name):
    """The columns of a file by owner, series, part and labels; its bad lines."""
    layout = Layout()
    snapshot = Parser(layout).parse((SCRAPES / name).read_bytes())
    assert not isinstance(snapshot, Failure), snapshot
    found = {(slot.owner, *slot.column): snapshot.value(position) for position, slot in enumerate(layout.slots)}
    return found, snapshot.bad_lines


def file(prefix):
    (name,) = (name for name in FILES if name.startswith(prefix))
    return name


def test_the_page_on_support_names_the_versions_that_are_here():
    """Of the V1 engine: those of the real scrapes, and that of the recorded engine."""
    versions = {f"0.{minor}" for minor in re.findall(r"\| V1 ~?0\.(\d+)", (SCRAPES / "README.md").read_text())}
    (row,) = re.findall(r"^\| vLLM, V1 engine \|.*", (ROOT / "docs/support.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"\b0\.\d+", row)) == versions | {"0.32"}


# Each number was looked up in the file by eye; None where the file has no such series.
EXPECTED = [
    ("01", LLAMA_V0, "running", 3),
    ("01", LLAMA_V0, "waiting", 2),
    ("01", Engine("other/OTHER", ""), "waiting", 3),
    ("01", LLAMA_V0, "kv_usage", 0.0026235242675994863),
    ("01", LLAMA_V0, "generation_tokens", 2546),
    ("01", LLAMA_V0, "ttft_count", 9),
    ("01", LLAMA_V0, "itl_count", None),  # V0's time_per_output_token_seconds is another thing
    ("01", LLAMA_V0, "finished", 6, "length"),
    ("01", TARGET, "process_start", 1_723_656_838.94),
    ("03", QWEN15, "generation_tokens", 0),
    ("03", QWEN15, "itl_count", 0),
    ("03", TARGET, "http_seen_count", 0),
    ("03", TARGET, "http_requests", None, *COMPLETIONS),  # no response yet
    ("04", QWEN25, "prompt_tokens", 208),
    ("04", QWEN25, "generation_tokens", 2246),
    ("04", QWEN25, "itl_count", 2224),  # as both names have it, not 4448
    ("04", QWEN25, "steps_count", 2246),
    ("05", QWEN25, "prompt_tokens", 228),
    ("05", QWEN25, "generation_tokens", 2502),
    ("05", QWEN25, "itl_count", 2478),
    ("05", QWEN25, "steps_count", 2502),
    ("05", TARGET, "http_requests", 24, *COMPLETIONS),
    ("06", TINY, "prompt_tokens", 283_082),
    ("06", TINY, "prompt_tokens_cached", 271_874),
    ("06", TINY, "prompt_tokens_by_source", 11_208, "local_compute"),
    ("06", TINY, "prefix_hits", 220_240),
    ("06", TINY, "sleep_state", 1, "awake"),
    ("06", TINY, "waiting_by_reason", None, "capacity"),  # since 0.20
    ("06", TARGET, "http_requests", 2298, "/v1/models", "GET", "2xx"),
    ("07", MINIMAX, "itl_count", 43_680),
    ("07", MINIMAX, "drafts", 43_680),
    ("07", MINIMAX, "draft_tokens", 131_040),
    ("07", MINIMAX, "accepted_tokens", 58_695),
    ("07", MINIMAX, "generation_tokens", 102_400),
    ("07", MINIMAX, "steps_count", 1233),
    ("15", LLAMA, "running", 42),
    ("15", LLAMA, "ttft_count", 86),
    ("15", LLAMA, "finished", 44, "length"),
    ("15", LLAMA, "kv_usage", 0.1924518201284796),
    ("17", Engine("Qwen/Qwen3-0.6B", "0"), "waiting", 0),
    ("17", Engine("Qwen/Qwen3-0.6B", "0"), "waiting_by_reason", 0, "deferred"),
    ("19", Engine("/models/qwen3-8b", "0"), "prefix_queries", 78),
    ("19", Engine("/models/qwen3-8b", "1"), "prefix_queries", 26),
    ("19", TARGET, "process_start", None),  # several API servers
    ("21", GLM, "prefix_queries", 32),
    ("21", GLM, "prefix_hits", 0),
    ("21", GLM, "kv_usage", 9.75010481363281e-06),
    ("made-42", Engine('we"ird', "0"), "running", 3),
    ("made-42", Engine("back\\slash\\", "0"), "running", 4),
    ("made-42", Engine("two\nlines", "1"), "running", 6),
    ("made-42", Engine('with {brace}, comma="x"', "1"), "running", 7),
    ("made-42", Engine("} 99", "0"), "running", 7),
    ("made-42", Engine("# HELP vllm:x y", "1"), "running", 9),
    ("made-42", Engine("模型 名-\u03b1", "1"), "generation_tokens", 1401),
    ("made-42", Engine("", "1"), "running", 11),
    ("made-42", Engine("# HELP vllm:x y", "0"), "ttft_sum", 23.45),
    ("made-45", Engine("m", "0"), "running", 3),
    ("made-45", Engine("m", "1"), "running", 4),
    ("made-45", Engine("m", "0"), "waiting", 2),
    ("made-45", Engine("m", "1"), "waiting", 5),
    ("made-45", Engine("m", "0"), "prompt_tokens", 1_000_000),
    ("made-45", Engine("m", "1"), "prompt_tokens", 4181),
    ("made-45", Engine("m", "0"), "generation_tokens", 19_392_065_536),
    ("made-45", Engine("m", "1"), "generation_tokens", 12),
]


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda row: f"{row[0]}-{row[2]}-{row[3]}")
def test_the_number_in_the_file_is_the_number_read(expected):
    """By exact name, whole label values, the newest of several names."""
    prefix, owner, name, number, *labels = expected
    part = next((part for part in (Part.COUNT, Part.SUM) if name.endswith(part.value)), Part.VALUE)
    series = name.removesuffix(part.value)
    found, _ = read(file(prefix))

    assert found.get((owner, series, part, tuple(labels))) == number


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("26")])
def test_no_line_of_a_real_scrape_is_bad(name):
    """Old versions, two API servers, exponents such as e+010, comments that are neither HELP nor TYPE."""
    assert read(name)[1] == 0


def test_a_scrape_without_a_vllm_family_is_no_success():
    """200 and a valid exposition: yet nothing is known of any engine."""
    failure = Parser(Layout()).parse((SCRAPES / file("26")).read_bytes())

    assert failure.reason is Reason.NO_SERIES


def test_families_without_samples_are_no_engines():
    """01 has headers of families that hold nothing, and two models."""
    found, _ = read(file("01"))

    assert {owner for owner, *_ in found if owner} == {LLAMA_V0, Engine("other/OTHER", "")}


# 17 has no counter, 26 nothing of ours, and the made ones have what a plain split cannot read.
@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith(("17", "26", "made-42", "made-45"))])
def test_what_is_read_is_what_a_plain_split_finds(name):
    """A second, independent reading: split at the last blank, look the name up, sum over all labels, newest name."""
    by_name = {}
    for line in (SCRAPES / name).read_text(encoding="utf-8").splitlines():
        sample = SAMPLES.get(line.split("{")[0].split(" ")[0])
        if sample and sample.series.kind is Kind.COUNTER:
            key = sample.series.key, -sample.rank
            by_name[key] = by_name.get(key, 0) + float(line.rpartition(" ")[2])
    plain = {series: by_name[series, rank] for series, rank in sorted(by_name)}
    found, _ = read(name)
    ours = {}
    for (_, series, _, _), number in found.items():
        if number is not None and series in plain:
            ours[series] = ours.get(series, 0) + number

    assert plain
    assert ours == plain


def test_two_requests_later():
    """04 to 05, worked from the files: prompt 228-208, generation 2502-2246, requests 24-22, steps and gaps 256, 254.

    One sequence at a time: 254 gaps over 256 steps is a decode batch of 0.992. 20 prompt tokens over 2 arrivals is 10.
    """
    fed = Fed()
    fed.scrape(0, (SCRAPES / file("04")).read_bytes())
    fed.scrape(15, (SCRAPES / file("05")).read_bytes())
    batch_at_15 = fed.get("decode_batch_size")
    fed.scrape(60, (SCRAPES / file("05")).read_bytes())

    assert fed.get("first_tokens_total") == 2
    assert fed.get("arrivals_total") == 2
    assert fed.get("generation_tokens_total") == 256
    assert fed.get("prompt_tokens_total", source="unknown") == 20
    assert fed.get("engine_steps_total") == 256
    assert fed.get("decode_sequence_steps_total") == 254
    assert batch_at_15 == 254 / 256
    assert fed.get("decode_batch_size") is None  # nothing was scraped in the last 15 s but this
    assert fed.get("offered_requests_total") == 2
    assert fed.get("computed_prompt_tokens_per_arrival") == 10
    assert fed.get("prefix_cache_hit_ratio") == 0


def test_a_fresh_engine_has_no_ratios():
    """03: every counter is 0, so every ratio is 0/0: absent, not NaN, not 0, not infinite."""
    fed = Fed()
    body = (SCRAPES / file("03")).read_bytes()
    fed.scrape(0, body)
    fed.scrape(60, body)
    shown = {name for name, _ in fed.shown()}

    assert shown.isdisjoint(
        {"decode_batch_size", "preemptions_per_arrival", "prefix_cache_hit_ratio", "latency_quantile_seconds"}
        | {"step_seconds", "computed_prompt_tokens_per_arrival", "ttft_queue_seconds"}
    )
    assert fed.get("arrivals_total") == 0
    assert all(math.isfinite(number) for number in fed.shown().values())


def test_speculation_does_not_make_the_batch_larger():
    """07 from zero: 43,680 gaps over 1,233 steps are 35.43 sequences; 102,400 tokens over the steps would say 83."""
    found, _ = read(file("07"))
    gaps, steps = found[MINIMAX, "itl", Part.COUNT, ()], found[MINIMAX, "steps", Part.COUNT, ()]
    body = (SCRAPES / file("07")).read_text(encoding="utf-8")
    zero = "".join(
        f"{line.rpartition(' ')[0]} 0\n" if line.startswith("vllm:") else f"{line}\n" for line in body.splitlines()
    )
    fed = Fed()
    fed.scrape(0, zero.encode())
    fed.scrape(15, body.encode())

    assert gaps / steps == pytest.approx(35.4258, abs=1e-4)
    assert fed.get("decode_batch_size") == pytest.approx(gaps / steps)
    assert fed.get("step_positions", kind="decode") == pytest.approx((43_680 + 131_040) / 1233)
