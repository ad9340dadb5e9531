"""What an AcceleratorClass says of its devices and patches in pods, on a real API server."""

import asyncio
import json
from typing import Any

import pytest

from fakes.class_fields import CASES, with_value
from fakes.models import words
from fakes.operator_rig import kubectl
from kvasir_api import names
from kvasir_api.state import DecodeTotals
from kvasir_kube.kinds import ACCELERATOR_CLASS, DEPLOYMENT, POD

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
H100 = {"capability": "9.0", "memoryGigabytesPerSecond": 3350, "fp16Teraflops": 989, "fp8Teraflops": 1979}
SHARE = "degradedBelowPercent"
SIDECAR = {
    "name": "exporter",
    "image": "dcgm:1",
    "resources": {"limits": {"memory": "64Mi"}},
    "env": [{"name": "A", "value": "b"}],
}
PATCHES = [
    {"op": "add", "path": "/spec/containers/-", "value": SIDECAR},
    {"op": "add", "path": "/spec/hostIPC", "value": True},
    {"op": "add", "path": "/metadata/annotations/example.com~1rack", "value": "7"},
    {"op": "replace", "path": "/spec/containers/0/livenessProbe/failureThreshold", "value": 30},
]


SHAPING = sorted(path for path in CASES if path.startswith(("pod", "runtimeImage", "resourceName")))
CHOOSING = ("memory", "pricePerHour", "spot")
"""Fields that decide which class a service gets; those of compute have tests of their own."""


class Class:
    """An AcceleratorClass of one test's own name."""

    def __init__(self, rig: Any, name: str = "card") -> None:
        self.name, self._rig = f"{name}-{rig.namespace}", rig

    async def be(self, **spec: Any) -> None:
        body = {"metadata": {"name": self.name}, "spec": {"memory": "80Gi", **spec}}
        await self._rig.client.apply(ACCELERATOR_CLASS, body, manager="admin")

    @property
    def wanted(self) -> dict[str, Any]:
        return {"accelerator": {"count": 1, "classes": [self.name]}}


@pytest.fixture
async def card(rig):
    found = Class(rig)
    yield found
    await rig.client.delete(ACCELERATOR_CLASS, "", found.name)


async def template(rig: Any) -> Any:
    """Of the current revision's workload."""
    current = (await rig.status()).get("rollout", {}).get("currentRevision")
    found = [d for d in await rig.all(DEPLOYMENT) if d["metadata"]["labels"][names.LABEL_REVISION] == current]
    return found[0]["spec"]["template"] if found else {}


def test_every_field_is_shown_on_a_cluster():
    assert {path for path in CASES if not path.startswith("compute.")} == {*SHAPING, *CHOOSING}
    assert {path for path in CASES if path.startswith("compute.")} == {f"compute.{name}" for name in [*H100, SHARE]}


async def test_fields_that_shape_pods_do_so_on_a_real_api_server(rig):
    """One class and one service for each, which requests no replica, so that templates are made and no pod is."""

    async def differs(number: int, path: str) -> bool:
        card = Class(rig, f"f{number}")
        found: dict[str, Any] = {}
        for value in CASES[path]:
            await card.be(**with_value(path, value))
            if not found:
                spec = {"uri": f"file:///srv/f{number}", "inspect": "Never"}
                await rig.apply(f"f{number}", model=spec, resources=card.wanted, replicas=0)

            async def revised() -> bool:
                now = (await rig.status(f"f{number}")).get("rollout", {}).get("currentRevision")
                if now and now not in found:
                    made = await rig.client.get(DEPLOYMENT, rig.namespace, f"f{number}-{now}")
                    found[now] = stripped(made["spec"]["template"])
                    return True
                return False

            await rig.until(revised, lambda: rig.dump(f"f{number}"))
        await rig.client.delete(ACCELERATOR_CLASS, "", card.name)
        one, other = found.values()
        return bool(one != other)

    told = await asyncio.gather(*(differs(number, path) for number, path in enumerate(SHAPING)))
    assert [path for path, difference in zip(SHAPING, told, strict=True) if not difference] == []


def stripped(pod_template: dict[str, Any]) -> dict[str, Any]:
    """Without the revision's name, which differs whenever anything does."""
    revision = pod_template["metadata"]["labels"][names.LABEL_REVISION]
    found: dict[str, Any] = json.loads(json.dumps(pod_template).replace(revision, "rev"))
    return found


async def test_fields_that_choose_a_class_do_so_on_a_real_api_server(rig):
    """Two classes with more memory than any other, and a service that requests so much."""
    mine, other = Class(rig, "mine"), Class(rig, "other")
    await other.be(memory="900Gi", pricePerHour=5)
    base = {"memory": "900Gi", "pricePerHour": 4}
    await mine.be(**base)
    asked = {"accelerator": {"count": 1, "minMemory": "900Gi"}}
    await rig.apply(model={"uri": "file:///srv/tiny", "inspect": "Never"}, resources=asked, replicas=0)

    async def chosen(name: str) -> None:
        async def look() -> bool:
            return bool((await rig.status()).get("rollout", {}).get("acceleratorClass") == name)

        await rig.until(look, lambda: f"{name}: {rig.dump('tiny')}")

    await chosen(mine.name)
    for field, value in zip(CHOOSING, ("800Gi", 6, True), strict=True):
        await mine.be(**{**base, field: value})
        await chosen(other.name)
        await mine.be(**base)
        await chosen(mine.name)
    for card in (mine, other):
        await rig.client.delete(ACCELERATOR_CLASS, "", card.name)


async def test_patches_reach_the_pods_and_bad_ones_are_refused_by_their_number(rig, card):
    await card.be(podPatches=PATCHES)
    await rig.apply(model={"uri": "file:///srv/tiny", "inspect": "Never"}, resources=card.wanted)
    await rig.until_condition("Ready")
    made = await template(rig)
    (exporter,) = [c for c in made["spec"]["containers"] if c["name"] == "exporter"]
    assert {**exporter, **SIDECAR} == exporter
    assert made["spec"]["hostIPC"] is True
    assert made["metadata"]["annotations"] == {"example.com/rack": "7"}
    assert made["spec"]["containers"][0]["livenessProbe"]["failureThreshold"] == 30
    (pod,) = await rig.all(POD)
    assert pod["spec"]["hostIPC"] is True
    first = (await rig.status())["rollout"]["currentRevision"]
    await card.be(podPatches=[*PATCHES, {"op": "add", "path": "/spec/containers/0/args/-", "value": "--port=1"}])
    stalled = await rig.until_condition("Stalled", reason="BadPatch")
    where = f"spec.podPatches[4] of AcceleratorClass {card.name} (add /spec/containers/0/args/-)"
    assert stalled["message"] == f"{where}: args of container runtime is the operator's own"
    await card.be(podPatches=[*PATCHES, {"op": "remove", "path": "/spec/nothing"}])
    await rig.until(
        lambda: said(rig, f"spec.podPatches[4] of AcceleratorClass {card.name} (remove /spec/nothing): it does not"),
        lambda: rig.dump("tiny"),
    )
    await card.be(podPatches=[*PATCHES, {"op": "add", "path": "/spec/priority", "value": 0.5}])
    await rig.until(lambda: said(rig, "a number with a fraction"), lambda: rig.dump("tiny"))
    assert [p["metadata"]["uid"] for p in await rig.all(POD)] == [pod["metadata"]["uid"]]
    await card.be(podPatches=[*PATCHES, {"op": "test", "path": "/spec/hostIPC", "value": True}])
    await rig.until_condition("Ready")
    assert (await rig.status())["rollout"]["currentRevision"] == first
    await card.be(podPatches=PATCHES[1:])

    async def rolled():
        now = (await rig.status()).get("rollout", {}).get("currentRevision")
        return now != first and len((await template(rig)).get("spec", {}).get("containers", ())) == 1

    await rig.until(rolled, lambda: rig.dump("tiny"))


async def said(rig: Any, text: str) -> bool:
    return any(c["reason"] == "BadPatch" and text in c["message"] for c in (await rig.status()).get("conditions", ()))


async def test_a_type_that_a_card_lacks_is_refused_before_a_pod_is_made(rig, card):
    await card.be(compute={"capability": "8.0"})
    await rig.apply(resources=card.wanted, runtime={"kvCacheDtype": "fp8"})
    stalled = await rig.until_condition("Stalled", reason="Unsupported")
    assert stalled["message"] == (
        f"spec.runtime.kvCacheDtype: {card.name}: fp8 needs compute capability 8.9, it has 8.0; "
        "int8 takes as little memory"
    )
    assert await rig.all(POD) == []
    await card.be(compute={"capability": "8.9"})
    await rig.until_condition("Ready")


def forecast(capacity: dict[str, Any]) -> tuple[int, int, int]:
    """Prompts, one stream, a full batch."""
    return tuple(capacity.get(f"predicted{what}TokensPerSecond", 0) for what in ("Prefill", "Stream", "Batch"))  # type: ignore[return-value]


async def test_speed_is_forecast_by_what_the_class_declares(rig, card):
    rig.kubelet.facts = words()
    runtime = {"quantization": "fp8"}
    await card.be(compute=H100)
    await rig.apply(resources=card.wanted, runtime=runtime, replicas=0)

    async def told(**fields: Any) -> tuple[int, int, int]:
        await card.be(compute={**H100, **fields})
        seen: list[tuple[int, int, int]] = []

        async def changed() -> bool:
            seen.append(forecast((await rig.status()).get("capacity", {})))
            return seen[-1] not in before and seen[-1] != (0, 0, 0)

        await rig.until(changed, lambda: rig.dump("tiny"))
        before.append(seen[-1])
        return seen[-1]

    before: list[tuple[int, int, int]] = []
    await rig.apply(resources=card.wanted, runtime=runtime, replicas=1)
    assert await told() == (140_000, 300, 10_000)
    assert await told(memoryGigabytesPerSecond=1675) == (140_000, 180, 5_400)
    assert await told(fp8Teraflops=0) == (71_000, 300, 10_000)
    assert await told(fp8Teraflops=0, fp16Teraflops=100) == (7_200, 300, 5_700)
    classes = (await rig.status())["capacity"]["classes"]
    assert [(c["streamTokensPerSecond"], c["batchTokensPerSecond"]) for c in classes] == [(300, 5_700)]


async def test_a_replica_that_decodes_too_slowly_degrades_the_service(rig, card):
    rig.stop()
    rig.start("--allow-model-dir=/srv", "--speed-window=0.5")
    rig.kubelet.facts = words()
    await card.be(compute=H100)
    await rig.apply(resources=card.wanted)
    await rig.until_condition("Ready")
    (pod,) = await rig.until_pods(1)
    assert "Degraded" not in str((await rig.status())["conditions"])

    async def decode(step_s: float, done: Any) -> None:
        """Steps of 4 streams with 1000 tokens each, a second of them before every look."""

        async def look() -> Any:
            had, steps = pod.state.decoded, 1 + int(1 / step_s)
            pod.set_state(
                decoded=DecodeTotals(
                    steps=had.steps + steps,
                    seconds=had.seconds + steps * step_s,
                    rows=had.rows + 4 * steps,
                    kv_tokens=had.kv_tokens + 4000 * steps,
                )
            )
            return await done()

        await rig.until(look, lambda: rig.dump("tiny"))

    async def degraded() -> bool:
        return any(c["reason"] == "SlowDecode" for c in (await rig.status()).get("conditions", ()))

    await decode(0.04, degraded)
    status = await rig.status()
    (condition,) = [c for c in status["conditions"] if c["type"] == "Degraded"]
    assert condition["message"] == (
        f"1 of 1 ready replicas decode slower than 40 percent of what AcceleratorClass {card.name} allows: {pod.name}, "
        "14 percent: 25 tokens/s for each of 4 requests with 4000 tokens of context together, where 180 are possible"
    )
    told = status["capacity"]
    assert told["slowReplicas"] == [pod.name]
    assert (told["streamTokensPerSecond"], told["batchTokensPerSecond"], told["decodePercent"]) == (25, 100, 15)
    await card.be(compute={**H100, "degradedBelowPercent": 10})

    async def well() -> bool:
        return not await degraded()

    await rig.until(well, lambda: rig.dump("tiny"))
    await card.be(compute=H100)
    await rig.until(degraded, lambda: rig.dump("tiny"))

    async def fast() -> bool:
        """The stretch in which it became faster has some slow steps in it."""
        return await well() and (await rig.status())["capacity"].get("decodePercent") == 70

    await decode(0.008, fast)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"compute": {"fp16Teraflops": 9}}, "compute.fp16Teraflops are needed both"),
        ({"compute": {"fp8Teraflops": 9}}, "compute.fp8Teraflops needs compute.fp16Teraflops beside it"),
        ({"compute": {"capability": "Hopper"}}, "spec.compute.capability"),
        ({"compute": {"memoryGigabytesPerSecond": 3.35, "fp16Teraflops": 9}}, "spec.compute.memoryGigabytesPerSecond"),
        ({"compute": {"degradedBelowPercent": 101}}, "should be less than or equal to 100"),
        ({"podPatches": [{"op": "move", "path": "/spec/a"}]}, "spec.podPatches[0].op"),
        ({"podPatches": [{"op": "add", "path": "spec/a", "value": 1}]}, "spec.podPatches[0].path"),
        ({"podPatches": [{"op": "add", "path": "/spec/a~2", "value": 1}]}, "spec.podPatches[0].path"),
        ({"podPatches": [{"op": "add", "path": "/metadata/name", "value": "x"}]}, "podPatches change what is below"),
        ({"podPatches": [{"op": "add", "path": "/metadata/labelsx", "value": "x"}]}, "podPatches change what is below"),
        ({"podPatches": [{"op": "remove", "path": "/spec"}]}, "podPatches change what is below /spec/"),
        ({"podPatches": [{"op": "remove", "path": "/spec/a"}] * 33}, "Too many"),
    ],
)  # fmt: skip
def test_a_bad_class_is_refused_with_its_field(control, spec, message):
    body = {"apiVersion": names.API_VERSION, "kind": names.ACCELERATOR_KIND, "metadata": {"name": "bad"}}
    body["spec"] = {"memory": "80Gi", **spec}
    assert message in kubectl(control, "create", "--dry-run=server", "-f", "-", check=False, text=json.dumps(body))
