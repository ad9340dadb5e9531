"""Of how many pods a replica is where the operator chooses, when that changes, and what the status says of it."""

from dataclasses import replace

import pytest

from fakes.manifests import service
from fakes.models import words
from fakes.stages import resolved
from kvasir_api.status import ModelStatus
from kvasir_operator.desired import fallback
from kvasir_operator.desired.inspection import inspection_plan
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import observed, parsed_class
from kvasir_operator.observed.settings import OperatorSettings

SETTINGS = OperatorSettings(runtime_image="gpu:1", runtime_image_cpu="cpu:1", model_dirs=("/srv",))
URI = "pvc://models/tiny"
RUNTIME = {"maxModelLen": 8192, "dtype": "bfloat16"}
RUNS = Replica(name="p", revision="r", phase="ready")


def world(*replicas, memory="12Gi", known=True, before=None, hash_=None, runtime=RUNTIME, auto=True, **spec):
    """A service of LLAMA_8B. before: pods of a replica that the status has, for the same pods unless hash_."""
    given = {"resources": {"memory": memory}, "runtime": runtime, **spec, "model": {"uri": URI}}
    obj = service(**given, **({"parallelism": "Auto"} if auto else {}))
    mine = fallback.pod_hash(observed(obj, revisions=(), deployments=(), replicas=(), svc=None).spec)
    status = {"rollout": {"nodes": before, "podHash": mine if hash_ is None else hash_}} if before else {}
    if known:
        model = ModelStatus(uri=URI, inspected_at="2026-01-01T12:00:00Z", facts=words())
        status["model"] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return observed(obj | {"status": status}, revisions=(), deployments=(), replicas=replicas, svc=None)


def sizes(seen):
    found = resolved(seen, SETTINGS)
    runtime = found.revision.inputs["runtime"] if found.revision else {}
    return found.nodes, runtime.get("pipelineParallelSize", 1), runtime.get("nnodes", 1)


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        (world(), (2, 2, 2)),
        (world(memory="24Gi"), (1, 1, 1)),
        (world(memory="6Gi"), (4, 4, 4)),
        (world(auto=False, memory="24Gi"), (None, 1, 1)),
        # while nothing is known of the model what was chosen holds, for these pods alone
        (world(known=False), (1, 1, 1)),
        (world(known=False, before=3), (3, 3, 3)),
        (world(known=False, before=3, hash_="other"), (1, 1, 1)),
        # and while there are replicas of it
        (world(RUNS, before=3), (3, 3, 3)),
        (world(before=3), (2, 2, 2)),
        (world(RUNS, before=3, hash_="other"), (2, 2, 2)),
    ],
)
def test_a_replica_is_of_the_fewest_pods_that_hold_the_model(seen, want):
    assert sizes(seen) == want


def test_the_status_says_why_they_are_so_many():
    found = resolved(world(), SETTINGS)
    assert found.placement.forecast.verdict == "Fits"
    why = "spec.parallelism: 2 of at most 8 pods, the fewest that hold the longest request (1 pod of 12Gi: 0 tokens of"
    assert why in found.placement.forecast.message
    assert found.observed.spec.runtime.nnodes == 2, "what the children are made by"


def test_a_model_that_no_number_of_pods_holds_is_refused_with_the_numbers_or_reduced():
    found = resolved(world(memory="1Gi"), SETTINGS)
    assert found.violation.reason == "TooSmall"
    assert "no number of pods up to 8 holds the longest request" in found.violation.message
    less = resolved(world(memory="3Gi", reductions=["Int4Weights"]), SETTINGS)
    assert (less.violation, less.reductions, less.nodes > 1) == (None, ("Int4Weights",), True)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"resources": {"accelerator": {"count": 1, "minMemory": "1Gi"}}}, "spec.resources: "),
        ({"runtime": {"tensorParallelSize": 2}}, "spec.runtime: "),
        ({"runtime": {"dataParallelSize": 2}}, "spec.runtime: "),
        ({"runtime": {"kvHostBytes": 1_000_000_000}}, "spec.runtime.kvHostBytes: "),
        ({"runtime": {"speculation": "/model/small"}}, "spec.runtime.speculation: "),
    ],
)
def test_what_cannot_be_chosen_beside_is_an_invalid_spec(spec, field):
    broken = resolved(world(**spec), SETTINGS).violation
    assert (broken.reason, broken.message.startswith(field)) == ("InvalidSpec", True)


def on_class(count, runtime=RUNTIME):
    """A service of LLAMA_8B with so many devices of 12 GiB for a replica."""
    resources = {"memory": "12Gi", "accelerator": {"count": count, "classes": ["small"]}}
    kind = {"metadata": {"name": "small"}, "spec": {"memory": "12Gi"}}
    return replace(world(auto=False, runtime=runtime, resources=resources), classes=dict([parsed_class(kind)]))


@pytest.mark.parametrize(("count", "runtime"), [(2, RUNTIME), (4, RUNTIME), (2, {**RUNTIME, "tensorParallelSize": 2})])
def test_a_replica_with_accelerators_has_a_rank_for_each_and_the_memory_of_all(count, runtime):
    found = resolved(on_class(count, runtime), SETTINGS)
    assert found.violation is None
    assert found.revision.inputs["runtime"]["tensorParallelSize"] == count
    (container,) = found.revision.template["spec"]["containers"]
    assert container["args"][container["args"].index("--tensor-parallel-size") + 1] == str(count)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == str(count)
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in found.revision.template["spec"]["volumes"]
    assert found.placement.forecast.verdict == "Fits"
    alone = resolved(on_class(1), SETTINGS)
    assert alone.violation.reason == "TooSmall"


@pytest.mark.parametrize(
    ("count", "runtime", "message"),
    [
        (4, {"tensorParallelSize": 2}, "spec.runtime.tensorParallelSize: 2 ranks for 4 devices of an accelerator"),
        (1, {"tensorParallelSize": 2}, "spec.runtime.tensorParallelSize: 2 ranks for 1 devices of an accelerator"),
        (2, {"kvHostBytes": 1 << 30}, "spec.runtime.kvHostBytes: needs one rank, and each device has one"),
        (2, {"weightsHostBytes": 1 << 30}, "spec.runtime: --weights-host-bytes is not possible beside --tensor-para"),
        (2, {"enableExpertParallel": True}, "spec.runtime: --enable-expert-parallel is not possible on CUDA"),
    ],
)
def test_what_ranks_with_devices_cannot_have_is_an_invalid_spec(count, runtime, message):
    broken = resolved(on_class(count, runtime), SETTINGS).violation
    assert (broken.reason, broken.message.startswith(message)) == ("InvalidSpec", True), broken


def test_the_model_is_read_before_replicas_start_unless_the_spec_excludes_it():
    planned = inspection_plan(resolved(world(known=False), SETTINGS), SETTINGS, wanted=1, written=True, now=0.0)
    assert planned.create
    assert planned.waiting
    known = inspection_plan(resolved(world(), SETTINGS), SETTINGS, wanted=1, written=True, now=0.0)
    assert (known.create, known.waiting) == (None, "")
