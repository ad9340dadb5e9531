"""A status has what has a value, and nothing else."""

import msgspec
import pytest
from hypothesis import given

from fakes.manifests import pod, service
from fakes.operator_bench import KEY, Bench
from fakes.situations import findings, replica, situations
from kvasir_api.state import RuntimeState, SpeculationState, decode
from kvasir_api.status import MOST
from kvasir_kube.kinds import ACCELERATOR_CLASS, INFERENCE_SERVICE, POD
from kvasir_operator.status.compose import compose, document


def values(node, path=""):
    """Every value of a status that has no others inside, and every object and list that is empty, with its path."""
    inner = node.items() if isinstance(node, dict) else [("", item) for item in node] if isinstance(node, list) else ()
    if not inner:
        yield path, node
    for name, child in inner:
        yield from values(child, f"{path}.{name}" if name else f"{path}[]")


COUNTED = {
    *(f".{name}" for name in ("replicas", "readyReplicas", "desiredReplicas")),
    *(f".autoscaling.{name}" for name in ("desiredReplicas", "rawReplicas")),
    *(f".rollout.{name}" for name in ("updatedReplicas", "history[].replicas", "history[].readyReplicas")),
    *(
        f".capacity.{name}"
        for name in ("predictedKvTokens", "predictedRequests", "decodePercent", "acceptedDraftPercent")
    ),
    *(f".capacity.classes[].{name}" for name in ("kvTokens", "requests")),
    ".coldStart.seconds",
}
"""Fields in which 0 is a count, and not a number that is unknown."""


@given(situations())
def test_a_status_has_only_what_has_a_value(found):
    for path, value in values(document(compose(found)[0])):
        assert value not in ("", [], {}), path
        assert value is not None, path
        assert value != 0 or path in COUNTED, path


def test_what_is_not_known_is_absent():
    written = document(compose(findings(current="", wanted=0, gateway_url=""))[0])
    assert set(written) == {
        "observedGeneration", "conditions", "selector", "replicas", "readyReplicas", "desiredReplicas", "modelName",
        "rollout",
    }  # fmt: skip
    assert written["rollout"] == {"updatedReplicas": 0}


def test_a_state_without_replicas_and_the_only_revision_are_absent():
    done = document(compose(findings(replica("ready"), replica("ready", name="b"), wanted=2))[0])
    assert "counts" not in done
    loading = document(compose(findings(replica("ready"), replica("loading", name="b"), wanted=2))[0])
    assert loading["counts"] == {"loading": 1}
    assert "history" not in done["rollout"]


def drafting(before=None, **speculation):
    """The capacity of a replica that reports this of its drafts, behind a status."""
    reading = RuntimeState(speculation=SpeculationState(drafter="suffix", **speculation))
    obj = service(generation=3) | ({"status": before} if before else {})
    return document(compose(findings(replica("ready", reading=reading), obj=obj))[0]).get("capacity", {})


def test_what_replicas_draft_is_rounded_and_stays_while_it_is_nearly_that():
    first = drafting(draft_tokens=4.2, acceptance_fraction=0.63)
    assert (first["draftTokens"], first["acceptedDraftPercent"]) == (4, 60)
    for tokens, fraction, want in (
        (5.4, 0.69, (4, 60)),
        (3.1, 0.51, (4, 60)),
        (6.2, 0.71, (6, 70)),
        (4.0, 0.0, (4, 0)),
    ):
        found = drafting({"capacity": first}, draft_tokens=tokens, acceptance_fraction=fraction)
        assert (found["draftTokens"], found["acceptedDraftPercent"]) == want
    # While no replica is read they stay, and where none drafts there are none.
    kept = document(compose(findings(obj=service(generation=3) | {"status": {"capacity": first}}))[0])["capacity"]
    assert (kept["draftTokens"], kept["acceptedDraftPercent"]) == (4, 60)
    assert "draftTokens" not in drafting({"capacity": first})
    none = drafting(why="on CUDA there are none")
    assert none == {"noDrafts": "on CUDA there are none"}
    kept = document(compose(findings(obj=service(generation=3) | {"status": {"capacity": none}}))[0])["capacity"]
    assert kept == none


LARGE = 1.7e308


def floats(kind, value):
    """A document in which each number is a float of this value, as far as one may be."""
    fields = {}
    for field in msgspec.structs.fields(kind):
        if field.type is float:
            fields[field.name] = value
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            fields[field.name] = floats(field.type, value)
    return fields


@pytest.mark.parametrize("value", [LARGE, -LARGE])
def test_numbers_that_cannot_be_true_stop_no_status(value):
    reading = decode(msgspec.json.encode(floats(RuntimeState, value)))
    pods = [replica("ready", name=name, reading=reading) for name in ("a", "b")]
    capacity = document(compose(findings(*pods, wanted=2))[0]).get("capacity", {})
    if value > 0:
        assert capacity["draftTokens"] == MOST
        assert capacity["acceptedDraftPercent"] == 100
    one = msgspec.structs.replace(reading, speculation=SpeculationState(draft_tokens=3, acceptance_fraction=0.2))
    pods[0] = replica("ready", name="a", reading=one)
    assert document(compose(findings(*pods, wanted=2))[0])["capacity"]["acceptedDraftPercent"] == (
        60 if value > 0 else 20
    )


SHARED = ("acceleratorClass", "unavailableClasses", "reductions", "podHash")
WRONG = {
    "a value that the contract refuses": {"replicas": -1},
    "a time zone that is not there": {
        "autoscaling": {"schedules": [{"start": "00:00", "durationMinutes": 60, "timeZone": "Mars/Base"}]}
    },
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_what_holds_for_pods_outlives_a_spec_that_is_wrong_for_a_while(wrong):
    """The class that replicas have, which another one would be cheaper than, and what was reduced."""
    bench = Bench()
    right = {
        "model": {"uri": "file:///srv/tiny", "inspect": "Never"},
        "resources": {"accelerator": {"count": 1, "minMemory": "10Gi"}},
        "reductions": ["FewerSequences"],
    }
    known = {"full": "24Gi", "h100": "80Gi"}
    for price, (name, memory) in enumerate(known.items()):
        spec = {"memory": memory, "pricePerHour": 10 + price, "resourceName": f"example.com/{name}"}
        await bench.cluster.put(ACCELERATOR_CLASS, {"metadata": {"name": name}, "spec": spec})
    await bench.put_service(**right)
    await bench.turn()
    obj = bench.cluster.stored(INFERENCE_SERVICE, *KEY)
    rollout = obj["status"]["rollout"] | {"unavailableClasses": ["full"], "reductions": ["FewerSequences"]}
    await bench.cluster.put(INFERENCE_SERVICE, obj | {"status": obj["status"] | {"rollout": rollout}})
    await bench.turn()
    revision = bench.status()["rollout"]["currentRevision"]
    held = {name: bench.status()["rollout"].get(name) for name in SHARED}
    assert held == {name: rollout[name] for name in SHARED} | {"acceleratorClass": "h100"}
    await put_pod(bench, revision)
    cheaper = {"memory": "24Gi", "pricePerHour": 1, "resourceName": "example.com/l4"}
    await bench.cluster.put(ACCELERATOR_CLASS, {"metadata": {"name": "l4"}, "spec": cheaper})
    await bench.put_service(**right, **wrong)
    for _ in range(4):
        await bench.turn()
    assert bench.reason() == "InvalidSpec"
    assert {name: bench.status()["rollout"].get(name) for name in SHARED} == held
    await bench.put_service(**right)
    for _ in range(4):
        await bench.turn()
    found = bench.status()["rollout"]
    assert ({name: found.get(name) for name in SHARED}, found["currentRevision"]) == (held, revision)


async def put_pod(bench, revision):
    await bench.cluster.put(POD, pod("p0", revision=revision, ready=True, ip="10.0.0.1"))
    bench.say(0)
