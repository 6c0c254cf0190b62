"""The roofline on paper: 70B parameters, 80 layers, 8 KV heads of 128, on H100 SXM unless a test says otherwise."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.hardware import PROFILES, Roofline, hardware_profile
from exporter.model_geometry import ModelGeometry

BF16 = ModelGeometry(70e9, 70e9, layers=80, kv_heads=8, head_dim=128, weight_bytes_per_param=2, kv_bytes_per_element=1)
FP8 = replace(BF16, weight_bytes_per_param=1, compute_precision="fp8")
TP4 = Roofline(hardware_profile("h100-sxm"), BF16, gpus=4, mbu=0.68, mfu=0.42)
ONE_AT_PEAK = Roofline(hardware_profile("h100-sxm"), replace(BF16, kv_bytes_per_element=2), mbu=1.0, mfu=1.0)


def at_rate(positions_per_second):
    """TP4 with the compute ceiling that gives that rate: rate / (4 x 989e12 / 140e9 FLOPs per position)."""
    return replace(TP4, mfu=positions_per_second / (4 * 989e12 / 140e9))


def test_ridge_is_peak_over_bandwidth():
    """989e12 / 3.35e12 = 295.2 FLOP per byte."""
    assert round(TP4.ridge_flops_per_byte) == 295


def test_ideal_crossover_equals_the_ridge_for_bf16():
    """2 bytes per weight and 2 FLOPs per weight and position cancel: at the peaks the crossover is the ridge, 295."""
    ideal = replace(TP4, mbu=1.0, mfu=1.0)

    assert ideal.crossover_positions == pytest.approx(ideal.ridge_flops_per_byte)
    assert round(ideal.crossover_positions) == 295


def test_fp8_lands_on_the_same_position_count():
    """Half the bytes against double the peak; 1,979 is published for 2 x 989, so it holds to 0.1 %."""
    fp8 = replace(TP4, model=FP8)

    assert fp8.crossover_positions == pytest.approx(TP4.crossover_positions, rel=1e-3)
    assert fp8.weight_read_seconds == TP4.weight_read_seconds / 2


def test_weight_only_quantisation_halves_the_crossover():
    """The bytes halve, the arithmetic stays bf16: compute becomes the limit at half the positions."""
    weight_only = replace(TP4, model=replace(BF16, weight_bytes_per_param=1))

    assert weight_only.crossover_positions == pytest.approx(TP4.crossover_positions / 2)


def test_crossover_at_the_ceilings():
    """295.22 x 0.42 / 0.68 = 182.3 positions; the number of GPUs cancels."""
    assert round(TP4.crossover_positions, 1) == 182.3
    assert replace(TP4, gpus=8).crossover_positions == pytest.approx(TP4.crossover_positions)


def test_crossover_is_read_time_times_rate():
    """The same by its parts: 140e9 B / (4 x 3.35e12 x 0.68 B/s) = 15.36 ms, 4 x 989e12 x 0.42 / 140e9 = 11,868/s.

    Rounded to 15.4 ms and 11.9 per ms the product is 183.3: the two printed figures are one crossover.
    """
    assert round(TP4.weight_read_seconds * 1e3, 1) == 15.4
    assert round(TP4.positions_per_second / 1e3, 1) == 11.9
    assert TP4.crossover_positions == pytest.approx(TP4.weight_read_seconds * TP4.positions_per_second)
    rounded = replace(at_rate(11_900), mbu=140e9 / (4 * 3.35e12 * 15.4e-3))
    assert round(rounded.crossover_positions, 1) == 183.3


def test_crossover_of_a_mixture_of_experts_reads_all_and_computes_some():
    """671B read, 37B multiplied: total / active = 18.1 times the crossover of a dense model."""
    sparse = replace(TP4, model=replace(BF16, total_params=671e9, active_params=37e9))

    assert sparse.crossover_positions == pytest.approx(TP4.crossover_positions * 671 / 37)


def test_running_batch_at_the_crossover():
    """1,377 in and 272 out: each token brings 5.06 prefill positions, so 183.3 / 6.06 = 30 sequences."""
    assert round(TP4.batch_at_crossover(1377, 272)) == 30
    assert round(183.3 / (1 + 1377 / 272)) == 30


def test_positions_of_batch_16():
    """The crossover's batch and its positions are proportional: 16 sequences are 16 x 6.0625 = 97 positions."""
    positions_per_sequence = TP4.crossover_positions / TP4.batch_at_crossover(1377, 272)

    assert round(16 * positions_per_sequence) == 97


def test_kv_bytes_per_token():
    """Keys and values x 80 layers x 8 heads x 128 elements x 1 byte = 163,840."""
    assert BF16.kv_bytes_per_token == 163_840


def test_compressed_cache_counts_its_elements_once():
    """DeepSeek-V3: 61 layers x (512 latent + 64 rotary) elements x 2 bytes = 70,272, not 2 x heads x dimension."""
    latent = replace(BF16, layers=61, mla_elements=576, kv_bytes_per_element=2)

    assert latent.kv_bytes_per_token == 70_272


def test_capacity_in_tokens():
    """138e9 / 163,840 = 842,285.2 tokens, 138.4e9 / 163,840 = 844,727."""
    assert int(TP4.kv_capacity_tokens(138e9)) == 842_285
    assert round(TP4.kv_capacity_tokens(138.4e9), -3) == 845_000
    assert 845_000 // 4_700 == 179


def test_pool_names_its_reserve():
    """4 GPUs x (80 GB x 0.92 - 4 GB) - 140 GB = 138.4 GB; 179 sequences of 4,700 tokens fit whole."""
    assert TP4.kv_pool_bytes(0.92, 4e9) == pytest.approx(138.4e9)
    assert TP4.kv_capacity_tokens(TP4.kv_pool_bytes()) // 4_700 == 179


def test_fp8_weights_give_their_bytes_to_the_pool():
    """(138.4 + 70) GB / 163,840 / 4,700 = 270.6: 270 whole sequences."""
    assert replace(TP4, model=FP8).kv_pool_bytes() == pytest.approx(208.4e9)
    assert replace(TP4, model=FP8).kv_capacity_tokens(208.4e9) // 4_700 == 270


def test_bf16_kv_halves_the_capacity():
    """Two bytes an element instead of one."""
    wide = replace(TP4, model=replace(BF16, kv_bytes_per_element=2))

    assert wide.kv_capacity_tokens(138.4e9) == TP4.kv_capacity_tokens(138.4e9) / 2


def test_eight_gpus_have_three_times_the_pool_of_four():
    """The weights are paid once: (8 x 69.6 - 140) / (4 x 69.6 - 140) = 416.8 / 138.4 = 3.01."""
    ratio = replace(TP4, gpus=8).kv_pool_bytes() / TP4.kv_pool_bytes()

    assert ratio == pytest.approx(3.0, abs=0.05)


def test_kv_heads_are_copied_past_their_number():
    """8 heads on 16 GPUs: each head twice, so each token takes twice the bytes; a compressed cache 16 times."""
    assert TP4.model.kv_copies(8) == 1
    assert TP4.model.kv_copies(16) == 2
    assert replace(BF16, mla_elements=576).kv_copies(16) == 16
    assert replace(TP4, gpus=16).kv_capacity_tokens(1e12) == TP4.kv_capacity_tokens(1e12) / 2


@pytest.mark.parametrize(("budget", "milliseconds"), [(8192, 688), (2048, 172), (512, 43)])
def test_chunk_gap(budget, milliseconds):
    """A full chunk is compute-bound: budget / 11.9 positions per ms."""
    assert round(at_rate(11_900).step_seconds(budget) * 1e3) == milliseconds


def test_chunk_overhead_needs_a_step_overhead():
    """16 steps of 512 against one of 8,192: 15 x 1.85 ms more on 688.4 + 16 x 1.85 ms is 3.9 % of the throughput.

    Without an overhead both are compute-bound and nothing is lost.
    """
    assert at_rate(11_900).chunk_overhead(512, 8192) == pytest.approx(0.0, abs=1e-12)
    lost = replace(at_rate(11_900), step_overhead_seconds=1.85e-3).chunk_overhead(512, 8192)
    assert round(lost * 100, 1) == 3.9
    assert lost == pytest.approx(15 * 1.85 / (8192 / 11.9 + 16 * 1.85))


def test_chunk_below_the_crossover_pays_the_weight_read():
    """A budget of half the crossover reads the weights twice for the work of one: half the throughput."""
    half = TP4.crossover_positions / 2

    assert TP4.chunk_overhead(half, 2 * half) == pytest.approx(0.5)


def test_decode_step_with_the_kv_term():
    """140e9 B + 64 x 2,048 x 327,680 B over 3.35e12 B/s = 54.61 ms, 64 / 54.61 ms = 1,172 tokens/s."""
    step = ONE_AT_PEAK.step_seconds(64, kv_tokens=64 * 2048)

    assert round(step * 1e3, 2) == 54.61
    assert round(64 / step) == 1172
    assert round(ONE_AT_PEAK.step_seconds(64) * 1e3, 2) == 41.79


@pytest.mark.parametrize(("context", "half", "ceiling"), [(2048, 208.6, 4992), (32768, 13.0, 312)])
def test_half_batch_and_ceiling(context, half, ceiling):
    """Half-batch: 140e9 / (327,680 x context); ceiling: 3.35e12 / (327,680 x context)."""
    assert round(ONE_AT_PEAK.half_batch(context), 1) == half
    assert round(ONE_AT_PEAK.decode_ceiling_tokens_per_second(context)) == ceiling


def test_attention_of_a_prompt():
    """Scores and values: 4 FLOPs x 80 layers x 64 heads x 128 elements x 1,377^2 / 2 causal pairs = 2.485e12."""
    attending = replace(BF16, query_heads=64)

    assert attending.attention_flops(1377) == pytest.approx(2.485e12, rel=1e-3)
    assert BF16.attention_flops(1377) == 0


def test_half_batch_is_half_the_ceiling():
    """At the half-batch the KV takes as long as the weights, so throughput is half of the KV-only ceiling."""
    batch = ONE_AT_PEAK.half_batch(2048)
    made = batch / ONE_AT_PEAK.step_seconds(batch, batch * 2048)

    assert made == pytest.approx(ONE_AT_PEAK.decode_ceiling_tokens_per_second(2048) / 2)


@given(st.floats(1, 1e5), st.floats(0, 1e6), st.floats(0, 1e-2))
def test_a_step_is_never_shorter_than_any_of_its_parts(positions, kv_tokens, overhead):
    """And with all parts in a row it is never longer than their sum."""
    roofline = replace(TP4, step_overhead_seconds=overhead)
    parts = (roofline.weight_read_seconds, positions / roofline.positions_per_second)
    step, kv = roofline.step_seconds(positions, kv_tokens), roofline.kv_read_seconds(kv_tokens)

    assert max(*parts) + kv + overhead == pytest.approx(step)
    assert step <= sum(parts) + kv + overhead


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_profiles_state_dense_peaks_and_their_source(profile):
    """8-bit runs at about twice bf16 where it is native; a ridge of a served GPU is 100 to 450 in bf16."""
    assert profile.source
    assert 100 < profile.peak("bf16") / profile.bandwidth_bytes_per_second < 450
    if "fp8" in profile.peak_flops:
        assert profile.peak("fp8") == pytest.approx(2 * profile.peak("bf16"), rel=0.02)


def test_fp8_on_hardware_without_it_computes_in_bf16():
    """An A100 stores FP8 weights and unpacks them."""
    a100 = hardware_profile("a100-80g")

    assert a100.peak("fp8") == a100.peak("bf16") == 312e12


def test_overrides_win_and_are_named():
    """What is configured is used and shows in the source; the rest stays the profile's."""
    slower = hardware_profile("H200", bandwidth_bytes_per_second=4e12, peak_flops=5e14)

    assert slower.bandwidth_bytes_per_second == 4e12
    assert slower.peak("bf16") == slower.peak("fp8") == 5e14
    assert slower.capacity_bytes == 141e9
    assert slower.source.endswith("peak, bandwidth configured")


def test_unknown_profile_lists_the_known():
    """A person reads what there is."""
    with pytest.raises(ValueError, match=r"unknown hardware profile 'h1000'; known: h100-sxm, .*mi325x"):
        hardware_profile("h1000")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mbu": 0.0}, "mbu"),
        ({"mfu": 1.01}, "mfu"),
        ({"mfu": float("nan")}, "mfu"),
        ({"gpus": 0}, "gpus"),
        ({"step_overhead_seconds": -1e-3}, "step_overhead_seconds"),
    ],
)
def test_roofline_refuses_what_cannot_be(change, message):
    """The message names the field."""
    with pytest.raises(ValueError, match=message):
        replace(TP4, **change)


@pytest.mark.parametrize("change", [{"peak_flops": 0.0}, {"bandwidth_bytes_per_second": -1.0}, {"capacity_bytes": 0.0}])
def test_profile_refuses_overrides_of_nothing(change):
    """Zero bandwidth would divide by zero later; it is refused where it is said."""
    with pytest.raises(ValueError, match="must be above 0"):
        hardware_profile("h200", **change)


def test_profile_without_the_precision():
    """A custom profile with FP8 alone cannot tell bf16."""
    odd = replace(hardware_profile("h200"), peak_flops={"fp8": 1e15})

    with pytest.raises(ValueError, match="no peak for bf16"):
        odd.peak("bf16")


def test_memory_share_is_a_share():
    """gpu_memory_utilization above 1 is refused."""
    with pytest.raises(ValueError, match="gpu_memory_utilization"):
        TP4.kv_pool_bytes(gpu_memory_utilization=1.2)


def test_an_overfull_pool_holds_nothing():
    """A model that does not fit has no KV tokens, not fewer than none."""
    assert TP4.kv_capacity_tokens(-1e9) == 0
