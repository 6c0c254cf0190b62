"""vLLM V1's scheduler, step by step: running list, FCFS waiting queue, token budget, preemption by recompute.

The clock is the caller's: `schedule` says what a step does, `complete` what came out of it.
"""

import random
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from exporter.lab.blocks import BlockPool
from exporter.lab.profiles import Profile


@dataclass(slots=True)
class Parent:
    """What the `n` sequences of one API request have in common."""

    n: int
    unfinished: int
    longest: int = 0
    """Most tokens that a finished sequence generated."""


@dataclass(slots=True, eq=False)
class Request:
    """One sequence on its way through the engine. Times are seconds on the caller's clock."""

    id: int
    arrival: float
    prompt_tokens: int
    output_tokens: int
    """Tokens it will generate before it finishes."""
    max_tokens: int | None = None
    finish_reason: str = "length"
    prefix_keys: Sequence[Hashable] = ()
    """Identity of the leading full blocks of the prompt, where other requests may share them."""
    api_server: int = 0
    parent: Parent | None = None
    label: str = ""
    """Class of the request in reports."""

    computed: int = 0
    generated: int = 0
    blocks: list[int] = field(default_factory=list)
    published: int = 0
    slots: int = 0
    cached_tokens: int = 0
    furthest: int = 0
    preemptions: int = 0
    unreported_preemptions: int = 0
    queued: float = 0.0
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float = 0.0
    new_tokens: int = 1
    """Tokens of the newest output."""
    gone: bool = False
    """Finished or aborted: holds nothing in the engine any more."""

    @property
    def tokens(self) -> int:
        """Prompt and output so far: what must be computed to get the next token."""
        return self.prompt_tokens + self.generated


@dataclass(slots=True)
class Step:
    """What one step computes, with counts for the step log."""

    start: float
    decodes: list[Request] = field(default_factory=list)
    decode_positions: int = 0
    short_draft: int | None = None
    """Positions of the last decoding request where the budget cut its drafts short."""
    prefills: list[tuple[Request, int]] = field(default_factory=list)
    """Requests with the positions of their chunk."""
    prefill_positions: int = 0
    recomputed_tokens: int = 0
    preempted: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)

    @property
    def positions(self) -> int:
        """Positions computed."""
        return self.decode_positions + self.prefill_positions


@dataclass(slots=True)
class Verification:
    """What the drafts of one step came to, counted as vLLM counts them."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)


class Scheduler:
    """State of one engine core. `schedule` and `complete` alternate; `add` and `abort` come between them."""

    def __init__(self, profile: Profile, *, seed: int = 0) -> None:
        self.profile = profile
        self.pool = BlockPool(profile.blocks, caching=profile.prefix_caching)
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.paused = False
        self._random = random.Random(seed)  # noqa: S311 - a simulation
        self._gamma = profile.speculation.gamma if profile.speculation else 0
        if profile.speculation:
            # P(at least i accepted) = alpha^i, so the weight of exactly i is the difference, the last keeps the rest
            alpha, gamma = profile.speculation.alpha, self._gamma
            weights = [alpha**i * (1 - alpha) for i in range(gamma)] + [alpha**gamma]
            self._acceptance = list(accumulate(weights))

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue.

        Raises:
            ValueError: it could never fit.
        """
        longest = self.profile.longest_sequence
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError("a request has at least one token of prompt and of output")
        if request.tokens + request.output_tokens > longest:
            raise ValueError(f"{request.tokens + request.output_tokens} tokens are more than the {longest} that fit")
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """Remove a request wherever it is, and free its blocks."""
        if request.gone:
            return
        if request.blocks:
            self.running.remove(request)
            self._release(request)
        else:
            self.waiting.remove(request)
        request.gone = True

    def schedule(self, now: float) -> Step:
        """Fill one step: running requests in order of admission, then, unless somebody was preempted, the queue."""
        step = Step(start=now)
        budget = self._schedule_running(step)
        if not step.preempted and not self.paused:
            self._admit(step, budget)
        return step

    def _schedule_running(self, step: Step) -> int:
        profile, running, decodes = self.profile, self.running, step.decodes
        budget, threshold, lookahead = profile.max_num_batched_tokens, profile.long_prefill_token_threshold, self._gamma
        drafted = 1 + self._gamma
        index = 0
        while index < len(running) and budget > 0:
            request = running[index]
            computed = request.computed
            positions = request.prompt_tokens + request.generated - computed
            decoding = positions == 1 and request.generated > 0
            if decoding:
                positions = drafted
            elif 0 < threshold < positions:
                positions = threshold
            if positions > budget:
                positions = budget
                if decoding:
                    step.short_draft = positions
            needed = computed + positions + lookahead
            if needed > request.slots and not self._grow(request, needed, step):
                step.short_draft = None
                break
            budget -= positions
            if decoding:
                decodes.append(request)
                step.decode_positions += positions
            else:
                self._prefill(request, positions, step)
            index += 1
        return budget

    def _grow(self, request: Request, needed: int, step: Step) -> bool:
        """Give a running request slots up to `needed`, preempting from the end of the list; False if it went itself."""
        count = -(-needed // self.profile.block_size) - len(request.blocks)
        while count > self.pool.free:
            victim = self.running.pop()
            self._preempt(victim)
            step.preempted.append(victim)
            if victim is request:
                return False
        self._extend(request, count)
        return True

    def _admit(self, step: Step, budget: int) -> None:
        profile, running, waiting = self.profile, self.running, self.waiting
        while waiting and budget > 0 and len(running) < profile.max_num_seqs:
            request = waiting[0]
            hits = self.pool.lookup(self._keys(request, 0, (request.tokens - 1) // profile.block_size))
            computed = len(hits) * profile.block_size
            positions = request.tokens - computed
            if 0 < profile.long_prefill_token_threshold < positions:
                positions = profile.long_prefill_token_threshold
            positions = min(positions, budget)
            reserved = request.tokens if profile.reserve_full_prompt else 0
            slots = computed + positions + profile.lookahead
            count = -(-slots // profile.block_size) - len(hits)
            required = max(count, -(-reserved // profile.block_size) - len(hits)) + self.pool.unreferenced(hits)
            if required > self.pool.free:
                break
            waiting.popleft()
            self.pool.share(hits)
            request.blocks, request.published = hits, len(hits)
            request.slots = len(hits) * profile.block_size
            request.computed = computed
            self._extend(request, count)
            if request.scheduled is None:
                request.scheduled = step.start
                request.cached_tokens = computed
                step.admitted.append(request)
            running.append(request)
            budget -= positions
            self._prefill(request, positions, step)

    def _prefill(self, request: Request, positions: int, step: Step) -> None:
        step.prefills.append((request, positions))
        step.prefill_positions += positions
        step.recomputed_tokens += max(0, min(request.furthest, request.computed + positions) - request.computed)
        self._publish(request, request.computed + positions)

    def _extend(self, request: Request, count: int) -> None:
        self._publish(request, request.computed)
        request.blocks += self.pool.allocate(count)
        request.slots = len(request.blocks) * self.profile.block_size

    def _keys(self, request: Request, start: int, stop: int) -> list[Hashable]:
        shared = request.prefix_keys
        keys: list[Hashable] = list(shared[start:stop])
        keys.extend((request.id, index) for index in range(max(start, len(shared)), stop))
        return keys

    def _publish(self, request: Request, tokens: int) -> None:
        full = tokens // self.profile.block_size
        if full > request.published:
            start = request.published
            self.pool.publish(request.blocks[start:full], self._keys(request, start, full))
            request.published = full

    def _preempt(self, request: Request) -> None:
        self._release(request)
        request.preemptions += 1
        request.unreported_preemptions += 1
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        self._publish(request, request.computed)
        self.pool.release(request.blocks)
        request.furthest = max(request.furthest, request.computed)
        request.blocks, request.published, request.slots, request.computed = [], 0, 0, 0

    def complete(self, step: Step) -> tuple[list[Request], Verification | None]:
        """Apply a step: the requests that put out `new_tokens`, finished ones `gone`, and what drafts came to."""
        outputs: list[Request] = []
        verification = self._verify(step, outputs) if self._gamma and step.decodes else None
        finished = verification is not None
        if verification is None:
            for request in step.decodes:
                if request.gone:
                    continue
                request.computed += 1
                generated = request.generated = request.generated + 1
                if generated >= request.output_tokens:
                    finished = True
                outputs.append(request)
        for request, positions in step.prefills:
            if request.gone:
                continue
            request.computed += positions
            if request.computed == request.tokens:
                request.generated += 1
                request.new_tokens = 1
                finished |= request.generated >= request.output_tokens
                outputs.append(request)
        if finished:
            self._retire(outputs)
        return outputs, verification

    def _verify(self, step: Step, outputs: list[Request]) -> Verification:
        gamma = self._gamma
        verification = Verification(accepted_per_position=[0] * gamma)
        draws = self._random.choices(range(gamma + 1), cum_weights=self._acceptance, k=len(step.decodes))
        drafts = [gamma] * len(step.decodes)
        if step.short_draft is not None:
            drafts[-1] = step.short_draft - 1
        for request, drafted, draw in zip(step.decodes, drafts, draws, strict=True):
            if request.gone:
                continue
            accepted = min(draw, drafted)
            if drafted:
                verification.drafts += 1
                verification.draft_tokens += drafted
                verification.accepted_tokens += accepted
                for position in range(accepted):
                    verification.accepted_per_position[position] += 1
            tokens = min(1 + accepted, request.output_tokens - request.generated)
            request.computed += tokens
            request.generated += tokens
            request.new_tokens = tokens
            outputs.append(request)
        return verification

    def _retire(self, outputs: list[Request]) -> None:
        for request in outputs:
            if request.generated >= request.output_tokens:
                request.gone = True
                self._release(request)
        self.running = [request for request in self.running if not request.gone]
