"""Log lines as logfmt or JSON: time, level, message and the fields given with it."""

import json
import logging
import sys
import time

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _Formatter(logging.Formatter):
    def __init__(self, log_format: str) -> None:
        super().__init__()
        self._json = log_format == "json"

    def format(self, record: logging.LogRecord) -> str:
        milliseconds = int(record.msecs)
        fields: dict[str, object] = {
            "ts": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{milliseconds:03d}Z",
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if self._json:
            return json.dumps(fields, default=str)
        return " ".join(f"{key}={_logfmt(value)}" for key, value in fields.items())


def _logfmt(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not any(char in text for char in ' ="\\') else json.dumps(text)


def set_up(level: str, log_format: str) -> None:
    """Log to standard error; libraries from warnings up, uvicorn from errors up: anybody can send what it warns of."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(log_format))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("exporter").setLevel(_LEVELS[level])
