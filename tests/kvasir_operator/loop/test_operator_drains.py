"""Drains of a whole operator on a fake cluster: its clock is corrected, and no watch delivers the end of a pod."""

import pytest

from fakes.operator_bench import Bench
from kvasir_api import names
from kvasir_kube.kinds import POD
from kvasir_operator.observed.replica import DRAINED_COST


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
async def test_a_clock_that_jumps_cuts_no_drain_short_and_prolongs_none(jump):
    bench = Bench()
    await bench.put_service(replicas=2, drain={"timeoutSeconds": 100})
    await bench.turn()
    await bench.put_pods(2)
    bench.say(0, running=3, remaining_tokens=900)
    bench.say(1, running=1, remaining_tokens=10)
    await bench.turn()
    await bench.put_service(replicas=1, drain={"timeoutSeconds": 100})
    await bench.turn()

    def cost():
        return bench.cluster.stored(POD, "default", "p1")["metadata"]["annotations"][names.ANNOTATION_DELETION_COST]

    bench.say(1, phase="draining", running=1)
    await bench.turn(30)
    bench.clock.jump(jump)
    await bench.turn(60)
    await bench.turn(1)
    assert cost() != str(DRAINED_COST), "it has nine seconds left"
    await bench.turn(10)
    await bench.turn(1)
    assert cost() == str(DRAINED_COST)


async def test_a_pod_that_is_gone_is_said_to_have_drained_once():
    """Its deletion was never delivered: the API server's answer to the mark shows it."""
    bench = Bench()
    await bench.put_service(replicas=2)
    await bench.turn()
    await bench.put_pods(2)
    bench.say(0, running=3, remaining_tokens=900)
    await bench.turn()
    await bench.put_service(replicas=1)
    await bench.turn()
    bench.say(1, phase="draining")
    await bench.operator.resync.once()
    del bench.cluster.objects[POD.plural]["default", "p1"]
    for _ in range(5):
        bench.clock.advance(2)
        await bench.operator.scaler.tick()
        await bench.operator.reconciler.reconcile(("default", "tiny"))
    assert len(bench.events("Drained")) == 1
    assert bench.operator.store.get(POD, ("default", "p1")) is None
