"""What vLLM's frontend and scheduler observe for one engine, and when. Numbers only; `engine_metrics` names them."""

from bisect import bisect_left
from collections.abc import Sequence

from exporter.lab.profiles import Profile
from exporter.lab.scheduler import Parent, Request, Scheduler, Step, Verification

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
ITL_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
ITERATION_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
N_BUCKETS = (1, 2, 5, 10, 20)
PREEMPTION_BUCKETS = (1, 2, 3, 4, 5, 10, 20)


def token_buckets(max_model_len: int) -> tuple[int, ...]:
    """1, 2, 5, 10, … up to the longest sequence the model allows."""
    bounds = (mantissa * 10**exponent for exponent in range(len(str(max_model_len))) for mantissa in (1, 2, 5))
    return tuple(bound for bound in bounds if bound <= max_model_len)


class Histogram:
    """Cumulative on output only; `observe` takes a count so that one step's equal gaps are one call."""

    __slots__ = ("bounds", "count", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0
        self.count = 0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` over."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times
        self.count += times


class Observations:
    """The values behind one engine's series. Attribute names follow the series they feed."""

    def __init__(self, profile: Profile) -> None:
        self.stepped = False
        self.running = self.waiting = 0
        self.kv_cache_usage = 0.0
        self.prefix_cache_queries = self.prefix_cache_hits = 0
        self.preemptions = 0
        self.prompt_tokens = self.prompt_tokens_cached = self.generation_tokens = 0
        self.finished = dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
        self.drafts = Verification(accepted_per_position=[0] * profile.lookahead)
        tokens = token_buckets(profile.max_model_len)
        self.request_prompt_tokens = Histogram(tokens)
        self.request_generation_tokens = Histogram(tokens)
        self.request_max_num_generation_tokens = Histogram(tokens)
        self.request_params_max_tokens = Histogram(tokens)
        self.request_prefill_kv_computed_tokens = Histogram(tokens)
        self.request_params_n = Histogram(N_BUCKETS)
        self.request_num_preemptions = Histogram(PREEMPTION_BUCKETS)
        self.iteration_tokens = Histogram(ITERATION_BUCKETS)
        self.time_to_first_token = Histogram(TTFT_BUCKETS)
        self.inter_token_latency = Histogram(ITL_BUCKETS)
        self.request_time_per_output_token = Histogram(ITL_BUCKETS)
        self.e2e_request_latency = Histogram(LATENCY_BUCKETS)
        self.request_queue_time = Histogram(LATENCY_BUCKETS)
        self.request_inference_time = Histogram(LATENCY_BUCKETS)
        self.request_prefill_time = Histogram(LATENCY_BUCKETS)
        self.request_decode_time = Histogram(LATENCY_BUCKETS)

    def scheduler_state(self, scheduler: Scheduler) -> None:
        """Set the gauges, after every step, finished requests already removed."""
        self.stepped = True
        self.running = len(scheduler.running)
        self.waiting = len(scheduler.waiting)
        self.kv_cache_usage = scheduler.pool.usage

    def admissions(self, step: Step) -> None:
        """Count prefix-cache lookups of first admissions; a resumed request's lookup is not counted."""
        for request in step.admitted:
            self.prefix_cache_queries += request.tokens
            self.prefix_cache_hits += request.cached_tokens

    def verification(self, step: Verification) -> None:
        """Count the drafts of a step."""
        total = self.drafts
        total.drafts += step.drafts
        total.draft_tokens += step.draft_tokens
        total.accepted_tokens += step.accepted_tokens
        for position, accepted in enumerate(step.accepted_per_position):
            total.accepted_per_position[position] += accepted

    def outputs(self, outputs: list[Request], end: float, previous_end: float) -> None:
        """Take the outputs of a step that ended at `end`.

        Preemptions and prompt tokens count now, with the request's output; the gap counts once a request whatever
        the number of tokens; each API server with outputs sees one message.
        """
        messages: dict[int, int] = {}
        usual_gap, usual = end - previous_end, 0
        for request in outputs:
            tokens = message = request.new_tokens
            if request.first_token is None:
                message += self._first_output(request, end)
            elif request.last_token == previous_end:
                usual += 1
            else:
                self.inter_token_latency.observe(end - request.last_token)
            request.last_token = end
            messages[request.api_server] = messages.get(request.api_server, 0) + message
            self.generation_tokens += tokens
            if request.unreported_preemptions:
                self.preemptions += request.unreported_preemptions
                request.unreported_preemptions = 0
            if request.gone:
                self.request_finished(request, request.finish_reason, end)
        if usual:
            self.inter_token_latency.observe(usual_gap, usual)
        for message in messages.values():
            self.iteration_tokens.observe(message)

    def _first_output(self, request: Request, end: float) -> int:
        """Count the prompt; the computed part of it belongs to this iteration."""
        request.first_token = end
        self.time_to_first_token.observe(end - request.arrival)
        self.prompt_tokens += request.prompt_tokens
        self.prompt_tokens_cached += request.cached_tokens
        return request.prompt_tokens - request.cached_tokens

    def request_finished(self, request: Request, reason: str, end: float) -> None:
        """Observe the per-request histograms, all at the end and all together."""
        self.finished[reason] += 1
        scheduled = request.scheduled if request.scheduled is not None else request.queued
        first = request.first_token if request.first_token is not None else end
        last = max(request.last_token, first)
        decode = last - first
        self.e2e_request_latency.observe(end - request.arrival)
        self.request_queue_time.observe(scheduled - request.queued)
        self.request_prefill_time.observe(first - scheduled)
        self.request_inference_time.observe(last - scheduled)
        self.request_decode_time.observe(decode)
        generated = request.generated
        self.request_time_per_output_token.observe(decode / (generated - 1) if generated > 1 else 0.0)
        self.request_prompt_tokens.observe(request.prompt_tokens)
        self.request_generation_tokens.observe(generated)
        self.request_num_preemptions.observe(request.preemptions - request.unreported_preemptions)
        self.request_prefill_kv_computed_tokens.observe(request.prompt_tokens - request.cached_tokens)
        if request.max_tokens is not None:
            self.request_params_max_tokens.observe(request.max_tokens)
        parent = request.parent or Parent(n=1, unfinished=1)
        parent.unfinished -= 1
        parent.longest = max(parent.longest, generated)
        if not parent.unfinished:
            self.request_params_n.observe(parent.n)
            self.request_max_num_generation_tokens.observe(parent.longest)
