"""An operator takes over what one of an earlier version wrote, and replaces no pod.

`objects_of_a_release.jsonl` is what an operator of 22 November 2026, before the first release, kept in an API server
for two services that serve. It stays as it is when templates, inputs or defaults change: that is what it is for.
"""

import asyncio
import copy
import json
from pathlib import Path

import pytest

from fakes.operator_bench import Bench
from kvasir_kube.kinds import (
    ACCELERATOR_CLASS,
    CLAIM,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    POD,
    SERVICE,
)

WRITTEN = Path(__file__).with_name("objects_of_a_release.jsonl")
KINDS = {
    kind.plural: kind
    for kind in (
        *(ACCELERATOR_CLASS, CLAIM, CONTROLLER_REVISION, DEPLOYMENT, DISRUPTION_BUDGET),
        *(INFERENCE_SERVICE, NETWORK_POLICY, POD, SERVICE),
    )
}
OF_PODS = {DEPLOYMENT.plural, CONTROLLER_REVISION.plural, POD.plural}


async def upgraded(**settings):
    """A later operator on these objects, with other images."""
    bench = Bench()
    bench.operator = bench.started(runtime_image="new:2", runtime_image_cpu="new-cpu:2", **settings)
    for line in WRITTEN.read_text().splitlines():
        found = json.loads(line)
        await bench.cluster.put(KINDS[found["plural"]], found["object"])
    for number, _ in enumerate(bench.cluster.objects[POD.plural]):
        bench.say(number)
    bench.writes()
    return bench


def reasons(bench):
    found = bench.cluster.objects[INFERENCE_SERVICE.plural].values()
    return [next(c["reason"] for c in s["status"]["conditions"] if c["type"] == "Ready") for s in found]


@pytest.mark.parametrize("restarts", [0, 1])
def test_an_upgrade_writes_nothing_from_which_a_pod_would_be_replaced(restarts):
    async def story():
        bench = await upgraded()
        before = copy.deepcopy({plural: bench.cluster.objects[plural] for plural in OF_PODS})
        for _ in range(restarts + 1):
            for _ in range(5):
                await bench.turn(30)
            bench.operator = bench.started(runtime_image="new:3", runtime_image_cpu="new-cpu:3")
        assert [plural for _, plural in bench.writes() if plural in OF_PODS] == []
        assert {plural: bench.cluster.objects[plural] for plural in OF_PODS} == before
        assert reasons(bench) == ["AllReplicasReady"] * 2

    asyncio.run(story())


def test_after_an_upgrade_a_changed_spec_rolls_its_service_alone():
    """What shows that the objects are read: the same change is nothing to the other service."""

    async def story():
        bench = await upgraded()
        old = bench.cluster.stored(INFERENCE_SERVICE, "default", "cpu")
        spec = {**old["spec"], "drain": {"timeoutSeconds": 61}}
        await bench.cluster.put(INFERENCE_SERVICE, {**old, "spec": spec})
        for _ in range(2):
            await bench.turn()
        made = bench.cluster.names(DEPLOYMENT)
        assert [len([name for name in made if name.startswith(of)]) for of in ("cpu-", "gpu-")] == [2, 1]
        (new,) = [d for d in bench.cluster.objects[DEPLOYMENT.plural].values() if "new" in json.dumps(d)]
        assert new["spec"]["template"]["spec"]["containers"][0]["image"] == "new-cpu:2"

    asyncio.run(story())
