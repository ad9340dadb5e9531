"""What status and events tell of the autoscaler: the message is about now, the decisions are about the changes."""

import pytest

from fakes.operator_bench import Bench

ELASTIC = {"maxReplicas": 3, "scaleDown": {"windowSeconds": 60}}


@pytest.fixture
def bench():
    return Bench()


async def test_the_message_is_about_now_and_not_about_the_last_change(bench):
    await bench.put_service(autoscaling=ELASTIC)
    await bench.turn()
    await bench.put_pods(1)
    bench.say(0, pinned=950)
    for _ in range(6):
        await bench.turn()
    told = bench.status()["autoscaling"]
    assert (told["desiredReplicas"], told["message"]) == (2, "2 replicas: KV cache determines the count")
    await bench.put_pods(2, pinned=0)
    for _ in range(6):
        await bench.turn()
    told = bench.status()["autoscaling"]
    assert told["message"] == (
        "2 replicas: the largest demand of the last 60 s determines the count; KV cache requires 0"
    )
    assert told["decisions"][0]["reason"].startswith("KV cache needs 1.2 replicas at 85 % (kv 1.24, slots 0.00, ")


async def test_an_event_that_scales_names_its_cause(bench):
    await bench.put_service(replicas=1)
    await bench.turn()
    await bench.put_service(replicas=3)
    await bench.turn()
    await bench.put_service(autoscaling={"minReplicas": 4, "maxReplicas": 6})
    await bench.turn()
    await bench.put_service(replicas=1)
    await bench.turn()
    assert bench.events("ScaledUp") == [
        "1 → 3 replicas: spec.replicas is 3",
        "3 → 4 replicas: no replica has reported its capacity yet; spec.autoscaling.minReplicas determines the count",
    ]
    assert bench.events("ScaledDown") == ["4 → 1 replica: spec.autoscaling was removed, spec.replicas is 1"]
