"""What a service costs, and which class decodes a token for the least money, as status and metrics say."""

import pytest

from fakes.manifests import pod
from fakes.models import words
from fakes.operator_bench import FILE, KEY, Bench
from kvasir_api.status import ModelStatus
from kvasir_kube.kinds import ACCELERATOR_CLASS, INFERENCE_SERVICE, POD
from kvasir_operator.status import explanation

CLASSES = {
    # Forecast are 10,000 tokens/s of the H100 and 7,400 of the A10: 144,000 and 133,200 for one unit.
    "h100": {
        "memory": "80Gi",
        "pricePerHour": 250,
        "compute": {"memoryGigabytesPerSecond": 3350, "fp16Teraflops": 989},
    },
    "a10": {"memory": "24Gi", "pricePerHour": 200, "compute": {"memoryGigabytesPerSecond": 600, "fp16Teraflops": 125}},
    "bare": {"memory": "80Gi", "pricePerHour": 1},
    "small": {"memory": "8Gi", "pricePerHour": 1, "compute": {"memoryGigabytesPerSecond": 9000, "fp16Teraflops": 900}},
}


async def standing(**spec):
    bench = Bench()
    for name, found in CLASSES.items():
        await bench.cluster.put(ACCELERATOR_CLASS, {"metadata": {"name": name}, "spec": found})
    await bench.put_service(
        resources={"accelerator": {"count": 1, "classes": ["a10", "h100", "bare", "small"]}}, **spec
    )
    known = ModelStatus(uri=FILE["model"]["uri"], facts=words(), inspected_at="2026-01-01T00:00:00Z")
    obj = bench.cluster.stored(INFERENCE_SERVICE, *KEY)
    await bench.cluster.put(INFERENCE_SERVICE, {**obj, "status": {"model": known.model_dump(by_alias=True)}})
    for _ in range(4):  # a status that only moves numbers waits for a while
        await bench.turn()
    return bench


def exposed(bench, metric):
    lines = [line for line in bench.operator.telemetry.text().decode().splitlines() if line.startswith(f"{metric}{{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


async def test_the_cheapest_class_is_the_one_with_most_tokens_for_its_price():
    bench = await standing()
    assert bench.status()["rollout"]["acceleratorClass"] == "a10"
    assert bench.status()["capacity"]["cheapestClass"] == "h100"
    forecasts = {c["name"]: c for c in bench.status()["capacity"]["classes"]}
    assert exposed(bench, "kvasir_service_class_tokens_per_price_unit") == {
        name: forecasts[name]["batchTokensPerSecond"] * 3600 / CLASSES[name]["pricePerHour"] for name in ("a10", "h100")
    }
    told = list(explanation.of_service(bench.cluster.stored(INFERENCE_SERVICE, *KEY)))
    assert "  AcceleratorClass h100 decodes a token for the least money by forecast; the service runs on a10" in told


@pytest.mark.parametrize(("itl", "left"), [(100, {"a10", "h100"}), (10, {"h100"}), (1, set())])
async def test_only_classes_that_meet_the_objective_between_tokens_count(itl, left):
    """16 GB of weights take 5 ms of an H100, and 27 ms of an A10."""
    bench = await standing(autoscaling={"itlMilliseconds": itl})
    assert set(exposed(bench, "kvasir_service_class_tokens_per_price_unit")) == left
    assert bench.status()["capacity"].get("cheapestClass") == ("h100" if left else None)


async def test_the_price_is_that_of_replicas_with_a_node_and_goes_with_the_service():
    bench = await standing(replicas=3)
    await bench.put_pods(3)
    await bench.turn()
    assert exposed(bench, "kvasir_service_price_per_hour") == {"a10": 3 * 200}
    await bench.put_service(replicas=3)
    await bench.turn()
    assert exposed(bench, "kvasir_service_price_per_hour") == {"a10": 3 * 200}, "until they have left"
    for number in range(3):
        await bench.cluster.delete(POD, "default", f"p{number}")
    await bench.turn()
    assert exposed(bench, "kvasir_service_price_per_hour") == {}
    await bench.cluster.delete(INFERENCE_SERVICE, *KEY)
    await bench.turn()
    assert "tiny" not in bench.operator.telemetry.text().decode()


@pytest.mark.parametrize(
    ("after", "prices"),
    [
        ({"count": 1, "classes": ["l40"]}, {"h200": 2 * 400, "l40": 90}),
        ({"count": 0}, {"h200": 2 * 400}),  # the next ones run on processors, which have no price
    ],
)
async def test_each_replica_costs_what_the_class_of_its_revision_costs(after, prices):
    bench = Bench()
    for name, price in {"h200": 400, "l40": 90}.items():
        spec = {"memory": "48Gi", "pricePerHour": price, "pod": {"nodeSelector": {"card": name}}}
        await bench.cluster.put(ACCELERATOR_CLASS, {"metadata": {"name": name}, "spec": spec})
    model = {"uri": FILE["model"]["uri"], "inspect": "Never"}
    before = {"count": 1, "classes": ["h200"]}
    await bench.put_service(model=model, replicas=3, resources={"accelerator": before})
    await bench.turn()
    await bench.put_pods(2)
    await bench.put_service(model=model, replicas=3, resources={"accelerator": after})
    for _ in range(3):
        await bench.turn()
    revision = bench.status()["rollout"]["currentRevision"]
    await bench.cluster.put(POD, pod("new", revision=revision, ready=True, ip="10.0.0.9"))
    await bench.turn()
    assert exposed(bench, "kvasir_service_price_per_hour") == prices
