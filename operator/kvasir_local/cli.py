"""The command `kvasir local`: up, down, status, kubectl. Turns arguments into calls and answers into lines."""

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from kvasir_local import install, members, stack
from kvasir_local import kubectl as kubectl_shell
from kvasir_local.control_plane import ControlPlane
from kvasir_local.errors import LocalClusterError, StaleStateError
from kvasir_local.record import Finding
from kvasir_local.say import Terminal

EXIT_DAMAGED = 1
EXIT_NONE = 3

_state_dir = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".kvasir"),
    show_default=True,
    envvar="KVASIR_STATE_DIR",
    help="Where the cluster keeps its files. Another directory is another cluster.",
)


class _Group(click.Group):
    """Says our own errors as one message instead of a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except LocalClusterError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group)
def local() -> None:
    """A Kubernetes cluster of local processes, with the operator and the gateway in it."""


@local.command()
@_state_dir
@click.option("--nodes", type=click.IntRange(0, 16), default=1, show_default=True, help="Process nodes to run.")
@click.option(
    "--fake-gpus",
    type=click.IntRange(0, 64),
    default=None,
    help="GPUs that each node claims to have. Default: those that are present.",
)
@click.option("--no-operator", is_flag=True, help="Only Kubernetes: install neither operator nor gateway.")
@click.option(
    "--manifests",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=None,
    help="The kustomization to install. Default: manifests/local of the checkout.",
)
@click.option(
    "--port",
    type=click.IntRange(1024, 65535),
    default=None,
    help="Port of the API server. Default: a free one, chosen at the first start.",
)
def up(
    *,
    state_dir: Path,
    nodes: int,
    fake_gpus: int | None,
    no_operator: bool,
    manifests: Path | None,
    port: int | None,
) -> None:
    """Start the cluster, or what is missing of it, and wait until it is ready."""
    say = Terminal()
    wanted = None if no_operator else manifests or install.find_manifests()
    if wanted is None and not no_operator:
        say.done("no manifests/local/kustomization.yaml here: operator and gateway are left out")
    wish = stack.Wish(nodes=nodes, fake_gpus=fake_gpus, manifests=wanted, apiserver_port=port)
    cluster = stack.up(state_dir, wish, say=say)
    click.echo(f"kubeconfig  {cluster.kubeconfig}")
    click.echo(f"kubectl     export KUBECONFIG={cluster.kubeconfig}; {cluster.kubectl[0]} get nodes")
    if wanted is not None:
        click.echo(f"gateway     {stack.gateway_url(cluster)}/v1")


@local.command()
@_state_dir
def down(*, state_dir: Path) -> None:
    """Stop every process of the cluster and forget its objects; logs stay."""
    if not state_dir.exists():
        click.echo(f"there is no {state_dir}: nothing to stop")
        return
    stopped = ControlPlane(state_dir=state_dir, say=Terminal()).stop()
    for name in stopped:
        click.echo(f"stopped {name}")
    if not stopped:
        click.echo(f"nothing ran in {state_dir}")


@local.command()
@_state_dir
def status(*, state_dir: Path) -> None:
    """Tell of each member, node and pod whether it is well. Exit code 0: all are, 1: not all, 3: no cluster."""
    cluster = ControlPlane(state_dir=state_dir)
    verdict = cluster.examine()
    if verdict.finding in {Finding.NOTHING, Finding.STALE}:
        click.echo(f"no cluster runs in {state_dir}: {verdict.reason}")
        sys.exit(EXIT_NONE)
    answers = cluster.answers()
    recorded = cluster.state
    for member in recorded.members:
        answer = answers[member.name]
        word = "ok" if answer.ok else "FAILED"
        line = f"{word:6}  {member.name:28} pid {member.process.pid}"
        click.echo(line if answer.ok else f"{line}  {' '.join(answer.text.split())[:300]}")
    unwell = [name for name, answer in answers.items() if not answer.ok]
    if members.APISERVER not in unwell:
        for line in _pods(cluster):
            click.echo(line)
    click.echo(f"server  {members.server_url(recorded.network)}   kubeconfig  {cluster.kubeconfig}")
    if unwell:
        click.echo(
            f"not well: {', '.join(unwell)}; `kvasir local up` starts again what died; logs: {cluster.layout.logs}"
        )
        sys.exit(EXIT_DAMAGED)


@local.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def kubectl(*, arguments: tuple[str, ...]) -> NoReturn:
    """Run the kubectl that belongs to the cluster (of KVASIR_STATE_DIR, or of .kvasir here)."""
    cluster = ControlPlane(state_dir=Path(os.environ.get("KVASIR_STATE_DIR", ".kvasir")))
    if not cluster.kubeconfig.exists():
        raise StaleStateError(f"no cluster runs in {cluster.layout.root}; `kvasir local up` starts one")
    command = [*cluster.kubectl, *arguments]
    os.execv(command[0], command)


def _pods(cluster: ControlPlane) -> list[str]:
    """One line per pod; a single one that says why, when the API server does not tell."""
    try:
        found = json.loads(kubectl_shell.run(cluster.kubectl, "get", "pods", "--all-namespaces", "--output=json"))
    except LocalClusterError as error:
        return [f"pods    unknown: {error}"]
    lines = []
    for pod in found["items"]:
        metadata, pod_status = pod["metadata"], pod.get("status", {})
        conditions = {condition["type"]: condition["status"] for condition in pod_status.get("conditions", ())}
        ready = "ready" if conditions.get("Ready") == "True" else "not ready"
        where = f"{pod['spec'].get('nodeName', '-')} {pod_status.get('podIP', '-')}"
        lines.append(f"pod     {metadata['namespace']}/{metadata['name']}  {pod_status.get('phase')}, {ready}  {where}")
    return lines
