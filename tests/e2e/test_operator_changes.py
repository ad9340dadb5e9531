"""Random changes of live services: what stands afterwards is what a new service of that spec gets, and a change that
is taken back leaves no trace.

A small sample that is always the same runs with the other tests; `make test-changes SEED=… CASES=…` runs many and
shrinks what fails to the smallest change that still does.
"""

import asyncio
import difflib
import json
import os

import pytest
from hypothesis import HealthCheck, Phase, given, note, seed, settings

from fakes.operator_rig import kubectl
from fakes.random_specs import changed, changes
from kvasir_api.state import ServedTotals
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import (
    ACCELERATOR_CLASS,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    POD,
    SERVICE,
)

CASES = int(os.environ.get("KVASIR_CASES", "2"))
SEED = int(os.environ.get("KVASIR_SEED", "7"))
LONG = "KVASIR_CASES" in os.environ
PHASES = (Phase.generate, Phase.shrink) if LONG else (Phase.generate,)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(86_400 if LONG else 300)]
ORIGIN = {"model": {"uri": "file:///srv/a"}, "replicas": 1}
KINDS = (SERVICE, DISRUPTION_BUDGET, NETWORK_POLICY, DEPLOYMENT, CONTROLLER_REVISION)
OF_THE_SERVER = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "annotations")
ENDS = ("AllReplicasReady", "ScaledToZero")
NO_NODE, PAUSED = "no node", "paused"
LATE = ("ProgressDeadlineExceeded", "RolledBack")
SETTLE_S = 60.0


@seed(SEED)
@settings(
    max_examples=CASES,
    phases=PHASES,
    deadline=None,
    database=None,
    derandomize=not LONG,
    suppress_health_check=list(HealthCheck),
)
@given(fields=changes())
async def test_a_change_ends_as_from_scratch_and_its_reversal_where_it_began(stage, fields):
    rig, name = stage
    after = changed(ORIGIN, json.loads(json.dumps(fields).replace("{class}", name)))
    note(f"change: {fields}")
    if refused := await tried(rig, after):
        note(f"refused: {refused}")
        return
    before = await arrival(rig, ORIGIN)
    then = await arrival(rig, after)
    back = await arrival(rig, ORIGIN)
    assert difference(before, back) == ""
    await clear(rig)
    anew = await arrival(rig, after)
    assert sort(anew["end"]) == sort(then["end"])
    if anew["end"] in ENDS and then["end"] in ENDS:
        assert difference(anew, then) == ""
    # Where it does not arrive, old replicas stay beside it; what it requests is the same all the same.
    assert difference(asked(anew), asked(then)) == ""
    await clear(rig)


@pytest.fixture
async def stage(still):
    """An operator, a claim, a class of this test's own and pods of which a canary's analysis thinks well."""
    rig = still
    rig.kubelet.first_words = {"served": ServedTotals(answered=2_000_000, first_tokens=2_000_000, ttft_s=1.0)}
    kubectl(rig.control, "label", "node", rig.namespace, "kubernetes.io/os=linux", "--overwrite")
    await rig.claim()
    name = f"c-{rig.namespace}"
    await rig.client.apply(ACCELERATOR_CLASS, {"metadata": {"name": name}, "spec": {"memory": "1Gi"}}, manager="admin")
    rig.start("--allow-model-dir=/srv")
    yield rig, name
    await rig.client.delete(ACCELERATOR_CLASS, "", name)


async def tried(rig, spec):
    """Why the API server does not take this spec, neither as a new one nor after the origin; empty when it does."""
    try:
        await rig.apply(**ORIGIN)
        await rig.apply(**spec)
        await rig.apply(**ORIGIN)
    except KubeError as error:
        if error.status not in (400, 422):
            raise
        return str(error)
    return ""


async def arrival(rig, spec):
    """Apply the spec and wait until nothing moves any more; what stands then."""
    await rig.apply(**spec)
    found = {}

    async def still():
        found["how"] = await ending(rig)
        if not found["how"]:
            return False
        mark = rig.audit_mark()
        for _ in range(15):
            await asyncio.sleep(0.04)
        return not rig.writes_since(mark) and await ending(rig) == found["how"]

    await rig.until(still, lambda: f"an end of {spec}: {rig.dump('tiny')}", s=SETTLE_S)
    return {"end": found["how"], **await standing(rig)}


async def ending(rig):
    """How the service has ended, empty while it is on its way."""
    status = await rig.status()
    conditions = {c["type"]: c for c in status.get("conditions", ()) if c["status"] == "True"}
    if "Stalled" in conditions:
        return f"Stalled, {conditions['Stalled']['reason']}: {conditions['Stalled']['message']}"
    pods = await rig.all(POD)
    # A service is ready while pods of before still drain, and nothing need be written for as long; it has come to rest
    # when their workload is gone, and those of its own that were too many.
    alone = list(await rig.deployments()) == [status.get("rollout", {}).get("currentRevision")]
    counts = {len(pods), len(rig.kubelet.of()), status.get("replicas", 0), status.get("desiredReplicas", 0)}
    at_rest = alone and len(counts) == 1
    ready = conditions.get("Ready", {}).get("reason")
    if conditions.get("Reconciling", {}).get("reason") == "RolloutPaused":
        return PAUSED
    if "Reconciling" in conditions and "CapacityLimited" in conditions:
        return NO_NODE
    return ready if ready in ENDS and "Reconciling" not in conditions and at_rest else ""


def sort(end):
    """What sort of an end it is: a new service has no rollout that could stand still or be given up, and how long a
    deadline had run is a matter of when one looks."""
    if end in ENDS or end == PAUSED:
        return "as it should be"
    return NO_NODE if end == NO_NODE or any(reason in end for reason in LATE) else end


def asked(found):
    """The revision that the spec requests, as it was made; nothing where the spec cannot be honoured."""
    return {} if found["end"].startswith("Stalled") else found["asked"]


async def standing(rig):
    """Every child without what only tells when and as which object it was made; of the revisions those in use."""
    status = await rig.status()
    current = (status.get("rollout") or {}).get("currentRevision", "")
    found = {"asked": {}}
    for kind in KINDS:
        for child in await rig.all(kind):
            name = child["metadata"]["name"]
            if kind is CONTROLLER_REVISION and not name.endswith(f"-{current}"):
                continue
            found[f"{kind.kind}/{name}"] = bare(child)
            if kind is CONTROLLER_REVISION:
                found["asked"] = bare(child)
    found["pods"] = sorted(pod["metadata"]["labels"].items() for pod in await rig.all(POD))
    return found


def bare(child):
    metadata = {name: value for name, value in child["metadata"].items() if name not in OF_THE_SERVER}
    metadata["ownerReferences"] = [{**owner, "uid": ""} for owner in metadata["ownerReferences"]]
    kept = {name: value for name, value in child.items() if name not in ("status", "metadata", "revision")}
    if child["kind"] == SERVICE.kind:
        kept["spec"] = {name: value for name, value in kept["spec"].items() if not name.startswith("clusterIP")}
    return {"metadata": metadata, **kept}


def difference(wanted, found):
    """Lines of which only one of the two has, empty when they are alike."""
    pages = [json.dumps(page, indent=1, sort_keys=True, default=str).splitlines() for page in (wanted, found)]
    return "\n".join(difflib.unified_diff(*pages, "wanted", "found", n=2, lineterm=""))


async def clear(rig):
    await rig.delete()
    left = []

    async def empty():
        left[:] = [
            f"{found['kind']}/{found['metadata']['name']}" for kind in (*KINDS, POD) for found in await rig.all(kind)
        ]
        return not left and not rig.kubelet.pods

    await rig.until(empty, lambda: f"left: {left}, {list(rig.kubelet.pods)}", s=SETTLE_S)
