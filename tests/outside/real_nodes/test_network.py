"""Names and NetworkPolicies on real nodes, by CoreDNS and kube-router: who reaches us, and whom we reach."""

import json
from urllib import request

import pytest

from kvasir_api import names
from kvasir_local import kubectl
from outside.real_nodes.nodes import cordoned, node_of, on_both_nodes
from outside.real_nodes.service import StreamLoad, forwarded

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
PREFIX, HANDED = (f"{number}: the operator watches the services and the engine reads a plan " * 16 for number in (1, 2))
"""Prompts of some hundred tokens that have nothing in common."""
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


def state_of(service, pod):
    """The second tier of a replica's cache, as its ops port reports it to a kubelet's own connection."""
    with forwarded(service.program, f"pod/{pod}", names.PORT_OPS) as url, request.urlopen(url + "/state") as answer:
        return json.load(answer)["kv_host"]


def completed(service, pod, prompt, peer=""):
    """An answer of one replica, and how many tokens of the prompt it did not compute. peer: of HEADER_KV_PEER."""
    with service.client(f"http://{pod['status']['podIP']}:{names.PORT_HTTP}") as client:
        answer = client.completions.create(
            model=service.namespace,
            prompt=prompt,
            max_tokens=8,
            temperature=0,
            extra_headers={names.HEADER_KV_PEER: peer} if peer else None,
        )
    return answer.choices[0].text, answer.usage.prompt_tokens_details.cached_tokens


def test_replicas_of_two_nodes_exchange_blocks_and_no_other_pod_reaches_their_port(real, fresh, foreign):
    """Fetched by the one that answers, and computed by the other one for it: a policy admits both and no one else."""
    on_both_nodes(real, fresh, runtime={"kvCacheTokens": 4096, "kvHostBytes": 50_000_000})
    first, second = fresh.pods()
    name = first["metadata"]["name"]
    peer = f"{first['status']['podIP']}:{names.PORT_KV}"
    text, cached = completed(fresh, first, PREFIX)
    assert cached == 0
    fresh.until(lambda: state_of(fresh, name)["stored_tokens"] > 200, "its blocks are on the host")
    again, cached = completed(fresh, second, PREFIX, f"{peer};bytes={len(PREFIX)}")
    assert again == text
    assert cached > 200
    _, cached = completed(fresh, second, HANDED, f"{peer};prefill")
    assert cached > 200
    assert state_of(fresh, name)["peer_prompts"] == 1
    assert state_of(fresh, second["metadata"]["name"])["failed_fetches"] == 0
    for pod in foreign:
        assert pod.reaches(peer) == set()


def test_two_pods_on_two_nodes_are_one_replica_that_no_other_pod_reaches_between(real, fresh, foreign):
    """Each computes half of the model. One that is deleted computes on until the streams of its replica have ended."""
    group = {"kvCacheTokens": 4096, "tensorParallelSize": 2, "nnodes": 2}
    with cordoned(real, "kvasir-1"):
        fresh.apply(replicas=1, runtime=group)
        fresh.until(lambda: any(map(node_of, fresh.pods())), "node 0 has its place")
        kubectl.run(real.kubectl, "cordon", "kvasir-0")
    try:
        fresh.until_ready()
    finally:
        kubectl.run(real.kubectl, "uncordon", "kvasir-0")
    leader, node = sorted(fresh.pods(), key=node_of)
    assert [node_of(pod) for pod in (leader, node)] == ["kvasir-0", "kvasir-1"]
    for pod in foreign:
        assert pod.reaches(f"{leader['status']['podIP']}:{names.PORT_NODES}") == set()
    with StreamLoad(fresh) as load:
        load.until_more()
        fresh.kubectl("delete", "pod", node["metadata"]["name"], "--wait=false")
        before = {leader["metadata"]["uid"], node["metadata"]["uid"]}
        fresh.until(lambda: len(fresh.uids()) == 2 and not fresh.uids() & before, "both pods are others")
        fresh.until_ready()
        load.until_more()
    assert set(load.ends) == {"length"}
    assert "ReplicaRegrouped" in fresh.kubectl("get", "events")
