"""Requests that came, which vLLM does not count, and requests whose clients left, which it does not count either.

Arrivals of an engine are the running maximum of ``first tokens + waiting``: a request is in the one until it is in the
other. A client that leaves while queued is in neither. Where one engine is behind the port, ``answered + running +
waiting`` holds it, since the HTTP layer counts the response that was never read. Both count from the first scrape.
Where several are, ``finished + running + waiting`` stands in, which knows of a request while it is in prefill. What was
preempted waits a second time, so that ``first tokens + waiting`` is too high by those that were preempted at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from exporter.signals.window import Window, plus

GENERATION_ROUTES = frozenset(
    {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/responses",
        "/v1/messages",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/systemone",
        "/cohere/v2/chat",
        "/generative_scoring",
        "/inference/v1/generate",
        "/generate",
        "/invocations",
    }
)
"""HTTP handlers whose requests become sequences of an engine."""


Read = Callable[..., float | None]
"""``Window.last`` or ``Window.first``: a column at one end of a window."""


RESPONSES, REJECTED, FINISHED = "responses", "rejected", "finished_requests"
"""Columns of ours: sums over labels, and of the target also over its engines, since the first scrape."""


def finished_requests(engine: Window, read: Read = Window.last) -> float | None:
    """Requests of an engine that finished since the first scrape, for whatever reason; None where it does not say."""
    return read(engine, FINISHED)


def answered(target: Window, read: Read = Window.last) -> float | None:
    """2xx responses of generation routes since the first scrape; None where HTTP is not measured."""
    return read(target, RESPONSES, "2xx")


@dataclass(frozen=True, slots=True)
class Frontend:
    """What the HTTP layer and the engines behind it count, at one scrape."""

    answered: float | None
    finished: float | None
    in_flight: float | None
    rejected: float
    failed: float

    @classmethod
    def read(cls, target: Window, engines: Sequence[Window], read: Read) -> "Frontend":
        """From the columns of the target and of the engines that can have requests."""
        finished = read(target, FINISHED)
        responses = answered(target, read)
        return cls(
            # Finished requests but no answer: the routes go by names we do not know, or by none.
            answered=None if finished and not responses else responses,
            finished=finished,
            in_flight=plus(*(read(one, gauge) for one in engines for gauge in ("running", "waiting"))),
            rejected=read(target, REJECTED) or 0.0,
            failed=read(target, RESPONSES, "5xx") or 0.0,
        )


@dataclass(slots=True)
class RunningMaximum:
    """A counter from levels that dip: it never falls, starts at 0 and goes on over resets.

    Several levels may measure the same thing, each from its own base; the highest counts.
    """

    total: float = 0.0
    _bases: dict[str, float] = field(default_factory=dict)

    def observe(self, **levels: float | None) -> float:
        """The counter after levels that are known now; a level first known counts from here."""
        for name, level in levels.items():
            if level is not None:
                self._bases.setdefault(name, level - self.total)
        known = [level - self._bases[name] for name, level in levels.items() if level is not None]
        self.total = max([self.total, *known])
        return self.total

    def forget(self, name: str) -> None:
        """A level begins to measure something else: when it is next known it counts from there."""
        self._bases.pop(name, None)

    def reset(self, **empty: float | None) -> None:
        """An engine began again: ``empty`` are the levels at which nothing has arrived since."""
        self._bases = {name: level - self.total for name, level in empty.items() if level is not None}


def engine_levels(
    first_tokens: float | None,
    waiting: float | None,
    running: float | None,
    answered: float | None,
    finished: float | None,
) -> dict[str, float | None]:
    """The levels of which arrivals are the running maximum.

    Args:
        first_tokens: requests that got a first token since the first scrape.
        waiting: requests queued now; None before the first step of an engine behind several API servers.
        running: requests scheduled now.
        answered: 2xx responses of generation routes since the first scrape; None unless this engine is the only one.
        finished: requests that finished since the first scrape.
    """
    seen = None if first_tokens is None else first_tokens + (waiting or 0.0)
    return {"seen": seen, "held": plus(answered, running, waiting), "ended": plus(finished, running, waiting)}


def offered_level(answered: float | None, in_flight: float | None, rejected: float, failed: float) -> float | None:
    """Requests put to a target since the first scrape: answered, in flight, turned away or failed.

    A request turned away at a queue limit is answered 503, so that it is among those that failed: tried on vLLM 0.32,
    where 12 requests with room for one gave 11 rejections and 11 responses of 5xx.
    """
    if answered is None or in_flight is None:
        return None
    return answered + in_flight + max(rejected, failed)


def abandoned_level(
    answered: float | None, finished: float | None, answered_before: float | None, finished_before: float | None
) -> float | None:
    """Responses that the HTTP layer ended well and no engine finished: their clients had left.

    The lower of what this scrape and the one before say: vLLM counts a finish after the last token has gone out, so
    that a scrape in between sees the answer without the finish.
    """
    if answered is None or finished is None or answered_before is None or finished_before is None:
        return None
    return min(answered - finished, answered_before - finished_before)
