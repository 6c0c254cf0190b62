"""One sample line of an exposition, after the whole grammar of Prometheus text and of OpenMetrics."""

import math
import re
from typing import NamedTuple


class Line(NamedTuple):
    """A sample line. ``plain`` lines are name, labels, one blank and the value: no timestamp, no exemplar."""

    name: str
    labels: dict[str, str]
    value: float
    plain: bool


_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_LABEL = re.compile(
    rf"[ \t]*(?:([a-zA-Z_][a-zA-Z0-9_]*)|{_QUOTED})[ \t]*(?:=[ \t]*{_QUOTED})?[ \t]*(?:,|(?=\}}))", re.DOTALL
)
_OPEN = re.compile(r"[ \t]*\{")
_CLOSE = re.compile(r"[ \t]*\}")
_NUMBER = r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity|nan))"
_AFTER = re.compile(rf"([ \t]*)({_NUMBER})(?:[ \t]+({_NUMBER}))?[ \t]*(#.*)?\r?", re.DOTALL)
_ESCAPE = re.compile(r'\\([\\"n])')
_UNESCAPED = {"\\": "\\", '"': '"', "n": "\n"}


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: _UNESCAPED[found[1]], text) if "\\" in text else text


def parse_line(text: str) -> Line:
    """One sample line, without its line feed.

    A timestamp or an exemplar is read over; neither can take the value's place.

    Raises:
        ValueError: not a sample line.
    """
    text = text.strip(" \t")
    labels: dict[str, str] = {}
    found = _NAME.match(text)
    name, at = (found[0], found.end()) if found else ("", 0)
    opened = _OPEN.match(text, at)
    if opened:
        at = opened.end()
        while (end := _CLOSE.match(text, at)) is None:
            pair = _LABEL.match(text, at)
            if pair is None:
                raise ValueError("malformed labels")
            bare, quoted, value = pair.groups()
            key = bare if bare is not None else _unescape(quoted)
            if value is None:
                # {"a.name", label="…"}: the quoted form of a name that the plain grammar does not allow
                if bare is not None or name:
                    raise ValueError("a label without a value")
                name = key
            elif key in labels:
                raise ValueError("a label twice")
            else:
                labels[key] = _unescape(value)
            at = pair.end()
        at = end.end()
    rest = _AFTER.fullmatch(text, at)
    if rest is None or not name or (opened is None and not rest[1]):
        raise ValueError("not a sample")
    return Line(name, labels, float(rest[2]), rest[1] == " " and rest[3] is None and rest[4] is None)


def edge_label(text: str) -> str:
    """A bucket's edge in one spelling, so that ``1``, ``1.0`` and ``1e0`` are one bucket."""
    edge = float(text)
    if math.isnan(edge):
        raise ValueError("a bucket without an edge")
    return "+Inf" if edge == math.inf else repr(edge)


_IN_NUMBERS = b"0123456789.+-eEinfatyINFATY"


def number(text: bytes) -> float | None:
    """The value of a line whose head is known; None sends the line to the full grammar."""
    # Python reads underscores in a number and spaces around it, which an exposition may not have there.
    if text.strip(_IN_NUMBERS):
        return None
    try:
        return float(text)
    except ValueError:
        return None


def numbers(texts: list[bytes]) -> list[float] | None:
    """The same for many lines at once; None where one of them has to go there."""
    if b"".join(texts).translate(None, _IN_NUMBERS):
        return None
    try:
        return list(map(float, texts))
    except ValueError:
        return None
