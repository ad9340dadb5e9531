"""The clocks of the shell, so that tests can bring their own."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """steady(): seconds that never jump, for windows and pauses. wall(): epoch seconds, for what others read."""

    def steady(self) -> float:
        """Monotonic seconds."""
        ...

    def wall(self) -> float:
        """Epoch seconds."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def steady(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Epoch seconds."""
        return time.time()


def rfc3339(epoch_s: float) -> str:
    """Whole seconds in UTC, as Kubernetes writes times."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(epoch_s: float) -> str:
    """With microseconds, as events require it."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
