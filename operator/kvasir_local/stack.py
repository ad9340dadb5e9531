"""The whole local stack, by one state directory: control plane, nodes, our manifests.

Called by `cli` and by the demo. It only orders the steps; each step belongs to another module.
"""

from dataclasses import dataclass
from pathlib import Path

from kvasir_api.names import PORT_GATEWAY, PORT_GATEWAY_STATE
from kvasir_local import addresses, binaries, install
from kvasir_local.cluster_state import ClusterHealth, RecordedNode
from kvasir_local.component_flags import HOST
from kvasir_local.control_plane import ControlPlane
from kvasir_local.errors import MissingToolError, StaleStateError
from kvasir_local.kubelet import cluster as kubelet_cluster
from kvasir_local.kubelet.cluster import RealNodes
from kvasir_local.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Options of `up`.

    nodes: how many nodes at least; fake_gpus: how many GPUs each process node reports, None for those that are present;
    manifests: the kustomization to install, None for none; apiserver_port: None for a free one; kubelets: real nodes,
    with images built from the checkout, and manifests/base for `manifests`; owner: pid of the process with which a
    cluster that is started ends, None for one that stays.
    """

    nodes: int = 1
    fake_gpus: int | None = None
    manifests: Path | None = None
    apiserver_port: int | None = None
    kubelets: bool = False
    owner: int | None = None


def up(state_dir: Path, options: ClusterOptions, *, progress: Progress) -> ControlPlane:
    """Brings everything up and returns when it is ready; joins and repairs what already runs.

    Raises LocalClusterError. What a later step that fails has started stays for inspection; an interrupted run stops
    what it has started itself.
    """
    real = _real_nodes(progress) if options.kubelets else None
    cluster = ControlPlane(
        state_dir=state_dir,
        binaries=binaries.provide(progress=progress),
        progress=progress,
        apiserver_port=options.apiserver_port,
        node_address=HOST if _taken() is None else None,
        kubelets=options.kubelets,
        owner=options.owner,
    )
    found = cluster.diagnose().health
    fresh = found in {ClusterHealth.NOTHING, ClusterHealth.STALE}
    if not fresh and (cluster.state.network.kubelets is not None) != options.kubelets:
        kind = "process nodes" if options.kubelets else "kubelets"
        raise StaleStateError(
            f"the cluster in {cluster.paths.root} has {kind}: stop it with `kvasir local down`, "
            "or choose another --state-dir"
        )
    if real is None and fresh and options.manifests is not None and (taken := _taken()) is not None:
        progress.done(
            f"{HOST}:{taken} is taken by {addresses.holder_of(taken)}; the gateway will be at another address"
        )
    try:
        if real is not None:
            with real.provided():
                cluster.start()
                real.start(cluster, options.nodes)
            if options.manifests is not None:
                real.install(cluster)
            return cluster
        cluster.start()
        _start_nodes(cluster, options, progress)
        if options.manifests is not None:
            install.apply(
                cluster.kubectl, options.manifests, node_address=cluster.state.network.node_address, progress=progress
            )
            install.await_workloads(cluster.kubectl, progress=progress)
    except KeyboardInterrupt:
        if fresh:
            progress.done("interrupted: stopping what was started")
            cluster.stop()
        raise
    return cluster


def lacking_for_kubelets(*, progress: Progress) -> list[str]:
    """What `up` with kubelets would install or build first, which takes minutes. MissingToolError: it would fail."""
    return _real_nodes(progress).lacking()


def gateway_url(cluster: ControlPlane) -> str:
    """Where clients reach every service of this cluster, once the gateway is installed."""
    if cluster.state.network.kubelets is not None:
        return kubelet_cluster.gateway_url(cluster)
    return install.gateway_url(cluster.state.network.node_address)


def _real_nodes(progress: Progress) -> RealNodes:
    checkout = install.find_checkout()
    if checkout is None:
        raise MissingToolError("images for real nodes are built from the repository: run this in a checkout of it")
    real = RealNodes(checkout=checkout, progress=progress)
    real.check()
    return real


def _taken() -> int | None:
    """A port of the gateway that is taken at the usual address; None when all are free."""
    return next((port for port in (PORT_GATEWAY, PORT_GATEWAY_STATE) if not addresses.is_free(port)), None)


def _start_nodes(cluster: ControlPlane, options: ClusterOptions, progress: Progress) -> None:
    known = {node.name: node for node in cluster.state.nodes}
    names = [f"kvasir-{index}" for index in range(options.nodes)]
    nodes = [
        known.get(name) or RecordedNode(name=name, index=i, fake_gpus=options.fake_gpus) for i, name in enumerate(names)
    ]
    for node in nodes:
        cluster.start_node(node)
    for node in nodes:
        cluster.await_node(node.name)
        progress.done(f"node {node.name} is Ready")
