"""Files that settings name: regular ones of a sensible size. A pipe would be waited for, and a device never ends."""

import errno
from pathlib import Path
from typing import IO, Any

import yaml

MAX_BYTES = 2**20
"""A larger file is a wrong path, such as that of a model, and would not fit a sidecar's memory."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class NotYamlError(ValueError):
    """A text that is no YAML. The message quotes it; ``where`` is a line's number or empty, and does not."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.where = where


def file_version(path: Path | None) -> object:
    """Changes when a file does, in content or in who may read it, also when a link leads to another one.

    Raises:
        OSError: it is not there.
    """
    if path is None:
        return None
    status = path.stat()
    return path, status.st_ino, status.st_ctime_ns, status.st_size


def open_file(path: Path) -> IO[bytes]:
    """A regular file, opened to be read.

    Raises:
        OSError: it cannot be, as ``strerror`` says.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.open("rb")


def read_file(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: it cannot be read or is larger than the limit, as ``strerror`` says.
    """
    with open_file(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", str(path))
    return content


def parse_yaml(text: bytes) -> Any:
    """What a text means as YAML, whatever it does to the reader.

    Raises:
        NotYamlError: it means nothing.
    """
    try:
        return yaml.load(text, _LOADER)  # noqa: S506 - it is the safe one
    except RecursionError:
        raise NotYamlError("it nests too deep") from None
    except (yaml.YAMLError, ValueError) as error:  # bytes that are no text, the 31st of February
        mark = getattr(error, "problem_mark", None)
        raise NotYamlError(" ".join(str(error).split()), f"line {mark.line + 1}" if mark else "") from None
