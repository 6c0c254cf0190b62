"""What a simulated engine is made of: hardware speed, cache size and scheduler limits."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Speculation:
    """Draft `gamma` tokens a sequence and step, each accepted with probability `alpha` while all before it were."""

    gamma: int
    alpha: float
    draft_seconds: float = 0.0
    """Time the drafter adds to a step, for each of the `gamma` tokens."""

    def __post_init__(self) -> None:
        if self.gamma < 1:
            raise ValueError(f"speculation needs at least one draft token, not {self.gamma}")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"acceptance is a ratio from 0 to 1, not {self.alpha}")
        if self.draft_seconds < 0:
            raise ValueError(f"drafting cannot take {self.draft_seconds} seconds")


@dataclass(frozen=True, slots=True)
class Profile:
    """One engine: a step takes `max(weight_read_seconds, positions / positions_per_second)` and the extras.

    The two speeds are what a roofline gives: reading every weight once from memory, and computing one position.
    """

    name: str
    weight_read_seconds: float
    positions_per_second: float
    kv_tokens: int
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    """Longest chunk of one prompt in a step; 0 is no limit but the budget."""
    max_model_len: int = 32768
    overhead_seconds: float = 0.0
    kv_read_seconds_per_token: float = 0.0
    """Added for each token of context that a step attends to."""
    prefix_caching: bool = True
    reserve_full_prompt: bool = True
    """Admit a prompt only when all of it fits, not its first chunk (vLLM's `scheduler_reserve_full_isl`)."""
    speculation: Speculation | None = None

    def __post_init__(self) -> None:
        positive = ("weight_read_seconds", "positions_per_second", "block_size", "max_num_seqs", "max_model_len")
        for field in positive:
            if getattr(self, field) <= 0:
                raise ValueError(f"{field} must be above 0, not {getattr(self, field)}")
        for field in ("overhead_seconds", "kv_read_seconds_per_token", "long_prefill_token_threshold"):
            if getattr(self, field) < 0:
                raise ValueError(f"{field} cannot be below 0: {getattr(self, field)}")
        if self.max_num_batched_tokens < self.block_size:
            raise ValueError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below one block of {self.block_size} tokens"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below max_num_seqs {self.max_num_seqs}"
            )
        if self.blocks <= 1:
            raise ValueError(f"kv_tokens {self.kv_tokens} is below two blocks of {self.block_size} tokens")

    @property
    def blocks(self) -> int:
        """Blocks in the pool, the null block that vLLM never hands out included."""
        return self.kv_tokens // self.block_size

    @property
    def lookahead(self) -> int:
        """Slots kept beyond the positions of a step: the drafts of the next one."""
        return self.speculation.gamma if self.speculation else 0

    @property
    def longest_sequence(self) -> int:
        """Tokens of prompt and output together that one request can ever hold."""
        slots = (self.blocks - 1) * self.block_size - 2 * self.lookahead
        return min(self.max_model_len, slots)

    def step_seconds(self, positions: int, context_tokens: int = 0) -> float:
        """Duration of a step that computes `positions` and attends to `context_tokens`."""
        seconds = max(self.weight_read_seconds, positions / self.positions_per_second) + self.overhead_seconds
        if self.kv_read_seconds_per_token:
            seconds += self.kv_read_seconds_per_token * context_tokens
        if self.speculation:
            seconds += self.speculation.gamma * self.speculation.draft_seconds
        return seconds


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("h100-tp4-70b", weight_read_seconds=0.0154, positions_per_second=11_900, kv_tokens=845_000),
        Profile(
            "demo",
            weight_read_seconds=0.02,
            positions_per_second=4_000,
            kv_tokens=24_000,
            max_num_seqs=48,
            max_num_batched_tokens=512,
            max_model_len=8192,
        ),
    )
}
