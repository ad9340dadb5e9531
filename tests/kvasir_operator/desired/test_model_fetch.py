"""Pods that fetch models into caches of nodes: on which nodes, when again, and what they may do there."""

import json
from dataclasses import replace

import pytest
from msgspec import structs

from fakes.manifests import service
from fakes.stages import resolved
from kvasir_api import names
from kvasir_api.state import RuntimeState
from kvasir_api.status import ModelStatus
from kvasir_operator.desired.model_fetch import AGAIN_S, LACKS_S, LOOK_AGAIN_S, fetch_plan, nodes_ahead
from kvasir_operator.observed.candidate_node import CandidateNode
from kvasir_operator.observed.model_pod import ModelPod
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import observed
from kvasir_operator.observed.settings import OperatorSettings

SETTINGS = OperatorSettings(model_cache_dir="/cache/", model_cache_bytes=10**12, model_prefetch_nodes=2)
URI, COMMIT = "hf://org/name", "c" * 40
KNOWN = ModelStatus(uri=URI, commit=COMMIT, inspected_at="2026-01-01T00:00:00Z", download_bytes=10**10)
STARTING = RuntimeState(phase="starting")
NODES = tuple(CandidateNode(name=f"n{number}") for number in range(5))


def replica(name="a", node="n0", **fields):
    return Replica(**{"name": name, "uid": name, "revision": "old", "node": node, "created": 100.0, **fields})


def world(*replicas, fetches=(), candidates=(), uri=URI, settings=SETTINGS, **spec):
    """A service whose revision is there already, and what its spec means."""
    model = {"uri": uri, "secretName": "keys", "inspect": "Never"}
    given = {"model": model, "autoscaling": {"maxReplicas": 4}, **spec}
    seen = observed(service(**given), revisions=(), deployments=(), replicas=replicas, svc=None)
    seen = replace(seen, model=KNOWN.model_copy(update={"uri": uri}), candidates=tuple(candidates))
    asked = resolved(seen, settings).revision
    assert asked is not None
    mine = tuple(structs.replace(one, revision=asked.id) for one in replicas)
    return resolved(replace(seen, revisions=(asked,), replicas=mine, fetches=tuple(fetches)), settings)


def plan(found, *, now=1000.0, settings=SETTINGS):
    return fetch_plan(found, settings, now=now)


def fetched(found, **fields):
    """The pod of a plan that is to be the only one, as the cluster shows it later."""
    (pod,) = plan(found).create
    node = pod["spec"]["nodeName"]
    return ModelPod(**{"name": pod["metadata"]["name"], "uid": "u", "node": node, "created": 101.0, **fields})


WAITING = replica()


def test_a_replica_that_waits_on_its_node_gets_a_pod_that_writes_there():
    (pod,) = plan(world(WAITING)).create
    spec = pod["spec"]
    (container,) = spec["containers"]
    assert spec["nodeName"] == "n0"
    assert container["command"] == ["kvasir", "pull"]
    assert container["args"] == [f"{URI}@{COMMIT}", "--record", "/models"]
    assert {"name": "model", "hostPath": {"path": "/cache/default", "type": "DirectoryOrCreate"}} in spec["volumes"]
    assert {"name": "source", "secret": {"secretName": "keys", "optional": True}} in spec["volumes"]
    assert {"name": "model", "mountPath": "/models"} in container["volumeMounts"]
    env = {variable["name"]: variable["value"] for variable in container["env"]}
    assert (env["HF_HUB_CACHE"], env[names.ENV_SOURCE_SETTINGS]) == ("/models", "/source")
    assert env[names.ENV_MODEL_CACHE_BYTES] == str(10**12)
    assert (spec["restartPolicy"], spec["activeDeadlineSeconds"]) == ("OnFailure", 1800 + 1000)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert names.LABEL_SERVICE not in pod["metadata"]["labels"], "no client may be led to it"
    assert pod["metadata"]["labels"][names.LABEL_FETCHES] == "tiny"


def test_a_draft_model_of_a_hub_is_fetched_too_and_taints_are_borne():
    pods = plan(
        world(
            WAITING,
            uri="s3://bucket/tiny@sha256:" + "d" * 64,
            runtime={"speculation": "hf://org/draft"},
            pod={"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]},
        )
    ).create
    (container,) = pods[0]["spec"]["containers"]
    assert container["args"] == ["s3://bucket/tiny@sha256:" + "d" * 64, "hf://org/draft", "--record", "/models"]
    env = {variable["name"]: variable["value"] for variable in container["env"]}
    assert (env["HF_HUB_CACHE"], env[names.ENV_MODEL_CACHE]) == ("/models", "/models")
    assert [toleration["key"] for toleration in pods[0]["spec"]["tolerations"]] == ["gpu"]


@pytest.mark.parametrize(
    "one",
    [
        replica(node=""),
        replica(phase="ready", ready_at=5.0),
        replica(phase="draining"),
        replica(terminating=True),
        replica(phase="loading", reading=RuntimeState(phase="loading")),
        replica(phase="loading", reading=RuntimeState(phase="loading", downloaded_bytes=9, download_bytes=9)),
    ],
    ids=["without a node", "ready", "leaves", "ends", "has its model", "has all of it"],
)
def test_a_replica_that_needs_nothing_gets_none(one):
    assert plan(world(one)).create == ()


def test_replicas_of_one_node_share_one_and_nodes_have_one_each():
    found = plan(world(replica("a"), replica("b"), replica("c", "n1"))).create
    assert sorted(pod["spec"]["nodeName"] for pod in found) == ["n0", "n1"]
    assert len({pod["metadata"]["name"] for pod in found}) == 2


@pytest.mark.parametrize("phase", ["starting", "loading", "warming"])
def test_a_replica_that_loads_while_shards_come_keeps_the_pod_that_fetches(phase):
    """It would wait for good for the shards that nothing fetches."""
    pod = fetched(world(WAITING))
    reading = RuntimeState(phase=phase, downloaded_bytes=8, download_bytes=9)
    loads = replica(phase="starting" if phase == "starting" else "loading", reading=reading)
    found = plan(world(loads, fetches=[pod]))
    assert (found.create, found.delete) == ((), ())
    assert len(plan(world(loads)).create) == 1


def test_it_is_deleted_when_no_replica_waits_any_more():
    pod = fetched(world(WAITING))
    assert (plan(world(WAITING, fetches=[pod])).create, plan(world(WAITING, fetches=[pod])).delete) == ((), ())
    ready = world(replica(phase="ready", ready_at=5.0), fetches=[pod])
    assert plan(ready).delete == (pod,)
    assert plan(world(replica(phase="ready", ready_at=5.0), fetches=[replace(pod, leaving=True)])).delete == ()


@pytest.mark.parametrize(
    ("pod", "one", "again"),
    [
        ({"ended": True, "well": True, "ended_at": 200.0}, {"reading": STARTING, "started_at": 100.0}, False),
        ({"ended": True, "well": True, "ended_at": 200.0}, {"reading": STARTING, "started_at": 300.0}, True),
        ({"ended": True, "well": True, "ended_at": 200.0}, {"reading": STARTING, "started_at": 999.0}, False),
        ({"ended": True, "well": True, "ended_at": 200.0}, {"started_at": 300.0}, False),
        ({"ended": True, "well": True, "ended_at": 200.0}, {}, False),
        ({"fails": True, "created": 99.0}, {}, False),
        ({"ended": True, "fails": True, "created": 1000.0 - AGAIN_S}, {}, False),
        ({"ended": True, "fails": True, "created": 999.0 - AGAIN_S}, {}, True),
    ],
    ids=[
        "held since before it was fetched",
        "removed before its runtime began",
        "looks yet",
        "silent yet",
        "has not begun",
        "the kubelet repeats it",
        "not yet",
        "refused by its node",
    ],
)
def test_it_is_replaced_when_it_cannot_be_of_use_any_more(pod, one, again):
    assert LACKS_S < 1000.0
    there = fetched(world(WAITING), **pod)
    found = plan(world(replica(**one), fetches=[there]))
    assert found.create == ()
    assert found.delete == ((there,) if again else ())


def test_the_model_is_fetched_ahead_where_a_replica_may_come():
    serves = replica(phase="ready", ready_at=5.0)
    found = world(serves, candidates=NODES)
    assert nodes_ahead(found, SETTINGS) == 2
    first = plan(found)
    nodes = [pod["spec"]["nodeName"] for pod in first.create]
    assert len(nodes) == 2
    assert "n0" not in nodes, "it has the model"
    assert first.again_s == LOOK_AGAIN_S
    pods = [
        ModelPod(name=pod["metadata"]["name"], node=pod["spec"]["nodeName"], ended=True, well=True)
        for pod in first.create
    ]
    settled = plan(world(serves, candidates=reversed(NODES), fetches=pods))
    assert (settled.create, settled.delete) == ((), ()), "each look has the same nodes"
    gone = [node for node in NODES if node.name != nodes[0]]
    moved = plan(world(serves, candidates=gone, fetches=pods))
    assert [pod.node for pod in moved.delete] == [nodes[0]]
    assert len(moved.create) == 1


@pytest.mark.parametrize(
    ("settings", "spec", "count"),
    [
        (SETTINGS, {"autoscaling": {"maxReplicas": 2}}, 1),
        (SETTINGS, {"autoscaling": {"maxReplicas": 1}}, 0),
        (SETTINGS, {"autoscaling": None, "replicas": 1}, 0),
        (replace(SETTINGS, model_prefetch_nodes=0), {}, 0),
        (OperatorSettings(model_prefetch_nodes=2), {}, 0),
    ],
    ids=["one more", "none more", "never scaled", "off", "no cache"],
)
def test_it_is_fetched_ahead_only_as_far_as_the_service_may_grow(settings, spec, count):
    spec = {name: value for name, value in {"autoscaling": {"maxReplicas": 4}, **spec}.items() if value is not None}
    given = {"model": {"uri": URI, "inspect": "Never"}, **spec}
    serves = replica(phase="ready", ready_at=5.0)
    seen = observed(service(**given), revisions=(), deployments=(), replicas=[serves], svc=None)
    found = resolved(replace(seen, model=KNOWN, candidates=NODES), settings)
    assert nodes_ahead(found, settings) == count
    assert len(fetch_plan(found, settings, now=0.0).create) == count


def test_replicas_that_fetch_by_themselves_need_no_pod():
    alone = OperatorSettings()
    assert fetch_plan(world(WAITING, settings=alone), alone, now=0.0).create == ()
    assert fetch_plan(world(WAITING, uri="pvc://models/tiny"), SETTINGS, now=0.0).create == ()


def test_no_value_of_the_secret_is_in_the_pod():
    assert "secretKeyRef" not in json.dumps(plan(world(WAITING)).create)


def test_replicas_that_read_a_cache_get_their_model_when_the_option_is_gone():
    found = world(WAITING)
    (pod,) = fetch_plan(found, OperatorSettings(), now=0.0).create
    assert pod["spec"]["volumes"][0]["hostPath"]["path"] == "/cache/default"
