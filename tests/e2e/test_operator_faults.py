"""Five scenarios with harm done at a chosen write: whatever dies, is lost or lags, the end is the same.

A seeded sample runs with the other tests; KVASIR_FAULTS=all (`make test-faults`) runs every fault at every write.
"""

import asyncio
import os
import random
from dataclasses import dataclass
from typing import Any

import pytest

from fakes.fault_proxy import KINDS, Fault, FaultProxy
from fakes.operator_rig import kubectl
from kvasir_kube.kinds import CONTROLLER_REVISION, POD, SERVICE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
FLAGS = ("--allow-model-dir=/srv",)
SETTLE_S = 90.0
ELASTIC = {"minReplicas": 1, "maxReplicas": 3, "scaleDown": {"windowSeconds": 2, "percent": 100, "periodSeconds": 1}}


@dataclass(frozen=True)
class Scenario:
    """What stands before, what is done, and the replicas at the end. writes: at least so many follow."""

    before: dict[str, Any] | None
    act: Any
    replicas: int
    writes: int
    revisions: int = 1


async def created(rig):
    await rig.apply(replicas=2)


async def scaled_up(rig):
    kubectl(rig.control, "scale", "infsvc/tiny", "--replicas=3", f"--namespace={rig.namespace}")


async def scaled_down(rig):
    for pod in rig.kubelet.of():
        pod.say(running=1)
    await rig.heard()
    kubectl(rig.control, "scale", "infsvc/tiny", "--replicas=1", f"--namespace={rig.namespace}")


async def edited(rig):
    await rig.apply(replicas=2, runtime={"blockSize": 32})


async def loaded(rig):
    for pod in rig.kubelet.of():
        pod.say(kv_pinned=950, running=8)


SCENARIOS = {
    "create": Scenario(None, created, 2, 7),
    "scale up": Scenario({"replicas": 1}, scaled_up, 3, 3),
    "scale down": Scenario({"replicas": 3}, scaled_down, 1, 5),
    "edit": Scenario({"replicas": 2}, edited, 2, 7, revisions=2),
    "autoscale": Scenario({"autoscaling": ELASTIC}, loaded, 2, 3),
}


def cases():
    """(scenario, fault) pairs: all of them, or one of each kind of fault at a place that a seed chooses."""
    if os.environ.get("KVASIR_FAULTS") == "all":
        return [
            (name, Fault(kind=kind, write=write))
            for name, scenario in SCENARIOS.items()
            for kind in KINDS
            for write in range(1, scenario.writes + 1)
        ]
    chosen = random.Random(20261121)
    sample = []
    for number, kind in enumerate(KINDS):
        name = list(SCENARIOS)[number % len(SCENARIOS)]
        sample.append((name, Fault(kind=kind, write=chosen.randint(1, SCENARIOS[name].writes))))
    return sample


@pytest.fixture
async def proxied(rig):
    """The rig with its operator behind a proxy."""
    rig.stop()
    async with FaultProxy(rig.control.kubeconfig, lambda: rig.kill(*FLAGS)) as proxy:
        rig.through(proxy.url)
        rig.start(*FLAGS)
        yield rig, proxy
        rig.stop()


@pytest.mark.parametrize(
    ("name", "fault"), cases(), ids=[f"{name}-{fault.kind}-{fault.write}".replace(" ", "_") for name, fault in cases()]
)
async def test_the_end_is_the_same(proxied, name, fault):
    rig, proxy = proxied
    scenario = SCENARIOS[name]
    if scenario.before is not None:
        await rig.apply(**scenario.before)
        await rig.until_condition("Ready", reason="AllReplicasReady")
    proxy.arm(fault)
    await scenario.act(rig)
    await rig.until(lambda: harmed(proxy), lambda: f"write {fault.write}, have {proxy.writes}", s=SETTLE_S)
    await rig.until(lambda: arrived(rig, scenario), lambda: rig.dump("tiny"), s=SETTLE_S)
    await rig.until(lambda: quiet(proxy), lambda: f"no write for a second, have {proxy.writes[-5:]}", s=SETTLE_S)
    assert rig.kubelet.cut_off == []
    assert len(await rig.all(SERVICE)) == 1
    assert len(await rig.all(CONTROLLER_REVISION)) == scenario.revisions
    assert rig.running


async def harmed(proxy):
    return proxy.fired


async def arrived(rig, scenario):
    """Whether the service is as the spec wants it: ready, that many pods, all of the current revision, no other
    workload. Pods that drain are let go when they were asked."""
    for pod in rig.kubelet.of():
        if pod.drains and pod.says.running:
            pod.say(running=0)
    status = await rig.status()
    current = status.get("rollout", {}).get("currentRevision")
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
    pods = [p for p in await rig.all(POD) if not p["metadata"].get("deletionTimestamp")]
    right = len(pods) == scenario.replicas and {p.revision for p in rig.kubelet.of()} == {current}
    return ready and right and await rig.deployments() == {current: scenario.replicas}


async def quiet(proxy):
    before = len(proxy.writes)
    for _ in range(25):
        await asyncio.sleep(0.04)
    return len(proxy.writes) == before


async def test_the_scenarios_write_as_often_as_they_say(proxied):
    """Or a fault at the last of them would never happen."""
    rig, proxy = proxied
    proxy.arm(None)
    await created(rig)
    await rig.until(lambda: arrived(rig, SCENARIOS["create"]), lambda: rig.dump("tiny"))
    await rig.until(lambda: quiet(proxy), lambda: "quiet")
    assert len(proxy.writes) >= SCENARIOS["create"].writes, proxy.writes
