"""What a simulated engine really did, step by step, to hold estimates against."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step, from `start` to `end` seconds. `running` and `waiting` are as the scheduler left them at the start."""

    start: float
    end: float
    running: int
    waiting: int
    decode_sequences: int
    prefill_sequences: int
    decode_positions: int
    prefill_positions: int
    recomputed_tokens: int
    outputs: int
    """Requests that put something out."""
    kv_usage: float


@dataclass(frozen=True, slots=True)
class WindowTruth:
    """Truth over `start` to `end`. Per-step values count steps that end inside, time averages clip steps at the edges.

    `None` where there was nothing to average over.
    """

    start: float
    end: float
    arrivals: int
    preemptions: int
    abandoned: int
    finished: int
    steps: int
    output_steps: int
    decode_sequences_per_output_step: float | None
    decode_sequences_mean: float
    """Time average, idle time counting as 0."""
    prefilling_mean: float
    running_mean: float
    busy_seconds: float
    decode_positions: int
    prefill_positions: int
    recomputed_tokens: int


class GroundTruth:
    """The log of one engine: steps and the times of events, the newest `limit` of each."""

    def __init__(self, limit: int = 1_000_000) -> None:
        self.steps: deque[StepRecord] = deque(maxlen=limit)
        self.arrivals: deque[float] = deque(maxlen=limit)
        self.preemptions: deque[float] = deque(maxlen=limit)
        self.abandoned: deque[float] = deque(maxlen=limit)
        self.finished: deque[float] = deque(maxlen=limit)

    def window(self, start: float, end: float) -> WindowTruth:
        """What happened after `start` and up to `end`, in seconds of the engine's clock."""
        steps = output_steps = sequences = decode_positions = prefill_positions = recomputed = 0
        busy = decode_seconds = prefill_seconds = running_seconds = 0.0
        for step in reversed(self.steps):
            if step.end <= start:
                break
            seconds = min(step.end, end) - max(step.start, start)
            if seconds > 0:
                busy += seconds
                decode_seconds += seconds * step.decode_sequences
                prefill_seconds += seconds * step.prefill_sequences
                running_seconds += seconds * step.running
            if step.end > end:
                continue
            steps += 1
            decode_positions += step.decode_positions
            prefill_positions += step.prefill_positions
            recomputed += step.recomputed_tokens
            if step.outputs:
                output_steps += 1
                sequences += step.decode_sequences
        length = end - start
        return WindowTruth(
            start=start,
            end=end,
            arrivals=_between(self.arrivals, start, end),
            preemptions=_between(self.preemptions, start, end),
            abandoned=_between(self.abandoned, start, end),
            finished=_between(self.finished, start, end),
            steps=steps,
            output_steps=output_steps,
            decode_sequences_per_output_step=sequences / output_steps if output_steps else None,
            decode_sequences_mean=decode_seconds / length,
            prefilling_mean=prefill_seconds / length,
            running_mean=running_seconds / length,
            busy_seconds=busy,
            decode_positions=decode_positions,
            prefill_positions=prefill_positions,
            recomputed_tokens=recomputed,
        )


def _between(times: Iterable[float], start: float, end: float) -> int:
    return sum(start < time <= end for time in times)
