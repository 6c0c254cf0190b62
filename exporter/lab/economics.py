"""Traffic and money on paper: mixtures, bursts, cost per token, recompute, thinking. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

TokenType = Literal["input", "cached_input", "output"]

DEFAULT_WEIGHTS: Final[dict[TokenType, float]] = {"input": 1.0, "cached_input": 0.1, "output": 4.0}
"""Relative price of a token by type under the basis ``weighted``; roughly what hosted models charge."""

SECONDS_PER_HOUR: Final = 3600.0
TOKENS_PER_MILLION: Final = 1e6


@dataclass(frozen=True, slots=True)
class RequestClass:
    """One part of the length mixture; ``weight`` is relative to the other parts."""

    weight: float
    prompt_tokens: float
    output_tokens: float

    def __post_init__(self) -> None:
        if not self.weight > 0 or not self.prompt_tokens > 0 or not self.output_tokens > 0:
            raise ValueError("a mixture part needs weight, prompt tokens and output tokens above 0")


@dataclass(frozen=True, slots=True)
class Traffic:
    """What arrives, over all engines.

    Attributes:
        requests_per_second: mean rate.
        peak_requests_per_second: the rate GPUs are bought for.
        classes: the length mixture.
        cached_share: share of prompt tokens the prefix cache answers, in [0, 1).
    """

    requests_per_second: float
    peak_requests_per_second: float
    classes: tuple[RequestClass, ...]
    cached_share: float = 0.0

    def __post_init__(self) -> None:
        if not self.requests_per_second > 0:
            raise ValueError(f"the request rate must be above 0, not {self.requests_per_second:g}: no traffic, no plan")
        if self.peak_requests_per_second < self.requests_per_second:
            raise ValueError(
                f"the peak rate {self.peak_requests_per_second:g} is below the mean {self.requests_per_second:g}"
            )
        if not self.classes:
            raise ValueError("the length mixture is empty")
        if not 0 <= self.cached_share < 1:
            raise ValueError(f"the cached share must be in [0, 1), not {self.cached_share:g}")

    def mean(self, value: Callable[[RequestClass], float]) -> float:
        """Mean per request of what ``value`` says of a kind of request."""
        return sum(part.weight * value(part) for part in self.classes) / sum(part.weight for part in self.classes)

    @property
    def prompt_tokens(self) -> float:
        """Mean per request."""
        return self.mean(lambda part: part.prompt_tokens)

    @property
    def computed_prompt_tokens(self) -> float:
        """Mean prompt tokens per request that the cache does not answer."""
        return self.prompt_tokens * (1.0 - self.cached_share)

    @property
    def output_tokens(self) -> float:
        """Mean per request."""
        return self.mean(lambda part: part.output_tokens)

    @property
    def prefill_per_decode(self) -> float:
        """``r``: prefill positions that come with each output token in a steady state."""
        return self.computed_prompt_tokens / self.output_tokens

    @property
    def resident_tokens(self) -> float:
        """Mean KV tokens of a sequence *found running*: ``E[o (p + o/2)] / E[o]``.

        A request stays as long as it generates, so long ones are met more often than they arrive (inspection paradox).
        """
        held = self.mean(lambda part: part.output_tokens * (part.prompt_tokens + part.output_tokens / 2))
        return held / self.output_tokens

    @property
    def longest_tokens(self) -> float:
        """Tokens of the longest kind of request at its end."""
        return max(part.prompt_tokens + part.output_tokens for part in self.classes)


@dataclass(frozen=True, slots=True)
class Burst:
    """What a burst leaves behind; ``drain_seconds`` is None where the rate after it is not below the service rate."""

    queued_requests: float
    last_wait_seconds: float
    drain_seconds: float | None


def fluid_burst(base_rate: float, burst_rate: float, burst_seconds: float, service_rate: float) -> Burst:
    """Queue of a burst in the fluid model: rates in requests/s, no randomness, first come first served.

    ``queue = (burst - service) x duration``; its last request waits ``queue / service``; it drains in
    ``queue / (service - base)``.
    """
    queued = max(0.0, burst_rate - service_rate) * burst_seconds
    drains = base_rate < service_rate
    return Burst(queued, queued / service_rate, queued / (service_rate - base_rate) if drains or not queued else None)


def cost_per_million(
    dollars_per_hour: float,
    input_per_second: float,
    cached_per_second: float,
    output_per_second: float,
    weights: dict[TokenType, float] = DEFAULT_WEIGHTS,
) -> dict[tuple[str, TokenType], float]:
    """Dollars per million tokens by (basis, token type); on each basis rates times prices are the bill.

    ``output`` puts the bill on output tokens, ``all`` on every token alike, ``weighted`` in proportion to ``weights``.
    """
    rates: dict[TokenType, float] = {
        "input": input_per_second,
        "cached_input": cached_per_second,
        "output": output_per_second,
    }
    by_basis: dict[str, dict[TokenType, float]] = {
        "output": {"output": 1.0},
        "all": dict.fromkeys(rates, 1.0),
        "weighted": weights,
    }
    per_second = dollars_per_hour / SECONDS_PER_HOUR * TOKENS_PER_MILLION
    return {
        (basis, kind): per_second * weight / sum(w * rates[k] for k, w in shares.items())
        for basis, shares in by_basis.items()
        for kind, weight in shares.items()
        if rates[kind] > 0
    }


def cost_per_token_ratio(price_ratio: float, throughput_ratio: float) -> float:
    """Cost per token of one configuration over another: what it costs more over what it makes more."""
    return price_ratio / throughput_ratio


def preemptions_per_request(preemptions_per_minute: float, requests_per_second: float) -> float:
    """Events per arrival; can pass 1."""
    return preemptions_per_minute / 60.0 / requests_per_second


def worst_extra_prefill_ratio(per_request: float, longest_tokens: float, computed_prompt_tokens: float) -> float:
    """Prefill recomputed over planned, if each victim is the longest request at its end and nothing is cached."""
    return per_request * longest_tokens / computed_prompt_tokens


def output_dollars(output_tokens: float, dollars_per_million: float, requests: float) -> float:
    """What so many requests' output tokens cost; thinking tokens are output tokens."""
    return output_tokens * requests * dollars_per_million / TOKENS_PER_MILLION
