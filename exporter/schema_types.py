"""The types settings are made of: a model that refuses unknown keys, and numbers and files with their limits."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Efficiency = Annotated[float, Field(gt=0, le=1)]


def _readable(path: Path) -> Path:
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


ReadableFile = Annotated[Path, AfterValidator(_readable)]


class Strict(BaseModel):
    """A frozen model that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")
