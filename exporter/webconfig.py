"""The web config file: TLS and users of our own port, with the keys that Prometheus's exporters share."""

import re
import ssl
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from exporter.files import NotYamlError, file_version, open_file, parse_yaml, read_file
from exporter.schema_types import Strict, in_words
from exporter.tls import STRENGTH, problem

MAX_BCRYPT_COST = 14
"""A second of processor time for each attempt; a higher cost would let attempts stop us."""

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}


class BadWebConfigError(ValueError):
    """A web config file that cannot be used, as one line that repeats no secret."""


def _bcrypt(text: str) -> str:
    found = re.fullmatch(r"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}", text)
    if found is None:
        raise ValueError("not a bcrypt hash; make one with: htpasswd -nBC 10 USER")
    if not 4 <= int(found[1]) <= MAX_BCRYPT_COST:
        raise ValueError(f"the cost of the bcrypt hash must lie between 4 and {MAX_BCRYPT_COST}")
    return text


class TlsServer(Strict):
    """``tls_server_config``: what of it Python's OpenSSL can do. Paths are relative to the file."""

    cert_file: Path
    key_file: Path
    client_auth_type: Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] = "NoClientCert"
    client_ca_file: Path | None = None
    min_version: Literal["TLS12", "TLS13"] = "TLS12"
    max_version: Literal["TLS12", "TLS13"] = "TLS13"

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.client_auth_type == "NoClientCert") != (self.client_ca_file is None):
            raise ValueError("client_ca_file and a client_auth_type that verifies go together")
        if self.min_version > self.max_version:
            raise ValueError("min_version is above max_version")
        return self


class WebConfig(Strict):
    """A web config file."""

    tls_server_config: TlsServer | None = None
    basic_auth_users: dict[str, Annotated[str, AfterValidator(_bcrypt)]] = Field({}, max_length=1_000)


class Web:
    """A web config file in force, read again when it or a file it names changes.

    Attributes:
        users: bcrypt hashes by user; empty lets everybody in.
        context: None serves plain HTTP.
        refused: why nothing may be served, as long as the file has never been usable.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: object = None
        self._named: tuple[Path, ...] = ()
        self.users: dict[str, str] = {}
        self.context: ssl.SSLContext | None = None
        self.refused: str | None = None if path is None else "not read yet"

    def use(self, path: Path | None) -> None:
        """Another file is to be read from now on. Where there was none, nothing is served before that is done."""
        if path != self._path:
            if self._path is None:
                self.refused = "not read yet"
            self._path, self._named, self._stamp = path, (), None

    def load(self) -> None:
        """Read the file.

        Raises:
            BadWebConfigError: it cannot be used; what was in force stays so.
        """
        self._stamp = self._now()
        try:
            config = WebConfig() if self._path is None else read_web_config(self._path)
            context = None
            if config.tls_server_config is not None:
                tls = config.tls_server_config
                self._named = tuple(path for path in (tls.cert_file, tls.key_file, tls.client_ca_file) if path)
                self._stamp = self._now()
                context = server_context(tls)
        except BadWebConfigError as error:
            if self.refused is not None:
                self.refused = str(error)
            raise
        self.users, self.context, self.refused = config.basic_auth_users, context, None

    def forget(self) -> None:
        """Take the file for changed, whatever is in it."""
        self._stamp = None

    def changed(self) -> bool:
        """Whether a file is another than when it was last read."""
        return self._now() != self._stamp

    def _now(self) -> list[object]:
        found: list[object] = []
        for path in (self._path, *self._named):  # no path has one version
            try:
                found.append(file_version(path))
            except OSError as error:
                found.append(error.errno)
        return found


def read_web_config(path: Path) -> WebConfig:
    """A web config file, its paths made absolute.

    Raises:
        BadWebConfigError: unreadable, not YAML, an unknown key, or a value that cannot be.
    """
    try:
        content = parse_yaml(read_file(path))
    except OSError as error:
        raise BadWebConfigError(f"cannot read {path}: {error.strerror}") from None
    except NotYamlError as error:
        raise BadWebConfigError(f"{path} is not YAML" + (f": {error.where}" if error.where else "")) from None
    try:
        config = WebConfig.model_validate({} if content is None else content)
    except ValidationError as error:
        raise BadWebConfigError(f"{path}: {in_words(error)}") from None
    if config.tls_server_config is None:
        return config
    tls = config.tls_server_config
    absolute = {
        name: path.parent / value
        for name in ("cert_file", "key_file", "client_ca_file")
        if (value := getattr(tls, name)) is not None
    }
    return config.model_copy(update={"tls_server_config": tls.model_copy(update=absolute)})


def server_context(tls: TlsServer) -> ssl.SSLContext:
    """The context to serve with.

    Raises:
        BadWebConfigError: a file cannot be read or used, or the key is weak.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers(STRENGTH)
    context.minimum_version, context.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
    try:
        for path in (tls.cert_file, tls.key_file):
            open_file(path).close()
        context.load_cert_chain(tls.cert_file, tls.key_file, password="")
    except OSError as error:
        where = getattr(error, "filename", None) or f"{tls.cert_file} with {tls.key_file}"
        raise BadWebConfigError(f"cannot use {where}: {problem(error)}") from None
    if tls.client_ca_file is not None:
        try:
            context.load_verify_locations(tls.client_ca_file)
        except OSError as error:
            raise BadWebConfigError(f"cannot use {tls.client_ca_file}: {problem(error)}") from None
        required = tls.client_auth_type == "RequireAndVerifyClientCert"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context
