"""Texts that grant or watch access: kubeconfigs, the static token file, the audit policy.

Pure: called by `credentials`, which makes the random tokens and writes the files.
"""

import base64
import json
from dataclasses import dataclass
from typing import Final

ADMIN: Final = "kvasir-admin"
CONTEXT: Final = "kvasir"

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


def audit_policy() -> str:
    """Who wrote what: every write at Metadata level (no bodies), no read at all."""
    document = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "omitManagedFields": True,
        "rules": [
            {"level": "None", "verbs": ["get", "list", "watch"]},
            {"level": "Metadata"},
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
