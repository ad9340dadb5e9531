"""What is reduced where a replica does not fit, or sequences lose their cache: which rung, when, and for how long."""

import pytest

from fakes.manifests import service
from fakes.models import words
from fakes.stages import resolved
from kvasir_operator.desired import fallback, reductions
from kvasir_operator.observed.replica import Replica, epoch
from kvasir_operator.observed.service import observed
from kvasir_operator.observed.settings import OperatorSettings

SETTINGS = OperatorSettings(runtime_image="gpu:1", runtime_image_cpu="cpu:1", model_dirs=("/srv",))
RUNGS = ["FewerSequences", "Int8KvCache", "Int8Weights"]
SINCE = "2026-01-01T00:00:00Z"
NOW = epoch(SINCE) + 300
OUT = "OutOfDeviceMemory: 3 GiB are free"


def world(*replicas, taken=(), hash_=None, conditions=(), rungs=RUNGS, **spec):
    obj = service(reductions=rungs, **spec)
    before = fallback.pod_hash(observed(obj, revisions=(), deployments=(), replicas=(), svc=None).spec)
    rollout = {"reductions": list(taken), "podHash": before if hash_ is None else hash_}
    there = [
        {"type": kind, "status": "True", "reason": "X", "message": "", "lastTransitionTime": SINCE}
        for kind in conditions
    ]
    obj = obj | {"status": {"rollout": rollout, "conditions": there}}
    return observed(obj, revisions=(), deployments=(), replicas=replicas, svc=None)


def failed(refusal=OUT, *, revision="r", name="p", **fields):
    return Replica(name=name, revision=revision, phase="failed", refusal=refusal, **fields)


def ready(*, seconds=300, name="p", revision="r"):
    return Replica(name=name, revision=revision, phase="ready", ready_at=NOW - seconds)


def now(seen):
    hash_ = fallback.pod_hash(seen.spec)
    return reductions.taken_now(seen, reductions.taken(seen, hash_), revision="r", now=NOW)


KILLED = {"refusal": "", "out_of_memory": True}


@pytest.mark.parametrize(
    ("seen", "rungs"),
    [
        (world(), ()),
        (world(failed()), ("FewerSequences",)),
        (world(failed("TooSmall: 9 GiB")), ("FewerSequences",)),
        (world(failed(**KILLED, restarts=3)), ("FewerSequences",)),
        (world(failed(**KILLED, restarts=2)), ()),
        (world(failed(), taken=["FewerSequences"]), ("FewerSequences", "Int8KvCache")),
        (world(failed(), taken=RUNGS), tuple(RUNGS)),
        (world(failed(), rungs=[]), ()),
        # A smaller replica would fail as well.
        (world(failed("NoDevice: no CUDA device")), ()),
        (world(failed("DriverTooOld: 470 for CUDA 13")), ()),
        (world(failed("no config.json")), ()),
        # One that starts, or serves, says that they fit; pods of another revision say nothing of this one.
        (world(failed(), ready(name="q")), ()),
        (world(failed(), Replica(name="q", revision="r", phase="loading")), ()),
        (world(failed(revision="old")), ()),
        # Other pods start without reductions; one that the spec no longer lists is taken back.
        (world(taken=["FewerSequences"]), ("FewerSequences",)),
        (world(taken=["FewerSequences"], hash_="other"), ()),
        (world(taken=["FewerSequences", "Int8KvCache"], rungs=["Int8KvCache"]), ("Int8KvCache",)),
    ],
)
def test_a_start_that_fails_for_memory_takes_the_next_rung(seen, rungs):
    assert now(seen) == rungs


EXHAUSTED = "KvCacheExhausted"
ELASTIC = {"autoscaling": {"maxReplicas": 2}}


@pytest.mark.parametrize(
    ("seen", "rungs"),
    [
        (world(ready(), conditions=[EXHAUSTED]), ("FewerSequences",)),
        (world(ready()), ()),
        (world(ready(seconds=299), conditions=[EXHAUSTED]), ()),
        (world(ready(), ready(seconds=10, name="q"), conditions=[EXHAUSTED]), ()),
        (world(ready(), Replica(name="q", revision="s", phase="loading"), conditions=[EXHAUSTED]), ()),
        # Replicas of another revision say nothing of this one: those of a rung that was taken are still to come.
        (world(ready(revision="old"), conditions=[EXHAUSTED]), ()),
        (world(ready(), ready(name="q", revision="old"), conditions=[EXHAUSTED]), ()),
        # While the autoscaler may add replicas it does.
        (world(ready(), conditions=[EXHAUSTED], **ELASTIC), ()),
        (world(ready(), conditions=[EXHAUSTED, "ScalingAtMax"], **ELASTIC), ("FewerSequences",)),
        (world(ready(), conditions=[EXHAUSTED], autoscaling={"mode": "Advisory"}), ("FewerSequences",)),
    ],
)
def test_an_exhausted_cache_takes_the_next_rung_when_no_replica_may_be_added(seen, rungs):
    assert now(seen) == rungs


def test_an_exhausted_cache_takes_one_rung_until_replicas_have_it_and_lose_their_cache_as_well():
    def next_rungs(revision, taken=(), seconds=300):
        seen = world(ready(revision=revision, seconds=seconds), taken=taken, conditions=[EXHAUSTED])
        found = resolved(seen, SETTINGS, now=NOW)
        return found.revision.id, found.reductions

    old = resolved(world(), SETTINGS).revision.id
    assert next_rungs(old) == (old, ("FewerSequences",))
    new, rungs = next_rungs(old, ("FewerSequences",))
    assert (new != old, rungs) == (True, ("FewerSequences",)), "no pod of it is there yet"
    assert next_rungs(new, rungs, seconds=299) == (new, rungs)
    assert next_rungs(new, rungs) == (new, ("FewerSequences", "Int8KvCache"))


@pytest.mark.parametrize(
    ("taken", "runtime"),
    [
        ((), (256, "auto", "auto")),
        (("FewerSequences",), (128, "auto", "auto")),
        (("FewerSequences", "Int8KvCache"), (128, "int8", "auto")),
        (("Int8Weights",), (256, "auto", "int8")),
        (("Int4Weights",), (256, "auto", "int4")),
    ],
)
def test_what_each_rung_makes_of_the_runtime(taken, runtime):
    made = reductions.reduced(world(), taken).spec.runtime
    assert (made.max_sequences, made.kv_cache_dtype, made.quantization) == runtime


@pytest.mark.parametrize(
    ("runtime", "rungs", "left"),
    [
        ({"kvCacheDtype": "int4"}, ["Int8KvCache", "FewerSequences"], ("FewerSequences",)),
        ({"kvCacheDtype": "fp8"}, ["Int8KvCache"], ()),
        ({"quantization": "int4"}, ["Int8Weights", "Int4Weights"], ()),
        ({"quantization": "fp8"}, ["Int8Weights", "Int4Weights"], ("Int4Weights",)),
        ({"maxSequences": 1}, ["FewerSequences", "Int8KvCache"], ("Int8KvCache",)),
        ({}, ["Int4Weights", "Int8Weights"], ("Int4Weights", "Int8Weights")),
    ],
)
def test_what_takes_less_already_is_not_made_larger(runtime, rungs, left):
    """Keys and values in 4 bits were taken back to 8 where replicas had no memory."""
    seen = world(failed(), rungs=rungs, runtime=runtime)
    assert now(seen) == left[:1]
    assert resolved(seen, SETTINGS).reductions_left == left
    assert reductions.reduced(seen, tuple(rung for rung in rungs if rung not in left)).spec == seen.spec


def test_weights_in_4_bits_stay_so():
    seen = world(failed(), rungs=["Int4Weights", "Int8Weights"], taken=["Int4Weights"])
    assert now(seen) == ("Int4Weights",)
    assert reductions.reduced(seen, ("Int4Weights", "Int8Weights")).spec.runtime.quantization == "int4"


def test_a_rung_is_another_revision_and_the_service_keeps_its_spec():
    whole, less = (resolved(world(taken=taken), SETTINGS) for taken in ((), ("Int8KvCache",)))
    assert whole.revision.id != less.revision.id
    assert less.observed.spec.runtime.kv_cache_dtype == "auto"
    assert less.reductions == ("Int8KvCache",)
    again = resolved(world(failed(revision=less.revision.id), taken=["Int8KvCache"]), SETTINGS)
    assert again.reductions == ("FewerSequences", "Int8KvCache")


@pytest.mark.parametrize(
    ("rungs", "taken", "violation"),
    [
        (["FewerSequences", "Int8Weights", "Int4Weights"], ("FewerSequences", "Int8Weights"), None),
        (["FewerSequences"], ("FewerSequences",), "TooSmall"),
        ([], (), "TooSmall"),
    ],
)
def test_a_forecast_that_is_too_small_takes_rungs_until_it_fits(rungs, taken, violation):
    """Eight billion parameters in 12 GiB."""
    model = {"uri": "pvc://models/tiny", "inspect": "Always"}
    obj = service(reductions=rungs, model=model, resources={"memory": "12Gi"})
    known = {"uri": model["uri"], "facts": words(), "inspectedAt": SINCE}
    seen = observed(obj | {"status": {"model": known}}, revisions=(), deployments=(), replicas=(), svc=None)
    found = resolved(seen, SETTINGS)
    assert found.reductions == taken
    assert (found.violation and found.violation.reason) == violation
