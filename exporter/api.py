"""The API: the state the sidecar already has, for routers and autoscalers. Where that is stale it fails."""

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from exporter import answers, recent
from exporter.readings import Reading, Readings
from exporter.replicas import Fleet
from exporter.signals import decode, queue, saturation, speculation
from exporter.signals.kv_cache import warmness
from exporter.signals.view import EngineView

PREFIX = "/api/v1"
LIVE = {"Cache-Control": "no-store"}
"""A copy of it is wrong a second later."""
MAX_KNOWN = 100


class _Refused(HTTPException):
    """An answer that says why there is none."""

    def __init__(self, status: int, error: str, readings: Iterable[Reading] = (), **more: Any) -> None:
        super().__init__(status)
        ages = _age(readings)
        self.content = answers.Failed(unix_seconds=time.time(), age_seconds=ages, error=error, **more)


def _age(readings: Iterable[Reading]) -> float | None:
    """The oldest of them; None where one has never been seen, or there is none."""
    ages = [reading.age_seconds for reading in readings]
    known = [age for age in ages if age is not None]
    return max(known) if known and len(known) == len(ages) else None


def _chosen(readings: Readings, selection: answers.Selection) -> list[Reading]:
    every = readings.all()
    found = selection.among(every)
    if not found and selection.labels:
        raise _unknown(every)
    return found


def _unknown(every: Sequence[Reading]) -> _Refused:
    known = [answers.EngineName(**reading.labels) for reading in every]
    return _Refused(404, "there is no such engine", known=known[:MAX_KNOWN])


def _why(unfit: Iterable[Reading]) -> str:
    return "; ".join(sorted({one.unfit for one in unfit if one.unfit is not None})) or "no engine is watched"


def _fit(readings: Readings, selection: answers.Selection) -> tuple[list[tuple[Reading, EngineView]], dict[str, Any]]:
    """The engines to answer for, and what every such answer holds; 503 where there is none."""
    chosen = _chosen(readings, selection)
    fit = [(one, one.engine) for one in chosen if one.unfit is None and one.engine is not None]
    reasons = [(one, one.unfit) for one in chosen if one.unfit is not None]
    if not fit:
        raise _Refused(503, _why(chosen), chosen)
    left_out = [answers.LeftOut(**one.labels, reason=why) for one, why in reasons]
    return fit, {"unix_seconds": time.time(), "age_seconds": _age(one for one, _ in fit), "left_out": left_out}


async def _live(response: Response) -> None:
    response.headers.update(LIVE)


def add_api(app: FastAPI, readings: Readings, history: recent.Recent, replicas: Fleet) -> None:
    """Add the API to an application.

    Args:
        app: the application.
        readings: what is known of the engines.
        history: what was known.
        replicas: the advice on replicas, kept up to date.
    """

    def serve(path: str, answer: type[BaseModel], *failures: int) -> Callable[[Callable[..., Any]], None]:
        described: dict[int | str, dict[str, Any]] = {status: {"model": answers.Failed} for status in (*failures, 422)}

        def add(endpoint: Callable[..., Any]) -> None:
            route = functools.partial(app.add_api_route, PREFIX + path, endpoint, dependencies=[Depends(_live)])
            route(methods=["GET"], response_model=answer, responses=described)
            route(methods=["HEAD"], response_model=None, include_in_schema=False)

        return add

    @serve("/signals", answers.SignalsAnswer, 404, 503)
    async def signals(selection: Annotated[answers.EngineSelection, Query()]) -> Response:
        """Every signal of every target and its engines; null is not known."""
        await readings.ahead(lambda one: (one.verdict, one.of_target))
        chosen = _chosen(readings, selection)
        targets: dict[str, dict[str, Any]] = {}
        for one in chosen:
            target = targets.setdefault(one.target.label, {**one.of_target, "engines": []})
            target["age_seconds"] = one.age_seconds
            if one.engine is not None:
                target["engines"].append({**one.signals, "verdict": one.verdict.sentence})
        if not any(one.unfit is None for one in chosen):
            raise _Refused(503, _why(chosen), chosen, targets=list(targets.values()))
        found = {"unix_seconds": time.time(), "age_seconds": _age(chosen), "targets": list(targets.values())}
        return JSONResponse(found, headers=LIVE)

    @serve("/engines", answers.EnginesAnswer, 404)
    async def engines(selection: Annotated[answers.Selection, Query()]) -> answers.EnginesAnswer:
        """Every engine with its verdict, worst first. Also those that are lost or loading: that is what it tells."""
        await readings.ahead(lambda one: (one.verdict, one.conditions))
        return listed(_chosen(readings, selection), time.time())

    @serve("/engines/{engine}", answers.EngineAnswer, 404, 409, 503)
    async def engine(engine: str, selection: Annotated[answers.Selection, Query()]) -> answers.EngineAnswer:
        """Everything about one engine: its verdict, its signals, why one is not known, what fires if it lasts."""
        every = readings.all()
        found = [one for one in selection.among(every) if one.key[2] == engine and one.engine]
        if not found:
            raise _unknown(every)
        if len(found) > 1:
            several = f"{len(found)} engines are called {engine}: say target or model_name"
            raise _Refused(409, several, known=[answers.EngineName(**one.labels) for one in found][:MAX_KNOWN])
        if found[0].unfit is not None:
            raise _Refused(503, found[0].unfit, found)
        return answers.EngineAnswer.of(found[0], time.time())

    @serve("/speculation", answers.SpeculationAnswer, 404, 503)
    async def advice(selection: Annotated[answers.EngineSelection, Query()]) -> answers.SpeculationAnswer:
        """Whether speculative decoding pays, by engine: decided on the decode batch, never on the running requests."""
        fit, shared = _fit(readings, selection)
        return answers.SpeculationAnswer(**shared, engines=[_speculation(one, engine) for one, engine in fit])

    @serve("/saturation", answers.SaturationAnswer, 404, 503)
    async def saturated(selection: Annotated[answers.EngineSelection, Query()]) -> answers.SaturationAnswer:
        """How near the fullest engine is to which limit: a number for an autoscaler, and for shedding load."""
        fit, shared = _fit(readings, selection)
        each = [found for one, engine in fit if (found := _saturation(one, engine)) is not None]
        if not each:
            raise _Refused(503, "no resource's use is known yet", (one for one, _ in fit))
        fullest = max(each, key=lambda found: found.saturation_ratio)
        waits = [found.predicted_ttft_seconds for found in each if found.predicted_ttft_seconds is not None]
        return answers.SaturationAnswer(
            **shared,
            saturation_ratio=fullest.saturation_ratio,
            resource=fullest.resource,
            predicted_ttft_seconds=max(waits, default=None),
            engines=each,
        )

    @serve("/warmth", answers.WarmthAnswer, 404, 503)
    async def warmth(selection: Annotated[answers.WarmthSelection, Query()]) -> answers.WarmthAnswer:
        """A weight for a replica that has come back: how much of its KV cache it has filled since it started."""
        fit, shared = _fit(readings, selection)
        each = []
        for one, engine in fit:
            weight = warmness(engine)
            if weight is None:
                raise _Refused(503, f"the warmness of {one.target.label} is not known", [one])
            each.append(answers.EngineWarmth(**one.labels, weight=weight))
        weight = min(found.weight for found in each)
        if selection.min is not None and weight < selection.min:
            raise _Refused(503, f"the weight {weight:.3f} is below {selection.min:g}", (one for one, _ in fit))
        return answers.WarmthAnswer(**shared, weight=weight, engines=each)

    @serve("/history", answers.HistoryAnswer, 404)
    async def past(selection: Annotated[answers.HistorySelection, Query()]) -> answers.HistoryAnswer:
        """The last ten minutes of what the page draws, a point every few seconds; null is not known. Of lost engines
        too.
        """
        chosen = _chosen(readings, selection)
        found = [
            answers.EngineHistory(**one.labels, series=recent.columns(history.of(one.key, selection.since)))
            for one in chosen
        ]
        return answers.HistoryAnswer(
            unix_seconds=time.time(), age_seconds=_age(chosen), step_seconds=recent.STEP_SECONDS, engines=found
        )

    @serve("/replicas", answers.ReplicasAnswer, 404, 503)
    async def wanted(selection: Annotated[answers.Selection, Query()]) -> answers.ReplicasAnswer:
        """How many replicas each model wants. Advice only: nothing is scaled here."""
        fit, shared = _fit(readings, selection)
        models = Counter(one.target.config.model_name or one.model_name for one, _ in fit)
        advised = replicas.advice
        found = [
            answers.ModelReplicas(
                model_name=model,
                desired_replicas=advised[model].replicas if model in advised else None,
                replicas=count,
                reason=advised[model].why if model in advised else "watched for too short",
            )
            for model, count in models.items()
        ]
        return answers.ReplicasAnswer(**shared, models=found)

    app.add_exception_handler(_Refused, _say)
    app.add_exception_handler(RequestValidationError, _say_what_is_wrong)


def listed(found: Sequence[Reading], unix_seconds: float) -> answers.EnginesAnswer:
    """Engines with their verdicts, worst first."""
    worst_first = sorted(found, key=lambda one: (one.verdict.kind.rank, one.key))
    return answers.EnginesAnswer(
        unix_seconds=unix_seconds,
        age_seconds=_age(found),
        engines=[answers.EngineSummary.of(one) for one in worst_first],
    )


def _speculation(reading: Reading, engine: EngineView) -> answers.SpeculationAdvice:
    point, settings = speculation.operating_point(engine.now, engine.config), engine.config.speculation
    ratios = {labels[0]: ratio for labels, ratio in speculation.expected_speedup(engine).items() if ratio is not None}
    batches = {labels[0]: batch for labels, batch in speculation.break_even(engine).items() if batch is not None}
    if engine.speculation_advised is None:
        reason = reading.unknown.get("speculation_advised", "watched for too short")
    else:
        pays = "pays" if engine.speculation_advised else "does not pay"
        now = ratios.get(settings.objective)
        reason = f"it {pays} for {settings.objective}, over the last minute"
        reason += "" if now is None else f"; now it gives {now:.2f} times the tokens"
    return answers.SpeculationAdvice(
        **reading.labels,
        advised=engine.speculation_advised,
        objective=settings.objective,
        gamma=settings.gamma if point is None else point.gamma,
        decode_batch_size=decode.batch_size(engine),
        expected_speedup_ratio=ratios,
        break_even_batch=batches,
        reason=reason,
    )


def _saturation(reading: Reading, engine: EngineView) -> answers.EngineSaturation | None:
    found = {labels[0]: ratio for labels, ratio in saturation.saturation(engine).items() if ratio is not None}
    if not found:
        return None
    resource = max(found, key=found.__getitem__)
    return answers.EngineSaturation(
        **reading.labels,
        saturation_ratio=found[resource],
        resource=resource,
        resources=found,
        predicted_ttft_seconds=queue.predicted_ttft(engine),
    )


async def _say(_: Request, refused: Exception) -> Response:
    assert isinstance(refused, _Refused)  # noqa: S101 - it is registered for nothing else
    headers = LIVE | ({"Retry-After": "2"} if refused.status_code == 503 else {})
    content = refused.content.model_dump(mode="json", exclude_unset=True)
    return JSONResponse(content, refused.status_code, headers)


async def _say_what_is_wrong(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - it is registered for nothing else
    found = answers.Failed(unix_seconds=time.time(), error="; ".join(_words(one) for one in error.errors()))
    return JSONResponse(found.model_dump(mode="json", exclude_none=True), 422, LIVE)


def _words(error: dict[str, Any]) -> str:
    """``min: input should be less than or equal to 1, not '2'``."""
    name = ".".join(str(part) for part in error["loc"][1:])
    if error["type"] == "extra_forbidden":
        return f"there is no parameter {name}"
    message = error["msg"][:1].lower() + error["msg"][1:]
    return f"{name}: {message}, not {str(error.get('input'))[:100]!r}"
