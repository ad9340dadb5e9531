"""What we ship to be applied: the base, its components and the samples, on a real API server; and GitOps tools that
apply again and again beside an operator that runs."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes import keda
from fakes.operator_rig import ROOT, kubectl
from kvasir_api import names
from kvasir_kube.kinds import INFERENCE_SERVICE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(150)]
MANIFESTS = ROOT / "manifests"
COMPONENTS = sorted(path.name for path in (MANIFESTS / "components").iterdir() if path.is_dir())
SAMPLES = sorted((MANIFESTS / "samples").glob("*.yaml"))
MONITORING = [
    {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.lower()}s.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "names": {"kind": kind, "plural": f"{kind.lower()}s"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    },
                }
            ],
        },
    }
    for kind in ("PodMonitor", "PrometheusRule")
]
"""As much of the Prometheus operator as lets its objects be applied."""


def overlay(control, tmp: Path, *arguments: str) -> list[dict[str, Any]]:
    """What `make deploy` would apply."""
    subprocess.run([MANIFESTS / "overlay.sh", tmp / "deploy", "", "1", *arguments], check=True)
    return [d for d in yaml.safe_load_all(kubectl(control, "kustomize", str(tmp / "deploy"))) if d]


def of(documents, kind, name):
    (found,) = [d for d in documents if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return found


@pytest.fixture(scope="module")
def monitors(control):
    """The kinds PodMonitor and PrometheusRule, known for as long as this file runs."""
    crds = [f"crd/{kind['metadata']['name']}" for kind in MONITORING]
    kubectl(control, "apply", "--server-side", "-f", "-", text=yaml.safe_dump_all(MONITORING))
    kubectl(control, "wait", "--for=condition=Established", *crds, "--timeout=60s")
    yield
    kubectl(control, "delete", *crds)


@pytest.mark.parametrize("components", [*COMPONENTS, " ".join(COMPONENTS)])
def test_every_component_is_what_the_api_server_takes(control, monitors, tmp_path, components):
    documents = overlay(control, tmp_path, components)
    if "models" not in kubectl(control, "get", "namespaces", "-oname"):
        kubectl(control, "create", "namespace", "models")
    said = kubectl(
        control, "apply", "--server-side", "--force-conflicts", "--validate=strict", "--dry-run=server", "-f", "-",
        text=yaml.safe_dump_all(documents),
    )  # fmt: skip
    assert said.count("serverside-applied (server dry run)") == len(documents)


def test_for_one_namespace_nothing_is_granted_elsewhere(control, tmp_path):
    documents = overlay(control, tmp_path, "", "team")
    everywhere = {d["metadata"]["name"] for d in documents if d["kind"] == "ClusterRoleBinding"}
    assert everywhere == {"kvasir-operator-cluster"}
    there = {d["metadata"]["name"]: d for d in documents if d["kind"] == "RoleBinding"}
    assert {name: d["metadata"]["namespace"] for name, d in there.items()} == {
        "kvasir-operator": "team",
        "kvasir-gateway": "team",
        "kvasir-gateway-keys": names.SYSTEM_NAMESPACE,
        "kvasir-gateway-pods": names.SYSTEM_NAMESPACE,
        "kvasir-operator-lease": names.SYSTEM_NAMESPACE,
    }
    for name, number in ((names.OPERATOR, 0), (names.GATEWAY, 1)):
        container = of(documents, "Deployment", name)["spec"]["template"]["spec"]["containers"][number]
        assert [a for a in container["args"] if a.startswith("--namespace")][-1] == "--namespace=team"
    cluster_wide = {"acceleratorclasses", "nodes"}
    rules = of(documents, "ClusterRole", "kvasir-operator-cluster")["rules"]
    wanted = of(documents, "ClusterRole", names.OPERATOR)["rules"]
    assert rights(rules) == {right for right in rights(wanted) if right[1] in cluster_wide}


def rights(rules):
    return {(g, r, v) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}


def test_policies_and_monitors_name_ports_that_the_pods_have(control, tmp_path):
    documents = overlay(control, tmp_path, "network-policies monitoring")
    ports = {name: set() for name in (names.OPERATOR, names.GATEWAY)}
    for name, found in ports.items():
        for container in of(documents, "Deployment", name)["spec"]["template"]["spec"]["containers"]:
            found |= {port["name"] for port in container.get("ports", ())}
        policy = of(documents, "NetworkPolicy", name)["spec"]
        asked = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
        assert asked <= found
        reached = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
        assert {53, 443, 6443, names.PORT_OPS, names.PORT_GATEWAY_STATE} <= reached
        (endpoint,) = of(documents, "PodMonitor", name)["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in found
    clients = {
        port["port"]
        for rule in of(documents, "NetworkPolicy", names.GATEWAY)["spec"]["egress"]
        for port in rule["ports"]
    }
    assert names.PORT_HTTP in clients
    monitor = of(documents, "PodMonitor", "kvasir-runtime")["spec"]
    assert monitor["selector"]["matchLabels"] == {
        names.LABEL_NAME: names.IMAGE_RUNTIME,
        names.LABEL_ROLE: names.ROLE_SERVE,
    }
    assert monitor["podMetricsEndpoints"][0]["port"] == names.PORT_HTTP_NAME


def test_three_gateways_on_three_nodes(control, tmp_path):
    documents = overlay(control, tmp_path, "high-availability")
    for name, replicas in ((names.OPERATOR, 2), (names.GATEWAY, 3)):
        spec = of(documents, "Deployment", name)["spec"]
        assert spec["replicas"] == replicas
        spread = {s["topologyKey"]: s for s in spec["template"]["spec"]["topologySpreadConstraints"]}
        assert spread["kubernetes.io/hostname"]["whenUnsatisfiable"] == "DoNotSchedule"
        assert all(s["labelSelector"]["matchLabels"] == spec["selector"]["matchLabels"] for s in spread.values())


@pytest.mark.parametrize("side", ["--server-side", "--server-side=false"], ids=["server-side", "client-side"])
@pytest.mark.parametrize("what", ["base", "samples"])
async def test_applied_twice_there_is_no_difference(rig, what, side):
    """Beside a running operator, which writes statuses meanwhile."""
    where = f"--namespace={rig.namespace}"
    if what == "base":
        text = yaml.safe_dump_all(movable(rig))
    else:
        text = "\n---\n".join(path.read_text() for path in SAMPLES)
        kubectl(rig.control, "apply", "-f", "-", text=yaml.safe_dump(keda.DEFINITION))
        kubectl(rig.control, "wait", "--for=condition=Established", "crd/scaledobjects.keda.sh", "--timeout=60s")
    kubectl(rig.control, "apply", side, "--validate=strict", where, "-f", "-", text=text)
    for name in services(text):
        await rig.until(lambda name=name: seen(rig, name), lambda name=name: rig.dump(name))
    shown = []

    async def alike():
        """It fails when anything would change, and also when a status is written between its two questions."""
        try:
            kubectl(rig.control, "diff", side, where, "-f", "-", text=text)
        except AssertionError as error:
            shown[:] = [str(error)]
            return False
        return True

    await rig.until(alike, lambda: shown[0])
    before = generations(rig, text)
    again = kubectl(rig.control, "apply", side, where, "-f", "-", text=text)
    await rig.until(alike, lambda: shown[0])
    assert generations(rig, text) == before
    for name in services(text):
        await rig.delete(name)
    for line in again.splitlines():
        if line.startswith("acceleratorclass"):
            kubectl(rig.control, "delete", line.split()[0])


def generations(rig, text):
    """How often the wish of each object has changed."""
    listed = "jsonpath={range .items[*]}{.kind}/{.metadata.name}={.metadata.generation} {end}"
    found = kubectl(rig.control, "get", f"--namespace={rig.namespace}", "-f", "-", "-o", listed, text=text)
    return found.split() or kubectl(
        rig.control,
        "get",
        f"--namespace={rig.namespace}",
        "-f",
        "-",
        "-o",
        "jsonpath={.metadata.generation}",
        text=text,
    )


def services(text):
    return [d["metadata"]["name"] for d in yaml.safe_load_all(text) if d and d["kind"] == names.KIND]


async def seen(rig, name):
    return await rig.status(name)


def movable(rig):
    """The base without what the whole cluster shares, in the test's namespace."""
    rendered = yaml.safe_load_all(kubectl(rig.control, "kustomize", str(MANIFESTS / "base")))
    for document in rendered:
        if document["metadata"].get("namespace"):
            document["metadata"]["namespace"] = rig.namespace
            for subject in document.get("subjects", ()):
                subject["namespace"] = rig.namespace
            yield document


@pytest.mark.parametrize("manager", ["argocd-controller", "kustomize-controller"])
async def test_a_gitops_tool_and_our_writes_never_fight(rig, manager):
    """It applies with force, as those tools do; what it owns and what we own are different fields."""
    spec = {
        "model": {"uri": "file:///srv/tiny"},
        "autoscaling": {"minReplicas": 1, "maxReplicas": 2},
        "runtime": {"blockSize": 32},
    }
    body = {"metadata": {"namespace": rig.namespace, "name": "tiny", "labels": {"team": "a"}}, "spec": spec}

    async def sync():
        return await rig.client.apply(INFERENCE_SERVICE, body, manager=manager)

    first = await sync()
    await rig.until_condition("Ready", reason="AllReplicasReady")
    mark = rig.audit_mark()
    versions = {(await sync())["metadata"]["generation"] for _ in range(10)}
    assert versions == {first["metadata"]["generation"]}
    await rig.heard()

    async def rest():
        before = (await rig.service())["metadata"]["resourceVersion"]
        await sync()
        await rig.heard()
        return (await sync())["metadata"]["resourceVersion"] == before

    await rig.until(rest, lambda: "a version that stands still")
    assert len(rig.writes_since(mark)) <= 5, "counters of the status, at most"
    found = json.loads(kubectl(
        rig.control, "get", "infsvc", "tiny", f"--namespace={rig.namespace}", "-ojson", "--show-managed-fields"
    ))["metadata"]["managedFields"]  # fmt: skip
    assert {(entry["manager"], entry.get("subresource", "")) for entry in found} == {
        (manager, ""),
        (names.STATUS_MANAGER, "status"),
    }
    owned = {entry["manager"]: set(paths(entry["fieldsV1"])) for entry in found}
    assert owned[manager] & owned[names.STATUS_MANAGER] == set()
    assert all(path.startswith("f:status") for path in owned[names.STATUS_MANAGER])


def paths(fields, at=""):
    """Leaves of a set of owned fields."""
    for name, inner in fields.items():
        if inner:
            yield from paths(inner, f"{at}.{name}".lstrip("."))
        else:
            yield f"{at}.{name}".lstrip(".")
