"""The types settings are made of: a model that refuses unknown keys, and numbers and files with their limits."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from exporter.files import open_file

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Efficiency = Annotated[float, Field(gt=0, le=1)]


def _readable(path: Path) -> Path:
    try:
        with open_file(path):
            return path
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


ReadableFile = Annotated[Path, AfterValidator(_readable)]


def in_words(error: ValidationError) -> str:
    """What is wrong, as one line: ``slo.ttft_seconds: Input should be greater than 0``. Values are not repeated."""
    return "; ".join(
        ": ".join(filter(None, (".".join(map(str, each["loc"])), _message(each["type"], each["msg"]))))
        for each in error.errors(include_input=False, include_url=False)
    )


def _message(kind: str, text: str) -> str:
    return "unknown setting" if kind == "extra_forbidden" else text.removeprefix("Value error, ")


class Strict(BaseModel):
    """A frozen model that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``:10077``, ``0.0.0.0:10077`` or ``[::]:10077``; an empty host is every interface."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{address!r} is not HOST:PORT, :PORT or [IPV6]:PORT")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{address!r}: an IPv6 address stands in brackets: [::]:{port}")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether a host can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


ListenAddress = Annotated[str, AfterValidator(lambda address: (split_address(address), address)[1])]


def _engine_url(url: str) -> str:
    # What is refused is not repeated: it may hold a secret.
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError("not a URL: its host or port cannot be read") from None
    if "@" in parts.netloc:
        raise ValueError("a URL must not hold credentials; use bearer_token_file")
    if parts.scheme not in ("http", "https", "http+unix"):
        raise ValueError("not an http, https or http+unix URL, such as http://localhost:8000")
    if not host:
        raise ValueError("the URL names no host; an IPv6 address stands in brackets: http://[::1]:8000")
    if parts.query or parts.fragment:
        raise ValueError("a URL must not hold a query or a fragment")
    if not url.isprintable() or " " in url:
        raise ValueError("a URL must not hold blanks or control characters")
    return url.rstrip("/")


def _server_name(name: str) -> str:
    # An empty name would be none, and no name is compared with none.
    try:
        known = bool(name.encode("idna"))
    except UnicodeError:
        known = False
    if not known or not name.isprintable() or " " in name:
        raise ValueError("not the name of a host")
    return name


ServerName = Annotated[str, AfterValidator(_server_name)]
EngineUrl = Annotated[str, AfterValidator(_engine_url)]
RESERVED_LABELS = frozenset(("target", "model_name", "role", "engine", "job", "instance"))


def _label_name(name: str) -> str:
    if not re.fullmatch(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", name) or name in RESERVED_LABELS:
        raise ValueError(f"{name!r} cannot be the name of a label on target_info")
    return name


LabelName = Annotated[str, AfterValidator(_label_name)]
LabelValue = Annotated[str, Field(max_length=256)]
