"""How a log record becomes a line: a short text for people, or one JSON object with the same fields.

Used by both processes of a pod, so that their lines look alike.
"""

import json
import logging
from datetime import UTC, datetime
from typing import Final

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


def fields(record: logging.LogRecord) -> dict[str, object]:
    """What a call gave with extra=."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, then the fields."""

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
        """The line, or several where there is an exception."""
        clock = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        parts = [clock, record.levelname, record.getMessage(), *(f"{k}={v}" for k, v in fields(record).items())]
        line = " ".join(parts)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
