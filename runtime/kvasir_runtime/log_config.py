"""Configures the log lines of both processes of a pod, on standard error, as text or as one JSON object per line.

Called once by each process. Log records hold facts about requests and phases, never prompts, answers or keys.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


def configure(form: Literal["text", "json"], stream: TextIO | None = None) -> None:
    """Send all log records to one stream (standard error). Libraries for HTTP log warnings only."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # the middleware logs failures with the request's id
    logging.getLogger("httpx").setLevel(logging.WARNING)


def fields(record: logging.LogRecord) -> dict[str, object]:
    """What a call gave with extra=."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """One object per line: time, level, logger, message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields(record),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Time, level, message, then the fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, or several with an exception."""
        clock = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        parts = [clock, record.levelname, record.getMessage(), *(f"{k}={v}" for k, v in fields(record).items())]
        line = " ".join(parts)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
