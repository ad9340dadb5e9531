"""Checks the health of the control plane's components and of nodes. Called by `control_plane`."""

import json
import ssl
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Final

from kvasir_local import component_flags
from kvasir_local.component_flags import Network
from kvasir_local.kubelet.configs import KubeletNode
from kvasir_local.state_paths import StatePaths

_TIMEOUT_S: Final = 2.0
_CONTAINERD_S: Final = 30.0
_MOST_BYTES: Final = 1 << 20
_PATHS: Final = {
    component_flags.ETCD: "/health",
    component_flags.APISERVER: "/readyz",
    component_flags.CONTROLLER_MANAGER: "/healthz",
    component_flags.SCHEDULER: "/readyz",
}
_ACCOUNT: Final = "/api/v1/namespaces/default/serviceaccounts/default"
_ROOT_CA: Final = "/api/v1/namespaces/default/configmaps/kube-root-ca.crt"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """ok: ready; text: the answer, or why there was none."""

    ok: bool
    text: str


def component(name: str, *, paths: StatePaths, network: Network) -> HealthCheck:
    """One health check of one component of the control plane."""
    url = f"https://{network.address_of(name)}:{network.of(name)}{_PATHS[name]}"
    if name == component_flags.ETCD:
        context = ssl.create_default_context(cafile=paths.pki / "etcd-ca.crt")
        context.load_cert_chain(paths.pki / "etcd.crt", paths.pki / "etcd.key")
        return _get(url, context, token=None)
    return _get(url, _trust(paths), token=_admin_token(paths))


def defaults(*, paths: StatePaths, network: Network) -> HealthCheck:
    """Whether the controllers have created what a pod needs: the default service account and the cluster's CA."""
    for path in (_ACCOUNT, _ROOT_CA):
        answer = _get(f"{component_flags.server_url(network)}{path}", _trust(paths), token=_admin_token(paths))
        if not answer.ok:
            return answer
    return HealthCheck(ok=True, text="ok")


def node(name: str, *, paths: StatePaths, network: Network) -> HealthCheck:
    """Whether a process node has registered and is Ready."""
    url = f"{component_flags.server_url(network)}/api/v1/nodes/{name}"
    answer = _get(url, _trust(paths), token=_admin_token(paths))
    if not answer.ok:
        return answer
    conditions = json.loads(answer.text).get("status", {}).get("conditions", [])
    ready = next((condition for condition in conditions if condition["type"] == "Ready"), None)
    if ready is None:
        return HealthCheck(ok=False, text="registered, no Ready condition yet")
    said = f"Ready={ready['status']} {ready.get('reason', '')} {ready.get('message', '')}".rstrip()
    return HealthCheck(ok=ready["status"] == "True", text=said)


def containerd(node: KubeletNode) -> HealthCheck:
    """Whether a real node's containerd answers."""
    command = [*node.ctr, "version"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_CONTAINERD_S)
    except subprocess.TimeoutExpired:
        return HealthCheck(ok=False, text=f"containerd does not answer within {_CONTAINERD_S:g} s")
    return HealthCheck(ok=result.returncode == 0, text=result.stderr.strip() or "ok")


def network_policies(node: KubeletNode) -> HealthCheck:
    """Whether a real node has the rules of what enforces NetworkPolicies for its pods."""
    command = [*node.network.inside(node.index), "iptables", "--wait", "--list-rules", "KUBE-ROUTER-FORWARD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_CONTAINERD_S)
    except subprocess.TimeoutExpired:
        return HealthCheck(ok=False, text=f"iptables does not answer within {_CONTAINERD_S:g} s")
    return HealthCheck(ok=result.returncode == 0, text=result.stderr.strip() or "ok")


def _get(url: str, context: ssl.SSLContext, *, token: str | None) -> HealthCheck:
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - every caller writes https
    # No proxy, whatever the environment says: the address is loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as response:
            return HealthCheck(ok=True, text=response.read(_MOST_BYTES).decode(errors="replace").strip())
    except urllib.error.HTTPError as error:
        with error:
            body = error.read(_MOST_BYTES).decode(errors="replace").strip()
        return HealthCheck(ok=False, text=f"HTTP {error.code}: {body}")
    except OSError as error:
        return HealthCheck(ok=False, text=str(getattr(error, "reason", error)))


def _trust(paths: StatePaths) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=paths.pki / "ca.crt")


def _admin_token(paths: StatePaths) -> str:
    token: str = json.loads(paths.kubeconfig.read_text())["users"][0]["user"]["token"]
    return token
