"""Mode External with the real HPA controller, which reads the operator's own metric by the aggregation layer."""

import re
from pathlib import Path

import aiohttp
import pytest
import yaml

from fakes.external_metrics import registered
from fakes.operator_rig import kubectl
from kvasir_kube.kinds import Kind

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
SAMPLE = Path(__file__).parents[2] / "manifests" / "samples" / "external-hpa.yaml"
NAME = "by-hpa"
HPA = Kind(group="autoscaling", version="v2", kind="HorizontalPodAutoscaler", plural="horizontalpodautoscalers")


class Scaled:
    """The sample on a rig; its HPA waits for nothing before it removes a replica."""

    def __init__(self, rig):
        self.rig, self.where = rig, f"--namespace={rig.namespace}"

    async def begin(self):
        service, hpa = yaml.safe_load_all(SAMPLE.read_text())
        service["spec"]["model"]["uri"] = "file:///srv/tiny"
        service["spec"]["resources"] = {"cpu": "10m", "memory": "16Mi"}
        (metric,) = hpa["spec"]["metrics"]
        metric["external"]["metric"]["selector"]["matchLabels"]["namespace"] = self.rig.namespace
        hpa["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = 0
        text = yaml.safe_dump_all([service, hpa])
        kubectl(self.rig.control, "apply", "--validate=strict", self.where, "-f", "-", text=text)
        await self.rig.until_condition("Ready", name=NAME, reason="AllReplicasReady")

    async def metrics(self):
        """What the operator exposes; nothing while it does not run."""
        ports = re.findall(r"metrics on [\d.]+:(\d+)", self.rig.log.read_text())
        try:
            async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{ports[-1]}/metrics") as answer:
                return await answer.text()
        except aiohttp.ClientError:
            return ""

    async def scale(self):
        """spec.replicas, status.replicas and the selector, as the scale subresource has them."""
        found = kubectl(self.rig.control, "get", f"infsvc/{NAME}", "--subresource=scale", "-oyaml", self.where)
        scale = yaml.safe_load(found)
        return scale["spec"]["replicas"], scale["status"]["replicas"], scale["status"]["selector"]

    async def until_scale(self, count):
        async def look():
            return (await self.scale())[:2] == (count, count)

        await self.rig.until(look, lambda: f"{count} replicas: {self.rig.dump(NAME)} {self.dump()}", s=180)

    async def until_hpa(self, condition, status, reason):
        async def look():
            found = await self.rig.client.get(HPA, self.rig.namespace, NAME)
            conditions = (found.get("status") or {}).get("conditions") or ()
            return any((c["type"], c["status"], c["reason"]) == (condition, status, reason) for c in conditions)

        await self.rig.until(look, lambda: f"{condition}={status} {reason}: {self.dump()}", s=180)

    def dump(self):
        return kubectl(self.rig.control, "get", "hpa", NAME, "-oyaml", self.where, check=False)


async def test_an_hpa_scales_up_and_down_by_the_operators_demand_and_holds_without_it(rig, tmp_path):
    scaled = Scaled(rig)
    async with registered(rig.client, rig.namespace, scaled.metrics, tmp_path) as provider:
        await scaled.begin()
        (first,) = await rig.until_pods(1)
        first.set_state(kv_pinned=950, running=8)
        await scaled.until_scale(2)
        await scaled.until_hpa("ScalingActive", "True", "ValidMetricFound")
        labels = (await scaled.scale())[2]
        pods = kubectl(rig.control, "get", "pods", f"--selector={labels}", "-oname", scaled.where).split()
        assert sorted(pods) == sorted(f"pod/{pod.name}" for pod in await rig.until_pods(2))
        # Without the operator the metric is absent, which is no demand of zero.
        rig.stop()
        await scaled.until_hpa("ScalingActive", "False", "FailedGetExternalMetric")
        assert (await scaled.scale())[:2] == (2, 2)
        rig.start("--allow-model-dir=/srv")
        await scaled.until_hpa("ScalingActive", "True", "ValidMetricFound")
        for pod in await rig.until_pods(2):
            pod.set_state(kv_pinned=0, running=0)
        await scaled.until_scale(1)
        assert provider.asked
    assert await rig.events("ScaledUp") == []


async def test_kubectl_scale_counts_until_the_hpa_looks_again(rig, tmp_path):
    scaled = Scaled(rig)
    async with registered(rig.client, rig.namespace, scaled.metrics, tmp_path) as provider:
        await scaled.begin()
        (first,) = await rig.until_pods(1)
        first.set_state(kv_pinned=500, running=4)
        await scaled.until_hpa("ScalingActive", "True", "ValidMetricFound")
        # It looks every 15 s, and finds nothing by which it could change the count.
        provider.fails = True
        await scaled.until_hpa("ScalingActive", "False", "FailedGetExternalMetric")
        kubectl(rig.control, "scale", f"infsvc/{NAME}", "--replicas=3", scaled.where)
        await scaled.until_scale(3)
        provider.fails = False
        await scaled.until_scale(1)
