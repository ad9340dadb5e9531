"""Replicas of several pods by real controllers: made, replaced and taken away as one."""

import pytest

from fakes.operator_rig import Rig
from kvasir_api import names
from kvasir_kube.kinds import DISRUPTION_BUDGET, POD, STATEFUL_SET, controller_uid, labels

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


async def test_real_controllers_make_replace_and_take_away_all_pods_of_a_replica(rig: Rig) -> None:
    """Stubs in place of runtimes, by the operator's own rights: sets belong to pods, and go with them."""
    await rig.apply(replicas=2, runtime={"tensorParallelSize": 4, "nnodes": 2})
    await rig.until_condition("Ready", reason="AllReplicasReady")
    pods = await rig.until_pods(4)
    status = await rig.status()
    assert (status["replicas"], status["readyReplicas"]) == (2, 2)
    sets = await rig.all(STATEFUL_SET)
    leaders = {one["metadata"]["uid"] for one in await rig.all(POD) if labels(one)[names.LABEL_ROLE] == "serve"}
    assert {controller_uid(one, POD) for one in sets} == leaders
    (budget,) = await rig.all(DISRUPTION_BUDGET)

    async def counted() -> bool:
        found = (await rig.all(DISRUPTION_BUDGET))[0].get("status") or {}
        return (found.get("expectedPods"), found.get("disruptionsAllowed")) == (4, 1)

    await rig.until(counted, lambda: f"a budget of four pods: {budget}")
    leader = next(pod.name for pod in pods if not pod.name.startswith(tuple(one["metadata"]["name"] for one in sets)))
    await rig.client.delete(POD, rig.namespace, leader)

    async def replaced() -> bool:
        now = {one["metadata"]["uid"] for one in await rig.all(STATEFUL_SET)}
        return len(now) == 2 and len(now & {one["metadata"]["uid"] for one in sets}) == 1

    await rig.until(replaced, lambda: "another set in place of one")
    await rig.until_pods(4)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    rig.kill("--allow-model-dir=/srv")
    await rig.apply(replicas=1, runtime={"tensorParallelSize": 4, "nnodes": 2})
    await rig.until_pods(2)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    assert len(await rig.all(STATEFUL_SET)) == 1
