"""Texts that grant or watch access: kubeconfigs, the static token file, the audit policy.

Pure: called by `credentials`, which makes the random tokens and writes the files.
"""

import base64
import json
from dataclasses import dataclass
from typing import Final

from kvasir_api import names

ADMIN: Final = "kvasir-admin"
CONTEXT: Final = "kvasir"

NODE_GROUPS: Final = ("system:nodes", "kvasir:nodes")
"""Groups of a process node: what every kubelet may, and what NODE_RULES adds."""

KUBE_PROXY: Final = "system:kube-proxy"
"""Bound by name to what a proxy may read."""
KUBE_ROUTER: Final = "kvasir:kube-router"
"""User and group of what enforces NetworkPolicies, and the role that has ROUTER_RULES."""
PROVISIONER: Final = "kvasir-provisioner"

NODE_RULES: Final = (
    (("",), ("configmaps", "secrets", "persistentvolumeclaims", "pods", "nodes"), ("get", "list", "watch")),
    (("",), ("persistentvolumes",), ("get", "list", "watch", "create", "update", "patch", "delete")),
    (("",), ("persistentvolumeclaims", "persistentvolumeclaims/status"), ("update", "patch")),
    (("",), ("nodes", "nodes/status", "pods/status"), ("create", "update", "patch")),
    (("",), ("pods",), ("delete",)),
    (("",), ("serviceaccounts/token",), ("create",)),
    (("", "events.k8s.io"), ("events",), ("create", "update", "patch")),
    (("storage.k8s.io",), ("storageclasses",), ("get", "list", "watch", "create", "update", "patch")),
    (("coordination.k8s.io",), ("leases",), ("get", "create", "update", "patch")),
)
"""(API groups, resources, verbs) of a process node. It makes the volumes of claims, which is a provisioner's work
elsewhere, and it keeps one watch per kind where a kubelet keeps one per object."""

_READ: Final = ("get", "list", "watch")
ROUTER_RULES: Final = (
    (("",), ("endpoints", "namespaces", "nodes", "pods", "services"), _READ),
    (("discovery.k8s.io",), ("endpointslices",), _READ),
    (("networking.k8s.io",), ("networkpolicies",), _READ),
)
"""(API groups, resources, verbs) of what enforces NetworkPolicies."""

IDENTITIES: Final = {
    ADMIN: ("system:masters",),
    "system:kube-controller-manager": (),
    "system:kube-scheduler": (),
}
"""Users that hold a static token, with their groups; the bootstrap roles of Kubernetes bind the latter two by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Credential of a static user."""

    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificate:
    """Credential of a user named by a certificate (common name the user, organisations the groups), both as PEM."""

    certificate: bytes
    key: bytes


def token_file(tokens: dict[str, str]) -> str:
    """The CSV that kube-apiserver reads: token,user,uid[,"groups"]. KeyError when an identity has no token."""
    rows = []
    for user, groups in IDENTITIES.items():
        row = f"{tokens[user]},{user},{user}"
        rows.append(f'{row},"{",".join(groups)}"' if groups else row)
    return "\n".join(rows) + "\n"


def kubeconfig(*, server: str, ca: bytes, user: str, credential: Token | ClientCertificate) -> str:
    """A kubeconfig (JSON, which is YAML) that holds everything inline, so that it may be copied elsewhere."""
    if isinstance(credential, Token):
        secret = {"token": credential.token}
    else:
        secret = {
            "client-certificate-data": _base64(credential.certificate),
            "client-key-data": _base64(credential.key),
        }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": {"server": server, "certificate-authority-data": _base64(ca)}}],
        "users": [{"name": user, "user": secret}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": user}}],
        "current-context": CONTEXT,
    }
    return json.dumps(document, indent=2) + "\n"


def node_roles() -> str:
    """The cluster roles of process nodes and of what real nodes have beside a kubelet, and their bindings to groups of
    the same names, as a List in JSON."""
    found = [*_role(NODE_GROUPS[1], NODE_RULES), *_role(KUBE_ROUTER, ROUTER_RULES)]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": found})


def _role(name: str, granted: tuple[tuple[tuple[str, ...], ...], ...]) -> list[dict[str, object]]:
    api, subject_api = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
    rules = [{"apiGroups": groups, "resources": resources, "verbs": verbs} for groups, resources, verbs in granted]
    role: dict[str, object] = {"apiVersion": api, "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    binding: dict[str, object] = {
        "apiVersion": api,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": subject_api, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": subject_api, "kind": "Group", "name": name}],
    }
    return [role, binding]


def audit_policy() -> str:
    """Who wrote what: every write at Metadata level (no bodies). Of the reads only those of our own accounts, whose
    rights are judged by what they use; their watches are told when they begin."""
    document = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "omitManagedFields": True,
        "rules": [
            {"level": "Metadata", "userGroups": [f"system:serviceaccounts:{names.SYSTEM_NAMESPACE}"]},
            {"level": "None", "verbs": ["get", "list", "watch"]},
            {"level": "Metadata"},
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
