"""Shows the start while it lasts: a bar on a terminal, a line every few seconds otherwise, log records for JSON.

Owned by the process, which calls show() for each news; nothing is printed after close().
"""

import logging
import sys
import time
from collections.abc import Callable
from typing import Final, Literal, TextIO

import msgspec
from rich.console import Console as Rich
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from kvasir_api import names
from kvasir_runtime.server.banner import StartSummary, banner, progress_line
from kvasir_runtime.wire import EngineFacts

LINE_EVERY_S: Final = 5.0

log = logging.getLogger("kvasir.start")


class Console:
    """form: of the log; text goes to stream as it is. clock: monotonic seconds."""

    def __init__(
        self,
        form: Literal["text", "json"],
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._form = form
        self._stream = stream or sys.stderr
        self._clock = clock
        self._said_at = -LINE_EVERY_S
        self._said_phase = ""
        self._bar: Progress | None = None
        if form == "text" and self._stream.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Rich(file=self._stream), transient=True)
            self._task = self._bar.add_task("starting", total=1.0)
            self._bar.start()

    def opened(self, http: str, ops: str) -> None:
        """The ports are open, before the model was looked for; a person need not read that before it was found."""
        if self._form == "json":
            log.info("listening", extra={"http": http, "ops": ops})

    def found(self, http: str, ops: str, *, note: str = "") -> None:
        """The model was found, and the ports are open, long before it is ready. note: a sentence about the model."""
        if self._form == "json":
            if note:
                log.info("note", extra={"note": note})
            return
        if self._bar is not None:
            if note:
                self._bar.console.print(f"note: {note}", highlight=False)
            return
        if note:
            self._say(f"note: {note}")
        self._say(f"listening on {http} for clients, {ops} for control")

    def show(self, phase: str, fraction: float, eta_s: float = -1.0, message: str = "") -> None:
        """News of the start."""
        if self._bar is not None:
            self._bar.update(self._task, description=phase, completed=fraction)
            return
        now = self._clock()
        if phase == self._said_phase and now - self._said_at < LINE_EVERY_S:
            return
        self._said_phase, self._said_at = phase, now
        if self._form == "json":
            log.info("starting", extra={"phase": phase, "progress_fraction": round(fraction, 3), "eta_s": eta_s})
        else:
            self._say(progress_line(phase, fraction, eta_s, message))

    def ready(self, facts: EngineFacts, start: StartSummary) -> None:
        """The banner."""
        self.close()
        if self._form == "json":
            more = {"capacity_tokens": facts.capacity_tokens, "names": start.names, "http": start.http}
            log.info("ready", extra=msgspec.structs.asdict(facts) | more)
        else:
            self._say(banner(facts, start))

    def leaving(self, num_requests: int, timeout_s: float) -> None:
        """The process ends."""
        if self._form == "json":
            log.info("draining", extra={"requests": num_requests, "timeout_s": timeout_s})
        elif num_requests:
            self._say(f"draining: {num_requests} requests, at most {timeout_s:g} s; once more to stop at once")

    def failed(self, message: str) -> int:
        """The one line that says why the process ends; its exit code. What the operator looks for is plain in every
        form of log, as a refusal is."""
        self.close()
        code = next((code for prefix, code in names.EXIT_CODES.items() if message.startswith(prefix)), 1)
        if self._form == "json":
            log.error("failed", extra={"error": message})
        if code != 1:
            self._say(f"{names.REFUSAL_PREFIX}{message}")
        elif self._form != "json":
            self._say(f"kvasir failed: {message}")
        return code

    def refused(self, message: str) -> None:
        """The one line with which model or options are refused. It is plain in every form of log: the operator finds it
        by its prefix at the end of the container's log."""
        self.close()
        if self._form == "json":
            log.error("refused", extra={"error": message})
        self._say(f"{names.REFUSAL_PREFIX}{message}")

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _say(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()
