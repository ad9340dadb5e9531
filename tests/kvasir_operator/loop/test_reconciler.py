"""A reconcile makes each stage once, whatever the service is in the middle of."""

from collections import Counter

import pytest

from fakes.calls import calls
from fakes.operator_bench import KEY, Bench
from kvasir_kube.kinds import ACCELERATOR_CLASS

PATCH = {"op": "add", "path": "/spec/hostIPC", "value": True}
ONCE = (
    "desired.resolve.resolve",
    "desired.accelerator.placement",
    "desired.accelerator._choice",
    "desired.accelerator._forecast",
    "desired.fallback.pod_hash",
    "desired.fit.facts",
    "desired.template.rendered",
    "desired.patches.patched",
    "desired.current.current_revision",
    "rollout.plan.plan",
    "rollout.target.rollout_target",
    "status.compose.compose",
)


async def patched_service() -> Bench:
    """One on a class with a patch, whose model was not inspected."""
    bench = Bench()
    metadata = {"name": "h100", "uid": "u", "resourceVersion": "1"}
    accelerator = {"metadata": metadata, "spec": {"memory": "80Gi", "podPatches": [PATCH]}}
    await bench.cluster.put(ACCELERATOR_CLASS, accelerator)
    model = {"uri": "file:///srv/tiny", "inspect": "Never"}
    await bench.put_service(model=model, resources={"accelerator": {"count": 1, "classes": ["h100"]}})
    return bench


async def reconciled(bench: Bench) -> Counter[str]:
    with calls() as found:
        await bench.operator.reconciler.reconcile(KEY)
    return Counter({name.removeprefix("kvasir_operator."): count for name, count in found.items()})


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_every_stage_is_made_once(turns: int) -> None:
    """The first time, when the revision is made, and when there is nothing to do."""
    bench = await patched_service()
    await bench.operator.resync.once()
    await bench.operator.scaler.tick()
    for _ in range(turns):
        await bench.turn()
    found = await reconciled(bench)
    assert {name: found[name] for name in ONCE} == dict.fromkeys(ONCE, 1)


async def test_a_tick_parses_only_what_changed() -> None:
    """A thousand services with four pods each are read every two seconds."""
    bench = await patched_service()
    await bench.turn()
    await bench.put_pods(3)
    await bench.turn()
    await bench.operator.scaler.tick()  # its status was written in that turn
    bench.clock.advance(2.0)
    for number in range(3):
        bench.say(number, running=1)
    with calls() as found:
        await bench.operator.scaler.tick()
    assert found["kvasir_operator.observed.replica.replica"] == 0
    assert found["kvasir_operator.observed.replica.with_reading"] == 3
    assert found["kvasir_operator.observed.service.parsed_spec"] == 0
    with calls() as found:
        await bench.operator.reconciler.reconcile(KEY)
    assert found["kvasir_operator.observed.replica.replica"] == 0
    await bench.put_pods(1)
    await bench.operator.resync.once()
    with calls() as found:
        await bench.operator.scaler.tick()
    assert found["kvasir_operator.observed.replica.replica"] == 2, "that pod, and one that the reconcile has marked"
