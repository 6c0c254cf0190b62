"""The ground truth over windows."""

from exporter.lab.truth import GroundTruth, StepRecord


def record(start: float, end: float, decoding: int, prefilling: int, outputs: int) -> StepRecord:
    return StepRecord(start, end, decoding + prefilling, 0, decoding, prefilling, decoding, 100, 10, outputs, 0.5)


def test_windows_average_over_steps_and_over_time() -> None:
    """Of ten seconds, two hold 4 decoding, two 2 and a prefill without output, the rest nobody:
    4 per output step, (2 x 4 + 2 x 2) / 10 = 1.2 in the mean, busy 4."""
    truth = GroundTruth()
    truth.steps.extend([record(1, 3, 4, 0, 4), record(3, 5, 2, 1, 0)])
    truth.arrivals.extend([0.0, 0.5, 10.0, 10.5])
    window = truth.window(0, 10)
    assert (window.steps, window.output_steps) == (2, 1)
    assert window.decode_sequences_per_output_step == 4
    assert (window.decode_sequences_mean, window.prefilling_mean, window.busy_seconds) == (1.2, 0.2, 4)
    assert (window.arrivals, window.recomputed_tokens, window.prefill_positions) == (2, 20, 200)


def test_steps_are_clipped_at_the_edges_in_time_and_counted_where_they_end() -> None:
    """A step from 0 to 4 seen from 1 to 3: busy 2 seconds, but it has not ended."""
    truth = GroundTruth()
    truth.steps.append(record(0, 4, 3, 0, 3))
    window = truth.window(1, 3)
    assert (window.busy_seconds, window.decode_sequences_mean, window.steps) == (2, 3, 0)
    assert window.decode_sequences_per_output_step is None


def test_the_log_is_bounded() -> None:
    truth = GroundTruth(limit=3)
    truth.arrivals.extend(range(10))
    assert list(truth.arrivals) == [7, 8, 9]
