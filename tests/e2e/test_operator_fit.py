"""What does not fit is refused before a replica is made, on a real API server and by the real program that reads it."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import AsyncOpenAI

from fakes.models import words
from fakes.operator_rig import kubectl
from fakes.stages import resolved
from kvasir_api import names
from kvasir_kube.client import Client, configuration
from kvasir_kube.kinds import ACCELERATOR_CLASS, DEPLOYMENT, POD
from kvasir_local import kubectl as local
from kvasir_local import stack
from kvasir_local.control_plane import ControlPlane
from kvasir_local.demo.scenario import put_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]
SAMPLE = Path(__file__).parents[2] / "manifests" / "samples" / "tiny.yaml"
DEADLINE_S = 90.0


@pytest.fixture
async def classes(rig):
    """Two classes of this test's own names: one that is too small for what the model says of itself."""
    made = {f"{name}-{rig.namespace}": memory for name, memory in (("t4", "16Gi"), ("l4", "24Gi"))}
    for name, memory in made.items():
        await rig.client.apply(
            ACCELERATOR_CLASS, {"metadata": {"name": name}, "spec": {"memory": memory}}, manager="admin"
        )
    yield tuple(made)
    for name in made:
        await rig.client.delete(ACCELERATOR_CLASS, "", name)


async def test_a_model_that_is_too_small_for_its_class_gets_no_replica_until_another_class_has_room(rig, classes):
    rig.kubelet.facts = words()
    small, large = classes
    mark = rig.audit_mark()
    await rig.apply(resources={"accelerator": {"count": 1, "classes": [small]}})
    stalled = await rig.until_condition("Stalled", reason="TooSmall")
    assert stalled["message"].startswith(
        f"spec.resources.accelerator.classes: {small} is too small: the weights (14.96 GiB)"
    )
    assert await rig.noted("TooSmall") == [stalled["message"]]

    async def alone():
        return not await rig.all(POD) and not await rig.all(DEPLOYMENT)

    await rig.until(alone, lambda: "the pod that looked is gone, and nothing else was made")
    assert {w.resource for w in rig.writes_since(mark)} == {"pods", "events", "inferenceservices"}
    (looked,) = rig.kubelet.looked
    assert looked["spec"]["containers"][0]["resources"]["limits"] == {"memory": "512Mi"}
    await rig.apply(resources={"accelerator": {"count": 1, "classes": [small, large]}})
    await rig.until_condition("Ready")
    status = await rig.status()
    assert status["rollout"]["acceleratorClass"] == large
    assert [(c["name"], c["fit"]) for c in status["capacity"]["classes"]] == [(small, "TooSmall"), (large, "Fits")]
    assert (status["capacity"]["predictedKvTokens"], status["capacity"]["predictedRequests"]) == (27776, 1)

    async def measured():
        return (await rig.status())["capacity"].get("measuredPercent") == 4  # the stub's 1000 tokens

    await rig.until(measured, lambda: rig.dump("tiny"))
    assert len(rig.kubelet.looked) == 1


async def test_a_model_that_cannot_be_read_is_served_all_the_same(rig, classes):
    await rig.apply(resources={"accelerator": {"count": 1, "classes": [classes[0]]}})
    await rig.until_condition("Ready")
    capacity = (await rig.status())["capacity"]
    assert (capacity["fit"], capacity["message"]) == ("Unknown", "Error: no config.json")
    assert await rig.noted("ForecastUnknown") == ["Error: no config.json"]
    assert len(await rig.all(POD)) == 1


def test_the_pod_that_looks_is_admitted_where_pods_are_restricted(control):
    """The same rules that Pod Security asks of pods of a namespace that it restricts."""
    from kvasir_operator.desired.inspection import inspection_plan
    from kvasir_operator.observed.service import observed
    from kvasir_operator.observed.settings import OperatorSettings

    label = "pod-security.kubernetes.io/enforce"
    body = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "restricted", "labels": {label: "restricted"}},
    }
    kubectl(control, "create", "-f", "-", text=json.dumps(body))
    metadata = {"name": "tiny", "namespace": "restricted", "uid": "0", "generation": 1}
    service = {"metadata": metadata, "spec": {"model": {"uri": "pvc://models/tiny", "inspect": "Always"}}}
    seen = observed(service, revisions=(), deployments=(), replicas=(), svc=None)
    pod = inspection_plan(resolved(seen), OperatorSettings(), wanted=1, written=True, now=0.0).create
    assert pod is not None
    del pod["metadata"]["ownerReferences"]
    assert "created" in kubectl(control, "create", "--dry-run=server", "-f", "-", text=json.dumps(pod))
    kubectl(control, "delete", "namespace", "restricted", "--wait=false")


class Real:
    """A namespace of the installed cluster, whose node runs the real programs."""

    def __init__(self, cluster: ControlPlane, namespace: str) -> None:
        self._program = [*cluster.kubectl, f"--namespace={namespace}"]

    def kubectl(self, *arguments: str) -> str:
        return local.run(self._program, *arguments)

    def items(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "-ojson"))["items"]
        return found

    def apply(self, served_name: str, **spec: Any) -> None:
        model = {"uri": "pvc://kvasir-tiny/tiny", "inspect": "Always", "servedName": served_name}
        model |= {"aliases": [f"{served_name}-too"]}
        manifest = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "tiny"}}
        local.apply(self._program, yaml.safe_dump({**manifest, "spec": {"model": model, **spec}}))

    async def until(self, kind: str, status: str, **wanted: str) -> dict[str, Any]:
        """The status once it has that condition for the present spec."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            (service,) = await asyncio.to_thread(self.items, "infsvc")
            found: dict[str, Any] = service.get("status") or {}
            for c in found.get("conditions") or ():
                matches = (c["type"], c["status"], c["observedGeneration"]) == (
                    kind,
                    status,
                    service["metadata"]["generation"],
                )
                if matches and all(c[field] == value for field, value in wanted.items()):
                    return found
            assert time.monotonic() < deadline, f"no {kind}={status} {wanted}: {json.dumps(found, indent=1)}"
            await asyncio.sleep(0.05)


@pytest.fixture
async def real(installed: ControlPlane):
    namespace = f"fit-{time.time_ns() % 10**9}"
    local.run(installed.kubectl, "create", "namespace", namespace)
    async with Client(await configuration(str(installed.kubeconfig))) as client:
        await put_model(client, SAMPLE, namespace=namespace, deadline_s=DEADLINE_S)
        spec = {"resourceName": "example.com/none", "memory": "1Mi"}
        await client.apply(ACCELERATOR_CLASS, {"metadata": {"name": namespace}, "spec": spec}, manager="admin")
        yield Real(installed, namespace), namespace
        await client.delete(ACCELERATOR_CLASS, "", namespace)
    local.run(installed.kubectl, "delete", "namespace", namespace, "--wait=false")


async def test_the_forecast_is_what_a_real_replica_holds(real, installed):
    """The program reads a real model in a real pod; its forecast for 2 GiB is met by what the engine measures."""
    cluster, namespace = real
    cluster.apply(namespace, resources={"accelerator": {"count": 1, "classes": [namespace]}})
    status = await cluster.until("Stalled", "True", reason="TooSmall")
    assert status["model"]["architecture"] == "LlamaForCausalLM"
    assert status["capacity"]["fit"] == "TooSmall"
    assert cluster.items("deployments,replicasets") == []
    cluster.apply(namespace, resources={"cpu": "1", "memory": "2Gi"})
    await cluster.until("Ready", "True", reason="AllReplicasReady")
    deadline = time.monotonic() + DEADLINE_S
    while not (status := await cluster.until("Ready", "True"))["capacity"].get("measuredPercent"):
        assert time.monotonic() < deadline, status
        await asyncio.sleep(0.05)
    assert status["capacity"]["fit"] == "Fits"
    assert status["capacity"]["predictedKvTokens"] > 100_000
    assert 90 <= status["capacity"]["measuredPercent"] <= 110
    async with AsyncOpenAI(base_url=f"{stack.gateway_url(installed)}/v1", api_key="none", max_retries=5) as client:
        for name in (namespace, f"{namespace}-too"):
            answer = await client.completions.create(model=name, prompt="hello", max_tokens=1)
            assert answer.model == name
