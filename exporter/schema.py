"""What can be set: the schema of the settings, without where they come from. Unknown keys are errors everywhere."""

import contextlib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from exporter import DEFAULT_PORT
from exporter.engine_schema import Baseline, Hardware, Model, Replicas, Speculation, TokenWeights
from exporter.hardware import DEFAULT_MBU, DEFAULT_MFU, Roofline
from exporter.schema_types import (
    Count,
    EngineUrl,
    LabelName,
    LabelValue,
    ListenAddress,
    ReadableFile,
    Seconds,
    ServerName,
    Strict,
    is_loopback,
    split_address,
)

_DURATION = re.compile(r"([1-9][0-9]*)(s|m)")


def window_seconds(window: str) -> float:
    """``30s``, ``1m`` in seconds."""
    found = _DURATION.fullmatch(window)
    if found is None:
        raise ValueError(f"{window!r} is not a window such as 30s or 5m")
    return float(found[1]) * {"s": 1, "m": 60}[found[2]]


def _window(window: str) -> str:
    if not 15 <= window_seconds(window) <= 900:
        raise ValueError(f"window {window!r} must lie between 15s and 15m; longer ones are Prometheus's job")
    return window


WindowName = Annotated[str, AfterValidator(_window)]


def _labels(value: object) -> object:
    """YAML and JSON read ``engines: [0, 1]`` as numbers."""
    several = value if isinstance(value, list | tuple) else (value,)
    return tuple(str(each) if isinstance(each, int) else each for each in several)


Labels = Annotated[tuple[str, ...], BeforeValidator(_labels, json_schema_input_type=str | int | tuple[str | int, ...])]


class Role(Enum):
    """What an engine does for a request."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


class Slo(Strict):
    """Service level objectives. A threshold of null switches that objective off."""

    ttft_seconds: Seconds | None = Field(2.5, description="Time to first token, per request.")
    tpot_seconds: Seconds | None = Field(0.1, description="Time per output token, per finished request.")
    itl_seconds: Seconds | None = Field(0.2, description="Gap between two outputs of a request.")
    e2e_seconds: Seconds | None = Field(None, description="Arrival to last token. Read by check only.")
    objective_ratio: float = Field(
        0.99, gt=0, lt=1, description="Share of requests, or of gaps, that must meet the threshold."
    )


class Scrape(Strict):
    """How an engine is scraped."""

    interval_seconds: Seconds = Field(2.0, ge=0.2, le=60, description="Time between scrapes, before any stretching.")
    timeout_seconds: Seconds = Field(4.0, le=60, description="One deadline for a whole scrape.")
    path: str = Field("/metrics", pattern=r"^/[^?#\s]*$", description="Path of the engine's exposition.")
    health_path: str = Field("/health", pattern=r"^/[^?#\s]*$", description="Asked only when something looks wrong.")
    filter: bool = Field(False, description="Ask the server for our series only. Floods the engine's access log.")
    max_body_bytes: int = Field(16 * 2**20, ge=1, le=2**30, description="A larger body, decompressed, is refused.")
    max_series: Count = Field(
        20_000,
        description="More series of ours in one scrape are refused; more over time, those gone longest are dropped.",
    )
    bearer_token_file: ReadableFile | None = Field(None, description="Sent to the engine; read again on change.")
    ca_file: ReadableFile | None = Field(None, description="A private certificate authority, PEM.")
    cert_file: ReadableFile | None = Field(None, description="Client certificate, PEM.")
    key_file: ReadableFile | None = Field(None, description="Key of the client certificate, PEM.")
    server_name: ServerName | None = Field(None, description="Name to expect in the engine's certificate.")
    insecure_skip_verify: bool = Field(False, description="Accept any certificate. Only when asked.")

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together")
        return self


class TargetConfig(Strict):
    """One port with one or more engines behind it, and what its metrics cannot say."""

    url: EngineUrl = Field("http://localhost:8000", description="Where the engine serves.")
    name: str = Field("", description="Value of the label target; host and port of the URL if empty.")
    model_name: str | None = Field(None, description="The model, known before the engine first answers.")
    role: Role = Field(Role.BOTH, description="both, prefill or decode.")
    labels: dict[LabelName, LabelValue] = Field(
        {}, max_length=32, description="More labels for target_info, such as engine_pod."
    )
    engines: Labels = Field((), description="Values of the engine label to keep; all if empty.")
    gpus_per_engine: Count = Field(1, description="GPUs that one engine holds.")
    gpu_hour_dollars: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="Price of one GPU for an hour. Without it there are no cost series."
    )
    pipeline_parallel_size: Count = Field(1, description="As given to vLLM.")
    api_servers: Count | None = Field(
        None,
        description="API server processes; told from the metrics if null: several hide process_start_time_seconds.",
    )
    max_num_seqs: Count | None = Field(None, description="As given to vLLM.")
    max_num_batched_tokens: Count | None = Field(None, description="As given to vLLM.")
    max_cudagraph_capture_size: Count | None = Field(
        None, description="As given to vLLM; null: its own default. Read by check only."
    )
    stall_after_seconds: Seconds = Field(60.0, description="Work without movement for this long is a stall.")
    slo: Slo = Field(default_factory=Slo)
    scrape: Scrape = Field(default_factory=Scrape)
    hardware: Hardware = Field(default_factory=Hardware)
    model: Model = Field(default_factory=Model)
    speculation: Speculation = Field(default_factory=Speculation)
    token_weights: TokenWeights = Field(default_factory=TokenWeights)
    baseline: Baseline = Field(default_factory=Baseline)

    @property
    def roofline(self) -> Roofline | None:
        """One engine on paper, at the ceilings configured or else the default ones; None without hardware or model."""
        gpu, geometry = self.hardware.gpu, self.model.geometry
        if gpu is None or geometry is None:
            return None
        return Roofline(
            gpu,
            geometry,
            self.gpus_per_engine,
            self.hardware.mbu or DEFAULT_MBU,
            self.hardware.mfu or DEFAULT_MFU,
            self.hardware.step_overhead_seconds,
        )

    @property
    def label(self) -> str:
        """The value of the label ``target``: unique among targets."""
        return self.name or urlsplit(self.url).netloc

    @property
    def address(self) -> tuple[str, int | None, str]:
        """Host, port and path, in one spelling: two targets with the same address are the same port."""
        parts = urlsplit(self.url)
        host = parts.netloc if parts.scheme == "http+unix" else parts.hostname or ""
        with contextlib.suppress(ValueError):
            host = str(ipaddress.ip_address(host))
        return host, parts.port or {"http": 80, "https": 443}.get(parts.scheme), parts.path + self.scrape.path

    @model_validator(mode="after")
    def _engines_once(self) -> Self:
        if len(set(self.engines)) != len(self.engines):
            raise ValueError("engines lists an engine twice")
        return self


class DnsSource(Strict):
    """A name that stands for engines: each address, or each host and port of an SRV record, is one."""

    name: str = Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9_.-]+$", description="Name to resolve.")
    type: Literal["A", "AAAA", "SRV"] = Field("A", description="A, AAAA or SRV.")
    port: int | None = Field(None, ge=1, le=65_535, description="Port of the engines; an SRV record says its own.")
    scheme: Literal["http", "https"] = Field("http", description="http or https.")
    settings: dict[str, Any] = Field({}, description="Settings of the targets found, over those at the top.")

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if (self.port is None) != (self.type == "SRV"):
            raise ValueError("A and AAAA need a port, SRV brings its own")
        found = {"url", "name"} & self.settings.keys()
        if found:
            raise ValueError(f"settings must not hold {found.pop()}")
        TargetConfig.model_validate(self.settings)
        return self


class Discovery(Strict):
    """Targets that come and go."""

    file_sd: tuple[Path, ...] = Field(
        (), description="Files as Prometheus's file_sd, JSON or YAML; the last part of a path may hold *."
    )
    dns: tuple[DnsSource, ...] = Field((), description="Names to resolve.")
    dns_refresh_seconds: Seconds = Field(30.0, ge=1, description="Time between two resolutions.")
    labels: dict[str, LabelName] = Field(
        {}, description="Labels of file_sd to pass through: their name there, and the name on target_info."
    )
    expected_targets: Count | None = Field(None, description="Targets that there should be, all sources together.")
    max_targets: Count = Field(2_000, description="Targets found beyond so many are dropped with a log line.")

    @property
    def used(self) -> bool:
        """Whether there is any source."""
        return bool(self.file_sd or self.dns)


class Options(NamedTuple):
    """Settings that concern every target: the slow signals' windows in seconds by name, the quantiles."""

    windows: Mapping[str, float]
    quantiles: Sequence[float]


Group = Literal["traffic", "scheduler", "latency", "cost", "roofline", "speculation", "kv", "use"]
"""Groups of metrics that can be switched off; those about the sidecar, its targets and engines cannot."""

SHARED_SETTINGS = frozenset(TargetConfig.model_fields) - {"url", "name"}
"""Settings of a target that may stand at the top, for all."""


def overlap(one: TargetConfig, other: TargetConfig) -> bool:
    """Whether two targets have an engine in common, as far as their settings tell."""
    same = one.address == other.address
    return same and (not one.engines or not other.engines or bool(set(one.engines) & set(other.engines)))


class Config(TargetConfig):
    """All settings: those of a target stand for every target that does not set its own."""

    targets: tuple[TargetConfig, ...] = Field(
        (), description="Several targets; each may set its own of the settings above. Empty: one, at url."
    )
    discovery: Discovery = Field(default_factory=Discovery)
    replicas: Replicas = Field(default_factory=Replicas)
    windows: tuple[WindowName, ...] = Field(
        ("1m",), min_length=1, max_length=4, description="Windows of the slow signals, of 15s to 15m, four at most."
    )
    quantiles: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        (0.5, 0.9, 0.99), max_length=8, description="Quantiles of the latencies."
    )
    disabled_groups: tuple[Group, ...] = Field((), description="Groups of metrics to leave out.")
    listen_address: ListenAddress = Field(f":{DEFAULT_PORT}", description="Where the sidecar serves.")
    page_address: ListenAddress | None = Field(
        None,
        description="Where the page and the API are. Null: on the loopback's next port, or with the rest where that "
        "is on the loopback already.",
    )
    web_config_file: ReadableFile | None = Field(
        None, description="TLS and users of our port, with exporter-toolkit's keys."
    )
    never_exit: bool = Field(False, description="Serve config_valid 0 instead of exiting on bad settings. For pods.")
    worker_index: int | None = Field(
        None,
        ge=0,
        description="Place of this pod in a LeaderWorkerSet. Only 0 has an API server; elsewhere nothing is watched.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error."
    )
    log_format: Literal["logfmt", "json"] = Field("logfmt", description="logfmt or json.")

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, given: Any) -> Any:
        """Fill each target's gaps from the settings at the top."""
        if not isinstance(given, dict) or not isinstance(given.get("targets"), list | tuple):
            return given
        shared = {key: value for key, value in given.items() if key in SHARED_SETTINGS}
        merged = [merge(shared, target) if isinstance(target, dict) else target for target in given["targets"]]
        return {**given, "targets": merged}

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        labels: set[str] = set()
        by_address: dict[object, list[TargetConfig]] = {}
        for one in self.targets:
            if one.label in labels:
                raise ValueError(f"two targets are called {one.label}; give them a name each")
            labels.add(one.label)
            beside = by_address.setdefault(one.address, [])
            for other in beside:
                if overlap(one, other):
                    raise ValueError(f"targets {other.label} and {one.label} overlap: the same engines of {one.url}")
            beside.append(one)
        return self

    def options(self) -> Options:
        """Settings that concern every target."""
        return Options({name: window_seconds(name) for name in self.windows}, self.quantiles)

    @property
    def served_page_address(self) -> str:
        """Where the page and the API are: beside the rest only on a loopback, or where that is asked for."""
        if self.page_address is not None:
            return self.page_address
        host, port = split_address(self.listen_address)
        if is_loopback(host):
            return self.listen_address
        return f"127.0.0.1:{port + 1 if 0 < port < 65_535 else 0}"

    @property
    def names_targets(self) -> bool:
        """Whether targets are listed or found, as for a fleet, be it of one."""
        return bool(self.targets) or self.discovery.used

    def fixed_targets(self) -> tuple[TargetConfig, ...]:
        """The targets that do not come and go: those listed, or the one at url where no others are to be found.

        None in a pod whose engine has no API server.
        """
        if self.worker_index:
            return ()
        return self.targets if self.discovery.used else self.all_targets()

    def all_targets(self) -> tuple[TargetConfig, ...]:
        """The targets to watch, at least one."""
        own = {name: getattr(self, name) for name in TargetConfig.model_fields}
        return self.targets or (TargetConfig.model_construct(**own),)


def shared_settings(config: Config) -> dict[str, Any]:
    """What was set at the top for every target, unless a target says otherwise."""
    return config.model_dump(include=set(SHARED_SETTINGS), exclude_unset=True)


def merge(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Settings over other settings: what both hold as an object is merged, anything else is replaced."""
    merged = dict(common)
    for key, value in own.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
