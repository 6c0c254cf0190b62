"""The roofline live: ceilings, crossover, utilisation, the gap of a chunk. Worked on a 70B model on four H100."""

import itertools
import statistics

import pytest

from exporter.schema import Config
from tests.live import FOUR_H100, TINY, busy, engine, fed, named, recorded, steps, target
from tests.recordings import entries

UNCALIBRATED = {**FOUR_H100, "hardware": {"profile": "h100-sxm"}}


def running(seconds=30, each_second=None, **settings):
    """An engine that did the same each second for so long."""
    return busy(fed(**settings), engine(), seconds, each_second or (lambda body: steps(body, 50, sequences=16)))


def test_crossover_and_capacity_follow_from_the_ceilings():
    """140 GB over 4 x 3.35 TB/s x 0.68 is 15.36 ms; 4 x 989 TFLOP/s x 0.42 over 140 GFLOP is 11,868 positions/s."""
    one = running(**FOUR_H100)

    assert one.get("positions_per_second_capacity") == pytest.approx(11_868)
    assert one.get("crossover_positions") == pytest.approx(182.344, abs=1e-3)
    assert one.get("efficiency_ceiling_ratio", resource="compute", source="configured") == 0.42
    assert one.get("efficiency_ceiling_ratio", resource="bandwidth", source="configured") == 0.68


def test_positions_and_crossover_ratio_of_a_mixed_step():
    """16 sequences in decode and 81 prompt tokens a step are 97 positions: 4,850 a second at 50 steps, 0.53 of 182."""
    one = running(each_second=lambda body: steps(body, 50, sequences=16, prefill=81), **FOUR_H100)

    assert one.get("positions_per_second") == pytest.approx(4_850)
    assert one.get("crossover_ratio") == pytest.approx(97 / 182.344, rel=1e-5)


def test_drafted_tokens_are_positions():
    """16 sequences with 4 drafts each are 80 positions."""
    one = running(each_second=lambda body: steps(body, 10, sequences=16, drafted=64, accepted=32), **FOUR_H100)

    assert one.get("positions_per_second") == pytest.approx(800)


@pytest.mark.parametrize(
    ("budget", "seconds"), [(8192, 8192 / 11_868), (2048, 2048 / 11_868), (512, 512 / 11_868), (64, 0.015364)]
)
def test_the_gap_of_a_chunk(budget, seconds):
    """At 11.868 positions/ms: 690, 173 and 43 ms; a budget under the crossover still reads all weights, 15.36 ms."""
    assert running(**FOUR_H100, max_num_batched_tokens=budget).get("chunk_gap_seconds") == pytest.approx(
        seconds, rel=1e-4
    )


@pytest.mark.parametrize("left_out", ["hardware", "model"])
def test_without_hardware_or_model_there_is_no_roofline(left_out):
    """What depends on it is absent; positions per second are counted all the same."""
    settings = {key: value for key, value in FOUR_H100.items() if key != left_out}
    one = running(max_num_batched_tokens=2048, **settings)

    names = {name for name, _ in one.shown()}
    assert not names & {
        "positions_per_second_capacity",
        "crossover_positions",
        "crossover_ratio",
        "efficiency_ceiling_ratio",
        "chunk_gap_seconds",
        "kv_read_bytes_per_step",
        "model_flops_utilization_ratio",
    }
    assert one.get("positions_per_second") == pytest.approx(800)


def test_several_api_servers_leave_no_step_to_compare_with_the_crossover():
    """Each of them counts a step, so positions per step are not known; per second they are."""
    one = running(**FOUR_H100, api_servers=2)

    assert one.get("crossover_positions") == pytest.approx(182.344, abs=1e-3)
    assert one.get("positions_per_second") == pytest.approx(800)
    assert one.get("crossover_ratio") is None


def test_an_idle_engine_has_no_crossover_ratio():
    """No steps, no positions per step; no zero either."""
    one = busy(fed(**FOUR_H100), engine(), 30, lambda body: body, running=0)

    assert one.get("crossover_ratio") is None
    assert one.get("crossover_positions") == pytest.approx(182.344, abs=1e-3)


def counted(flops=0.0, read=0.0, written=0.0, **step):
    """Steps of which vLLM counts FLOPs and bytes per GPU; all per second."""

    def second(body):
        steps(body, step.get("count", 50), sequences=step.get("sequences", 16), prefill=step.get("prefill", 0))
        for name, amount in (("flops", flops), ("read_bytes", read), ("write_bytes", written)):
            body.add(f"vllm:estimated_{name}_per_gpu_total", amount)

    return second


def test_utilisation_is_what_was_counted_over_the_peak():
    """98.9 of 989 TFLOP/s is 0.1; 1.64 TB read and 35 GB written a second are half of 3.35 TB/s."""
    one = running(each_second=counted(98.9e12, 1.64e12, 35e9), **FOUR_H100)

    assert one.get("model_flops_utilization_ratio") == pytest.approx(0.1)
    assert one.get("memory_bandwidth_utilization_ratio") == pytest.approx(0.5)


def test_counters_stuck_at_zero_mean_that_nothing_is_counted():
    """Without --enable-mfu-metrics vLLM exposes zeros: utilisation is absent, not 0."""
    one = running(each_second=counted(), **FOUR_H100)

    assert one.get("model_flops_utilization_ratio") is None
    assert one.get("memory_bandwidth_utilization_ratio") is None


def test_ceilings_are_calibrated_from_small_and_from_large_steps():
    """16 positions a step show the bandwidth, 816 the compute; the other of each says nothing of a ceiling."""
    small = counted(10e12, 0.6 * 3.35e12)
    large = counted(0.5 * 989e12, 0.2 * 3.35e12, prefill=800)
    one = fed(**UNCALIBRATED)
    body = engine()

    busy(one, body, 30, small)
    assert one.get("efficiency_ceiling_ratio", resource="bandwidth", source="calibrated") == pytest.approx(0.6)
    assert one.get("efficiency_ceiling_ratio", resource="compute", source="default") == 0.42

    busy(one, body, 60, large)
    assert one.get("efficiency_ceiling_ratio", resource="bandwidth", source="calibrated") == pytest.approx(0.6)
    assert one.get("efficiency_ceiling_ratio", resource="compute", source="calibrated") == pytest.approx(0.5)
    # (2/2) x 989e12 / 3.35e12 x 0.5 / 0.6
    assert one.get("crossover_positions") == pytest.approx(246.02, abs=0.01)


def test_the_best_is_kept_when_the_engine_idles():
    """A ceiling is the best that was seen, not what is seen now."""
    one = fed(**UNCALIBRATED)
    body = engine()
    busy(one, body, 30, counted(10e12, 0.6 * 3.35e12))
    busy(one, body, 30, counted(10e12, 0.3 * 3.35e12))
    busy(one, body, 30, lambda each: each, running=0)

    assert one.get("efficiency_ceiling_ratio", resource="bandwidth") == pytest.approx(0.6)


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(counted(0.5 * 989e12, 0.6 * 3.35e12, prefill=160), id="between small and large"),
        pytest.param(counted(1.2 * 989e12, 0.6 * 3.35e12, prefill=800), id="past the peak: the profile is wrong"),
        pytest.param(counted(prefill=800), id="nothing counted"),
    ],
)
def test_what_does_not_calibrate(second):
    """The default stands, and says that it is one."""
    one = running(each_second=second, **UNCALIBRATED)

    assert one.get("efficiency_ceiling_ratio", resource="compute", source="default") == 0.42
    assert one.get("efficiency_ceiling_ratio", resource="bandwidth", source="default") == 0.68


def test_a_half_idle_engine_does_not_calibrate():
    """Bytes over a time in which it did not step all along say nothing of a ceiling."""
    one, body, second = fed(**UNCALIBRATED), engine(), counted(10e12, 0.6 * 3.35e12)
    for at in range(40):
        if at % 2:
            second(body)
        one.scrape(at, body.running(at % 2))

    assert one.get("efficiency_ceiling_ratio", resource="bandwidth", source="default") == 0.68


def test_other_hardware_forgets_what_was_calibrated():
    """The best of 3.35 TB/s is not the best of 4.8 TB/s."""
    one, body = fed(**UNCALIBRATED), engine()
    busy(one, body, 30, counted(10e12, 0.6 * 3.35e12))
    one.pipeline.config = target(**{**UNCALIBRATED, "hardware": {"profile": "h200"}})
    one.scrape(one.at + 1, body.running(0))

    assert one.get("efficiency_ceiling_ratio", resource="bandwidth", source="default") == 0.68


def test_kv_bytes_read_per_step():
    """Half of 100,000 tokens in use, 163,840 bytes each: 8.192 GB."""
    body = engine(capacity_tokens=100_000).set("vllm:kv_cache_usage_perc", 0.5)
    one = busy(fed(**FOUR_H100), body, 30, lambda each: steps(each, 50, sequences=16))

    assert one.get("kv_read_bytes_per_step") == pytest.approx(8.192e9)


def test_utilisation_on_a_recording_is_flops_over_time_over_the_peak():
    """From the first window on: the counter's increase, read from the raw bodies, over the time and the peak."""
    raw = []
    for entry in entries("mfu"):
        lines = [line for line in entry.outcome.body.decode().splitlines() if "estimated_flops_per_gpu_total{" in line]
        raw.append((entry.unix_seconds, float(lines[0].rpartition(" ")[2])))
    shown = recorded("mfu", **TINY)
    checked = 0
    for (at, flops), (_, samples) in zip(raw, shown, strict=True):
        seen = named(samples, "model_flops_utilization_ratio")
        then, before = min(raw, key=lambda pair: abs(pair[0] - (at - 15.0)))
        if at - then >= 14.5 and before:
            assert seen == pytest.approx((flops - before) / (at - then) / 2e11, rel=1e-9)
            checked += 1

    assert checked > 80


def test_on_a_recording_the_crossover_does_not_follow_the_load():
    """The moment's MFU over MBU swings by half and more; ceilings only ever rise, and seldom."""
    shown = [samples for _, samples in recorded("mfu", **TINY)]
    compute = [named(samples, "efficiency_ceiling_ratio", resource="compute") for samples in shown]
    crossover = [named(samples, "crossover_positions") for samples in shown]
    moments = [
        named(samples, "model_flops_utilization_ratio") / named(samples, "memory_bandwidth_utilization_ratio")
        for samples in shown
        if named(samples, "model_flops_utilization_ratio")
    ]
    calibrated = [
        value
        for value, samples in zip(compute, shown, strict=True)
        if named(samples, "efficiency_ceiling_ratio", resource="compute", source="calibrated")
    ]

    assert len(calibrated) > 90
    assert all(later >= earlier for earlier, later in itertools.pairwise(calibrated))
    assert max(calibrated) / min(calibrated) < 1.1
    assert max(moments) / min(moments) > 1.5
    for value, ceiling in zip(crossover, compute, strict=True):
        assert value == pytest.approx(2e11 / 2e10 * ceiling / 0.68)


def test_with_configured_ceilings_the_crossover_is_one_number_throughout():
    """Whatever the load: 4 to 60 positions a step come by."""
    settings = {**TINY, "hardware": {**TINY["hardware"], "mbu": 0.5, "mfu": 0.2}}
    shown = [samples for _, samples in recorded("mfu", **settings)]
    ratios = [ratio for samples in shown if (ratio := named(samples, "crossover_ratio")) is not None]

    assert [named(samples, "crossover_positions") for samples in shown] == [pytest.approx(4.0)] * len(shown)
    assert max(ratios) / min(ratios) > 2
    assert statistics.median(ratios) > 5


def test_settings_without_hardware_have_no_roofline():
    assert Config().roofline is None
