"""Which accelerator class a service gets, and what of it reaches the pods and the revision."""

import pytest

from fakes.manifests import service
from fakes.stages import pod_template, resolved, revision_of
from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_api.service import Accelerator
from kvasir_operator.desired import fallback
from kvasir_operator.desired.accelerator import choose, placement
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import observed
from kvasir_operator.observed.settings import OperatorSettings

L4 = {"memory": "24Gi", "pricePerHour": 80}
H100 = {"memory": "80Gi", "pricePerHour": 400}
H100_SPOT = {"memory": "80Gi", "pricePerHour": 120, "spot": True}
SETTINGS = OperatorSettings(runtime_image="gpu:1", runtime_image_cpu="cpu:1")


def known(**classes):
    return {name: AcceleratorClassSpec.model_validate(spec) for name, spec in classes.items()}


def asked(**fields):
    return Accelerator.model_validate({"count": 1, **fields})


@pytest.mark.parametrize(
    ("fields", "classes", "name", "why"),
    [
        ({}, {"l4": L4}, "", ""),
        ({"count": 0, "classes": ["l4"]}, {"l4": L4}, "", ""),
        ({"classes": ["h100", "l4"]}, {"l4": L4, "h100": H100}, "h100", "h100 is there"),
        ({"classes": ["b200", "l4"]}, {"l4": L4}, "l4", "b200 does not exist; l4 is there"),
        ({"classes": ["l4", "h100"], "minMemory": "40Gi"}, {"l4": L4, "h100": H100}, "h100", "l4 has only 24Gi"),
        ({"classes": ["spot"]}, {"spot": H100_SPOT}, "spot", "spot is there"),
        ({"classes": ["b200"]}, {"l4": L4}, "", "b200 does not exist"),
        ({"minMemory": "10Gi"}, {"l4": L4, "h100": H100}, "l4", "the cheapest with 10Gi of memory, 80 per hour"),
        ({"minMemory": "40Gi"}, {"l4": L4, "h100": H100, "spot": H100_SPOT}, "h100", "400 per hour"),
        ({"minMemory": "40Gi", "spot": True}, {"h100": H100, "spot": H100_SPOT}, "spot", "120 per hour"),
        ({"minMemory": "40Gi"}, {"spot": H100_SPOT}, "", "no AcceleratorClass that is not spot has 40Gi of memory"),
        ({"minMemory": "1Gi"}, {}, "", "there is none at all"),
        ({"minMemory": "1Gi"}, {"b": L4, "a": L4}, "a", "cheapest"),
    ],
)
def test_choose(fields, classes, name, why):
    found = choose(asked(**fields), known(**classes))
    assert found.name == name
    assert (why in found.why) if why else not found.why


def seen(spec, **accelerator):
    obj = service(
        resources={"accelerator": {"count": 1, **accelerator}}, pod={"nodeSelector": {"zone": "a", "gpu": "x"}}
    )
    classes = [{"metadata": {"name": "h100"}, "spec": {**H100, **spec}}]
    return observed(obj, revisions=(), deployments=(), replicas=(), svc=None, classes=classes)


POD = {
    "nodeSelector": {"gpu": "h100"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "runtimeClassName": "nvidia",
    "priorityClassName": "serving",
    "annotations": {"example.com/team": "ml"},
}


def test_the_class_shapes_the_pod():
    world = seen({"resourceName": "nvidia.com/h100", "runtimeImage": "gpu:h100", "pod": POD}, classes=["h100"])
    made = pod_template(world, "rev", SETTINGS)
    pod, (container,) = made["spec"], made["spec"]["containers"]
    assert container["image"] == "gpu:h100"
    assert container["resources"]["limits"]["nvidia.com/h100"] == "1"
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert pod["nodeSelector"] == {"zone": "a", "gpu": "h100"}
    assert pod["tolerations"] == POD["tolerations"]
    assert (pod["runtimeClassName"], pod["priorityClassName"]) == ("nvidia", "serving")
    assert made["metadata"]["annotations"] == {"example.com/team": "ml"}


def test_what_shapes_no_pod_makes_no_revision():
    first = revision_of(seen({"pod": POD}, classes=["h100"]))
    assert revision_of(seen({"pod": POD, "pricePerHour": 1}, classes=["h100"])) == first
    assert revision_of(seen({"pod": POD}, classes=["gone", "h100"])) == first
    assert revision_of(seen({"pod": POD}, minMemory="1Gi")) == first
    assert revision_of(seen({"pod": {**POD, "runtimeClassName": "other"}}, classes=["h100"])) != first


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"classes": ["b200"]}, "spec.resources.accelerator.classes: b200 does not exist"),
        (
            {"minMemory": "100Gi"},
            "spec.resources.accelerator.minMemory: no AcceleratorClass that is not spot has 100Gi",
        ),
        ({"classes": ["h100"]}, None),
    ],
)
def test_a_class_that_cannot_be_had_is_a_fault_of_its_field(fields, message):
    found = resolved(seen({}, **fields), SETTINGS).violation
    assert (found is None) if message is None else found.message.startswith(message)


def standing(
    *,
    has="h100",
    reclass="OnChange",
    accelerator=None,
    pod_hash=None,
    replicas=1,
    rollout=None,
    assigned=True,
    **classes,
):
    """A service whose replicas have a class; of those that there are l4 is the cheapest."""
    resources = {"accelerator": {"count": 1, **(accelerator or {"minMemory": "10Gi"})}}
    obj = service(resources=resources, rollout={"reclass": reclass})
    known_ = {"h100": H100, "l4": L4, **classes}
    found = [{"metadata": {"name": name}, "spec": spec} for name, spec in known_.items() if spec]
    pods = [Replica(name=f"p{n}", assigned=assigned) for n in range(replicas)]
    made = observed(obj, revisions=(), deployments=(), replicas=pods, svc=None, classes=found)
    hash_ = fallback.pod_hash(made.spec) if pod_hash is None else pod_hash
    status = {"acceleratorClass": has, "podHash": hash_, **(rollout or {})}
    return observed(
        obj | {"status": {"rollout": status}}, revisions=(), deployments=(), replicas=pods, svc=None, classes=found
    )


@pytest.mark.parametrize(
    ("world", "name"),
    [
        (standing(), "h100"),
        (standing(reclass="Always"), "l4"),
        (standing(accelerator={"classes": ["l4", "h100"]}), "h100"),
        (standing(pod_hash=""), "h100"),  # written by an operator that had no hash
        # the spec describes other pods, none runs, or the class is gone or no longer suits
        (standing(pod_hash="other"), "l4"),
        (standing(replicas=0), "l4"),
        (standing(assigned=False), "l4"),
        (standing(has=""), "l4"),
        (standing(h100=None), "l4"),
        (standing(h100={**H100, "memory": "8Gi"}), "l4"),
        (standing(h100={**H100, "spot": True}), "l4"),
        (standing(accelerator={"minMemory": "10Gi", "spot": True}, h100={**H100, "spot": True}), "h100"),
        (standing(accelerator={"classes": ["l4"]}), "l4"),
        (standing(rollout={"unavailableClasses": ["h100"]}), "l4"),
    ],
)
def test_a_better_class_moves_no_replicas(world, name):
    placed = placement(world)
    assert placed.choice.name == name
    assert placed.accelerator == world.classes[name]
    if name == "h100":
        assert "l4 would be taken for new pods" in placed.choice.why
