"""The whole operator on a fake cluster and a fake clock, and what surrounds it; the test turns it round by round."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from fakes.manifests import pod, service
from fakes.readings import FakeReader
from fakes.virtual_loop import LoopClock
from kvasir_api import names
from kvasir_api.state import KvState, RuntimeState
from kvasir_kube.kinds import DEPLOYMENT, EVENT, INFERENCE_SERVICE, POD
from kvasir_operator.handlers import store_events
from kvasir_operator.loop.operator import Operator
from kvasir_operator.loop.resync import WATCHED
from kvasir_operator.observed.settings import OperatorSettings

KEY = ("default", "tiny")
FILE = {"model": {"uri": "file:///srv/tiny"}}


class Bench:
    """An operator, and what surrounds it. Pods are put in by the test, since nobody runs them here."""

    def __init__(self) -> None:
        self.cluster, self.reader, self.clock = FakeCluster(), FakeReader(), FakeClock()
        self.operator = self.started()

    def started(self, **settings: Any) -> Operator:
        return Operator(
            self.cluster,
            self.reader,  # type: ignore[arg-type]  # what the operator asks of one
            settings=OperatorSettings(model_dirs=("/srv",), gateway_url="http://gw", **settings),
            instance="test",
            clock=self.clock,
        )

    async def turn(self, seconds: float = 2.0) -> None:
        """Let the watches catch up, tick, and reconcile everything once."""
        self.clock.advance(seconds)
        await self.operator.resync.once()
        await self.operator.scaler.tick()
        for found in list(self.cluster.objects.get(INFERENCE_SERVICE.plural, {})):
            await self.operator.reconciler.reconcile(found)

    async def put_service(self, **spec: Any) -> None:
        given = {**FILE, **spec}
        old = self.cluster.objects.get(INFERENCE_SERVICE.plural, {}).get(KEY)
        obj = service(**given)
        if old:
            obj = {**old, "spec": obj["spec"]}
        await self.cluster.put(INFERENCE_SERVICE, obj)

    async def restarted(self) -> list[tuple[str, str]]:
        """What another operator writes that takes over from this one."""
        self.writes()
        self.operator = self.started()
        await self.turn()
        await self.turn()
        return self.writes()

    async def put_pods(self, count: int, *, ready: bool = True, **says: Any) -> None:
        """Pods of the current revision, each saying what is given."""
        (workload,) = self.cluster.objects[DEPLOYMENT.plural].values()
        revision = workload["metadata"]["labels"][names.LABEL_REVISION]
        for number in range(count):
            ip = f"10.0.0.{number + 1}"
            await self.cluster.put(POD, pod(f"p{number}", revision=revision, ready=ready, ip=ip))
            self.say(number, **says)

    def say(self, number: int, *, pinned: int = 0, **fields: Any) -> None:
        kv = KvState(capacity_tokens=1000, pinned_tokens=pinned)
        self.reader.says[f"http://10.0.0.{number + 1}:8001"] = RuntimeState(**{"phase": "ready", "kv": kv, **fields})

    def status(self) -> Any:
        return self.cluster.stored(INFERENCE_SERVICE, *KEY)["status"]

    def reason(self) -> Any:
        return next(c["reason"] for c in self.status()["conditions"] if c["type"] == "Ready")

    def replicas(self) -> list[int]:
        return [d["spec"]["replicas"] for d in self.cluster.objects[DEPLOYMENT.plural].values()]

    def events(self, reason: str | None = None) -> list[str]:
        found = list(self.cluster.objects.get(EVENT.plural, {}).values())
        return [e["note"] for e in found if reason in (None, e["reason"])]

    def writes(self) -> list[tuple[str, str]]:
        written, self.cluster.writes = self.cluster.writes, []
        return [(verb, plural) for verb, plural, _ in written]


class LoopBench(Bench):
    """Every loop of the operator in the time of a virtual loop, but the watches, whose part the test plays."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__()
        self.clock = LoopClock(asyncio.get_running_loop())  # type: ignore[assignment]  # it cannot be moved by hand
        self.cluster = cluster
        self.operator = self.started()
        self.hear = store_events(self.operator.store, self.operator.workqueue, self.operator.resync)

    def watch(self) -> None:
        """Watches begin, and deliver everything as a list."""
        self.operator.resync.began()
        for kind, _ in WATCHED:
            for obj in self.cluster.objects.get(kind.plural, {}).values():
                self.hear(kind, "", obj)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """The operator has listed everything, and runs until the context ends."""
        await self.operator.fill()
        task = asyncio.create_task(self.operator.run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
