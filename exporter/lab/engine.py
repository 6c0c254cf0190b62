"""One simulated engine: inbox, scheduler, step clock, observations and ground truth. The clock is the caller's."""

from exporter.lab.observations import Observations
from exporter.lab.profiles import Profile
from exporter.lab.scheduler import Request, Scheduler, Step
from exporter.lab.truth import GroundTruth, StepRecord


class Engine:
    """An engine core with the frontend that watches it.

    `begin` starts a step and says when it ends; `finish` ends it. Requests that come in between wait in the inbox,
    where no gauge sees them, as in vLLM. `history` is how many steps the ground truth keeps.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        model_name: str = "simulated",
        index: int = 0,
        seed: int = 0,
        history: int = 1_000_000,
    ) -> None:
        self.profile = profile
        self.model_name = model_name
        self.index = index
        self.scheduler = Scheduler(profile, seed=seed)
        self.observations = Observations(profile)
        self.truth = GroundTruth(history)
        self.siblings = 1
        """Engines of the same server, this one included."""
        self.sleep_level = 0
        """0 awake, 1 weights offloaded, 2 everything discarded."""
        self.slowdown = 1.0
        """Factor on every step's duration."""
        self._inbox: list[Request] = []
        self._step: Step | None = None
        self._queued = self._running = 0
        self._end = 0.0
        self._previous_end = 0.0

    @property
    def load(self) -> int:
        """Requests here, the inbox included: what a router compares."""
        return len(self._inbox) + len(self.scheduler.waiting) + len(self.scheduler.running)

    @property
    def requests(self) -> list[Request]:
        """Everybody here."""
        return [*self._inbox, *self.scheduler.waiting, *self.scheduler.running]

    def submit(self, request: Request) -> None:
        """Hand in a request; the scheduler sees it when the current step is over."""
        self._inbox.append(request)

    def abort(self, request: Request, now: float) -> None:
        """A client left: no per-request series ever hears of it."""
        if request.gone:
            return
        self.truth.abandoned.append(now)
        self._remove(request)

    def abort_all(self, now: float) -> list[Request]:
        """The engine itself gives up on everybody, which does count: finish reason `abort`."""
        victims = self.requests
        for request in victims:
            self._remove(request)
            self.observations.request_finished(request, "abort", now)
        self.observations.scheduler_state(self.scheduler)
        return victims

    def _remove(self, request: Request) -> None:
        if request in self._inbox:
            self._inbox.remove(request)
            request.gone = True
        else:
            self.scheduler.abort(request)

    def begin(self, now: float) -> float | None:
        """Start a step at `now`; returns when it ends, or None if there is nothing to do."""
        for request in self._inbox:
            request.queued = now
            self.scheduler.add(request)
            self.truth.arrivals.append(request.arrival)
        self._inbox.clear()
        step = self.scheduler.schedule(now)
        self.truth.preemptions.extend(now for _ in step.preempted)
        if not step.positions:
            self.observations.scheduler_state(self.scheduler)
            return None
        self.observations.admissions(step)
        context = 0
        if self.profile.kv_read_seconds_per_token:
            context = sum(request.computed for request in self.scheduler.running)
        self._step, self._running, self._queued = step, len(self.scheduler.running), len(self.scheduler.waiting)
        self._end = now + self.profile.step_seconds(step.positions, context) * self.slowdown
        return self._end

    def finish(self, now: float | None = None) -> list[Request]:
        """End the step, at its due time or at `now` if that is later; returns who put out `new_tokens`."""
        step, self._step = self._step, None
        if step is None:
            raise RuntimeError("no step is running")
        end = self._end if now is None else now
        usage = self.scheduler.pool.usage
        outputs, verification = self.scheduler.complete(step)
        observations = self.observations
        if verification:
            observations.verification(verification)
        if outputs:
            observations.outputs(outputs, end, self._previous_end)
            self._previous_end = end
            self.truth.finished.extend(end for request in outputs if request.gone)
        observations.scheduler_state(self.scheduler)
        self.truth.steps.append(
            StepRecord(
                step.start,
                end,
                self._running,
                self._queued,
                len(step.decodes),
                len(step.prefills),
                step.decode_positions,
                step.prefill_positions,
                step.recomputed_tokens,
                len(outputs),
                usage,
            )
        )
        return outputs
