"""A model that is looked at before replicas start, through the whole operator on a fake cluster."""

import pytest

from fakes.calls import calls
from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from fakes.manifests import service
from fakes.models import facts, words
from fakes.readings import FakeReader
from kvasir_api.inspection import RemoteInspection, encode
from kvasir_kube.errors import ConflictError, KubeError
from kvasir_kube.kinds import ACCELERATOR_CLASS, CLAIM, DEPLOYMENT, EVENT, INFERENCE_SERVICE, POD
from kvasir_operator.loop.operator import Operator
from kvasir_operator.observed.settings import OperatorSettings

KEY = ("default", "tiny")


class Bench:
    """An operator that is asked to reconcile one service; pods are ended by the test."""

    def __init__(self):
        self.cluster, self.clock = FakeCluster(), FakeClock()
        self.operator = self.started()

    def started(self):
        return Operator(
            self.cluster,
            FakeReader(),
            settings=OperatorSettings(),
            instance="test",
            clock=self.clock,
        )

    async def put(self, *classes, bound=True, **spec):
        for name, memory in classes:
            await self.cluster.put(ACCELERATOR_CLASS, {"metadata": {"name": name}, "spec": {"memory": memory}})
        claim = {"metadata": {"namespace": "default", "name": "models"}}
        await self.cluster.put(CLAIM, {**claim, "status": {"phase": "Bound" if bound else "Pending"}})
        given = {"resources": {"accelerator": {"count": 1, "classes": [name for name, _ in classes]}}, **spec}
        old = self.cluster.objects.get(INFERENCE_SERVICE.plural, {}).get(KEY, {})
        await self.cluster.put(INFERENCE_SERVICE, {**old, **service(**given)})

    async def turn(self, seconds=2.0):
        self.clock.advance(seconds)
        await self.operator.resync.once()
        await self.operator.scaler.tick()
        await self.operator.reconciler.reconcile(KEY)

    async def ends(self, message="", *, code=0):
        (pod,) = self.cluster.objects[POD.plural].values()
        state = {"terminated": {"exitCode": code, "message": message, "reason": "Error" if code else "Completed"}}
        status = {"phase": "Succeeded", "containerStatuses": [{"name": "inspect", "state": state}]}
        await self.cluster.put(POD, {**pod, "status": status})

    async def goes_to(self, state):
        """The pod is on a node, and its container in a state."""
        (pod,) = self.cluster.objects[POD.plural].values()
        status = {"phase": "Pending", "containerStatuses": [{"name": "inspect", "state": state}]}
        await self.cluster.put(POD, {**pod, "spec": {**pod["spec"], "nodeName": "a"}, "status": status})

    @property
    def status(self):
        return self.cluster.stored(INFERENCE_SERVICE, *KEY)["status"]

    @property
    def ready(self):
        return next(c for c in self.status["conditions"] if c["type"] == "Ready")

    def told(self):
        return [event["reason"] for event in self.cluster.objects.get(EVENT.plural, {}).values()]


@pytest.fixture
def bench():
    return Bench()


async def test_replicas_start_when_the_model_was_read(bench):
    await bench.put(("h100", "80Gi"))
    await bench.turn()
    assert bench.ready["reason"] == "InspectingModel"
    assert len(bench.cluster.names(POD)) == 1
    assert bench.cluster.names(DEPLOYMENT) == []
    await bench.turn()
    assert bench.cluster.writes.count(("create", "pods", ("default", bench.cluster.names(POD)[0]))) == 1
    await bench.ends(words())
    await bench.turn()
    assert len(bench.cluster.names(DEPLOYMENT)) == 1
    assert bench.status["model"]["parameters"] == 8_030_261_248
    assert bench.status["capacity"]["fit"] == "Fits"
    assert bench.status["capacity"]["predictedKvTokens"] == 440_656
    await bench.turn()
    assert bench.cluster.names(POD) == []
    assert bench.told().count("ModelInspected") == 1


async def test_an_image_that_is_pulled_for_minutes_leaves_the_pod_its_time(bench):
    await bench.put(("h100", "80Gi"))
    await bench.turn()
    await bench.goes_to({"waiting": {"reason": "ContainerCreating"}})
    await bench.turn(500.0)
    await bench.goes_to({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
    await bench.turn()
    await bench.turn(59.0)
    assert (bench.ready["reason"], bench.cluster.names(DEPLOYMENT)) == ("InspectingModel", [])
    await bench.ends(words())
    await bench.turn()
    assert bench.status["capacity"]["fit"] == "Fits"


async def test_a_pod_that_runs_and_finds_nothing_holds_nothing_up(bench):
    await bench.put(("h100", "80Gi"))
    await bench.turn()
    await bench.goes_to({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
    await bench.turn()
    await bench.turn(61.0)
    assert len(bench.cluster.names(DEPLOYMENT)) == 1
    assert "has run for 60 s" in bench.status["model"]["message"]
    await bench.turn()
    assert bench.cluster.names(POD) == []


async def test_the_spec_is_resolved_once_also_where_the_model_has_just_been_read(bench):
    await bench.put(("h100", "80Gi"))
    for end in (False, True, False):
        if end:
            await bench.ends(words())
        with calls() as found:
            await bench.turn()
        assert found["kvasir_operator.desired.resolve.resolve"] == 1
    assert bench.status["capacity"]["fit"] == "Fits"


async def test_a_service_that_a_watch_delivers_as_it_was_is_not_looked_at_twice(bench):
    await bench.put(("h100", "80Gi"))
    await bench.turn()
    before = bench.cluster.stored(INFERENCE_SERVICE, *KEY)
    await bench.ends(words())
    await bench.turn()
    await bench.turn()
    assert bench.cluster.names(POD) == []
    bench.operator.store.drop(INFERENCE_SERVICE, KEY)
    bench.operator.store.put(INFERENCE_SERVICE, before)
    await bench.operator.reconciler.reconcile(KEY)
    assert bench.cluster.names(POD) == []
    assert bench.status["model"]["parameters"] == 8_030_261_248
    assert bench.told().count("ModelInspected") == 1


async def test_facts_of_another_operator_stay_until_there_are_others(bench):
    """A person reads them, whatever this operator makes of them."""
    await bench.put(("h100", "80Gi"))
    await bench.turn()
    await bench.ends(words())
    await bench.turn()
    await bench.turn()
    stored = bench.cluster.stored(INFERENCE_SERVICE, *KEY)
    old = {**stored["status"]["model"], "facts": '{"schema": 1}'}
    await bench.cluster.put(INFERENCE_SERVICE, {**stored, "status": {**stored["status"], "model": old}})
    bench.operator = bench.started()
    for _ in range(3):
        await bench.turn()
    assert bench.status["model"]["architecture"] == "LlamaForCausalLM"
    assert bench.status["capacity"]["message"] == "what was read of the model cannot be understood"


async def test_what_is_known_outlives_the_operator(bench):
    await bench.put(("h100", "80Gi"))
    await bench.turn()
    await bench.ends(words())
    await bench.turn()
    bench.operator, writes = bench.started(), len(bench.cluster.writes)
    await bench.turn()
    await bench.turn()
    assert [w for w in bench.cluster.writes[writes:] if w[0] != "delete"] == []


async def test_what_is_too_small_gets_no_replica_until_it_requests_more(bench):
    await bench.put(("t4", "16Gi"))
    await bench.turn()
    await bench.ends(words())
    await bench.turn()
    assert bench.ready["reason"] == "TooSmall"
    assert "the weights (14.96 GiB)" in bench.ready["message"]
    assert bench.cluster.names(DEPLOYMENT) == []
    assert bench.told().count("TooSmall") == 1
    await bench.put(("h100", "80Gi"))
    await bench.turn()
    assert len(bench.cluster.names(DEPLOYMENT)) == 1
    assert bench.cluster.names(POD) == []  # it is the same model


async def test_a_hub_that_does_not_give_a_model_is_asked_again_until_it_does(bench):
    await bench.put(model={"uri": "hf://org/name"}, resources={"memory": "64Gi"})
    await bench.turn()
    assert (bench.ready["reason"], bench.cluster.names(DEPLOYMENT)) == ("InspectingModel", [])
    await bench.ends("kvasir: model org/name is gated", code=2)
    await bench.turn()
    await bench.turn()
    assert (bench.ready["reason"], bench.ready["message"]) == (
        "ModelUnavailable",
        "spec.model.uri: model org/name is gated",
    )
    assert (bench.cluster.names(POD), bench.cluster.names(DEPLOYMENT)) == ([], [])
    assert (bench.told().count("ModelUnavailable"), bench.told().count("ForecastUnknown")) == (1, 0)
    await bench.turn(31.0)
    assert len(bench.cluster.names(POD)) == 1
    assert bench.ready["reason"] == "ModelUnavailable"
    before = bench.cluster.stored(INFERENCE_SERVICE, *KEY)
    await bench.ends(encode(RemoteInspection(commit="c" * 40, facts=facts())).decode())
    await bench.turn()
    (name,) = bench.cluster.names(DEPLOYMENT)
    args = bench.cluster.stored(DEPLOYMENT, "default", name)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[0] == f"hf://org/name@{'c' * 40}"
    await bench.turn()
    assert bench.status["model"]["commit"] == "c" * 40
    bench.operator.store.drop(INFERENCE_SERVICE, KEY)
    bench.operator.store.put(INFERENCE_SERVICE, before)  # as a watch that is late
    await bench.operator.reconciler.reconcile(KEY)
    assert (bench.cluster.names(POD), bench.cluster.names(DEPLOYMENT)) == ([], [name])


@pytest.mark.parametrize("seconds", [0.0, 130.0], ids=["failed", "silent"])
async def test_an_unknown_model_is_started_all_the_same(bench, seconds):
    await bench.put(("h100", "80Gi"))
    await bench.turn()
    if not seconds:
        await bench.ends("Error: no config.json", code=2)
    await bench.turn(seconds)
    assert len(bench.cluster.names(DEPLOYMENT)) == 1
    assert bench.status["capacity"]["fit"] == "Unknown"
    assert bench.told().count("ForecastUnknown") == 1
    await bench.turn()
    assert bench.cluster.names(POD) == []


async def test_a_cluster_that_allows_no_such_pod_holds_nothing_up(bench):
    """The refusal is known after the spec was resolved: the next reconcile goes on without a forecast."""
    bench.cluster.errors["create"] = [KubeError("pods is forbidden", status=403)]
    await bench.put(("h100", "80Gi"))
    await bench.turn()
    assert bench.cluster.names(DEPLOYMENT) == []
    await bench.turn()
    assert len(bench.cluster.names(DEPLOYMENT)) == 1
    assert bench.told().count("ForecastUnknown") == 1
    assert "the API server refused the pod that reads it: pods is forbidden" in bench.status["model"]["message"]


async def test_a_passing_refusal_is_tried_again(bench):
    bench.cluster.errors["create"] = [KubeError("busy", status=503)]
    await bench.put(("h100", "80Gi"))
    with pytest.raises(KubeError, match="busy"):
        await bench.turn()
    await bench.turn()
    assert len(bench.cluster.names(POD)) == 1


async def test_somebody_elses_pod_of_that_name_ends_the_wait_in_time(bench):
    await bench.put(("h100", "80Gi"))
    bench.cluster.errors["create"] = [ConflictError("exists", status=409) for _ in range(3)]
    await bench.turn()
    await bench.turn()
    assert bench.cluster.names(DEPLOYMENT) == []
    await bench.turn(130.0)
    assert len(bench.cluster.names(DEPLOYMENT)) == 1


async def test_a_claim_without_a_volume_is_waited_for_a_little(bench):
    await bench.put(("h100", "80Gi"), bound=False)
    await bench.turn()
    assert bench.ready["message"] == "the model's claim waits for its volume"
    assert POD.plural not in bench.cluster.objects
    await bench.turn(11.0)
    assert len(bench.cluster.names(DEPLOYMENT)) == 1


async def test_a_class_is_parsed_once_for_each_of_its_versions(bench):
    await bench.put(("h100", "80Gi"), resources={})
    seen = []
    for memory in ("80Gi", "80Gi", "141Gi"):
        if memory == "141Gi":
            await bench.put(("h100", memory), resources={})
        await bench.operator.resync.once()
        observer = bench.operator.reconciler._observer
        obj = bench.operator.store.get(INFERENCE_SERVICE, KEY)
        seen.append((await observer.observe(obj)).classes["h100"])
    assert seen[0] is seen[1]
    assert (seen[1].memory, seen[2].memory) == ("80Gi", "141Gi")
