"""Sums over the labels of a target's counters, and over its engines, that do not fall when labels and engines go.

A restarted engine shows a route again only when that has been asked for, and may come back under another name: what was
counted before stays in the sum.
"""

from exporter.history import History
from exporter.signals.arrivals import FINISHED, GENERATION_ROUTES, REJECTED, RESPONSES
from exporter.signals.cost import COMPUTED, OUTPUT, PROMPT
from exporter.snapshot import TARGET, Engine, Layout
from exporter.upstream import Column, Part

FROM_THE_START = ("2xx", "4xx", "5xx")
"""Classes that are there before their first response, which so has a rate."""

TOKENS = (
    Column("generation_tokens"),
    Column("prompt_tokens"),
    Column("prompt_tokens_by_source", labels=("local_compute",)),
    Column("prefix_hits"),
)

Key = tuple[Engine | None, Column]

_OF_STATUS: dict[str, Key] = {
    status: (TARGET, Column(RESPONSES, labels=(status,))) for status in ("1xx", "2xx", "3xx", "4xx", "5xx")
}
_REJECTED: Key = (TARGET, Column(REJECTED))
_FINISHED = Column(FINISHED)
_OF_TOKENS: dict[str, Key] = {name: (TARGET, Column(name)) for name in (OUTPUT, PROMPT, COMPUTED)}


class Sums:
    """The sums of one target, as columns of its own: responses of generation routes by status class, requests
    rejected, requests finished by each engine and by all, tokens of all engines.

    Args:
        layout: the target's.
        history: the target's, into which the sums are put.
    """

    def __init__(self, layout: Layout, history: History) -> None:
        self._layout = layout
        self._history = history
        self._totals: dict[Key, float] = {}
        self._standing: dict[Key, float] = {}

    def observe(self) -> None:
        """Add up the last scrape, which the history has taken in. A sum of which nothing can be there is absent."""
        standing, here = self._read()
        for key, stands in standing.items():
            self._totals[key] = self._totals.get(key, 0.0) + stands - self._standing.get(key, 0.0)
        self._standing = standing
        for key in here:
            self._history.put(*key, self._totals.setdefault(key, 0.0))

    def rebase(self) -> None:
        """Series were dropped: what they had counted stays, but for an engine that is dropped itself."""
        self._standing, _ = self._read()
        engines = self._layout.engines
        self._totals = {key: total for key, total in self._totals.items() if key[0] is TARGET or key[0] in engines}

    def _read(self) -> tuple[dict[Key, float], set[Key]]:
        """What series stand at, gone ones too, added up; and which of the sums can be there now."""
        standing: dict[Key, float] = {}
        here: set[Key] = set()
        measured = self._history.last_two(TARGET).last("http_seen", part=Part.COUNT) is not None
        for (handler, _, status), total, _ in self._history.standing(TARGET, "http_requests"):
            if handler in GENERATION_ROUTES and status in _OF_STATUS:
                _add(standing, _OF_STATUS[status], total)
        if measured:
            here |= {key for key in _OF_STATUS.values() if key in self._totals or key in standing}
            here |= {_OF_STATUS[status] for status in FROM_THE_START}
        for _, total, _ in self._history.standing(TARGET, "rejections"):
            _add(standing, _REJECTED, total)
        here.add(_REJECTED)
        told_apart = True
        for engine in self._layout.engines:
            for _, total, shown in self._history.standing(engine, "finished"):
                _add(standing, (engine, _FINISHED), total)
                _add(standing, (TARGET, _FINISHED), total)
                if shown:
                    here |= {(engine, _FINISHED), (TARGET, _FINISHED)}
            tokens = self._tokens(engine)
            told_apart = told_apart and (COMPUTED in tokens or PROMPT not in tokens)
            for name, total in tokens.items():
                _add(standing, _OF_TOKENS[name], total)
                here.add(_OF_TOKENS[name])
        return standing, here if told_apart else here - {_OF_TOKENS[COMPUTED]}

    def _tokens(self, engine: Engine) -> dict[str, float]:
        """What an engine generated, was given, and computed of that, as far as it tells.

        What it computed may fall: up to vLLM 0.26 hits are counted again with each failed attempt to admit a request.
        """
        generated, prompted, local, hits = (self._history.total(engine, column) for column in TOKENS)
        computed = prompted - hits if local is None and prompted is not None and hits is not None else local
        found = {OUTPUT: generated, PROMPT: prompted, COMPUTED: computed}
        return {name: total for name, total in found.items() if total is not None}


def _add(sums: dict[Key, float], key: Key, number: float) -> None:
    sums[key] = sums.get(key, 0.0) + number
