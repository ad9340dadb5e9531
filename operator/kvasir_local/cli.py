"""The command `kvasir local`: up, down, status, kubectl. Turns arguments into calls and answers into lines."""

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from kvasir_local import component_flags, install, stack
from kvasir_local import kubectl as kubectl_shell
from kvasir_local.cluster_state import ClusterHealth
from kvasir_local.control_plane import ControlPlane
from kvasir_local.errors import LocalClusterError, MissingToolError, StaleStateError
from kvasir_local.kubelet.network import MOST_NODES
from kvasir_local.progress import TerminalProgress

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
@click.option("--nodes", type=click.IntRange(0, 16), default=1, show_default=True, help="Nodes to run.")
@click.option(
    "--kubelet",
    is_flag=True,
    help="Real nodes: kubelet, containerd and kube-proxy, with images built from the checkout. Needs root.",
)
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
@click.option(
    "--owner-pid",
    type=click.IntRange(2),
    default=None,
    help="Stop the cluster when this process ends, however it ends. Of a cluster that runs already it changes nothing.",
)
@click.option(
    "--check",
    is_flag=True,
    help="With --kubelet: start nothing, and fail with one line where packages, binaries or large layers of images "
    "would have to be installed or built first.",
)
def up(
    *,
    state_dir: Path,
    nodes: int,
    kubelet: bool,
    fake_gpus: int | None,
    no_operator: bool,
    manifests: Path | None,
    port: int | None,
    owner_pid: int | None,
    check: bool,
) -> None:
    """Start the cluster, or what is missing of it, and wait until it is ready."""
    progress = TerminalProgress()
    if kubelet and (fake_gpus is not None or manifests is not None or nodes > MOST_NODES):
        raise click.UsageError(f"--kubelet takes no --fake-gpus, no --manifests and {MOST_NODES} nodes at most")
    if check:
        _check(kubelet, progress)
        return
    wanted = None if no_operator else manifests or install.find_manifests()
    if wanted is None and not no_operator:
        progress.done("no manifests/local/kustomization.yaml here: operator and gateway are left out")
    options = stack.ClusterOptions(
        nodes=nodes, fake_gpus=fake_gpus, manifests=wanted, apiserver_port=port, kubelets=kubelet, owner=owner_pid
    )
    cluster = stack.up(state_dir, options, progress=progress)
    click.echo(f"kubeconfig  {cluster.kubeconfig}")
    click.echo(f"kubectl     export KUBECONFIG={cluster.kubeconfig}; {cluster.kubectl[0]} get nodes")
    if wanted is not None:
        click.echo(f"gateway     {stack.gateway_url(cluster)}/v1")


def _check(kubelet: bool, progress: TerminalProgress) -> None:
    if not kubelet:
        raise click.UsageError("--check needs --kubelet")
    if lacking := stack.lacking_for_kubelets(progress=progress):
        raise MissingToolError(f"not built or installed yet: {', '.join(lacking)}")
    click.echo("nothing but the project's own code has to be built for real nodes")


@local.command()
@_state_dir
def down(*, state_dir: Path) -> None:
    """Stop every process of the cluster and forget its objects; logs stay."""
    if is_foreign(state_dir, os.geteuid()):
        click.echo(f"{state_dir} belongs to another user, who can stop its cluster: it is left alone")
        return
    if not state_dir.exists():
        click.echo(f"there is no {state_dir}: nothing to stop")
        return
    stopped = ControlPlane(state_dir=state_dir, progress=TerminalProgress()).stop()
    for name in stopped:
        click.echo(f"stopped {name}")
    if not stopped:
        click.echo(f"nothing ran in {state_dir}")


@local.command()
@_state_dir
def status(*, state_dir: Path) -> None:
    """Show the health of each component, node and pod. Exit code 0: all are healthy, 1: some are not, 3: no cluster."""
    cluster = ControlPlane(state_dir=state_dir)
    diagnosis = cluster.diagnose()
    if diagnosis.health in {ClusterHealth.NOTHING, ClusterHealth.STALE}:
        click.echo(f"no cluster runs in {state_dir}: {diagnosis.reason}")
        sys.exit(EXIT_NONE)
    checks = cluster.health()
    recorded = cluster.state
    for item in recorded.processes:
        check = checks[item.name]
        word = "ok" if check.ok else "FAILED"
        line = f"{word:6}  {item.name:28} pid {item.process.pid}"
        click.echo(line if check.ok else f"{line}  {' '.join(check.text.split())[:300]}")
    failed = [name for name, check in checks.items() if not check.ok]
    if component_flags.APISERVER not in failed:
        for line in _pods(cluster):
            click.echo(line)
    click.echo(f"server  {component_flags.server_url(recorded.network)}   kubeconfig  {cluster.kubeconfig}")
    if failed:
        click.echo(
            f"not healthy: {', '.join(failed)}; `kvasir local up` restarts what died; logs: {cluster.paths.logs}"
        )
        sys.exit(EXIT_DAMAGED)


@local.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def kubectl(*, arguments: tuple[str, ...]) -> NoReturn:
    """Run the kubectl that belongs to the cluster (of KVASIR_STATE_DIR, or of .kvasir here)."""
    cluster = ControlPlane(state_dir=Path(os.environ.get("KVASIR_STATE_DIR", ".kvasir")))
    if not cluster.kubeconfig.exists():
        raise StaleStateError(f"no cluster runs in {cluster.paths.root}; `kvasir local up` starts one")
    command = [*cluster.kubectl, *arguments]
    os.execv(command[0], command)


def is_foreign(state_dir: Path, user: int) -> bool:
    """Whether a state directory, or the cluster in it, is another user's; root may stop every cluster."""
    if user == 0:
        return False
    try:
        return any(path.stat().st_uid != user for path in (state_dir, state_dir / "lock") if path.exists())
    except PermissionError:  # below a directory that only its owner may enter
        return True


def _pods(cluster: ControlPlane) -> list[str]:
    """One line per pod, or one line with the error of the API server."""
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
