"""`kvasir serve --profile FILE`: a trace of every step for Perfetto or chrome://tracing, and a table for a person.

A StepProfiler that measures. Events are written as they come, in Chrome's JSON array format, which may end anywhere,
so that the trace of a process that was killed can be read too.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kvasir_runtime.step_profiler import StepProfiler

LOG = logging.getLogger(__name__)
REPORT_S = 10.0
STEPS, PARTS = 1, 2
"""Threads of the trace: what follows one after another, and what the forward pass consists of."""


class ChromeTraceProfiler(StepProfiler):
    """Laps and their totals since the last table. say: takes the table."""

    def __init__(
        self, path: Path, *, clock: Callable[[], float] = time.perf_counter, say: Callable[[str], None] = LOG.info
    ) -> None:
        """Raises OSError when the file cannot be written."""
        self._file = path.open("w", encoding="utf-8")
        self._file.write('[{"name":"thread_name","ph":"M","pid":1,"tid":2,"args":{"name":"inside forward"}}')
        self._clock = clock
        self._say = say
        self._began = self._last = self._reported = clock()
        self._previous = self._last
        self._laps: dict[str, float] = {}
        self._parts: dict[str, float] = {}
        self._num_steps = self._num_tokens = 0

    @property
    def wants_parts(self) -> bool:
        """Always."""
        return True

    def start(self) -> None:
        """Forget the time that passed."""
        self._last = self._clock()

    def lap(self, name: str) -> None:
        """Write it and add it up."""
        now = self._clock()
        self._event(name, STEPS, self._last, now - self._last)
        self._laps[name] = self._laps.get(name, 0.0) + now - self._last
        self._previous, self._last = self._last, now

    def parts(self, weights: Mapping[str, int]) -> None:
        """Shares of the last lap; in the trace one after another, though they took turns."""
        total, at = sum(weights.values()), self._previous
        if not total:
            return
        for name, weight in weights.items():
            took = (self._last - self._previous) * weight / total
            self._event(name, PARTS, at, took)
            self._parts[name] = self._parts.get(name, 0.0) + took
            at += took

    def step(self, num_tokens: int, num_sequences: int) -> None:
        """Count it; every REPORT_S seconds the table."""
        self._num_steps += 1
        self._num_tokens += num_tokens
        values = {"tokens": num_tokens, "sequences": num_sequences}
        self._write({"name": "step", "ph": "C", "pid": 1, "ts": self._stamp(self._last), "args": values})
        if self._last - self._reported >= REPORT_S:
            self._report()

    def close(self) -> None:
        """The last table, and the end of the file."""
        self._report()
        self._file.write("\n]\n")
        self._file.close()

    def table(self) -> str:
        """Milliseconds a step since the last table, and shares of all; what forward consists of is indented."""
        total, steps = sum(self._laps.values()), max(self._num_steps, 1)
        lines = [
            f"{self._num_steps} steps, {self._num_tokens / steps:.1f} tokens and {1000 * total / steps:.3f} ms each"
        ]
        rows = [(name, took) for name, took in self._laps.items()]
        place = next((index for index, (name, _) in enumerate(rows) if name == "forward"), len(rows) - 1)
        rows[place + 1 : place + 1] = [(f"  {name}", took) for name, took in self._parts.items()]
        for name, took in rows:
            lines.append(f"{name:<16}{1000 * took / steps:9.3f} ms {100 * took / (total or 1):6.1f} %")
        return "\n".join(lines)

    def _report(self) -> None:
        if self._num_steps:
            self._say(self.table())
        self._laps, self._parts = {}, {}
        self._num_steps = self._num_tokens = 0
        self._reported = self._last
        self._file.flush()

    def _event(self, name: str, thread: int, start: float, took: float) -> None:
        event = {"name": name, "ph": "X", "pid": 1, "tid": thread, "ts": self._stamp(start)}
        self._write({**event, "dur": round(took * 1e6, 3)})

    def _write(self, event: Mapping[str, object]) -> None:
        self._file.write(",\n" + json.dumps(event, separators=(",", ":")))

    def _stamp(self, at: float) -> float:
        """Microseconds since it began, as the format requires."""
        return round((at - self._began) * 1e6, 3)
