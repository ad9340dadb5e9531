"""Two nodes under a service: where its pods are put, and a link that is down."""

import contextlib
import json
import subprocess

from openai import OpenAIError

from kvasir_api import names
from kvasir_local import kubectl
from outside.real_nodes.service import rolled_out


def node_of(pod):
    return pod["spec"].get("nodeName")


def system_pods(real, name):
    selector = f"--selector=app.kubernetes.io/name={name}"
    words = ("get", "pods", f"--namespace={names.SYSTEM_NAMESPACE}", selector, "--output=json")
    found = json.loads(kubectl.run(real.kubectl, *words))["items"]
    return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]


def spread_out(real, service):
    """One operator and one gateway on each node: the scheduler prefers it, and a node that was emptied has none."""
    program = [*real.kubectl, f"--namespace={names.SYSTEM_NAMESPACE}"]
    for name in ("kvasir-operator", "kvasir-gateway"):
        service.until(lambda name=name: rolled_out(program, name), f"{name} has its pods")
        pods = system_pods(real, name)
        if len({node_of(pod) for pod in pods}) == 1:
            kubectl.run(program, "delete", "pod", pods[0]["metadata"]["name"], "--wait=false")
            service.until(
                lambda name=name: rolled_out(program, name) and len({node_of(p) for p in system_pods(real, name)}) == 2,
                f"{name} is on two nodes",
            )


@contextlib.contextmanager
def cordoned(real, node):
    kubectl.run(real.kubectl, "cordon", node)
    try:
        yield
    finally:
        kubectl.run(real.kubectl, "uncordon", node)


def other(node):
    return {"kvasir-0": "kvasir-1", "kvasir-1": "kvasir-0"}[node]


@contextlib.contextmanager
def unreachable(real, node):
    """The link of a node is down: its pods run on, and no request or probe from outside reaches it."""
    link = real.state.network.kubelets.link(int(node.removeprefix("kvasir-")))
    subprocess.run(["ip", "link", "set", link, "down"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "set", link, "up"], check=True)


def listed(service, gateway):
    """Whether a gateway knows the service: one whose node was cut off watches again within a minute."""
    with service.client(gateway, timeout_s=10) as client, contextlib.suppress(OpenAIError):
        return service.namespace in {model.id for model in client.models.list()}
    return False


def on_both_nodes(real, service, **spec):
    """A replica, an operator and a gateway that knows the service on each node; the URL of the one on kvasir-0."""
    spread_out(real, service)
    with cordoned(real, "kvasir-1"):
        service.apply(replicas=1, **spec)
        service.until_ready()
    with cordoned(real, "kvasir-0"):
        service.apply(replicas=2, **spec)
        service.until_ready()
    assert {node_of(pod) for pod in service.pods()} == {"kvasir-0", "kvasir-1"}
    gateways = {
        node_of(pod): f"http://{pod['status']['podIP']}:{names.PORT_GATEWAY}"
        for pod in system_pods(real, "kvasir-gateway")
    }
    service.until(lambda: all(listed(service, url) for url in gateways.values()), "both gateways list the model")
    return gateways["kvasir-0"]


@contextlib.contextmanager
def operator_with(real, service, *more):
    """The operator with further arguments while the block is open."""
    program = [*real.kubectl, f"--namespace={names.SYSTEM_NAMESPACE}"]
    operator = json.loads(kubectl.run(program, "get", "deploy", names.OPERATOR, "--output=json"))
    before = operator["spec"]["template"]["spec"]["containers"][0]["args"]

    def put(arguments):
        patch = [{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": arguments}]
        kubectl.run(program, "patch", "deploy", names.OPERATOR, "--type=json", f"--patch={json.dumps(patch)}")
        service.until(lambda: rolled_out(program, names.OPERATOR), "the operator runs with its new arguments")

    put([*before, *more])
    try:
        yield
    finally:
        put(before)
