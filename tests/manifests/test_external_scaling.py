"""The samples in which an HPA or KEDA writes the count: what they read is there, and its absence removes no replica."""

from pathlib import Path

import jsonschema
import pytest
import yaml

from fakes import keda
from fakes.keda import Trigger, TriggerError
from fakes.operator_bench import Bench
from kvasir_api import names
from kvasir_api.control_plane_metrics import OPERATOR
from kvasir_api.service import InferenceService

SAMPLES = Path(__file__).parents[2] / "manifests" / "samples"
METRIC = "kvasir_service_required_replicas"


def sample(name):
    """The service and its autoscaler."""
    return yaml.safe_load_all((SAMPLES / f"external-{name}.yaml").read_text())


@pytest.mark.parametrize("name", ["hpa", "keda"])
def test_the_autoscaler_scales_the_service_beside_it(name):
    service, scaler = sample(name)
    spec = InferenceService.model_validate(service).spec
    assert spec.autoscaling is not None
    assert spec.autoscaling.mode == "External"
    target = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": service["metadata"]["name"]}
    assert scaler["spec"]["scaleTargetRef"] == target


def test_the_hpa_reads_a_metric_that_the_operator_has_for_each_service():
    service, hpa = sample("hpa")
    (metric,) = hpa["spec"]["metrics"]
    assert metric["type"] == "External"
    declared = next(m for m in OPERATOR if m.name == metric["external"]["metric"]["name"])
    chosen = metric["external"]["metric"]["selector"]["matchLabels"]
    # Another namespace may have a service of this name, and what a selector finds is summed.
    assert chosen == {"namespace": "default", "service": service["metadata"]["name"]}
    assert set(chosen) <= set(declared.labels)
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}


def test_the_scaled_object_is_what_keda_knows():
    _, scaled = sample("keda")
    jsonschema.Draft202012Validator.check_schema(keda.SPEC)
    strict = {**keda.SPEC, "additionalProperties": False}
    jsonschema.validate(scaled["spec"], strict)
    (trigger,) = scaled["spec"]["triggers"]
    assert set(trigger["metadata"]) == {
        "serverAddress",
        "query",
        "threshold",
        "activationThreshold",
        "ignoreNullValues",
    }
    assert trigger["metadata"]["threshold"] == "1"


class Scaled:
    """The service of the sample behind KEDA's trigger, on a fake cluster."""

    def __init__(self, **metadata):
        service, scaled = sample("keda")
        self.bench, self.autoscaling = Bench(), service["spec"]["autoscaling"]
        self.cooldown_s = scaled["spec"]["cooldownPeriod"]
        (found,) = scaled["spec"]["triggers"]
        query = found["metadata"]["query"].replace("by-keda", "tiny")
        self.trigger = Trigger(metadata={**found["metadata"], "query": query, **metadata})

    async def turns(self, seconds):
        for _ in range(seconds // 2):
            await self.bench.turn(2.0)

    @property
    def value(self):
        return self.trigger.value(self.bench.operator.telemetry.text().decode())

    async def begin(self, replicas=1, **says):
        await self.bench.put_service(replicas=replicas, autoscaling=self.autoscaling)
        await self.bench.turn()
        await self.bench.put_pods(replicas, **says)
        await self.turns(10)


async def test_keda_reads_the_demand():
    one = Scaled()
    await one.begin(pinned=950, running=8)
    assert one.value == 2


async def test_an_idle_service_is_inactive_after_its_idle_seconds_and_not_before():
    one = Scaled()
    await one.begin()
    await one.turns(280)
    assert one.trigger.active(one.value)
    await one.turns(20)
    assert not one.trigger.active(one.value)


@pytest.mark.parametrize("silence_s", [20, 600])
async def test_pods_that_do_not_answer_require_no_fewer_replicas(silence_s):
    """Nor does it matter how long: lost pods count as used."""
    one = Scaled()
    await one.begin(2, pinned=950, running=8)
    assert one.value == 3
    one.bench.reader.says.clear()
    await one.turns(silence_s)
    assert one.value >= 2


async def test_a_restarted_operator_has_no_value_and_then_one_that_keeps_a_replica():
    one = Scaled()
    await one.begin()
    one.bench.operator = one.bench.started()
    with pytest.raises(TriggerError):
        one.value  # noqa: B018
    await one.bench.turn()
    assert one.value == 1


async def test_with_kedas_default_a_restarted_operator_would_take_every_replica():
    """Which is why the sample sets ignoreNullValues."""
    one = Scaled(ignoreNullValues="true")
    await one.begin(pinned=950, running=8)
    one.bench.operator = one.bench.started()
    assert not one.trigger.active(one.value)
