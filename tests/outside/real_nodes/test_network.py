"""Names and NetworkPolicies on real nodes, by CoreDNS and kube-router: who reaches us, and whom we reach."""

import json

import pytest

from kvasir_api import names
from kvasir_local import kubectl

pytestmark = pytest.mark.timeout(600)

FOREIGN = "foreign"
OPERATOR_METRICS, OPERATOR_HEALTH = 9090, 8081
REACH = """\
import socket, sys
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
        print(place, "open")
    except OSError as error:
        print(place, "closed", type(error).__name__)
"""
ASK = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())"


class ForeignPod:
    """A pod of another team, in a namespace without policies, on a chosen node. It listens at the ops port's number."""

    def __init__(self, real, node, image):
        self._program = [*real.kubectl, f"--namespace={FOREIGN}"]
        self._name = f"on-{node}"
        container = {
            "name": "main",
            "image": image,
            "command": ["/opt/kvasir/bin/python", "-m", "http.server", str(names.PORT_OPS)],
        }
        spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self._name}, "spec": spec}
        kubectl.apply(self._program, json.dumps(pod))

    def started(self):
        kubectl.run(self._program, "wait", "--for=condition=Ready", f"pod/{self._name}", "--timeout=55s")
        return self

    @property
    def listens(self):
        """HOST:PORT."""
        address = kubectl.run(self._program, "get", "pod", self._name, "--output=jsonpath={.status.podIP}")
        return f"{address}:{names.PORT_OPS}"

    def python(self, text, *arguments):
        return python_in([*self._program, "exec", self._name], text, *arguments)

    def reaches(self, *places):
        return opened(self.python(REACH, *places), places)


def python_in(program, text, *arguments):
    """A program in a container. program: the beginning of a command line of `kubectl exec`."""
    return kubectl.run(program, "--", "/opt/kvasir/bin/python", "-c", text, *arguments)


def opened(said, places):
    """Which of the places, HOST:PORT, took a connection, by the words of REACH."""
    lines = [line.split() for line in said.splitlines()]
    assert [place for place, *_ in lines] == list(places), said
    return {place for place, state, *_ in lines if state == "open"}


@pytest.fixture(scope="module")
def foreign(real, served):
    """Pods of a foreign namespace, one on each node, which have nothing to do with ours."""
    words = ("get", "deploy", names.GATEWAY, f"--namespace={names.SYSTEM_NAMESPACE}", "--output=json")
    containers = json.loads(kubectl.run(real.kubectl, *words))["spec"]["template"]["spec"]["containers"]
    (image,) = [container["image"] for container in containers if container["name"] == "picker"]
    served.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": FOREIGN}})
    pods = [ForeignPod(real, node.name, image) for node in real.state.nodes]
    yield [pod.started() for pod in pods]
    kubectl.run(real.kubectl, "delete", "namespace", FOREIGN, "--wait=false")


def system_pods(real, name):
    words = ("get", "pods", f"--namespace={names.SYSTEM_NAMESPACE}", "--output=json")
    found = json.loads(kubectl.run(real.kubectl, *words, f"--selector=app.kubernetes.io/name={name}"))["items"]
    return [pod["status"]["podIP"] for pod in found if pod["status"]["phase"] == "Running"]


def test_names_of_services_resolve_in_pods_and_the_address_in_a_status_answers(served, foreign):
    url = served.status()["address"]["url"]
    assert url.startswith(f"http://{names.GATEWAY}.{names.SYSTEM_NAMESPACE}"), url
    for pod in foreign:
        models = json.loads(pod.python(ASK, f"{url.removesuffix('/v1')}/v1/models"))
        assert served.namespace in {model["id"] for model in models["data"]}


def test_any_pod_reaches_the_port_of_clients_and_none_the_ops_port(served, foreign):
    (replica,) = served.pods()
    address = replica["status"]["podIP"]
    clients, ops = f"{address}:{names.PORT_HTTP}", f"{address}:{names.PORT_OPS}"
    for pod in foreign:  # one of them on the node of the replica, one on the other
        assert pod.reaches(clients, ops) == {clients}


def test_a_pod_of_the_services_own_namespace_does_not_reach_the_ops_port(real, served, foreign):
    """By its labels alone a pod is a replica: one of the same namespace without them is foreign."""
    (replica,) = served.pods()
    image = replica["spec"]["containers"][0]["image"]
    spec = {
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "main",
                "image": image,
                "command": ["/opt/kvasir/bin/python", "-c", REACH, f"{replica['status']['podIP']}:{names.PORT_OPS}"],
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    }
    served.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "neighbour"}, "spec": spec})
    try:
        words = ("get", "pod", "neighbour", "--output=jsonpath={.status.phase}")
        served.until(lambda: served.kubectl(*words) in {"Succeeded", "Failed"}, "the neighbour has tried")
        assert "closed" in served.kubectl("logs", "neighbour")
    finally:
        served.kubectl("delete", "pod", "neighbour", "--wait=false")


def test_operator_and_gateway_take_what_their_policies_admit(real, foreign):
    for address in system_pods(real, names.OPERATOR):
        metrics, health = f"{address}:{OPERATOR_METRICS}", f"{address}:{OPERATOR_HEALTH}"
        assert foreign[0].reaches(metrics, health) == {metrics}
    for address in system_pods(real, names.GATEWAY):
        admitted = (f"{address}:{names.PORT_GATEWAY}", f"{address}:{names.PORT_GATEWAY_STATE}")
        assert foreign[0].reaches(*admitted) == set(admitted)


def test_the_gateway_reaches_replicas_and_the_api_server_and_no_pod_of_others(real, served, foreign):
    (replica,) = served.pods()
    address = replica["status"]["podIP"]
    server = f"{real.state.network.server_address}:{real.state.network.apiserver}"
    admitted = (f"{address}:{names.PORT_HTTP}", f"{address}:{names.PORT_OPS}", server)
    others = foreign[0].listens
    assert foreign[1].reaches(others) == {others}
    picker = [f"--namespace={names.SYSTEM_NAMESPACE}", f"deploy/{names.GATEWAY}", "--container=picker"]
    places = (*admitted, others)
    assert opened(python_in([*real.kubectl, "exec", *picker], REACH, *places), places) == set(admitted)
