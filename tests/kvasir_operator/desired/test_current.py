"""Which revision a spec requests, and with which image, when the operator's image has changed."""

from dataclasses import replace

import pytest
from msgspec import structs

from fakes.manifests import service
from fakes.situations import replica
from kvasir_api import names
from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_api.status import InferenceServiceStatus, RolloutStatus
from kvasir_operator.desired.protected_fields import PROBES
from kvasir_operator.desired.resolve import resolve
from kvasir_operator.desired.runtime_image import image_tag, wanted_image
from kvasir_operator.desired.template import speaks_tls
from kvasir_operator.observed.service import observed
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_operator.status.history import changed

NOW = 1000.0


def asked(seen, image):
    """The revision of a service by an operator with this image."""
    found = resolve(seen, OperatorSettings(runtime_image_cpu=image), now=NOW).revision
    assert found is not None
    return found


def image_of(revision):
    return revision.template["spec"]["containers"][0]["image"]


def world(*revisions, pods=(), good="", **spec):
    seen = observed(service(**spec), revisions=(), deployments=(), replicas=pods, svc=None)
    status = InferenceServiceStatus(rollout=RolloutStatus(last_good_revision=good))
    return replace(seen, revisions=revisions, status=status)


FIRST = asked(world(), "cpu:bad")


def of_first(phase, **fields):
    return replica(phase, revision=FIRST.id, **fields)


READY = of_first("ready", name="a")
UNPULLED = of_first("failed", name="b", image_failure="image cpu:bad cannot be pulled: no such host", created=NOW - 1)
CRASHING = of_first("failed", name="c")


@pytest.mark.parametrize(
    ("pods", "good", "takes"),
    [
        ((UNPULLED,), "", True),
        ((CRASHING,), "", True),
        ((UNPULLED,), FIRST.id, True),
        ((CRASHING,), FIRST.id, False),  # it has served with this image
        ((READY, CRASHING), "", False),
        ((READY, UNPULLED), FIRST.id, False),  # a registry may be away for a moment
        ((READY, structs.replace(UNPULLED, created=NOW - 300)), FIRST.id, True),
        ((READY,), FIRST.id, False),
        ((of_first("loading"),), "", False),
        ((of_first("unschedulable"),), "", False),
        ((), "", False),
        ((structs.replace(UNPULLED, terminating=True),), "", False),
    ],
)
def test_a_revision_whose_image_is_of_no_use_takes_the_operators_new_one(pods, good, takes):
    seen = world(FIRST, pods=pods, good=good)
    assert asked(seen, "cpu:bad") == FIRST
    found = asked(seen, "cpu:good")
    assert (found.id != FIRST.id, image_of(found)) == (takes, "cpu:good" if takes else "cpu:bad")
    if takes:
        assert (found.number, changed(FIRST.inputs, found.inputs)) == (2, "runtimeImage")


def test_the_revision_with_the_new_image_stays_the_one_of_the_spec():
    second = asked(world(FIRST, pods=(UNPULLED,)), "cpu:good")
    assert asked(world(FIRST, second), "cpu:good") == second
    assert asked(world(FIRST, second), "cpu:later") == second
    assert asked(world(FIRST, second), "cpu:bad") == second
    other = asked(world(FIRST, second, runtime={"blockSize": 32}), "cpu:good")
    assert other.number == 3
    back = asked(world(FIRST, second, other), "cpu:good")
    assert (back.id, back.number) == (second.id, 4)


def test_one_new_image_after_the_other_may_be_of_no_use():
    second = asked(world(FIRST, pods=(UNPULLED,)), "cpu:worse")
    fails = structs.replace(UNPULLED, revision=second.id)
    third = asked(world(FIRST, second, pods=(fails,)), "cpu:good")
    assert (len({FIRST.id, second.id, third.id}), third.number, image_of(third)) == (3, 3, "cpu:good")
    first_again = asked(world(FIRST, second, pods=(fails,)), "cpu:bad")
    assert (image_of(first_again), first_again.number) == ("cpu:bad", 3)
    fails = structs.replace(UNPULLED, revision=first_again.id)
    again = asked(world(FIRST, second, first_again, pods=(fails,)), "cpu:worse")
    assert (again.id, again.number) == (second.id, 4)


def test_tls_of_pods_makes_another_revision_and_without_it_the_same_as_ever():
    def made(seen, *, tls):
        found = resolve(seen, OperatorSettings(runtime_image_cpu="cpu:bad", pod_tls=tls), now=NOW).revision
        assert found is not None
        return found

    secure = made(world(FIRST), tls=True)
    assert secure.id != FIRST.id
    assert changed(FIRST.inputs, secure.inputs) == "podTls"
    assert made(world(FIRST, secure), tls=False).id == FIRST.id
    pod = secure.template["spec"]
    (container,) = pod["containers"]
    assert speaks_tls(secure.template)
    assert not speaks_tls(FIRST.template)
    assert {container[probe]["httpGet"]["scheme"] for probe in PROBES} == {"HTTPS"}
    assert container["args"][container["args"].index("--tls-dir") + 1] == names.TLS_MOUNT
    (mount,) = (one for one in container["volumeMounts"] if one["mountPath"] == names.TLS_MOUNT)
    (volume,) = (one for one in pod["volumes"] if one["name"] == mount["name"])
    assert volume["secret"] == {"secretName": names.POD_TLS_SECRET}


@pytest.mark.parametrize(
    ("image", "version", "tag"),
    [
        ("kvasir-runtime-cpu:0.1", "0.2", "0.1"),
        ("kvasir-runtime-cpu", "0.2", ""),
        ("registry:5000/kvasir-runtime-cpu", "0.2", ""),
        ("registry:5000/team/kvasir-runtime-cpu:0.1@sha256:ab", "0.2", "0.1"),
        ("kvasir-runtime-cpu@sha256:ab", "0.2", ""),
    ],
)
def test_a_pinned_version_is_the_tag_of_the_operators_image(image, version, tag):
    settings = OperatorSettings(runtime_image_cpu=image)
    pinned = wanted_image(world(runtimeVersion=version).spec, None, settings)
    assert pinned == f"{image.partition('@')[0].removesuffix(':0.1')}:{version}"
    assert (image_tag(image), image_tag(pinned)) == (tag, version)
    assert wanted_image(world(runtimeVersion="Follow").spec, None, settings) == image


def test_a_class_with_an_image_goes_before_a_pinned_version():
    spec = world(runtimeVersion="0.2", resources={"accelerator": {"count": 1}}).spec
    of_class = AcceleratorClassSpec(memory="80Gi", runtime_image="own:7")
    assert wanted_image(spec, of_class, OperatorSettings()) == "own:7"
    assert wanted_image(spec, None, OperatorSettings()) == f"{names.IMAGE_RUNTIME}:0.2"


def test_a_pin_to_what_runs_changes_nothing_and_another_one_does_and_leads_back():
    first = asked(world(), "cpu:1")
    serving = (replica("ready", revision=first.id),)
    same = world(first, pods=serving, good=first.id, runtimeVersion="1")
    assert asked(same, "moved.example/cpu:9") == first  # the tag counts
    second = asked(world(first, pods=serving, good=first.id, runtimeVersion="2"), "cpu:9")
    assert (image_of(second), second.number) == ("cpu:2", 2)
    back = asked(world(first, second, good=second.id, runtimeVersion="1"), "cpu:9")
    assert (back.id, back.number) == (first.id, 3)
    assert asked(world(first, second, good=second.id), "cpu:9") == second  # without a pin it stays
    assert image_of(asked(world(first, second, runtimeVersion="Follow"), "cpu:9")) == "cpu:9"


def test_a_pinned_service_may_wait_for_its_class_and_not_for_its_version():
    """What is held is the revision before; None where the service may go on at once."""
    first = asked(world(), "cpu:1")
    serving = (replica("ready", revision=first.id),)

    def held(seen, image="cpu:2"):
        return resolve(seen, OperatorSettings(runtime_image_cpu=image), now=NOW).held

    assert held(world(first, pods=serving, good=first.id, runtimeVersion="Follow")) == first
    assert held(world(first, pods=serving, good=first.id, runtimeVersion="2")) is None
    assert held(world(first, good=first.id, runtimeVersion="Follow")) is None  # nothing serves
    paused = {"runtimeVersion": "Follow", "rollout": {"paused": True}}
    assert held(world(first, pods=serving, good=first.id, **paused)) is None
    other = {"runtimeVersion": "Follow", "drain": {"timeoutSeconds": 7}}
    assert held(world(first, pods=serving, good=first.id, **other)) is None
