"""The operator without kopf: all parts wired, their loops, and whether they are well. Tests run it on a fake
cluster."""

import asyncio
import logging
import random
from typing import Final

from kvasir_kube import gateway_pods
from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import KubeError
from kvasir_kube.informer import Informer
from kvasir_kube.kinds import INFERENCE_SERVICE, POD, Key, key
from kvasir_kube.rate_limiter import RateLimitedCluster, TokenBucket
from kvasir_kube.state_reader import StateReader
from kvasir_operator.loop.clock import Clock
from kvasir_operator.loop.event_emitter import EventEmitter
from kvasir_operator.loop.inspector import Inspector
from kvasir_operator.loop.introducer import Introducer
from kvasir_operator.loop.leader import FencedCluster, Leader, LeaseLostError
from kvasir_operator.loop.model_fetcher import ModelFetcher, ModelPods
from kvasir_operator.loop.node_keys import NodeKeys
from kvasir_operator.loop.observer import Observer
from kvasir_operator.loop.ops_calls import OpsCalls
from kvasir_operator.loop.pod_certificates import PodCertificates
from kvasir_operator.loop.pod_secrets import PodSecrets
from kvasir_operator.loop.reconciler import Reconciler
from kvasir_operator.loop.recorder import Recorder
from kvasir_operator.loop.resync import Resync
from kvasir_operator.loop.route_reporter import RouteReporter
from kvasir_operator.loop.scaler import Scaler
from kvasir_operator.loop.scraper import Scraper
from kvasir_operator.loop.signing_secret import SigningSecret
from kvasir_operator.loop.status_reporter import StatusReporter
from kvasir_operator.loop.store import Store
from kvasir_operator.loop.telemetry import Telemetry
from kvasir_operator.loop.tenant_publisher import TenantPublisher
from kvasir_operator.loop.workqueue import Workqueue
from kvasir_operator.loop.writer import Writer
from kvasir_operator.observed.settings import OperatorSettings

LOG: Final = logging.getLogger(__name__)
STUCK_S: Final = 300.0
"""A key that was due so long ago means that the workers are stuck."""
TICK_LATE_S: Final = 60.0
STALE_WATCH_LONG_S: Final = 180.0
"""A watch that is stale for so long was not cured by starting it again."""
UNLISTED_S: Final = 300.0
LAST_FILL_PAUSE_S: Final = 20.0


class Operator:
    """Everything that runs in the operator's process besides the watches."""

    def __init__(
        self,
        cluster: Cluster,
        reader: StateReader,
        *,
        settings: OperatorSettings,
        instance: str,
        clock: Clock,
        leader: Leader | None = None,
        bucket: TokenBucket | None = None,
    ) -> None:
        """leader: the election of several operators; without it this one acts at once. bucket: limits requests."""
        cluster = FencedCluster(cluster, leader) if leader else cluster
        # The fence is behind the bucket: a Lease may be lost while a write waits for its turn.
        cluster = RateLimitedCluster(cluster, bucket) if bucket else cluster
        self._leader, self._acting = leader, leader is None
        self.store, self.telemetry = Store(settings.reserved_names), Telemetry()
        self.workqueue = Workqueue(clock.steady)
        self.resync = Resync(
            cluster, self.store, self.workqueue, namespace=settings.namespace, clock=clock, interval_s=settings.resync_s
        )
        recorder = Recorder(cluster, instance=instance, clock=clock)
        keys = SigningSecret(cluster, namespace=settings.system_namespace, clock=clock)
        self._signing = keys if settings.signs_calls else None
        self._tenants = TenantPublisher(cluster, settings, clock)
        self._certificates = PodCertificates(
            cluster, self.store, reader.tls, home=settings.system_namespace, clock=clock
        )
        calls = OpsCalls(reader, self._signing)
        self._gateways, scraper = _scraper(cluster, self.store, reader, settings, clock)
        self._introducer = Introducer(calls)
        self._routes = RouteReporter(cluster, self.store, namespace=settings.namespace, clock=clock)
        self.scaler = Scaler(
            self.store,
            scraper,
            self._introducer,
            self.workqueue,
            recorder,
            self.telemetry,
            settings=settings,
            clock=clock,
        )
        self.reconciler = self._reconciler(cluster, calls, scraper, recorder, settings=settings, clock=clock)
        self._clock, self._unlisted_s = clock, max(UNLISTED_S, 3 * settings.resync_s)
        self.telemetry.listed(self.resync.age_s)

    async def fill(self) -> None:
        """List everything before anything is decided: what is not known yet must not look as if it were not there.

        An API server that is away, a kind or a right that is missing are waited for: a restart would cure none of them.
        """
        pause = 1.0
        while True:
            try:
                await self.resync.once()
            except KubeError as error:
                LOG.warning("not everything can be listed yet: %s", error)
                await asyncio.sleep(max(error.retry_after_s, pause) * random.uniform(0.8, 1.2))
                pause = min(2 * pause, LAST_FILL_PAUSE_S)
            else:
                return

    async def run(self) -> None:
        """Reconcile, listen and compare until cancelled, once this operator leads. Raises LeaseLostError."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.resync.run())
                if self._gateways:
                    group.create_task(self._gateways.run())
                if self._leader:
                    await self._leader.acquire()
                    group.create_task(self._lead(self._leader))
                if self._signing:
                    group.create_task(self._signing.run(self._mark_all))
                    group.create_task(self._tenants.run())
                    await self._certificates.prepare()  # else the first scrape reads no pod that speaks TLS
                    group.create_task(self._certificates.run())
                self._acting = True
                self.telemetry.leading(True)
                await self.scaler.tick()
                group.create_task(self.workqueue.run(self._reconcile))
                group.create_task(self.scaler.run())
                group.create_task(self._introducer.run())
                group.create_task(self._routes.run())
        except* LeaseLostError as lost:
            raise lost.exceptions[0] from None

    def _reconciler(
        self,
        cluster: Cluster,
        calls: OpsCalls,
        scraper: Scraper,
        recorder: Recorder,
        *,
        settings: OperatorSettings,
        clock: Clock,
    ) -> Reconciler:
        writer = Writer(
            cluster,
            self.store,
            calls,
            recorder,
            self.telemetry,
            PodSecrets(self._certificates, NodeKeys(cluster, self.store, clock=clock)),
            workqueue=self.workqueue,
            clock=clock,
        )
        reporter = StatusReporter(
            writer,
            EventEmitter(recorder),
            self.scaler,
            self.workqueue,
            self.telemetry,
            gateway_url=settings.gateway_url,
            clock=clock,
        )
        return Reconciler(
            Observer(cluster, self.store, scraper, clock=clock),
            self.scaler,
            ModelPods(
                inspector=Inspector(
                    cluster, self.store, recorder, self.telemetry, self.workqueue, settings=settings, clock=clock
                ),
                fetcher=ModelFetcher(cluster, self.store, self.telemetry),
            ),
            writer,
            reporter,
            self.workqueue,
            settings=settings,
            clock=clock,
        )

    def _mark_all(self) -> None:
        """Every service is to be looked at: pods are to trust other keys."""
        for service in self.store.all(INFERENCE_SERVICE):
            self.workqueue.mark(key(service))

    async def _reconcile(self, name: Key) -> None:
        started = self._clock.steady()
        try:
            await self.reconciler.reconcile(name)
        except BaseException:
            self.telemetry.reconciled("error", self._clock.steady() - started)
            raise
        self.telemetry.reconciled("ok", self._clock.steady() - started)

    async def release(self) -> None:
        """Give the Lease back. To be called when `run` has ended."""
        if self._leader:
            await self._leader.release()

    async def _lead(self, leader: Leader) -> None:
        await leader.keep()
        self.telemetry.leading(False)
        raise LeaseLostError("this operator does not lead any more")

    def live(self) -> str:
        """Why this process should be restarted; empty when it is well."""
        if not self.resync.synced:
            return ""
        if missed := self.resync.stale_watches(after_s=STALE_WATCH_LONG_S):
            return f"stale watch: it has not delivered {missed}"
        if not self._acting:
            return ""
        if (oldest := self.workqueue.oldest_s()) > STUCK_S:
            return f"a service has waited {oldest:.0f} s for its reconcile"
        if (late := self._clock.steady() - self.scaler.ticked_at) > TICK_LATE_S:
            return f"the last reading of all pods ended {late:.0f} s ago"
        return ""

    def ready(self) -> str:
        """Why it does not act yet."""
        if not self.resync.synced:
            return "the first list is not complete"
        age_s = self.resync.age_s()
        return f"not everything could be listed for {age_s:.0f} s" if age_s > self._unlisted_s else ""


def _scraper(
    cluster: Cluster, store: Store, reader: StateReader, settings: OperatorSettings, clock: Clock
) -> tuple[Informer | None, Scraper]:
    """With what follows the gateways' pods, where these run in another namespace than the one that is watched."""
    elsewhere, namespace = None, settings.system_namespace
    if settings.namespace not in ("", namespace):
        elsewhere = Informer(cluster, POD, namespace=namespace, selector=gateway_pods.SELECTOR)
    pods = elsewhere.objects if elsewhere else None
    return elsewhere, Scraper(store, reader, clock=clock, system_namespace=namespace, elsewhere=pods)
