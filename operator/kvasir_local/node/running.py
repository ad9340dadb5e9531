"""One running container with its probes, its stop and its end. The worker looks at the fields; `changed` only wakes it.

Nothing here restarts anything: what an end or a failed probe means for the pod is decided in `rules/lifecycle.py`.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from kvasir_local.node import probing
from kvasir_local.node.container import Container
from kvasir_local.node.rules import probe
from kvasir_local.node.rules.probe import Hook, Probe, Role

NODE_STOP_S: Final = 3.0
HOOK_EXTRA_S: Final = 2.0
"""What SIGTERM gets at least after a preStop hook has used up the grace period, as in the kubelet."""


class Say(Protocol):
    """Notes an event about the container."""

    def __call__(self, reason: str, message: str, *, warning: bool = False) -> None: ...


class RunningContainer:
    """started, ready: what the probes say; exit_code: None while it runs."""

    def __init__(
        self,
        name: str,
        container: Container,
        *,
        probes: Mapping[Role, Probe],
        hook: Hook | None,
        pod_ip: str,
        grace_s: float,
        say: Say,
        changed: Callable[[], None],
    ) -> None:
        self.started, self.ready = Role.STARTUP not in probes, not {Role.STARTUP, Role.READINESS} & probes.keys()
        self.exit_code: int | None = None
        self.finished_at = 0.0
        self._name, self._container, self._probes, self._hook = name, container, probes, hook
        self._pod_ip, self._grace_s, self._say, self._changed = pod_ip, grace_s, say, changed
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
            self._say("Killing", why or f"Stopping container {self._name}")
            self._tasks.append(asyncio.create_task(self._wind_down()))
        elif deadline < self._deadline:
            self._deadline = deadline
            self._shortened.set()

    async def end(self) -> None:
        """The node itself stops: a short while for the program to end, then everything is killed."""
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

    async def _run_hook(self, hook: Hook) -> None:
        done = await probing.check(hook, pod_ip=self._pod_ip, container=self._container, timeout_s=self._left_s())
        if not done.passed:
            self._say("FailedPreStopHook", f"preStop hook failed: {done.message}", warning=True)

    async def _in_time(self, work: asyncio.Task[None] | None) -> None:
        """Wait until the work is done, the container has ended, or the deadline, which may move, has come."""
        try:
            while self._left_s() > 0 and self.exit_code is None and not (work and work.done()):
                self._shortened.clear()
                bell = asyncio.create_task(self._shortened.wait())
                waited = {bell, self._tasks[0]} | ({work} if work else set())
                await asyncio.wait(waited, timeout=self._left_s(), return_when=asyncio.FIRST_COMPLETED)
                bell.cancel()
        finally:
            if work:
                work.cancel()

    def _left_s(self) -> float:
        return (self._deadline or 0.0) - time.time()

    async def _probe(self, wanted: Probe) -> None:
        if wanted.role is not Role.STARTUP:
            await self._has_started.wait()
        await asyncio.sleep(wanted.initial_delay_s)
        tally = probe.initial(wanted.role)
        while True:
            found = await probing.check(
                wanted.check, pod_ip=self._pod_ip, container=self._container, timeout_s=wanted.timeout_s
            )
            if self._deadline is not None and wanted.role is not Role.READINESS:
                return  # a container that is being stopped is not judged any more
            tally = probe.count(wanted, tally, found.passed)
            if not found.passed:
                self._say("Unhealthy", f"{wanted.role.capitalize()} probe failed: {found.message}", warning=True)
            self._take(wanted, tally)
            if probe.failed(wanted, tally):
                grace_s = self._grace_s if wanted.grace_s is None else wanted.grace_s
                why = f"Container {self._name} failed {wanted.role} probe, will be restarted"
                self.stop(time.time() + grace_s, why)
                return
            if wanted.role is Role.STARTUP and tally.verdict:
                return
            await asyncio.sleep(wanted.period_s)

    def _take(self, wanted: Probe, tally: probe.Tally) -> None:
        if wanted.role is Role.STARTUP and tally.verdict and not self.started:
            self.started = True
            self.ready = Role.READINESS not in self._probes
            self._has_started.set()
            self._changed()
        elif wanted.role is Role.READINESS and tally.verdict is not self.ready:
            self.ready = tally.verdict
            self._changed()
