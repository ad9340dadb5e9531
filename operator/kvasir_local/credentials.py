"""Makes and writes what one cluster keeps secret: authorities, certificates, tokens, kubeconfigs.

Called by `control_plane` before the first component starts, and by `nodes` for each process node. Every file is 0600.
"""

import datetime as dt
import os
import secrets as randomness
from pathlib import Path

from kvasir_kube import certificates
from kvasir_kube.certificates import KeyPair
from kvasir_local import access, component_flags
from kvasir_local.component_flags import Network
from kvasir_local.kubelet.configs import KubeletNode
from kvasir_local.state_paths import StatePaths

_SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def write_control_plane(paths: StatePaths, network: Network) -> None:
    """Everything that the four components and the admin need. Overwrites what is there."""
    now = dt.datetime.now(dt.UTC)
    ca = certificates.authority("kvasir-local", now=now)
    etcd_ca = certificates.authority("kvasir-local-etcd", now=now)
    serving = certificates.leaf(
        ca,
        user="kube-apiserver",
        names=_SERVER_NAMES,
        addresses=tuple({component_flags.HOST, network.server_address, network.service_address}),
        now=now,
    )
    etcd = certificates.leaf(
        etcd_ca, user="etcd", names=("localhost",), addresses=(component_flags.HOST, network.claim), now=now
    )
    kubelet_client = certificates.leaf(ca, user="kube-apiserver-kubelet-client", groups=("system:masters",), now=now)
    signing_key, checking_key = certificates.key_pair()
    for name, pair in (
        ("ca", ca),
        ("etcd-ca", etcd_ca),
        ("serving", serving),
        ("etcd", etcd),
        ("kubelet-client", kubelet_client),
    ):
        _write_pair(paths.pki, name, pair)
    write_private(paths.pki / "service-account.key", signing_key)
    write_private(paths.pki / "service-account.pub", checking_key)

    tokens = {user: randomness.token_urlsafe(32) for user in access.IDENTITIES}
    write_private(paths.config / "tokens.csv", access.token_file(tokens).encode())
    write_private(paths.config / "audit-policy.yaml", access.audit_policy().encode())
    server = component_flags.server_url(network)
    for user, path in (
        (access.ADMIN, paths.kubeconfig),
        ("system:kube-controller-manager", paths.config / f"{component_flags.CONTROLLER_MANAGER}.kubeconfig"),
        ("system:kube-scheduler", paths.config / f"{component_flags.SCHEDULER}.kubeconfig"),
    ):
        credential = access.Token(token=tokens[user])
        text = access.kubeconfig(server=server, ca=ca.certificate, user=user, credential=credential)
        write_private(path, text.encode())


def write_kubelet(paths: StatePaths, network: Network, node: KubeletNode) -> None:
    """The files of a real node in its directory: `kubeconfig` and `serving` of the kubelet, `kube-proxy.kubeconfig` and
    `kube-router.kubeconfig`."""
    now = dt.datetime.now(dt.UTC)
    ca = _read_pair(paths.pki, "ca")
    user = f"system:node:{node.name}"
    serving = certificates.leaf(ca, user=user, names=(node.name,), addresses=(node.address,), now=now)
    _write_pair(node.directory, "serving", serving)
    write_private(node.directory / "ca.crt", ca.certificate)
    _write_client(node.directory / "kubeconfig", network, ca, user, (access.NODE_GROUPS[0],))
    _write_client(node.directory / "kube-proxy.kubeconfig", network, ca, access.KUBE_PROXY, ())
    _write_client(node.directory / "kube-router.kubeconfig", network, ca, access.KUBE_ROUTER, (access.KUBE_ROUTER,))


def write_provisioner(paths: StatePaths, network: Network) -> Path:
    """The kubeconfig of the process that makes the volumes of a cluster with kubelets."""
    path = paths.config / "provisioner.kubeconfig"
    _write_client(path, network, _read_pair(paths.pki, "ca"), access.PROVISIONER, (access.NODE_GROUPS[1],))
    return path


def write_node(paths: StatePaths, network: Network, name: str) -> Path:
    """The files of one process node in its own directory; returns its kubeconfig.

    Beside `kubeconfig` (user system:node:NAME, groups access.NODE_GROUPS) lie `serving.crt` and `serving.key`, for the
    endpoint that answers `kubectl logs`, and `ca.crt`, which signed the certificate that the API server shows there.
    """
    now = dt.datetime.now(dt.UTC)
    directory = paths.node(name)
    ca = _read_pair(paths.pki, "ca")
    user = f"system:node:{name}"
    _write_pair(
        directory,
        "serving",
        certificates.leaf(ca, user=user, names=(name,), addresses=(network.node_address,), now=now),
    )
    write_private(directory / "ca.crt", ca.certificate)
    _write_client(directory / "kubeconfig", network, ca, user, access.NODE_GROUPS)
    return directory / "kubeconfig"


def write_private(path: Path, content: bytes) -> None:
    """Replaces `path` in one step by a file that only its owner reads."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.replace(path)


def _write_client(path: Path, network: Network, ca: KeyPair, user: str, groups: tuple[str, ...]) -> None:
    """A kubeconfig with a certificate of its own for this user."""
    client = certificates.leaf(ca, user=user, groups=groups, now=dt.datetime.now(dt.UTC))
    credential = access.ClientCertificate(certificate=client.certificate, key=client.key)
    server = component_flags.server_url(network)
    write_private(path, access.kubeconfig(server=server, ca=ca.certificate, user=user, credential=credential).encode())


def _write_pair(directory: Path, name: str, pair: KeyPair) -> None:
    write_private(directory / f"{name}.crt", pair.certificate)
    write_private(directory / f"{name}.key", pair.key)


def _read_pair(directory: Path, name: str) -> KeyPair:
    return KeyPair(certificate=(directory / f"{name}.crt").read_bytes(), key=(directory / f"{name}.key").read_bytes())
