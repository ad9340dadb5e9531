"""CoreDNS of a cluster with real nodes: names of its Services for pods, and nothing of the world outside.

Pure: `cluster` applies it. kubelets write its address into the resolv.conf of each pod.
"""

import json
from typing import Any, Final

from kvasir_local.buildplan import COREDNS
from kvasir_local.kubelet.configs import CLUSTER_DOMAIN
from kvasir_local.kubelet.network import BridgeNetwork

NAMESPACE: Final = "kube-system"
IMAGE: Final = f"localhost/kvasir-coredns:{COREDNS}"

_NAME: Final = "coredns"
_LABELS: Final = {"k8s-app": "kube-dns"}
"""By which policies of others find a cluster's DNS."""
_PORTS: Final = (("dns", "UDP", 53), ("dns-tcp", "TCP", 53))
_READY_PORT: Final = 8181
_COREFILE: Final = f"""\
.:53 {{
    errors
    health {{
        lameduck 5s
    }}
    ready
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa
    cache 10
    loadbalance
}}
"""


def manifests(network: BridgeNetwork) -> str:
    """Everything of it as a List in JSON: two pods, on two nodes where there are two."""
    found = [
        _object("v1", "ServiceAccount"),
        _object("v1", "ConfigMap", data={"Corefile": _COREFILE}),
        *_rights(),
        _service(network),
        _deployment(),
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": found})


def _object(api: str, kind: str, *, namespace: str = NAMESPACE, **fields: Any) -> dict[str, Any]:
    metadata = {"name": _NAME, "labels": _LABELS} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **fields}


def _rights() -> list[dict[str, Any]]:
    group, read = "rbac.authorization.k8s.io", ["list", "watch"]
    rules = [
        {"apiGroups": [""], "resources": ["namespaces", "services"], "verbs": read},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
    ]
    role = {"apiGroup": group, "kind": "ClusterRole", "name": _NAME}
    account = {"kind": "ServiceAccount", "name": _NAME, "namespace": NAMESPACE}
    return [
        _object(f"{group}/v1", "ClusterRole", namespace="", rules=rules),
        _object(f"{group}/v1", "ClusterRoleBinding", namespace="", roleRef=role, subjects=[account]),
    ]


def _service(network: BridgeNetwork) -> dict[str, Any]:
    ports = [{"name": name, "protocol": protocol, "port": port} for name, protocol, port in _PORTS]
    return _object("v1", "Service", spec={"clusterIP": network.dns_address, "selector": _LABELS, "ports": ports})


def _deployment() -> dict[str, Any]:
    container = {
        "name": _NAME,
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "ports": [{"name": name, "protocol": protocol, "containerPort": port} for name, protocol, port in _PORTS],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": _READY_PORT}, "periodSeconds": 2},
        "resources": {"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
            "readOnlyRootFilesystem": True,
        },
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": _LABELS},
    }
    pod = {
        "serviceAccountName": _NAME,
        "priorityClassName": "system-cluster-critical",
        "dnsPolicy": "Default",
        "topologySpreadConstraints": [spread],
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": _NAME}}],
    }
    template = {"metadata": {"labels": _LABELS}, "spec": pod}
    spec = {"replicas": 2, "selector": {"matchLabels": _LABELS}, "template": template}
    return _object("apps/v1", "Deployment", spec=spec)
