"""Makes and writes what one cluster keeps secret: authorities, certificates, tokens, kubeconfigs.

Called by `control_plane` before the first component starts, and by `nodes` for each process node. Every file is 0600.
"""

import datetime as dt
import os
import secrets as randomness
from pathlib import Path

from kvasir_local import access, certificates, component_flags
from kvasir_local.certificates import KeyPair
from kvasir_local.component_flags import Network
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
        addresses=(component_flags.HOST, component_flags.SERVICE_ADDRESS),
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


def write_node(paths: StatePaths, network: Network, name: str) -> Path:
    """The files of one process node in its own directory; returns its kubeconfig.

    Beside `kubeconfig` (user system:node:NAME, groups access.NODE_GROUPS) lie `serving.crt` and `serving.key`, for the
    endpoint that answers `kubectl logs`, and `ca.crt`, which signed the certificate that the API server shows there.
    """
    now = dt.datetime.now(dt.UTC)
    directory = paths.node(name)
    ca = _read_pair(paths.pki, "ca")
    user = f"system:node:{name}"
    client = certificates.leaf(ca, user=user, groups=access.NODE_GROUPS, now=now)
    _write_pair(
        directory,
        "serving",
        certificates.leaf(ca, user=user, names=(name,), addresses=(network.node_address,), now=now),
    )
    write_private(directory / "ca.crt", ca.certificate)
    credential = access.ClientCertificate(certificate=client.certificate, key=client.key)
    text = access.kubeconfig(
        server=component_flags.server_url(network), ca=ca.certificate, user=user, credential=credential
    )
    write_private(directory / "kubeconfig", text.encode())
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


def _write_pair(directory: Path, name: str, pair: KeyPair) -> None:
    write_private(directory / f"{name}.crt", pair.certificate)
    write_private(directory / f"{name}.key", pair.key)


def _read_pair(directory: Path, name: str) -> KeyPair:
    return KeyPair(certificate=(directory / f"{name}.crt").read_bytes(), key=(directory / f"{name}.key").read_bytes())
