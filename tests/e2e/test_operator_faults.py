"""Five scenarios with harm done at a chosen write: whatever dies, is lost or lags, the end is the same.

A seeded sample runs with the other tests; KVASIR_FAULTS=all (`make test-faults`) runs every fault at every write, in
several lanes: workers with a namespace, a node, a proxy and an operator each, beside one control plane.
"""

import asyncio
import os
import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio

from fakes.fault_proxy import KINDS, Fault, FaultProxy
from fakes.kubelet import HOSTNAME
from fakes.operator_rig import standing
from kvasir_kube.kinds import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    POD,
    SERVICE,
)

HANG_S = 900
"""Of a whole case. Longer than its parts, since each of them gives up by itself; on a busy machine they take longer."""
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(HANG_S), pytest.mark.asyncio(loop_scope="module")]
FLAGS = ("--allow-model-dir=/srv",)
DROPPING = (*FLAGS, "--resync=1")
"""For what only a list brings to light; elsewhere lists would cure what the watches alone must."""
SETTLE_S = 90.0
START_S = 300.0
WHOLE = os.environ.get("KVASIR_FAULTS") == "all"
ELASTIC = {"minReplicas": 1, "maxReplicas": 3, "scaleDown": {"windowSeconds": 2, "percent": 100, "periodSeconds": 1}}


@dataclass(frozen=True)
class Scenario:
    """What stands before, what is done, and the replicas at the end. writes: at least so many follow."""

    before: dict[str, Any] | None
    act: Any
    replicas: int
    writes: int
    revisions: int = 1


async def put(rig, **spec):
    """The service, on the lane's own node: other lanes have theirs beside it."""
    placed = {**spec, "pod": {"nodeSelector": {HOSTNAME: rig.namespace}}}
    await answer(rig, lambda: rig.apply(**placed))


async def scale(rig, replicas):
    """No kubectl: the proxy and the node would stand still while it runs."""
    spec = {"spec": {"replicas": replicas}}
    await answer(rig, lambda: rig.client.merge(INFERENCE_SERVICE, rig.namespace, "tiny", spec, manager="test"))


async def answer(rig, ask):
    """What the API server says; asked again where it is kept from its work and says nothing."""
    return await rig.until(ask, lambda: "an answer of the API server")


async def created(rig):
    await put(rig, replicas=2)


async def scaled_up(rig):
    await scale(rig, 3)


async def scaled_down(rig):
    for pod in rig.kubelet.of():
        pod.set_state(running=1)
    await rig.heard()
    await scale(rig, 1)


async def edited(rig):
    await put(rig, replicas=2, runtime={"blockSize": 32})


async def loaded(rig):
    for pod in rig.kubelet.of():
        pod.set_state(kv_pinned=950, running=8)


SCENARIOS = {
    "create": Scenario(None, created, 2, 7),
    "scale up": Scenario({"replicas": 1}, scaled_up, 3, 3),
    "scale down": Scenario({"replicas": 3}, scaled_down, 1, 5),
    "edit": Scenario({"replicas": 2}, edited, 2, 7, revisions=2),
    "autoscale": Scenario({"autoscaling": ELASTIC}, loaded, 2, 3),
}


def cases():
    """(scenario, fault) pairs: all of them, or one of each kind of fault at a place that a seed chooses."""
    if WHOLE:
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lane(control, tmp_path_factory):
    """A namespace, a node of stubs and an operator behind a proxy, for one case after the other."""
    running: list[str] = []

    def again() -> None:
        rig.kill(*running)

    async with (
        standing(control, tmp_path_factory.mktemp("lane")) as rig,
        FaultProxy(control.kubeconfig, again) as proxy,
    ):
        rig.through(proxy.url)

        async def with_flags(*flags: str, fresh: bool) -> None:
            """The operator runs, and with these flags."""
            if fresh or not rig.running or running != list(flags):
                rig.stop()
                running[:] = flags
                proxy.listening = False
                rig.start(*flags)
            await begun(rig, proxy)

        yield rig, proxy, with_flags
        rig.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def proxied(lane, request):
    """The lane without any service in it; whatever the case made is gone afterwards."""
    rig, proxy, with_flags = lane
    callspec = getattr(request.node, "callspec", None)
    fault = callspec.params.get("fault") if callspec else None
    kind = fault.kind if fault else ""
    # It waits the longer the more often its watches failed, and those of the case before are not this one's.
    await with_flags(*(DROPPING if kind == "dropped events" else FLAGS), fresh=kind == "watches broken")
    proxy.arm(None)
    rig.kubelet.cut_off.clear()
    yield rig, proxy
    for pod in rig.kubelet.of():
        pod.set_state(running=0)
    await rig.until(lambda: empty(rig), lambda: "nothing is left", s=SETTLE_S)


@pytest.mark.parametrize(
    ("name", "fault"), cases(), ids=[f"{name}-{fault.kind}-{fault.write}".replace(" ", "_") for name, fault in cases()]
)
async def test_the_end_is_the_same(proxied, name, fault):
    rig, proxy = proxied
    scenario = SCENARIOS[name]
    await stands(rig, scenario)
    proxy.arm(fault)
    await scenario.act(rig)
    await rig.until(lambda: harmed(proxy), lambda: f"write {fault.write}, have {proxy.writes}", s=SETTLE_S)
    await begun(rig, proxy)
    await rig.until(lambda: arrived(rig, scenario), lambda: rig.dump("tiny"), s=SETTLE_S)
    await rig.until(lambda: quiet(proxy), lambda: f"no write for a second, have {proxy.writes[-5:]}", s=SETTLE_S)
    assert rig.kubelet.cut_off == []
    assert len(await answer(rig, lambda: rig.all(SERVICE))) == 1
    assert len(await answer(rig, lambda: rig.all(CONTROLLER_REVISION))) == scenario.revisions
    assert rig.running


async def stands(rig, scenario):
    """What the scenario finds is there, and nothing more will be written of it."""
    if scenario.before is not None:
        await put(rig, **scenario.before)
        await rig.until(lambda: arrived(rig, replace(scenario, replicas=start(scenario))), lambda: rig.dump("tiny"))


def start(scenario):
    return scenario.before.get("replicas", 1)


async def empty(rig):
    """Whether nothing is left of the service, which is deleted until it is gone."""
    if await rig.all(INFERENCE_SERVICE):
        await rig.delete()
    for kind in (POD, DEPLOYMENT, CONTROLLER_REVISION, SERVICE, DISRUPTION_BUDGET, NETWORK_POLICY, INFERENCE_SERVICE):
        if await rig.all(kind):
            return False
    return not rig.kubelet.pods


async def begun(rig, proxy):
    """A new operator works. Until then its processor time, not what it does, decides how long that takes."""
    await rig.until(lambda: listens(proxy), lambda: "an operator that watches", s=START_S)


async def listens(proxy):
    return proxy.listening


async def harmed(proxy):
    return proxy.fired


async def arrived(rig, scenario):
    """Whether the service is as the spec wants it: ready, that many pods, all of the current revision, no other
    workload. Pods that drain are let go when they were asked."""
    for pod in rig.kubelet.of():
        if pod.drains and pod.state.running:
            pod.set_state(running=0)
    status = await rig.status()
    current = status.get("rollout", {}).get("currentRevision")
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
    if not ready or [p.revision for p in rig.kubelet.of()] != [current] * scenario.replicas:
        return False
    pods = [p for p in await rig.all(POD) if not p["metadata"].get("deletionTimestamp")]
    return len(pods) == scenario.replicas and await rig.deployments() == {current: scenario.replicas}


async def quiet(proxy):
    before = len(proxy.writes)
    for _ in range(25):
        await asyncio.sleep(0.04)
    return len(proxy.writes) == before


@pytest.mark.parametrize("name", list(SCENARIOS) if WHOLE else ["create"])
async def test_a_scenario_writes_as_often_as_it_says(proxied, name):
    """Or a fault at the last of the writes would never happen."""
    rig, proxy = proxied
    scenario = SCENARIOS[name]
    await stands(rig, scenario)
    proxy.arm(None)
    await scenario.act(rig)
    await rig.until(lambda: arrived(rig, scenario), lambda: rig.dump("tiny"), s=SETTLE_S)
    await rig.until(lambda: quiet(proxy), lambda: "quiet", s=SETTLE_S)
    assert len(proxy.writes) >= scenario.writes, proxy.writes
