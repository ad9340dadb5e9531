"""`kvasir demo`: the whole product on this machine, from nothing to a service that scales, in one command."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Final

import click
from openai import AsyncOpenAI
from rich.console import Console

from kvasir_kube.client import Client, configuration
from kvasir_kube.errors import KubeError
from kvasir_kube.state_reader import StateReader
from kvasir_local import install, stack
from kvasir_local.cluster_state import ClusterHealth
from kvasir_local.control_plane import ControlPlane
from kvasir_local.demo import scenario
from kvasir_local.demo.load import LoadGenerator
from kvasir_local.demo.table import Screen
from kvasir_local.demo.view import ServiceView
from kvasir_local.errors import LocalClusterError
from kvasir_local.progress import TerminalProgress

ROOT: Final = Path(__file__).parents[3]
SAMPLE: Final = ROOT / "manifests" / "samples" / "tiny.yaml"
NAMESPACE: Final = "default"


@click.command()
@click.option("--load-seconds", default=60.0, show_default=True, help="How long the load lasts.")
@click.option("--streams", default=32, show_default=True, help="Streams that the load keeps open at once.")
@click.option(
    "--state-dir",
    default=".kvasir",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where the local cluster keeps its state.",
)
def demo(load_seconds: float, streams: int, state_dir: Path) -> None:
    """Start a local cluster, serve a tiny model, stream an answer, and watch a load scale it up and down."""
    console = Console()
    started = time.monotonic()
    before = ControlPlane(state_dir=state_dir).diagnose().health
    try:
        options = stack.ClusterOptions(manifests=install.find_manifests())
        cluster = stack.up(state_dir, options, progress=TerminalProgress())
        console.print(f"[green]✓[/] local cluster, operator and gateway run ({time.monotonic() - started:.0f} s)")
        plan = scenario.DemoPlan(load_s=load_seconds, streams=streams)
        asyncio.run(_walk(str(cluster.kubeconfig), console, plan, started))
    except (scenario.DemoError, LocalClusterError, KubeError) as error:
        console.print(f"[red]✗[/] {error}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("\n[yellow]interrupted[/]")
        if before in {
            ClusterHealth.NOTHING,
            ClusterHealth.STALE,
        }:  # a stack that ran before this command goes on running
            ControlPlane(state_dir=state_dir, progress=TerminalProgress()).stop()
        sys.exit(130)
    _next_steps(console, cluster)


async def _walk(kubeconfig: str, console: Console, plan: scenario.DemoPlan, started: float) -> None:
    async with Client(await configuration(kubeconfig)) as cluster, StateReader() as reader:
        await scenario.put_model(cluster, SAMPLE, namespace=NAMESPACE, deadline_s=plan.bound_s)
        name = await scenario.apply_service(cluster, SAMPLE, namespace=NAMESPACE)
        console.print(f"[green]✓[/] applied {SAMPLE.relative_to(ROOT)}: InferenceService {NAMESPACE}/{name}")
        view = ServiceView(cluster=cluster, reader=reader, namespace=NAMESPACE, name=name)
        address = await scenario.until_ready(view, console, deadline_s=plan.ready_s)
        console.print(f"[green]✓[/] {name} is Ready at {address}")
        async with AsyncOpenAI(base_url=address, api_key="none", max_retries=0, timeout=120.0) as client:
            first_s = await scenario.chat(client, name, console)
            console.print(
                f"[green]✓[/] first token {1000 * first_s:.0f} ms after asking, "
                f"{time.monotonic() - started:.0f} s after the start"
            )
            load = LoadGenerator(client=client, model=name, streams=plan.streams)
            with Screen(console) as screen:
                most, last = await scenario.scale_up_and_down(view, load, screen, plan)
        console.print(
            f"[green]✓[/] scaled up to {most} and back down to {last}; "
            f"{load.counts.finished} streams finished, {load.counts.broken} broken, {load.counts.refused} retried"
        )


def _next_steps(console: Console, cluster: ControlPlane) -> None:
    console.print(
        "\nThe stack is still running. Try:\n"
        f"    export KUBECONFIG={cluster.kubeconfig}\n"
        "    kubectl get infsvc,pods\n"
        "    kubectl describe infsvc tiny\n"
        "    kubectl logs deploy/$(kubectl get deploy -o name | head -1 | cut -d/ -f2)\n"
        f"    curl -s {stack.gateway_url(cluster)}/v1/chat/completions -H 'content-type: application/json' \\\n"
        '         -d \'{"model": "tiny", "messages": [{"role": "user", "content": "What is a block?"}]}\'\n'
        "    make demo-down",
        highlight=False,
        soft_wrap=True,
    )
