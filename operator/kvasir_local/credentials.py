"""Makes and writes what one cluster keeps secret: authorities, certificates, tokens, kubeconfigs.

Called by `control_plane` before the first member starts, and by `nodes` for each process node. Every file is 0600.
"""

import datetime as dt
import os
import secrets as randomness
from pathlib import Path

from kvasir_local import access, certificates, members
from kvasir_local.certificates import Pair
from kvasir_local.layout import Layout
from kvasir_local.members import Network

_SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def write_control_plane(layout: Layout, network: Network) -> None:
    """Everything that the four members and the admin need. Overwrites what is there."""
    now = dt.datetime.now(dt.UTC)
    ca = certificates.authority("kvasir-local", now=now)
    etcd_ca = certificates.authority("kvasir-local-etcd", now=now)
    serving = certificates.leaf(
        ca, user="kube-apiserver", names=_SERVER_NAMES, addresses=(members.HOST, members.SERVICE_ADDRESS), now=now
    )
    etcd = certificates.leaf(
        etcd_ca, user="etcd", names=("localhost",), addresses=(members.HOST, network.claim), now=now
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
        _write_pair(layout.pki, name, pair)
    write_private(layout.pki / "service-account.key", signing_key)
    write_private(layout.pki / "service-account.pub", checking_key)

    tokens = {user: randomness.token_urlsafe(32) for user in access.IDENTITIES}
    write_private(layout.config / "tokens.csv", access.token_file(tokens).encode())
    write_private(layout.config / "audit-policy.yaml", access.audit_policy().encode())
    server = members.server_url(network)
    for user, path in (
        (access.ADMIN, layout.kubeconfig),
        ("system:kube-controller-manager", layout.config / f"{members.CONTROLLER_MANAGER}.kubeconfig"),
        ("system:kube-scheduler", layout.config / f"{members.SCHEDULER}.kubeconfig"),
    ):
        credential = access.Token(token=tokens[user])
        text = access.kubeconfig(server=server, ca=ca.certificate, user=user, credential=credential)
        write_private(path, text.encode())


def write_node(layout: Layout, network: Network, name: str) -> Path:
    """The files of one process node in its own directory; returns its kubeconfig.

    Beside `kubeconfig` (user system:node:NAME, groups access.NODE_GROUPS) lie `serving.crt` and `serving.key`, for the
    endpoint that answers `kubectl logs`, and `ca.crt`, which signed the certificate that the API server shows there.
    """
    now = dt.datetime.now(dt.UTC)
    directory = layout.node(name)
    ca = _read_pair(layout.pki, "ca")
    user = f"system:node:{name}"
    client = certificates.leaf(ca, user=user, groups=access.NODE_GROUPS, now=now)
    _write_pair(
        directory,
        "serving",
        certificates.leaf(ca, user=user, names=(name,), addresses=(network.node_address,), now=now),
    )
    write_private(directory / "ca.crt", ca.certificate)
    credential = access.ClientCertificate(certificate=client.certificate, key=client.key)
    text = access.kubeconfig(server=members.server_url(network), ca=ca.certificate, user=user, credential=credential)
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


def _write_pair(directory: Path, name: str, pair: Pair) -> None:
    write_private(directory / f"{name}.crt", pair.certificate)
    write_private(directory / f"{name}.key", pair.key)


def _read_pair(directory: Path, name: str) -> Pair:
    return Pair(certificate=(directory / f"{name}.crt").read_bytes(), key=(directory / f"{name}.key").read_bytes())
