"""The rights of operator and gateway are exactly those that they use, by the word of the API server's audit log."""

import contextlib
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from fakes.gateway import tenants_secret
from fakes.operator_rig import ROOT, account_kubeconfig, kubectl
from kvasir_api import names
from kvasir_api.tenant_keys import TenantKeys
from kvasir_kube.errors import NotFoundError
from kvasir_kube.kinds import (
    CLAIM,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    LEASE,
    MODEL_ROUTE,
    NETWORK_POLICY,
    POD,
    SECRET,
    SERVICE,
    TENANT,
    labels,
)
from kvasir_local import addresses, audit
from kvasir_operator.desired.revision import KEPT_REVISIONS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
BASE = ROOT / "manifests" / "base"
OWN_TENANT = {
    "apiVersion": names.API_VERSION,
    "kind": names.TENANT_KIND,
    "metadata": {"name": "own", "namespace": names.SYSTEM_NAMESPACE},
    "spec": {"secretName": names.SIGNING_SECRET},
}
LONG_AGO = "2020-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource; namespace is empty where it holds in all."""

    group: str
    resource: str
    verb: str
    namespace: str = ""


def granted(part: str) -> set[Right]:
    """Every single right of the roles of operator or gateway."""
    found = set()
    for document in yaml.safe_load_all((BASE / part / "rbac.yaml").read_text()):
        for rule in document.get("rules", ()):
            where = document["metadata"].get("namespace", "") if document["kind"] == "Role" else ""
            found |= {
                Right(group, resource, verb, where)
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
            }
    return found


def used(requests: list[audit.AuditedRequest]) -> set[Right]:
    """What was asked for. An apply that made an object needed both rights, though only one is told."""
    found = set()
    for request in requests:
        if request.resource:
            resource = f"{request.resource}/{request.subresource}" if request.subresource else request.resource
            is_own = request.resource in (LEASE.plural, SECRET.plural) and request.name != names.POD_TLS_SECRET
            where = request.namespace if is_own else ""
            found.add(Right(request.group, resource, request.verb, where))
            if request.verb == "patch" and request.code == 201:
                found.add(Right(request.group, resource, "create", where))
    return found


def asked(control, mark: int, account: str) -> list[audit.AuditedRequest]:
    user = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{account}"
    return [request for request in audit.read(control.paths.audit_log, since=mark)[0] if request.user == user]


async def test_the_operator_uses_all_of_its_rights_and_no_others(still):
    rig = still
    with contextlib.suppress(NotFoundError):
        await rig.client.delete(LEASE, names.SYSTEM_NAMESPACE, names.OPERATOR)
    nothing = {"metadata": {}, "data": None}
    await rig.client.merge(SECRET, names.SYSTEM_NAMESPACE, names.SIGNING_SECRET, nothing, manager="test")
    kubectl(rig.control, "apply", "-f", "-", text=yaml.safe_dump(OWN_TENANT))
    mark = rig.audit_mark()
    # As the Deployment of the base runs it, for all namespaces, under a Lease; with TLS to pods, and models ahead.
    flags = ("--allow-model-dir=/srv", "--namespace=", f"--lease-namespace={names.SYSTEM_NAMESPACE}", "--pod-tls")
    flags += ("--model-cache-dir=/cache", "--model-prefetch-nodes=1")
    rig.start(*flags)
    await rig.claim()

    async def bound():
        return (await rig.client.get(CLAIM, rig.namespace, "models")).get("status", {}).get("phase") == "Bound"

    # A pod that looks at a model waits for a claim's volume, but not for long.
    await rig.until(bound, lambda: "the claim has its volume")
    await rig.apply(model={"uri": "pvc://models/tiny", "inspect": "Always"}, replicas=2)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    await routes(rig)
    assert rig.stop() == 0
    await spoiled(rig)
    rig.start(*flags)
    await restored(rig)
    await overstays(rig)
    await forgets_revisions(rig)
    await judges_tenants(rig)
    await fetches_ahead(rig)
    assert rig.stop() == 0
    kubectl(rig.control, "delete", names.TENANT_PLURAL, "own", f"--namespace={names.SYSTEM_NAMESPACE}")
    requests = asked(rig.control, mark, names.OPERATOR)
    assert [request for request in requests if request.denied] == []
    sets = {Right("apps", "statefulsets", verb) for verb in ("get", "create", "delete")}
    assert used(requests) == granted("operator") - sets  # of replicas of several pods: test_operator_groups.py


async def fetches_ahead(rig):
    """A model that is fetched to a node before a replica comes, for which nodes are listed; else for one that waits."""
    rig.kubelet.hold = True
    uri = f"s3://bucket/tiny@sha256:{'d' * 64}"
    await rig.apply("ahead", model={"uri": uri, "inspect": "Never"}, autoscaling={"maxReplicas": 2})

    async def fetches():
        return any(labels(pod).get(names.LABEL_FETCHES) == "ahead" for pod in await rig.all(POD))

    await rig.until(fetches, lambda: "a pod that fetches")
    rig.kubelet.hold = False


async def routes(rig):
    """A route to a service that is there and to one that is not."""
    targets = [{"service": "tiny"}, {"service": "absent"}]
    route = {"apiVersion": names.API_VERSION, "kind": names.ROUTE_KIND, "metadata": {"name": "route"}}
    route["metadata"]["namespace"] = rig.namespace
    await rig.client.create(MODEL_ROUTE, {**route, "spec": {"modelName": "tiny", "rules": [{"targets": targets}]}})

    async def told():
        status = (await rig.client.get(MODEL_ROUTE, rig.namespace, "route")).get("status") or {}
        found = {c["type"]: (c["status"], c["message"]) for c in status.get("conditions", ())}
        missing = "spec.rules[0].targets[1].service: absent"
        return (
            found
            and found["Accepted"][0] == "True"
            and found["ResolvedRefs"][0] == "False"
            and (missing in found["ResolvedRefs"][1])
        )

    await rig.until(told, lambda: "the route's conditions")


CHILDREN = (SERVICE, NETWORK_POLICY, DISRUPTION_BUDGET, CONTROLLER_REVISION, DEPLOYMENT)
SPOILED = "spoiled"


async def spoiled(rig):
    """Children that are changed from outside while there is no operator."""
    for kind in CHILDREN:
        mark = f"{names.LABEL_INSTANCE}={SPOILED}"
        kubectl(rig.control, "label", kind.plural, "--all", mark, "--overwrite", f"--namespace={rig.namespace}")


async def restored(rig):
    async def look():
        found = [obj for kind in CHILDREN for obj in await rig.all(kind)]
        return not any(labels(obj).get(names.LABEL_INSTANCE) == SPOILED for obj in found)

    await rig.until(look, lambda: "children as they were")


async def overstays(rig):
    """A pod that drains for so long that it is cut short."""
    for pod in await rig.until_pods(2):
        pod.set_state(running=1)
    await rig.heard()
    kubectl(rig.control, "scale", "infsvc/tiny", "--replicas=1", f"--namespace={rig.namespace}")

    async def marked():
        return next(
            (p for p in await rig.all(POD) if names.ANNOTATION_DRAIN in p["metadata"].get("annotations", {})), None
        )

    victim = (await rig.until(marked, lambda: "a pod that drains"))["metadata"]["name"]
    # Its time passes at once.
    note = f"{names.ANNOTATION_DRAIN}={LONG_AGO}"
    kubectl(rig.control, "annotate", "pod", victim, note, "--overwrite", f"--namespace={rig.namespace}")

    async def gone():
        return victim not in [p["metadata"]["name"] for p in await rig.all(POD)]

    await rig.until(gone, lambda: "the pod was cut short")


async def judges_tenants(rig):
    async def judged():
        status = (await rig.client.get(TENANT, names.SYSTEM_NAMESPACE, "own")).get("status") or {}
        return [condition["reason"] for condition in status.get("conditions", ())] == ["KeysMissing"]

    await rig.until(judged, lambda: "a tenant of the operator's own namespace, where it reads two Secrets")


async def forgets_revisions(rig):
    """So many edits that old revisions are deleted."""
    for number in range(KEPT_REVISIONS + 3):
        await rig.apply(model={"uri": "pvc://models/tiny"}, replicas=0, runtime={"maxSequences": 10 + number})

        async def last(wanted=10 + number):
            found = await rig.all(CONTROLLER_REVISION)
            return any(r["data"]["inputs"].get("runtime", {}).get("maxSequences") == wanted for r in found)

        await rig.until(last, lambda: "its revision")

    async def kept():
        # Beside the old ones the current one and the last that was good.
        return len(await rig.all(CONTROLLER_REVISION)) <= KEPT_REVISIONS + 2

    await rig.until(kept, lambda: "old revisions go")


async def test_the_gateway_uses_all_of_its_rights_and_no_others(rig, tmp_path):
    for name in ("serviceaccount", "rbac"):
        kubectl(rig.control, "apply", "--server-side", "-f", str(BASE / "gateway" / f"{name}.yaml"))
    no_tenants = {"apiVersion": "v1", "kind": "Secret", **tenants_secret(TenantKeys())}
    kubectl(rig.control, "apply", "--server-side", "--force-conflicts", "-f", "-", text=yaml.safe_dump(no_tenants))
    config = account_kubeconfig(rig.control, tmp_path / "gateway.kubeconfig", names.GATEWAY)
    await rig.apply()
    await rig.until_condition("Ready")
    mark = rig.audit_mark()
    with gateway(config, tmp_path) as process:

        async def follows():
            assert process.poll() is None, (tmp_path / "gateway.log").read_text()
            return "watch" in {request.verb for request in asked(rig.control, mark, names.GATEWAY)}

        await rig.until(follows, lambda: "it watches")
        await rig.until(lambda: whole(rig, mark), lambda: "all kinds")
    requests = asked(rig.control, mark, names.GATEWAY)
    assert [request for request in requests if request.denied] == []
    assert used(requests) == granted("gateway")


async def whole(rig, mark):
    return used(asked(rig.control, mark, names.GATEWAY)) >= granted("gateway")


@contextlib.contextmanager
def gateway(config: Path, tmp: Path):
    """The picker as a process; without Envoy it has nobody to answer."""
    (tmp / "shared").mkdir()
    (port,) = addresses.free_ports(1)
    command = [
        str(Path(sys.executable).with_name("kvasir")), "gateway", f"--config-dir={tmp / 'shared'}",
        f"--kubeconfig={config}", f"--state-port={port}", f"--gateway-namespace={names.SYSTEM_NAMESPACE}",
    ]  # fmt: skip
    with (tmp / "gateway.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


async def test_for_one_namespace_rights_in_that_one_are_enough(still, tmp_path):
    """Operator and services in namespaces of their own, the operator as the chart installs it."""
    rig = still
    home = f"{rig.namespace}-home"
    kubectl(rig.control, "create", "namespace", home)
    made = rendered(home, rig.namespace)
    kubectl(rig.control, "apply", "--server-side", "--force-conflicts", "-f", "-", text=yaml.safe_dump_all(made))
    rig.account(home)
    mark = rig.audit_mark()
    rig.start(f"--lease-namespace={home}", "--allow-model-dir=/srv")
    await rig.apply(replicas=2)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    kubectl(rig.control, "scale", "infsvc/tiny", "--replicas=1", f"--namespace={rig.namespace}")
    await rig.until_pods(1)
    assert rig.stop() == 0
    user = f"system:serviceaccount:{home}:{names.OPERATOR}"
    requests = [r for r in audit.read(rig.control.paths.audit_log, since=mark)[0] if r.user == user]
    assert [request for request in requests if request.denied] == []
    assert {request.namespace for request in requests} == {rig.namespace, home}
    for verb, what, where in (
        ("delete", "pods", home),
        ("patch", "deployments", "default"),
        ("list", "pods", "default"),
    ):
        can = ["auth", "can-i", verb, what, f"--namespace={where}", f"--as={user}"]
        assert kubectl(rig.control, *can, check=False).strip() == "no"
    for document in made:
        if document["kind"] in ("ClusterRoleBinding", "ClusterRole") and document["metadata"]["name"].startswith(home):
            kubectl(rig.control, "delete", document["kind"], document["metadata"]["name"])
    kubectl(rig.control, "delete", "namespace", home, "--wait=false")


def rendered(home: str, watched: str) -> list[dict]:
    """Accounts and rights of the chart, cluster-wide objects under names of this test."""
    helm = [
        str(Path(sys.executable).with_name("helm")), "template", "kvasir", str(ROOT / "manifests" / "chart"),
        "--namespace", home, "--set", f"watchNamespace={watched},crds.install=false",
    ]  # fmt: skip
    text = subprocess.run(helm, capture_output=True, text=True, check=True, timeout=60).stdout
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Secret")
    found = [d for d in yaml.safe_load_all(text) if d and d["kind"] in kinds]
    for document in found:
        if document["kind"].startswith("ClusterRole"):
            document["metadata"]["name"] = f"{home}-{document['metadata']['name']}"
        if document.get("roleRef", {}).get("kind") == "ClusterRole":
            document["roleRef"]["name"] = f"{home}-{document['roleRef']['name']}"
    return found
