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
from kvasir_local.demo import hub_server, scenario
from kvasir_local.demo.load import LoadGenerator
from kvasir_local.demo.table import Screen
from kvasir_local.demo.view import ServiceView
from kvasir_local.errors import LocalClusterError
from kvasir_local.progress import TerminalProgress

ROOT: Final = Path(__file__).parents[3]
SAMPLE: Final = ROOT / "manifests" / "samples" / "tiny.yaml"
NAMESPACE: Final = "default"
REPOSITORY: Final = "kvasir/tiny"


@click.command()
@click.option(
    "--load-seconds",
    default=60.0,
    show_default=True,
    help="How long the load lasts; it is repeated until a replica was added.",
)
@click.option("--streams", default=32, show_default=True, help="Streams that the load keeps open at once.")
@click.option(
    "--state-dir",
    default=".kvasir",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where the local cluster keeps its state.",
)
@click.option("--kubelet", is_flag=True, help="Real nodes, with images built from the checkout. Needs root.")
@click.option("--hub", is_flag=True, help="Serve the model from a hub on loopback, without the load.")
def demo(*, load_seconds: float, streams: int, state_dir: Path, kubelet: bool, hub: bool) -> None:
    """Start a local cluster, serve a tiny model, stream an answer, and watch a load scale it up and down."""
    if hub and kubelet:
        raise click.UsageError("--hub and --kubelet: pods of real nodes do not reach a hub on loopback")
    console = Console()
    started = time.monotonic()
    before = ControlPlane(state_dir=state_dir).diagnose().health
    try:
        options = stack.ClusterOptions(manifests=install.find_manifests(), kubelets=kubelet)
        cluster = stack.up(state_dir, options, progress=TerminalProgress())
        console.print(f"[green]✓[/] local cluster, operator and gateway run ({time.monotonic() - started:.0f} s)")
        plan = scenario.DemoPlan(load_s=load_seconds, streams=streams)
        asyncio.run((_walk_from_hub if hub else _walk)(cluster, console, plan, started))
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
    _next_steps(console, cluster, scenario.FROM_HUB if hub else "tiny")


async def _walk(stacked: ControlPlane, console: Console, plan: scenario.DemoPlan, started: float) -> None:
    async with Client(await configuration(str(stacked.kubeconfig))) as cluster, StateReader() as reader:
        await scenario.put_model(cluster, SAMPLE, namespace=NAMESPACE, deadline_s=plan.bound_s)
        name = await scenario.apply_service(cluster, SAMPLE, namespace=NAMESPACE)
        console.print(f"[green]✓[/] applied {SAMPLE.relative_to(ROOT)}: InferenceService {NAMESPACE}/{name}")
        view = ServiceView(cluster=cluster, reader=reader, namespace=NAMESPACE, name=name)
        await _until_ready(view, console, plan, name)
        async with _client(stacked) as client:
            await _first_answer(client, name, console, started)
            load = LoadGenerator(client=client, model=name, streams=plan.streams)
            with Screen(console) as screen:
                most, last = await scenario.scale_up_and_down(view, load, screen, plan)
        console.print(
            f"[green]✓[/] scaled up to {most} and back down to {last}; "
            f"{load.counts.finished} streams finished, {load.counts.broken} broken, {load.counts.refused} retried"
        )


async def _walk_from_hub(stacked: ControlPlane, console: Console, plan: scenario.DemoPlan, started: float) -> None:
    uri = f"hf://{REPOSITORY}@{hub_server.BRANCH}"
    repository = hub_server.HubRepository.of_folder(REPOSITORY, scenario.MODEL)
    async with Client(await configuration(str(stacked.kubeconfig))) as cluster, StateReader() as reader:
        with hub_server.serving(repository) as served:
            name = await scenario.apply_from_hub(cluster, SAMPLE, uri, served.url, namespace=NAMESPACE)
            console.print(f"[green]✓[/] applied InferenceService {NAMESPACE}/{name}: {uri}, of the hub at {served.url}")
            view = ServiceView(cluster=cluster, reader=reader, namespace=NAMESPACE, name=name)
            await _until_ready(view, console, plan, name)
        model = (await view.service())["status"]["model"]
        console.print(f"[green]✓[/] {served.outcome(model)}", soft_wrap=True)
        async with _client(stacked) as client:
            await _first_answer(client, name, console, started)


async def _until_ready(view: ServiceView, console: Console, plan: scenario.DemoPlan, name: str) -> None:
    address = await scenario.until_ready(view, console, deadline_s=plan.ready_s)
    console.print(f"[green]✓[/] {name} is Ready at {address}")


def _client(stacked: ControlPlane) -> AsyncOpenAI:
    """Of the gateway; the address in the status may be a name in the cluster."""
    return AsyncOpenAI(base_url=f"{stack.gateway_url(stacked)}/v1", api_key="none", max_retries=0, timeout=120.0)


async def _first_answer(client: AsyncOpenAI, name: str, console: Console, started: float) -> None:
    first_s = await scenario.chat(client, name, console)
    console.print(
        f"[green]✓[/] first token {1000 * first_s:.0f} ms after asking, "
        f"{time.monotonic() - started:.0f} s after the start"
    )


def _next_steps(console: Console, cluster: ControlPlane, name: str) -> None:
    console.print(
        "\nThe stack is still running. Try:\n"
        f"    export KUBECONFIG={cluster.kubeconfig}\n"
        "    kubectl get infsvc,pods\n"
        f"    kubectl describe infsvc {name}\n"
        "    kubectl logs deploy/$(kubectl get deploy -o name | head -1 | cut -d/ -f2)\n"
        f"    curl -s {stack.gateway_url(cluster)}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f'         -d \'{{"model": "{name}", "messages": [{{"role": "user", "content": "What is a block?"}}]}}\'\n'
        "    make demo-down",
        highlight=False,
        soft_wrap=True,
    )
