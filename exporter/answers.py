"""What the API answers, as types: they make its OpenAPI description."""

from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from exporter.readings import Reading

Ratio = Annotated[float, Field(ge=0, le=1)]
LabelValue = Annotated[str, Field(max_length=1024)]


class Selection(BaseModel):
    """Which engines: all, or those that match what is given."""

    model_config = ConfigDict(extra="forbid")

    target: LabelValue | None = Field(None, description="Value of the label target.")
    model_name: LabelValue | None = Field(None, description="Model served.")

    @property
    def labels(self) -> dict[str, str]:
        """The labels that are given."""
        return self.model_dump(include={"target", "model_name", "engine"}, exclude_none=True)

    def among(self, readings: Iterable[Reading]) -> list[Reading]:
        """The engines that are meant."""
        wanted = self.labels.items()
        return [one for one in readings if wanted <= one.labels.items()]


class EngineSelection(Selection):
    """The same, by engine too."""

    engine: LabelValue | None = Field(None, description="Value of the label engine.")


class WarmthSelection(EngineSelection):
    """The same, with the weight that is asked for."""

    min: Ratio | None = Field(None, description="Answer 503 where the weight is below.")


class HistorySelection(EngineSelection):
    """The same, from a time on."""

    since: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0, description="Unix seconds; only what is later."
    )


class EngineName(BaseModel):
    """Which engine."""

    target: str
    model_name: str
    engine: str


class LeftOut(EngineName):
    """An engine that is not in the answer, and why."""

    reason: str


class Aged(BaseModel):
    """What every answer says: when it was made, and how old the data behind it are, the oldest of them."""

    unix_seconds: float
    age_seconds: float | None


class TargetSignals(BaseModel):
    """Signals of a target and of its engines, by name; null is not known."""

    model_config = ConfigDict(extra="allow")

    target: str
    age_seconds: float | None
    engines: list[dict[str, Any]]


class Failed(BaseModel):
    """Why there is no answer."""

    unix_seconds: float
    age_seconds: float | None = None
    error: str
    known: list[EngineName] | None = Field(None, description="The engines there are, at most 100.")
    targets: list[TargetSignals] | None = Field(None, description="Of signals: what is left of them.")


class VerdictAnswer(BaseModel):
    """What is the matter with an engine."""

    kind: str
    reason: str
    rank: int = Field(description="0 for the worst.")
    sentence: str

    @classmethod
    def of(cls, reading: Reading) -> Self:
        """A reading's."""
        found = reading.verdict
        return cls(kind=found.kind.value, reason=found.reason, rank=found.kind.rank, sentence=found.sentence)


class ConditionAnswer(BaseModel):
    """An alert that fires if its condition lasts."""

    alert: str
    lasting: str
    summary: str
    runbook_url: str


class EngineSummary(EngineName):
    """An engine in the list."""

    state: str
    age_seconds: float | None
    verdict: VerdictAnswer
    conditions: int = Field(description="How many alerts fire if this lasts.")

    @classmethod
    def of(cls, reading: Reading) -> Self:
        """A reading's."""
        return cls(
            **reading.labels,
            state=reading.target.state.value,
            age_seconds=reading.age_seconds,
            verdict=VerdictAnswer.of(reading),
            conditions=len(reading.conditions),
        )


class EnginesAnswer(Aged):
    """Every engine, worst first."""

    engines: list[EngineSummary]


class EngineAnswer(Aged, EngineName):
    """Everything about one engine."""

    state: str
    verdict: VerdictAnswer
    conditions: list[ConditionAnswer]
    unknown: dict[str, str] = Field(description="Why a signal is null, by name.")
    slo: dict[str, float | None]
    signals: dict[str, Any] = Field(description="Of the engine, by name; null is not known.")
    target_signals: dict[str, Any] = Field(description="Of the port it is behind.")

    @classmethod
    def of(cls, reading: Reading, unix_seconds: float) -> Self:
        """A reading's."""
        return cls(
            unix_seconds=unix_seconds,
            age_seconds=reading.age_seconds,
            **reading.labels,
            state=reading.target.state.value,
            verdict=VerdictAnswer.of(reading),
            conditions=[
                ConditionAnswer(alert=one.alert, lasting=one.lasting, summary=one.summary, runbook_url=one.runbook_url)
                for one in reading.conditions
            ],
            unknown=reading.unknown,
            slo=reading.target.config.slo.model_dump(),
            signals=reading.signals,
            target_signals=reading.of_target,
        )


class SignalsAnswer(Aged):
    """Every signal."""

    targets: list[TargetSignals]


class Answered(Aged):
    """An answer to act on: of the engines whose data are fresh."""

    left_out: list[LeftOut] = Field(description="Engines that cannot be told of now.")


class SpeculationAdvice(EngineName):
    """Whether speculative decoding pays on one engine."""

    advised: bool | None
    objective: str
    gamma: float | None = Field(description="Draft tokens per request and step, as drafted now or as set.")
    decode_batch_size: float | None
    expected_speedup_ratio: dict[str, float] = Field(description="By objective.")
    break_even_batch: dict[str, float] = Field(description="By objective; absent where it gains at every batch.")
    reason: str


class SpeculationAnswer(Answered):
    """Advice by engine."""

    engines: list[SpeculationAdvice]


class EngineSaturation(EngineName):
    """How near one engine is to a limit."""

    saturation_ratio: float
    resource: str
    resources: dict[str, float]
    predicted_ttft_seconds: float | None


class SaturationAnswer(Answered):
    """The fullest engine, and each."""

    saturation_ratio: float = Field(description="Of the fullest engine, capped at 2.")
    resource: str = Field(description="What binds there.")
    predicted_ttft_seconds: float | None = Field(description="The longest of all.")
    engines: list[EngineSaturation]


class EngineWarmth(EngineName):
    """How warm one engine is."""

    weight: Ratio


class WarmthAnswer(Answered):
    """The coldest engine's weight, and each."""

    weight: Ratio
    engines: list[EngineWarmth]


class EngineHistory(EngineName):
    """Points of one engine, one list a series; null is not known."""

    series: dict[str, list[float | None]]


class HistoryAnswer(Aged):
    """What has been, every few seconds for ten minutes."""

    step_seconds: float
    engines: list[EngineHistory]


class ModelReplicas(BaseModel):
    """Advice for one model."""

    model_name: str
    desired_replicas: int | None
    replicas: int = Field(description="Engines that serve it now.")
    reason: str


class ReplicasAnswer(Answered):
    """Advice by model."""

    models: list[ModelReplicas]
