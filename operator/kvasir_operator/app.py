"""Wires the rooms together and runs until a signal or a failure ends it. Called by `__main__`."""

import asyncio
import contextlib
import logging
import os
import socket
import threading
import uuid
from collections.abc import Awaitable, Callable
from typing import Final

from kvasir_api import names, served_names
from kvasir_kube import process
from kvasir_kube.client import Access, Client, access, configuration
from kvasir_kube.rate_limiter import TokenBucket
from kvasir_kube.state_reader import StateReader
from kvasir_operator import handlers
from kvasir_operator.loop.clock import SystemClock
from kvasir_operator.loop.http import health_app, metrics_app, serve
from kvasir_operator.loop.leader import Leader
from kvasir_operator.loop.operator import Operator
from kvasir_operator.loop.watch_events import WatchEvents
from kvasir_operator.loop.watches import Watches
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_operator.options import OperatorOptions

LOG: Final = logging.getLogger("kvasir_operator")
STOP_S: Final = 5.0


async def run(options: OperatorOptions, health_port: socket.socket, metrics_port: socket.socket) -> None:
    """Serve until a signal or a failure, which is raised. The ports listen already."""
    # kopf logs every handler call; only its warnings matter.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    settings = OperatorSettings(
        runtime_image=options.runtime_image,
        runtime_image_cpu=options.runtime_image_cpu,
        model_dirs=options.allow_model_dir,
        reserved_names=served_names.reserved_names(options.reserve_model_name),
        gateway_url=options.gateway_url,
        hub_endpoint=options.hub_endpoint,
        model_cache_dir=options.model_cache_dir,
        model_cache_bytes=options.model_cache_bytes,
        model_prefetch_nodes=options.model_prefetch_nodes,
        model_image_volumes=options.model_image_volumes,
        otlp_traces_endpoint=options.otlp_traces_endpoint,
        system_namespace=options.lease_namespace or names.SYSTEM_NAMESPACE,
        speed_window_s=options.speed_window,
        namespace=options.namespace,
        interval_s=options.interval,
        resync_s=options.resync,
        signs_calls=bool(options.lease_namespace),
        pod_tls=options.pod_tls,
        readings_dir=options.record_readings,
        fleet_max_unavailable=options.fleet_max_unavailable,
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(health_port.close)
        stack.callback(metrics_port.close)
        config = await configuration(options.kubeconfig)
        cluster = await stack.enter_async_context(Client(config))
        reader = await stack.enter_async_context(StateReader())
        host_name, clock = os.environ.get("HOSTNAME", names.OPERATOR), SystemClock()
        leader = _leader(cluster, options, host_name, clock) if options.lease_namespace else None
        parts = Operator(
            cluster,
            reader,
            settings=settings,
            instance=host_name,
            clock=clock,
            leader=leader,
            bucket=TokenBucket(qps=options.kube_api_qps, burst=options.kube_api_burst),
        )
        health = await serve(health_app(live=parts.live, ready=parts.ready), health_port)
        stack.push_async_callback(health.cleanup)
        metrics = await serve(metrics_app(parts.telemetry.text), metrics_port)
        stack.push_async_callback(metrics.cleanup)
        addresses = (*health_port.getsockname()[:2], *metrics_port.getsockname()[:2])
        LOG.info("health on %s:%d, metrics on %s:%d", *addresses)
        await parts.fill()
        process.collect_rarely()
        await _until_ended(parts, namespace=options.namespace, reach=lambda: access(config))


def _leader(cluster: Client, options: OperatorOptions, host_name: str, clock: SystemClock) -> Leader:
    """Of those operators that look at the same namespace, or at all of them."""
    return Leader(
        cluster,
        namespace=options.lease_namespace,
        name=f"{names.OPERATOR}-{options.namespace}" if options.namespace else names.OPERATOR,
        me=f"{host_name}_{uuid.uuid4().hex[:8]}",
        clock=clock,
    )


async def _until_ended(parts: Operator, *, namespace: str, reach: Callable[[], Awaitable[Access]]) -> None:
    """kopf's watches in their thread and our loops here, until a signal; when either ends by itself, so does all."""
    loop, stop = asyncio.get_running_loop(), process.stop_event()
    events = WatchEvents(loop, handlers.store_events(parts.store, parts.workqueue, parts.resync))

    def start(ended: threading.Event) -> None:
        handlers.watch(events.put, namespace=namespace, access=reach, stop=ended)

    watched = Watches(start, parts.resync, parts.telemetry, clock=SystemClock())
    signalled = asyncio.create_task(stop.wait())
    loops, watches = asyncio.create_task(parts.run()), asyncio.create_task(watched.run())
    ended, _ = await asyncio.wait({signalled, loops, watches}, return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    loops.cancel()
    watches.cancel()
    await asyncio.wait({loops, watches}, timeout=STOP_S)
    await parts.release()
    for task in ended - {signalled}:
        task.result()
