"""The phase of the process between its start and its end, its progress, and whether it accepts requests; and what the
signals mean that end it.

A Lifecycle is written by the process (start, signals) and the drain endpoint, and read by probes, /state and admission.
It holds no socket and no clock of its own.
"""

import asyncio
import contextlib
import logging
import math
import signal
from collections.abc import Callable
from typing import Final

from kvasir_api import openai_errors
from kvasir_api.openai_errors import ApiError
from kvasir_api.state import Phase

log = logging.getLogger(__name__)
STRAGGLER_S: Final = 5.0
"""A gateway or a Service may choose a pod for some seconds after it began to drain or to end; it serves meanwhile."""
RETRY_LOADING_S: Final = 5.0
OUTLIVES_S: Final = 15.0
"""So much longer than node 0 may drain a node behind it stays: that drain begins when the operator sees it leave."""


class Lifecycle:
    """clock: monotonic seconds. fraction, eta_s and message describe the start while it lasts, message and
    failure_reason a start that failed. computes: it is a node behind the first, and computes for node 0.
    missing_nodes: for which node 0 waits."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started: Phase = "starting"
        self._drained_at: float | None = None
        self._start_ended = asyncio.Event()
        self.leaving = False
        self.failed = False
        self.computes = False
        self.missing_nodes: tuple[int, ...] = ()
        self.fraction = 0.0
        self.eta_s = -1.0
        self.message = ""
        self.failure_reason = ""
        self.download_bytes = 0
        self.downloaded_bytes = 0

    @property
    def phase(self) -> Phase:
        """As /state reports it. A replica whose engine is dead is never ready: it ends."""
        if self._started == "ready" and (self.leaving or self.failed or self._drained_at is not None):
            return "draining"
        return self._started

    @property
    def ready(self) -> bool:
        """Whether it is neither starting nor ending."""
        return self.phase == "ready"

    @property
    def start_is_over(self) -> bool:
        """Whether it serves, computes for node 0, or has done so."""
        return self._started == "ready" or self.computes

    def advance(
        self,
        phase: Phase,
        fraction: float = 0.0,
        eta_s: float = -1.0,
        message: str = "",
        *,
        computes: bool = False,
        missing_nodes: tuple[int, ...] = (),
    ) -> None:
        """A step of the start."""
        self._started, self.fraction, self.eta_s, self.message = phase, fraction, eta_s, message
        self.computes, self.missing_nodes = computes, missing_nodes
        if self.start_is_over:
            self._start_ended.set()

    def download(self, done_bytes: int, total_bytes: int, message: str) -> None:
        """What of the model's files is there. Too late once the start went on: a thread reports them."""
        self.download_bytes, self.downloaded_bytes = total_bytes, done_bytes
        if self._started == "starting":
            self.advance("starting", done_bytes / total_bytes if total_bytes else 1.0, message=message)

    def fail_start(self, message: str, reason: str) -> None:
        """The start failed. reason: the one word of `names.REASONS` for it, empty where there is none."""
        self.message, self.failure_reason, self.failed = message, reason, True

    def fail(self) -> None:
        """The engine is dead: the process ends."""
        self.failed = True

    def abandon_start(self) -> None:
        """The process ends, whether it was ready or not: nothing waits for its start any longer."""
        self._start_ended.set()

    async def until_started(self, timeout_s: float) -> None:
        """Wait until the start is over, for at most so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._start_ended.wait(), timeout_s)

    def drain(self) -> None:
        """Drain, on request of the control plane; undrain() reverts it."""
        if self._drained_at is None:
            self._drained_at = self._clock()

    def undrain(self) -> bool:
        """Serve again. False when the process ends, which cannot be reverted."""
        if not self.leaving:
            self._drained_at = None
        return not self.leaving

    def leave(self, *, stragglers: bool) -> None:
        """The process ends. stragglers: requests come through a gateway or a Service, which learns of the end late."""
        self.leaving = True
        if stragglers:
            self.drain()
        else:
            self._drained_at = -math.inf

    def straggling_s(self) -> float:
        """Seconds for which a draining process still accepts requests; 0 where it does not drain."""
        if self._drained_at is None:
            return 0.0
        return max(0.0, self._drained_at + STRAGGLER_S - self._clock())

    def refusal(self) -> ApiError | None:
        """The error for a new request; None where it is accepted."""
        if self.failed:
            return openai_errors.unavailable(
                "The engine has stopped.", retry_after_s=RETRY_LOADING_S, code=openai_errors.ENGINE_FAILED
            )
        if self._started != "ready":
            wait_s = self.eta_s if self.eta_s > 0 else RETRY_LOADING_S
            detail = f"{self._started}, {self.fraction:.0%} done"
            return openai_errors.unavailable(
                f"The model is not ready yet ({detail}).", retry_after_s=min(wait_s, 60.0), code="model_loading"
            )
        if self._drained_at is not None and not self.straggling_s():
            return openai_errors.draining()
        return None


class EndSignals:
    """leave: set when the process is to finish what runs and end. stop: set when it is to end at once.

    The first signal drains, the second stops. A node behind the first has no requests of its own to finish: it computes
    for those of node 0, so it goes on until node 0 has ended, and a further signal ends it. drain_timeout_s: for how
    long node 0 may drain.
    """

    def __init__(self, lifecycle: Lifecycle, drain_timeout_s: float) -> None:
        self.leave, self.stop = asyncio.Event(), asyncio.Event()
        self._lifecycle, self._limit_s = lifecycle, drain_timeout_s + OUTLIVES_S
        self._outlives = False

    def catch(self) -> None:
        """Take the signals from now on; to be called in the event loop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.take)

    def take(self) -> None:
        """One signal has come."""
        if self.leave.is_set():
            self.stop.set()
        elif self._lifecycle.computes and not self._outlives:
            self._outlives = True
            log.info("this node ends with node 0, or after %g s", self._limit_s)
            asyncio.get_running_loop().call_later(self._limit_s, self.leave.set)
        else:
            self.leave.set()
