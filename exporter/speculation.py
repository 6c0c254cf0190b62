"""Does speculative decoding pay at this batch: expected tokens, speedup by objective, break-even batch. Pure.

Leviathan et al. 2023 (arXiv:2211.17192), theorem 3.8, with a roofline step time in place of their free verification.
Time is in memory-bound steps: ``t(n) = max(1, n / P)`` for ``n`` positions and a crossover of ``P`` positions.
"""

from typing import Literal

Objective = Literal["latency", "throughput"]


def expected_tokens_per_step(alpha: float, gamma: float) -> float:
    """Tokens a request gains per verification: ``E = (1 - alpha^(gamma+1)) / (1 - alpha)``.

    Args:
        alpha: chance that a draft token is accepted, each independently, in [0, 1).
        gamma: draft tokens per request and step, at least 0.
    """
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha is an acceptance rate in [0, 1), not {alpha}")
    if not gamma >= 0:
        raise ValueError(f"gamma must not be below 0, not {gamma}")
    return float((1.0 - alpha ** (gamma + 1.0)) / (1.0 - alpha))


def speedup(
    objective: Objective,
    *,
    batch: float,
    prefill_positions: float,
    gamma: float,
    tokens_per_step: float,
    draft_cost: float,
    crossover_positions: float,
) -> float:
    """Decode tokens a second with speculation over without it, for a batch that stays the same size.

    ``latency``: the prefill arriving per step is as it is, ``E t(B + p) / (t(B (gamma+1) + p) + gamma c)``.
    ``throughput``: sequences end ``E`` times as fast, so each step must carry the prefill of ``E`` times the requests,
    ``E t(B + p) / (t(B (gamma+1) + E p) + gamma c)``.

    Args:
        objective: which of the two.
        batch: B, decode sequences per step.
        prefill_positions: p, per step *without* speculation (measured while it is on: divide by E).
        gamma: draft tokens per request and step.
        tokens_per_step: E, tokens per request and step (measured, or `expected_tokens_per_step`).
        draft_cost: c, time of one draft pass over a memory-bound step of the target; 0 for n-grams.
        crossover_positions: P.
    """
    carried = prefill_positions * (tokens_per_step if objective == "throughput" else 1.0)
    plain = _step(batch + prefill_positions, crossover_positions)
    speculating = _step(batch * (gamma + 1.0) + carried, crossover_positions) + gamma * draft_cost
    return tokens_per_step * plain / speculating


def break_even_batch(
    objective: Objective,
    *,
    prefill_per_decode: float,
    gamma: float,
    tokens_per_step: float,
    draft_cost: float,
    crossover_positions: float,
) -> float | None:
    """The smallest batch at which speculation no longer gains, with ``p = prefill_per_decode x B``.

    Arguments as for `speedup`. 0 where it gains at no batch, None where it gains at every one: under the latency
    objective prefill that comes anyway can fill the step so far that the drafts hardly lengthen it.
    """
    carried = prefill_per_decode * (tokens_per_step if objective == "throughput" else 1.0)
    gain_at_rest = tokens_per_step - gamma * draft_cost
    if gain_at_rest <= 1.0:
        return 0.0
    # The speedup falls from where the speculating step is compute-bound until the plain one is too, then rises.
    batch = gain_at_rest * crossover_positions / (gamma + 1.0 + carried)
    return batch if batch * (1.0 + prefill_per_decode) <= crossover_positions else None


def _step(positions: float, crossover_positions: float) -> float:
    return max(1.0, positions / crossover_positions)
