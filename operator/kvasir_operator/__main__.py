"""`kvasir operator`: reads the flags, wires the rooms together and runs until a signal or a failure ends it."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp
import click

from kvasir_api import names
from kvasir_kube.client import Access, Client, access, configuration
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import Json, Kind
from kvasir_kube.rate_limiter import TokenBucket
from kvasir_kube.state_reader import StateReader
from kvasir_operator import handlers
from kvasir_operator.loop.clock import SystemClock
from kvasir_operator.loop.http import health_app, metrics_app, serve
from kvasir_operator.loop.leader import Leader
from kvasir_operator.loop.operator import Operator
from kvasir_operator.loop.watches import Watches
from kvasir_operator.observed.settings import RESYNC_S, OperatorSettings

LOG: Final = logging.getLogger("kvasir_operator")
STOP_S: Final = 5.0


@click.command(context_settings={"max_content_width": 110})
@click.option("--namespace", default="", metavar="NAME", help="Serve only this namespace. Default: all.")
@click.option(
    "--gateway-url", default="", metavar="URL", help="Base URL of the gateway, shown in status.address, without /v1."
)
@click.option(
    "--runtime-image",
    default=names.IMAGE_RUNTIME,
    show_default=True,
    metavar="IMAGE",
    help="Image of pods with accelerators.",
)
@click.option(
    "--runtime-image-cpu",
    default=names.IMAGE_RUNTIME_CPU,
    show_default=True,
    metavar="IMAGE",
    help="Image of pods without accelerators.",
)
@click.option(
    "--allow-model-dir",
    multiple=True,
    metavar="DIR",
    help="Directory of the nodes below which file:// models may lie; may be repeated. Default: none.",
)
@click.option(
    "--otlp-traces-endpoint",
    default="",
    metavar="URL",
    help="OTLP collector (HTTP) for requests of services with spec.observability.traceSamplePercent.",
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where both ports listen.")
@click.option("--metrics-port", default=9090, show_default=True, help="Port of /metrics; 0 takes a free one.")
@click.option("--health-port", default=8081, show_default=True, help="Port of /livez and /readyz; 0 takes a free one.")
@click.option(
    "--interval",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0.2, 60.0),
    help="Seconds between two readings of all pods.",
)
@click.option(
    "--speed-window",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0.5, 3600.0),
    help="Seconds of load over which replicas are judged; after two such stretches one may count as slow.",
)
@click.option(
    "--resync",
    default=RESYNC_S,
    show_default=True,
    type=click.FloatRange(0.2, 3600.0),
    help="Seconds between two lists of everything, which find what the watches missed.",
)
@click.option(
    "--kube-api-qps",
    default=200.0,
    show_default=True,
    type=click.FloatRange(1.0, 10_000.0),
    help="Requests to the API server per second in the long run; watches and the Lease do not count.",
)
@click.option(
    "--kube-api-burst",
    default=400,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="Requests to the API server that may be sent at once after a rest.",
)
@click.option(
    "--lease-namespace",
    default="",
    metavar="NAME",
    help="Namespace of the Lease by which one of several operators becomes the leader. Default: no election.",
)
@click.option("--kubeconfig", default="", metavar="FILE", help="Default: $KUBECONFIG, or the pod's service account.")
@click.option("--verbose", is_flag=True, help="Log each reconcile.")
def operator(**options: Any) -> None:
    """Watches InferenceServices and keeps their pods, their number and their status."""
    logging.basicConfig(
        level=logging.DEBUG if options.pop("verbose") else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    # kopf logs every handler call; only its warnings matter.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        asyncio.run(_run(**options))
    except KubeError as error:
        click.echo(f"kvasir: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


async def _run(
    *,
    namespace: str,
    gateway_url: str,
    runtime_image: str,
    runtime_image_cpu: str,
    allow_model_dir: tuple[str, ...],
    otlp_traces_endpoint: str,
    host: str,
    metrics_port: int,
    health_port: int,
    interval: float,
    speed_window: float,
    resync: float,
    kube_api_qps: float,
    kube_api_burst: int,
    lease_namespace: str,
    kubeconfig: str,
) -> None:
    settings = OperatorSettings(
        runtime_image=runtime_image,
        runtime_image_cpu=runtime_image_cpu,
        model_dirs=allow_model_dir,
        gateway_url=gateway_url,
        otlp_traces_endpoint=otlp_traces_endpoint,
        system_namespace=lease_namespace or names.SYSTEM_NAMESPACE,
        speed_window_s=speed_window,
        namespace=namespace,
        interval_s=interval,
        resync_s=resync,
    )
    async with contextlib.AsyncExitStack() as stack:
        config = await configuration(kubeconfig)
        cluster = await stack.enter_async_context(Client(config))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        host_name, clock = os.environ.get("HOSTNAME", names.OPERATOR), SystemClock()
        leader = _leader(cluster, lease_namespace, namespace, host_name, clock) if lease_namespace else None
        parts = Operator(
            cluster,
            StateReader(session),
            settings=settings,
            instance=host_name,
            clock=clock,
            leader=leader,
            bucket=TokenBucket(qps=kube_api_qps, burst=kube_api_burst),
        )
        health, port = await serve(health_app(live=parts.live, ready=parts.ready), host=host, port=health_port)
        stack.push_async_callback(health.cleanup)
        metrics, metrics_at = await serve(metrics_app(parts.telemetry.text), host=host, port=metrics_port)
        stack.push_async_callback(metrics.cleanup)
        LOG.info("health on %s:%d, metrics on %s:%d", host, port, host, metrics_at)
        await parts.fill()
        await _until_ended(parts, namespace=namespace, reach=lambda: access(config))


def _leader(cluster: Client, lease_namespace: str, namespace: str, host_name: str, clock: SystemClock) -> Leader:
    """A candidate among the operators that serve the same namespace, or all of them."""
    return Leader(
        cluster,
        namespace=lease_namespace,
        name=f"{names.OPERATOR}-{namespace}" if namespace else names.OPERATOR,
        me=f"{host_name}_{uuid.uuid4().hex[:8]}",
        clock=clock,
    )


async def _until_ended(parts: Operator, *, namespace: str, reach: Callable[[], Awaitable[Access]]) -> None:
    """kopf's watches in their thread and our loops here, until a signal; when either ends by itself, so does all."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stop.set)
    take = handlers.store_events(parts.store, parts.workqueue, parts.resync)

    def seen(kind: Kind, verb: str, obj: Json) -> None:
        loop.call_soon_threadsafe(take, kind, verb, obj)

    def start(ended: threading.Event) -> None:
        handlers.watch(seen, namespace=namespace, access=reach, stop=ended)

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


if __name__ == "__main__":
    operator()
