"""One running container with its probes, its stop and its end. The worker reads the fields after a call of `changed`.

It restarts nothing: `rules/pod_actions.py` decides what an end or a failed probe means for the pod.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from kvasir_local.node import prober
from kvasir_local.node.container import Container
from kvasir_local.node.rules import probe
from kvasir_local.node.rules.probe import LifecycleHandler, Probe, ProbeType

NODE_STOP_S: Final = 3.0
HOOK_EXTRA_S: Final = 2.0
"""Least time after SIGTERM when a preStop hook has used up the grace period, as in the kubelet."""


class RecordEvent(Protocol):
    """Records an event about the container."""

    def __call__(self, reason: str, message: str, *, warning: bool = False) -> None: ...


class RunningContainer:
    """started, ready: results of the probes; exit_code: None while it runs."""

    def __init__(
        self,
        name: str,
        container: Container,
        *,
        probes: Mapping[ProbeType, Probe],
        hook: LifecycleHandler | None,
        pod_ip: str,
        grace_s: float,
        record_event: RecordEvent,
        changed: Callable[[], None],
    ) -> None:
        self.started, self.ready = (
            ProbeType.STARTUP not in probes,
            not {ProbeType.STARTUP, ProbeType.READINESS} & probes.keys(),
        )
        self.exit_code: int | None = None
        self.finished_at = 0.0
        self._name, self._container, self._probes, self._hook = name, container, probes, hook
        self._pod_ip, self._grace_s, self._record_event, self._changed = pod_ip, grace_s, record_event, changed
        self._deadline: float | None = None
        self._shortened, self._has_started = asyncio.Event(), asyncio.Event()
        if self.started:
            self._has_started.set()
        self._tasks = [asyncio.create_task(self._watch())]
        self._tasks += [asyncio.create_task(self._probe(item)) for item in probes.values()]

    def stop(self, deadline: float, why: str) -> None:
        """Stop: preStop, SIGTERM, and SIGKILL at the deadline (epoch). Again with an earlier deadline to hurry."""
        if self._deadline is None:
            self._deadline = deadline
            self._record_event("Killing", why or f"Stopping container {self._name}")
            self._tasks.append(asyncio.create_task(self._wind_down()))
        elif deadline < self._deadline:
            self._deadline = deadline
            self._shortened.set()

    async def end(self) -> None:
        """The node stops: the program gets a short time to end, then everything is killed."""
        self._container.terminate()
        await asyncio.wait({self._tasks[0]}, timeout=NODE_STOP_S)
        self._container.kill()
        await self._tasks[0]
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self) -> None:
        code = await self._container.wait()
        self.finished_at = time.time()
        self.exit_code, self.ready = code, False
        for task in self._tasks[1:]:
            task.cancel()
        self._changed()

    async def _wind_down(self) -> None:
        if self._hook and self._left_s() > 0:
            await self._in_time(asyncio.create_task(self._run_hook(self._hook)))
            self._deadline = max(self._deadline or 0.0, time.time() + HOOK_EXTRA_S)
        if self._left_s() > 0:
            self._container.terminate()
            await self._in_time(None)
        self._container.kill()

    async def _run_hook(self, hook: LifecycleHandler) -> None:
        done = await prober.run_check(hook, pod_ip=self._pod_ip, container=self._container, timeout_s=self._left_s())
        if not done.passed:
            self._record_event("FailedPreStopHook", f"preStop hook failed: {done.message}", warning=True)

    async def _in_time(self, work: asyncio.Task[None] | None) -> None:
        """Wait until the work is done, the container has ended, or the deadline, which may move, has come."""
        try:
            while self._left_s() > 0 and self.exit_code is None and not (work and work.done()):
                self._shortened.clear()
                shortened = asyncio.create_task(self._shortened.wait())
                waited = {shortened, self._tasks[0]} | ({work} if work else set())
                await asyncio.wait(waited, timeout=self._left_s(), return_when=asyncio.FIRST_COMPLETED)
                shortened.cancel()
        finally:
            if work:
                work.cancel()

    def _left_s(self) -> float:
        return (self._deadline or 0.0) - time.time()

    async def _probe(self, wanted: Probe) -> None:
        if wanted.role is not ProbeType.STARTUP:
            await self._has_started.wait()
        await asyncio.sleep(wanted.initial_delay_s)
        tally = probe.initial(wanted.role)
        while True:
            found = await prober.run_check(
                wanted.check, pod_ip=self._pod_ip, container=self._container, timeout_s=wanted.timeout_s
            )
            if self._deadline is not None and wanted.role is not ProbeType.READINESS:
                return  # a container that is being stopped is no longer probed
            tally = probe.count(wanted, tally, found.passed)
            if not found.passed:
                self._record_event(
                    "Unhealthy", f"{wanted.role.capitalize()} probe failed: {found.message}", warning=True
                )
            self._apply(wanted, tally)
            if probe.failed(wanted, tally):
                grace_s = self._grace_s if wanted.grace_s is None else wanted.grace_s
                why = f"Container {self._name} failed {wanted.role} probe, will be restarted"
                self.stop(time.time() + grace_s, why)
                return
            if wanted.role is ProbeType.STARTUP and tally.passing:
                return
            await asyncio.sleep(wanted.period_s)

    def _apply(self, wanted: Probe, tally: probe.ProbeTally) -> None:
        if wanted.role is ProbeType.STARTUP and tally.passing and not self.started:
            self.started = True
            self.ready = ProbeType.READINESS not in self._probes
            self._has_started.set()
            self._changed()
        elif wanted.role is ProbeType.READINESS and tally.passing is not self.ready:
            self.ready = tally.passing
            self._changed()
