"""Every field of a spec that shapes pods does so on a real API server: what it changes is still there when it is read
back, under the server's own defaults and pruning. The others' effects are shown by the tests of scaling and rollouts.
"""

import asyncio
import copy
import json
from typing import Any

import pytest

from fakes.fields import CASES, with_value
from fakes.manifests import service
from fakes.operator_rig import kubectl
from fakes.stages import pod_template
from kvasir_api import names
from kvasir_kube.kinds import DEPLOYMENT
from kvasir_operator.observed.service import observed
from kvasir_operator.observed.settings import OperatorSettings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
COLLECTOR = "http://collector:4318"
FLAGS = ("--allow-model-dir=/srv", f"--otlp-traces-endpoint={COLLECTOR}")
SETTINGS = OperatorSettings(model_dirs=("/srv",), otlp_traces_endpoint=COLLECTOR)
OF_CLASSES = ("resources.accelerator.classes", "resources.accelerator.minMemory", "resources.accelerator.spot")
"""Shown by the tests of classes; model.uri is that of every test."""


def rendered(spec: dict[str, Any]) -> dict[str, Any]:
    found = observed(service(**spec), revisions=(), deployments=(), replicas=(), svc=None)
    return pod_template(found, "rev", SETTINGS)


def spec_of(path: str, value: Any) -> dict[str, Any]:
    """The table's spec for no replica, so that templates are made and no pod is."""
    spec = copy.deepcopy(with_value(path, value))
    spec.pop("autoscaling", None)
    return {**spec, "replicas": 0}


SHAPING = sorted(
    path
    for path, (one, other) in CASES.items()
    if path not in OF_CLASSES and rendered(spec_of(path, one)) != rendered(spec_of(path, other))
)
GROUPS = sorted({path.split(".")[0] for path in SHAPING})


def stripped(pod_template: dict[str, Any]) -> dict[str, Any]:
    """Without the revision's name, which differs whenever anything does."""
    text = json.dumps(pod_template, sort_keys=True)
    revision = pod_template["metadata"]["labels"][names.LABEL_REVISION]
    found: dict[str, Any] = json.loads(text.replace(revision, "rev"))
    return found


async def applied(rig: Any, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """The pod template that the API server has for this spec."""
    rig_service = await rig.apply(name, **spec)
    generation = rig_service["metadata"]["generation"]

    async def look() -> Any:
        status = (await rig.service(name)).get("status") or {}
        wanted = status.get("rollout", {}).get("currentRevision")
        if status.get("observedGeneration") != generation:
            return None
        return (await rig.client.get(DEPLOYMENT, rig.namespace, f"{name}-{wanted}"))["spec"]["template"]

    found: dict[str, Any] = await rig.until(look, lambda: f"{name}: {rig.dump(name)}", s=120.0)
    return stripped(found)


def test_the_table_shapes_what_it_should():
    assert set(GROUPS) == {"auth", "drain", "model", "observability", "pod", "resources", "runtime", "runtimeVersion"}
    assert len(SHAPING) > 40


async def test_fields_that_shape_pods_do_so_on_a_real_api_server(rig):
    rig.stop()
    rig.start(*FLAGS)
    await rig.claim()

    async def differs(number: int, path: str) -> bool:
        one, other = (spec_of(path, value) for value in CASES[path])
        return await applied(rig, f"f{number}", one) != await applied(rig, f"f{number}", other)

    found = await asyncio.gather(*(differs(number, path) for number, path in enumerate(SHAPING)))
    assert [path for path, difference in zip(SHAPING, found, strict=True) if not difference] == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"resources": {"resourceClaims": [{"name": "a"}]}},
            "a resource claim needs either resourceClaimName or resourceClaimTemplateName",
        ),
        (
            {"resources": {"resourceClaims": [{"name": "a", "resourceClaimName": "x"}], "accelerator": {"count": 1}}},
            "resources.accelerator.count must be 0 where resources.resourceClaims give the devices",
        ),
        ({"resources": {"resourceClaims": [{"name": "A b", "resourceClaimName": "x"}]}}, "should match"),
        ({"model": {"uri": "pvc://a/b", "aliases": ["x", "x"]}}, "Duplicate value"),
        ({"model": {"uri": "pvc://a/b", "aliases": [f"n{i}" for i in range(8)]}}, "Too many"),
        ({"model": {"uri": "pvc://a/b", "inspect": "Sometimes"}}, "Unsupported value"),
        ({"observability": {"traceSamplePercent": 101}}, "should be less than or equal to 100"),
        ({"pod": {"topologySpread": [{"maxSkew": 0}]}}, "should be greater than or equal to 1"),
        ({"pod": {"labels": {"team": "not a label"}}}, "should match"),
        ({"pod": {"tolerations": [{"key": "a", "tolerationSeconds": 5}]}}, "tolerationSeconds is for effect NoExecute"),
        (
            {"pod": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}},
            "operator Exists takes no value",
        ),
        ({"pod": {"tolerations": [{"value": "b"}]}}, "a toleration without a key needs operator Exists"),
        ({"pod": {"labels": {f"l{i}": "x" for i in range(17)}}}, "Too many"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(control, spec, message):
    body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "bad", "namespace": "default"}}
    body["spec"] = {"model": {"uri": "pvc://models/tiny"}, **spec}
    assert message in kubectl(control, "create", "--dry-run=server", "-f", "-", check=False, text=json.dumps(body))
