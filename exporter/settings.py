"""Where settings come from: flags, then the environment, then a YAML file, then defaults.

The file is read again when it changes; one that turns invalid leaves the last good settings in force.
"""

import os
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from exporter.files import NotYamlError, parse_yaml, read_file
from exporter.schema import Config, merge
from exporter.schema_types import in_words

ENV_PREFIX = "VLLM_SIDECAR_"

_KUBERNETES_SERVICE = re.compile(
    r"(\w+_)?(SERVICE_HOST=.*|SERVICE_PORT(_\w+)?=\d+|PORT(_\d+_(TCP|UDP|SCTP))?=\w+://.*"
    r"|PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=.*)"
)
"""What Kubernetes puts into every pod beside a Service called vllm-sidecar or vllm-sidecar-…: not settings of ours."""


class BadSettingsError(Exception):
    """Settings that cannot be used, as one line."""


class _Environment(Config, BaseSettings):
    """The settings by environment variable; ``__`` goes one level down, as in ``VLLM_SIDECAR_SLO__TTFT_SECONDS``."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix=ENV_PREFIX, env_nested_delimiter="__")


def load(path: Path | None = None, **flags: Any) -> Config:
    """The settings in force.

    Args:
        path: a YAML file, if any.
        flags: settings given on the command line; None is not given.

    Raises:
        BadSettingsError: with one line that names the setting and what is wrong with it.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    _refuse_unknown_environment()
    try:
        environment = EnvSettingsSource(_Environment)()
        return Config.model_validate(merge(merge(_read(path) if path else {}, environment), given))
    except ValidationError as error:
        raise BadSettingsError(in_words(error)) from None
    except SettingsError as error:
        raise BadSettingsError(f"{error}: lists and objects are JSON in the environment") from None
    except RecursionError:  # YAML can refer to what it is part of
        raise BadSettingsError(f"{path} holds itself") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = parse_yaml(read_file(path))
    except OSError as error:
        raise BadSettingsError(f"cannot read {path}: {error.strerror}") from None
    except NotYamlError as error:
        raise BadSettingsError(f"{path} is not YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BadSettingsError(f"{path} must hold settings by name")
    return {str(key): value for key, value in content.items()}


def _refuse_unknown_environment() -> None:
    for name, value in os.environ.items():
        rest = name.removeprefix(ENV_PREFIX)
        if rest == name or _KUBERNETES_SERVICE.fullmatch(f"{rest}={value}"):
            continue
        if rest.split("__")[0].lower() not in Config.model_fields:
            raise BadSettingsError(f"{name}: unknown setting")
