"""The gateway as the pod of its manifests, on a real control plane, before pods that stand in for runtimes."""

import base64
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.stub_runtime import StubRuntime
from kvasir_api import names, tenant_keys
from kvasir_api.tenant_keys import TenantKeys
from kvasir_kube.kinds import Json
from kvasir_local import kubectl
from kvasir_local.control_plane import ControlPlane

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests" / "base" / "gateway"
CRDS = [ROOT / "crds" / f"{plural}.yaml" for plural in (names.PLURAL, names.ROUTE_PLURAL)]
DEADLINE_S = 60.0


def until(found: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if answer := found():
            return answer
        time.sleep(0.05)
    raise AssertionError(f"not within {DEADLINE_S:g} s: {what}")


class Bench:
    """One namespace with a gateway in it."""

    def __init__(self, cluster: ControlPlane, namespace: str) -> None:
        self._program, self.namespace = [*cluster.kubectl, f"--namespace={namespace}"], namespace

    def kubectl(self, *arguments: str) -> str:
        return kubectl.run(self._program, *arguments)

    def apply(self, *objects: Json) -> None:
        kubectl.apply(self._program, yaml.safe_dump_all(objects))

    def pods(self, selector: str) -> list[Json]:
        items: list[Json] = json.loads(self.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        return [pod for pod in items if not pod["metadata"].get("deletionTimestamp")]

    def gateways(self) -> dict[str, str]:
        """Names and addresses of ready gateway pods."""
        return {
            pod["metadata"]["name"]: pod["status"]["podIP"]
            for pod in self.pods(f"app.kubernetes.io/name={names.GATEWAY}")
            if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
        }

    def serve(self, name: str, replicas: int) -> None:
        service = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name},
            "spec": {"model": {"uri": "pvc://none/none", "servedName": f"org/{name}"}},
        }
        self.apply(service)
        uid = self.kubectl("get", names.PLURAL, name, "-o", "jsonpath={.metadata.uid}")
        owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": name, "uid": uid, "controller": True}
        self.apply(stand_in(name, replicas, owner))


def stand_in(service: str, replicas: int, owner: Json) -> Json:
    """A Deployment as the operator makes it, of stand-ins for runtimes that answer with the names of their pods."""
    container = {
        "name": names.CONTAINER_RUNTIME,
        "image": "kvasir-local/process",
        "command": [sys.executable, "-m", "fakes.stub_runtime", "$(POD_IP)", "$(POD_NAME)"],
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "PYTHONPATH", "value": str(ROOT / "tests")},
        ],
        "ports": [
            {"name": names.PORT_HTTP_NAME, "containerPort": names.PORT_HTTP},
            {"name": names.PORT_OPS_NAME, "containerPort": names.PORT_OPS},
        ],
        "readinessProbe": {"httpGet": {"path": names.PATH_STATE, "port": names.PORT_OPS_NAME}, "periodSeconds": 1},
    }
    labels = {names.LABEL_SERVICE: service}
    pod = {"containers": [container], "terminationGracePeriodSeconds": 1}
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    metadata = {"name": service, "labels": labels, "ownerReferences": [owner]}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def manifests(namespace: str) -> Iterator[Json]:
    """The gateway's own manifests, moved to a namespace, one replica instead of two, and no tenants, which an operator
    would have written."""
    listed = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())["resources"]
    for name in listed:
        for found in yaml.safe_load_all((MANIFESTS / name).read_text()):
            if "namespace" in found["metadata"]:
                found["metadata"]["namespace"] = namespace
            else:
                found["metadata"]["name"] += f"-{namespace}"
            if found["kind"] == "ClusterRoleBinding":
                found["roleRef"]["name"] += f"-{namespace}"
            for subject in found.get("subjects", ()):
                subject["namespace"] = namespace
            if found["kind"] == "Deployment":
                found["spec"]["replicas"] = 1
            if found["kind"] == "Secret":
                found["data"] = {tenant_keys.ENTRY: base64.b64encode(tenant_keys.encode(TenantKeys())).decode()}
            yield found


@pytest.fixture
def bench(cluster_node: ControlPlane, namespace: str) -> Iterator[Bench]:
    found = Bench(cluster_node, namespace)
    found.kubectl("apply", "--server-side", "--force-conflicts", *(f"--filename={path}" for path in CRDS))
    found.kubectl("wait", "--for=condition=Established", f"crd/{names.PLURAL}.{names.GROUP}", "--timeout=60s")
    written = list(manifests(namespace))
    found.apply(*written)
    yield found
    for item in written:
        if "namespace" not in item["metadata"]:
            found.kubectl("delete", item["kind"], item["metadata"]["name"])


def ask(address: str, model: str, path: str = "/v1/completions") -> tuple[int, bytes, dict[str, str]]:
    body = json.dumps({"model": model}).encode()
    request = urllib.request.Request(f"http://{address}:{names.PORT_GATEWAY}{path}", data=body, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            return response.status, response.read(), dict(response.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers)


def get(address: str, port: int, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://{address}:{port}{path}", timeout=DEADLINE_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.timeout(240)
def test_the_gateways_pod_routes_drains_and_is_replaced(bench: Bench):
    bench.serve("one", 2)
    bench.serve("two", 1)
    (first, address), *_ = until(bench.gateways, "a ready gateway").items()
    until(lambda: ask(address, "org/one")[0] == 200, "the first service")
    until(lambda: ask(address, "org/two")[0] == 200, "the second service")
    (only,) = bench.pods(f"{names.LABEL_SERVICE}=two")
    assert {ask(address, "org/two")[1] for _ in range(4)} == {StubRuntime(only["metadata"]["name"]).whole()}
    status, models = get(address, names.PORT_GATEWAY, "/v1/models")
    assert {"org/one", "org/two"} <= {card["id"] for card in json.loads(models)["data"]}

    bench.kubectl("patch", names.PLURAL, "two", "--type=merge", "--patch", '{"spec": {"replicas": 0}}')
    bench.kubectl("scale", "deployment", "two", "--replicas=0")
    until(lambda: ask(address, "org/two")[0] == 503, "nobody serves the second service")
    status, body, headers = ask(address, "org/two")
    assert json.loads(body)["error"]["code"] == "no_ready_replica"
    assert int(headers["retry-after"]) >= 1

    ips = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in bench.pods(f"{names.LABEL_SERVICE}=one")}
    with ThreadPoolExecutor(1) as pool:
        streaming = pool.submit(ask, address, "org/one", "/v1/slow")
        until(lambda: inflight(address, "one") == 1, "a stream through the first gateway")
        bench.kubectl("delete", "pod", first, "--wait=false")
        (other,) = until(lambda: [ip for name, ip in bench.gateways().items() if name != first], "another gateway")
        until(lambda: ask(other, "org/one")[0] == 200, "it serves")
        assert get(address, names.PORT_GATEWAY_STATE, names.PATH_READYZ)[0] == 503
        assert not streaming.done()
        for ip in ips.values():
            get(ip, names.PORT_OPS, "/release")
        status, body, _ = streaming.result()
    assert (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)
    until(lambda: first not in bench.kubectl("get", "pods"), "the first gateway is gone")


def inflight(address: str, service: str) -> int:
    document = json.loads(get(address, names.PORT_GATEWAY_STATE, names.PATH_STATE)[1])
    return sum(found["inflight"] for found in document["services"] if found["name"] == service)


def test_the_gateway_may_read_five_kinds_and_one_secret_and_write_none(bench: Bench):
    account = f"system:serviceaccount:{bench.namespace}:{names.GATEWAY}"
    said = bench.kubectl("auth", "can-i", "--list", f"--as={account}")
    granted = {line.split()[0]: line[line.rindex("[") :] for line in said.splitlines() if "[" in line}
    ours = {name: verbs for name, verbs in granted.items() if not name.startswith(("self", "["))}
    kinds = {
        "pods",
        "deployments.apps",
        "replicasets.apps",
        *(f"{plural}.{names.GROUP}" for plural in (names.PLURAL, names.ROUTE_PLURAL)),
    }
    assert ours == dict.fromkeys(kinds, "[list watch]") | {"secrets": "[get]"}


def test_the_manifests_pass_kustomize(cluster: ControlPlane):
    rendered = kubectl.run(cluster.kubectl, "kustomize", str(MANIFESTS))
    kinds = sorted(found["kind"] for found in yaml.safe_load_all(rendered))
    assert kinds == [
        "ClusterRole",
        "ClusterRoleBinding",
        "Deployment",
        "PodDisruptionBudget",
        "Role",
        "RoleBinding",
        "Secret",
        "Service",
        "ServiceAccount",
    ]
