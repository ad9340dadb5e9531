"""When a pod looks at a model before replicas start, what that pod may do, and what its answer means."""

from dataclasses import replace
from typing import NamedTuple

import pytest

from fakes.manifests import service
from fakes.models import QWEN3_30B, words
from fakes.stages import pod_template, resolved
from kvasir_api import forecast, names
from kvasir_api.inspection import SCHEMA
from kvasir_api.status import ModelStatus
from kvasir_operator.desired.accelerator import placement
from kvasir_operator.desired.inspection import (
    AGAIN_S,
    DEADLINE_S,
    PATIENCE_S,
    PULL_S,
    UNBOUND_S,
    UNPLACED_S,
    inspection_plan,
    known_model,
    pod_name,
)
from kvasir_operator.observed.model_pod import ModelPod
from kvasir_operator.observed.service import observed
from kvasir_operator.observed.settings import OperatorSettings

SETTINGS = OperatorSettings(runtime_image="gpu:1", runtime_image_cpu="cpu:1", model_dirs=("/srv",))
CLASSES = [
    {
        "metadata": {"name": name},
        "spec": {"memory": memory, "pricePerHour": price, "pod": {"nodeSelector": {"gpu": name}}},
    }
    for name, memory, price in (("t4", "16Gi", 1), ("l4", "24Gi", 2), ("h100", "80Gi", 9))
]
URI = "pvc://models/tiny"
TIME = "2026-01-01T12:00:00Z"
NOW = 1767268800.0
READ = ModelStatus(uri=URI, inspected_at=TIME, architecture="LlamaForCausalLM", facts=words())


def gpu(**fields):
    return {"accelerator": {"count": 1, **fields}}


def world(*, model=None, pods=(), bound=True, uri=URI, inspect="Auto", serving="", **spec):
    given = {"resources": gpu(classes=["l4"]), **spec, "model": {"uri": uri, "inspect": inspect}}
    found = observed(service(**given), revisions=(), deployments=(), replicas=(), svc=None, classes=CLASSES)
    if serving:
        owner = [{"controller": True, "uid": "uid-tiny"}]
        metadata = {"name": "tiny-a", "labels": {names.LABEL_REVISION: "a"}, "ownerReferences": owner}
        revision = {
            "metadata": metadata,
            "revision": 1,
            "data": {"inputs": {"model": {"uri": serving}}, "template": {}},
        }
        made = [{"metadata": metadata, "spec": {"replicas": 1}}]
        found = observed(
            service(**given), revisions=[revision], deployments=made, replicas=(), svc=None, classes=CLASSES
        )
    return replace(found, model=model, inspections=tuple(pods), claim_bound=bound)


class Step(NamedTuple):
    found: ModelStatus | None
    create: dict | None
    delete: tuple[ModelPod, ...]
    waiting: str


def step(seen, *, wanted=1, waited_s=0.0, ran_s=0.0, now=NOW):
    """What is known then, and the plan of a spec that was resolved with it."""
    found = known_model(seen, wanted=wanted, waited_s=waited_s, ran_s=ran_s, now=now, time=TIME)
    after = resolved(replace(seen, model=found), SETTINGS)
    plan = inspection_plan(after, SETTINGS, wanted=wanted, written=found == seen.model, now=now)
    return Step(found, plan.create, plan.delete, plan.waiting)


def pod(**fields):
    return ModelPod(**{"name": pod_name(world()), "uid": "u", **fields})


def test_a_model_for_an_accelerator_is_looked_at_before_replicas_start():
    found = step(world())
    assert found.create is not None
    assert found.found is None
    assert found.waiting == f"pod {pod_name(world())} reads the model's config"


@pytest.mark.parametrize(
    "seen",
    [
        world(resources={}),
        world(inspect="Never"),
        world(model=READ),
        world(serving=URI),
    ],
    ids=["on a processor", "never", "known", "served already"],
)
def test_no_pod_is_made_where_none_is_needed(seen):
    left = pod(name="old")
    found = step(replace(seen, inspections=(left,)))
    assert (found.create, found.waiting, found.delete) == (None, "", (left,))


def test_other_overrides_are_another_model_to_look_at():
    given = '{"max_position_embeddings": 8192}'
    made = step(world(model=READ, runtime={"hfOverrides": given})).create
    assert made["spec"]["containers"][0]["args"][-2:] == ["--hf-overrides", given]
    assert made["metadata"]["name"] != pod_name(world())


def test_another_draft_model_is_to_be_looked_at():
    drafting = {"speculation": "/model/small"}
    made = step(world(model=READ, runtime=drafting)).create
    assert made["spec"]["containers"][0]["args"][-2:] == ["--speculation", "/model/small"]
    assert made["metadata"]["name"] != pod_name(world())
    assert pod_name(world(runtime={"speculation": "suffix"})) == pod_name(world())
    known = READ.model_copy(update={"facts": words(draft_model="/model/small")})
    assert step(world(model=known, runtime=drafting)).create is None
    assert step(world(model=known)).create is not None


def test_facts_of_another_schema_are_looked_at_again():
    """An operator before this one kept them in the status."""
    older = READ.model_copy(update={"facts": words(schema=1)})
    found = step(world(model=older))
    assert (found.create is not None, found.found) == (True, older)
    said = step(world(model=older, pods=[pod(ended=True, said=words())]))
    assert said.found.facts == words()


def test_the_words_of_a_runtime_of_another_schema_hold_nothing_up():
    found = step(world(pods=[pod(ended=True, said=words(schema=1))]))
    assert (found.found.facts, found.found.message) == ("", f"facts of schema 1, expected {SCHEMA}")
    assert step(world(model=found.found)).create is None


def test_nothing_is_looked_at_for_no_replica():
    assert step(world(), wanted=0).create is None


@pytest.mark.parametrize(
    "seen",
    [world(inspect="Always", resources={}), world(model=ModelStatus(uri="pvc://other")), world(serving="pvc://other")],
    ids=["always", "another model was known", "another model is served"],
)
def test_what_counts_is_this_model(seen):
    assert step(seen).create is not None


def test_the_pod_takes_no_accelerator_writes_nothing_and_ends_soon():
    made = step(world(pod={"imagePullSecrets": [{"name": "key"}], "nodeSelector": {"zone": "a"}})).create
    spec, (container,) = made["spec"], made["spec"]["containers"]
    assert made["metadata"]["labels"].keys().isdisjoint({names.LABEL_SERVICE, names.LABEL_ROLE, names.LABEL_REVISION})
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-tiny"
    assert container["command"] == ["kvasir", "plan"]
    assert container["args"] == ["/models/tiny", "--facts", "/dev/termination-log"]
    assert container["image"] == "cpu:1"
    assert set(container["resources"]["limits"]) == {"memory"}
    assert container["volumeMounts"][0] == {"name": "model", "mountPath": "/models", "readOnly": True}
    assert spec["volumes"][0]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    assert (spec["restartPolicy"], spec["activeDeadlineSeconds"]) == ("Never", PULL_S + DEADLINE_S)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["imagePullSecrets"] == [{"name": "key"}]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def test_a_directory_is_looked_at_where_it_lies_and_a_claim_wherever_it_draws_the_pod():
    assert step(world(uri="file:///srv/tiny")).create["spec"]["nodeSelector"] == {"gpu": "l4"}
    assert "nodeSelector" not in step(world()).create["spec"]


def test_while_it_runs_replicas_wait():
    found = step(world(pods=[pod(unplaced=True, trouble="0/3 nodes are available")]))
    assert (found.create, found.delete) == (None, ())
    assert found.waiting.endswith("reads the model's config: 0/3 nodes are available")


def test_what_it_says_is_kept():
    found = step(world(pods=[pod(ended=True, said=words())]))
    assert found.waiting == ""
    assert found.found == ModelStatus(
        uri=URI, inspected_at=TIME, architecture="LlamaForCausalLM", parameters=8_030_261_248, facts=words()
    )


@pytest.mark.parametrize(
    ("seen", "waited_s", "message"),
    [
        (world(pods=[pod(ended=True, trouble="Error: no config.json")]), 0.0, "Error: no config.json"),
        (world(pods=[pod(ended=True)]), 0.0, "the pod that reads it ended without a word"),
        (world(pods=[pod(ended=True, said="hello")]), 0.0, "not the facts of a model"),
        (world(pods=[pod(trouble="ErrImagePull")]), PATIENCE_S + 1, "no pod has read it within 120 s: ErrImagePull"),
        (world(bound=False), UNBOUND_S + 1, "its claim has no volume yet"),
        (world(pods=[pod(unplaced=True, trouble="0/3")]), UNPLACED_S + 1, "no node takes the pod that reads it: 0/3"),
    ],
)
def test_what_is_not_known_holds_nothing_up(seen, waited_s, message):
    found = step(seen, waited_s=waited_s)
    assert found.waiting == ""
    assert message in found.found.message
    after = replace(seen, model=found.found)
    assert resolved(after, SETTINGS).violation is None
    assert placement(after).forecast.verdict == "Unknown"
    assert message in placement(after).forecast.message


@pytest.mark.parametrize(
    ("mine", "waited_s", "ran_s", "message"),
    [
        (pod(node="a", trouble="ContainerCreating"), PULL_S, 0.0, None),
        (pod(node="a", trouble="ContainerCreating"), PULL_S + 1, 0.0, "within 600 s: ContainerCreating"),
        (pod(node="a", fails=True, trouble="ErrImagePull"), PATIENCE_S + 1, 0.0, "within 120 s: ErrImagePull"),
        (pod(node="a", running_since=NOW), PULL_S + DEADLINE_S, DEADLINE_S, None),
        (pod(node="a", running_since=NOW), DEADLINE_S, DEADLINE_S + 1, "the pod that reads it has run for 60 s"),
    ],
)
def test_the_pull_of_the_image_is_no_part_of_the_time_to_look(mine, waited_s, ran_s, message):
    found = step(world(pods=[mine]), waited_s=waited_s, ran_s=ran_s)
    assert (found.found is None) is (message is None)
    assert bool(found.waiting) is (message is None)
    assert message is None or message in found.found.message


def test_a_pod_that_looks_does_not_decide_where_a_claim_gets_its_volume():
    found = step(world(bound=False))
    assert (found.create, found.waiting) == (None, "the model's claim waits for its volume")


def test_a_pod_stays_until_the_status_has_what_it_found():
    ended, other = pod(ended=True, said=words()), pod(name="other")
    just_read = step(world(pods=[ended, other]))
    assert just_read.delete == (other,)
    assert step(world(model=just_read.found, pods=[ended, other])).delete == (ended, other)


def test_pods_that_leave_are_waited_for():
    leaving = pod(ended=True, leaving=True, said=words())
    assert step(world(pods=[leaving])).create is None
    assert step(world(model=READ, pods=[leaving])).delete == ()


def test_what_is_too_small_is_refused_with_numbers_and_looked_at_again_later():
    seen = world(model=READ, resources=gpu(classes=["t4"]))
    broken = resolved(seen, SETTINGS).violation
    assert broken.reason == "TooSmall"
    assert broken.message == (
        "spec.resources.accelerator.classes: t4 is too small: the weights (14.96 GiB) and the KV cache of one "
        "request of 16 tokens (2 MiB) take 14.96 GiB; 14.40 GiB of 16.00 GiB may be used"
    )
    assert step(seen, now=NOW + AGAIN_S).create is None
    again = step(seen, now=NOW + AGAIN_S + 1)
    assert again.create is not None
    assert (again.found, again.waiting) == (READ, "")
    mute = step(replace(seen, inspections=(pod(ended=True),)), now=NOW + AGAIN_S + 1)
    assert mute.found.facts == READ.facts


def test_a_service_of_its_own_will_is_not_refused():
    assert resolved(world(model=READ, inspect="Never", resources=gpu(classes=["t4"])), SETTINGS).violation is None


@pytest.mark.parametrize(
    ("resources", "name", "why"),
    [
        (gpu(classes=["t4", "l4"]), "l4", "t4 is too small: the weights (14.96 GiB)"),
        (gpu(minMemory="10Gi"), "l4", "the cheapest with 10Gi of memory, 2 per hour"),
        (gpu(minMemory="40Gi"), "h100", "the cheapest with 40Gi of memory, 9 per hour"),
    ],
)
def test_the_class_is_one_that_the_model_fits(resources, name, why):
    found = placement(world(model=READ, resources=resources)).choice
    assert found.name == name
    assert why in found.why


def test_forecasts_are_told_class_by_class():
    seen = world(model=READ, resources=gpu(classes=["t4", "absent", "l4"]))
    told = [(f.name, f.fit, f.kv_tokens, f.requests) for f in placement(seen).forecasts]
    assert told == [("t4", "TooSmall", 0, 0), ("l4", "Fits", 27776, 1)]
    assert placement(seen).forecast.kv_tokens == 27776


def test_without_a_class_the_memory_is_unknown():
    found = placement(world(model=READ, resources=gpu())).forecast
    assert (found.verdict, found.message) == ("Unknown", "no AcceleratorClass says how much memory a device has")


def test_on_a_processor_the_memory_is_the_requested_one():
    small = world(model=READ, inspect="Always", resources={"memory": "16Gi"})
    assert resolved(small, SETTINGS).violation.reason == "TooSmall"
    assert resolved(small, SETTINGS).violation.message.startswith("spec.resources.memory: the weights (29.92 GiB)")
    assert resolved(world(model=READ, inspect="Always", resources={"memory": "64Gi"}), SETTINGS).violation is None


def test_of_ranks_with_requests_of_their_own_weights_and_caches_of_all_count():
    """The pod requests 80Gi, of which each of two ranks has half; with 66Gi one process has room and two have not."""
    mixture = ModelStatus(uri=URI, inspected_at=TIME, facts=words(shape=forecast.shape(QWEN3_30B)))
    runtime = {"dtype": "bfloat16", "maxModelLen": 8192}

    def found(memory, ranks, model=mixture):
        given = {"runtime": {**runtime, "dataParallelSize": ranks}, "resources": {"memory": memory}}
        return resolved(world(model=model, inspect="Always", **given), SETTINGS)

    alone, both = (found("80Gi", ranks) for ranks in (1, 2))
    tokens = [one.placement.forecast.kv_tokens for one in (alone, both)]
    assert tokens == [pytest.approx(160_750, rel=0.002), pytest.approx(2 * 68_780, rel=0.002)]
    assert both.revision.inputs["runtime"]["dataParallelSize"] == 2
    (container,) = pod_template(both.observed, "rev", SETTINGS)["spec"]["containers"]
    at = container["args"].index("--data-parallel-size")
    assert container["args"][at + 1] == "2"
    assert found("66Gi", 1).violation is None
    assert found("66Gi", 2).violation.message.startswith("spec.resources.memory: at each of 2 ranks the weights (29.29")
    dense = found("66Gi", 2, READ)
    assert (dense.violation, dense.placement.forecast.verdict) == (None, "Unknown")


def test_on_processors_of_several_pods_the_memory_is_that_of_all():
    ranks = {"tensorParallelSize": 4}
    asked = {"model": READ, "inspect": "Always", "resources": {"memory": "16Gi"}}
    assert resolved(world(**asked, runtime=ranks), SETTINGS).violation.reason == "TooSmall"
    assert resolved(world(**asked, runtime={**ranks, "nnodes": 4}), SETTINGS).violation is None
