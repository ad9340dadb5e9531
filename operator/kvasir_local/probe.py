"""Asks the members of the control plane whether they are ready. Called by `control_plane`, which waits and judges."""

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Final

from kvasir_local import members
from kvasir_local.layout import Layout
from kvasir_local.members import Network

_TIMEOUT_S: Final = 2.0
_MOST_BYTES: Final = 1 << 20
_PATHS: Final = {
    members.ETCD: "/health",
    members.APISERVER: "/readyz",
    members.CONTROLLER_MANAGER: "/healthz",
    members.SCHEDULER: "/readyz",
}
_ACCOUNT: Final = "/api/v1/namespaces/default/serviceaccounts/default"
_ROOT_CA: Final = "/api/v1/namespaces/default/configmaps/kube-root-ca.crt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """ok: ready; text: what it said, or why there was no answer."""

    ok: bool
    text: str


def member(name: str, *, layout: Layout, network: Network) -> Answer:
    """One health check of one member of the control plane."""
    url = f"https://{members.HOST}:{network.of(name)}{_PATHS[name]}"
    if name == members.ETCD:
        context = ssl.create_default_context(cafile=layout.pki / "etcd-ca.crt")
        context.load_cert_chain(layout.pki / "etcd.crt", layout.pki / "etcd.key")
        return _get(url, context, token=None)
    return _get(url, _trust(layout), token=_admin_token(layout))


def defaults(*, layout: Layout, network: Network) -> Answer:
    """Whether the controllers have made what a first pod in a namespace needs: its account and the cluster's CA."""
    for path in (_ACCOUNT, _ROOT_CA):
        answer = _get(f"{members.server_url(network)}{path}", _trust(layout), token=_admin_token(layout))
        if not answer.ok:
            return answer
    return Answer(ok=True, text="ok")


def node(name: str, *, layout: Layout, network: Network) -> Answer:
    """Whether a process node has registered and says that it is Ready."""
    url = f"{members.server_url(network)}/api/v1/nodes/{name}"
    answer = _get(url, _trust(layout), token=_admin_token(layout))
    if not answer.ok:
        return answer
    conditions = json.loads(answer.text).get("status", {}).get("conditions", [])
    ready = next((condition for condition in conditions if condition["type"] == "Ready"), None)
    if ready is None:
        return Answer(ok=False, text="registered, no Ready condition yet")
    said = f"Ready={ready['status']} {ready.get('reason', '')} {ready.get('message', '')}".rstrip()
    return Answer(ok=ready["status"] == "True", text=said)


def _get(url: str, context: ssl.SSLContext, *, token: str | None) -> Answer:
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - every caller writes https
    # No proxy, whatever the environment says: the address is loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as response:
            return Answer(ok=True, text=response.read(_MOST_BYTES).decode(errors="replace").strip())
    except urllib.error.HTTPError as error:
        with error:
            body = error.read(_MOST_BYTES).decode(errors="replace").strip()
        return Answer(ok=False, text=f"HTTP {error.code}: {body}")
    except OSError as error:
        return Answer(ok=False, text=str(getattr(error, "reason", error)))


def _trust(layout: Layout) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=layout.pki / "ca.crt")


def _admin_token(layout: Layout) -> str:
    token: str = json.loads(layout.kubeconfig.read_text())["users"][0]["user"]["token"]
    return token
