"""Writes that are refused, and objects that somebody else keeps changing: what is said, and how often it is tried."""

import pytest

from fakes.operator_bench import KEY, Bench
from kvasir_api import names
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import DEPLOYMENT, SERVICE


@pytest.fixture
def bench():
    return Bench()


async def test_a_rival_is_restored_at_once_and_then_rarely(bench):
    await bench.put_service()
    await bench.turn()

    async def spoiled_and_turned(seconds):
        (workload,) = bench.cluster.objects[DEPLOYMENT.plural].values()
        managed = [{"manager": "kubectl-edit", "time": "2026-01-01T00:00:00Z"}, {"manager": names.MANAGER}]
        metadata = {**workload["metadata"], "managedFields": managed}
        spoiled = {**workload, "metadata": metadata, "spec": {**workload["spec"], "replicas": 9}}
        await bench.cluster.put(DEPLOYMENT, spoiled)
        await bench.turn(seconds)
        return bench.replicas() == [1]

    assert [await spoiled_and_turned(2) for _ in range(8)] == [True] * 5 + [False] * 3
    (note,) = bench.events("ConflictingWriter")
    (name,) = bench.cluster.names(DEPLOYMENT)
    assert note == (
        f"Deployment/{name} is changed repeatedly by kubectl-edit; the operator restores it once in 60 s from now on"
    )
    assert await spoiled_and_turned(60)
    assert not await spoiled_and_turned(2)
    assert await spoiled_and_turned(700)  # the window is over: it counts anew
    assert await spoiled_and_turned(2)


async def test_a_rival_of_the_count_is_noticed_while_replicas_drain(bench):
    """The count that is restored differs from time to time: no lower than what has not drained yet."""
    await bench.put_service()
    await bench.turn()
    await bench.put_pods(3, running=1)

    async def restored(count):
        (workload,) = bench.cluster.objects[DEPLOYMENT.plural].values()
        await bench.cluster.put(DEPLOYMENT, {**workload, "spec": {**workload["spec"], "replicas": count}})
        await bench.turn()
        return bench.replicas() == [3]

    assert [await restored(count) for count in (9, 8, 9, 8, 9, 8, 9)] == [True] * 5 + [False] * 2
    assert len(bench.events("ConflictingWriter")) == 1


async def test_what_another_deletes_again_and_again_is_made_again_rarely(bench):
    await bench.put_service()
    await bench.turn()

    async def there_again():
        await bench.cluster.drop(SERVICE, *KEY)
        bench.operator.store.drop(SERVICE, KEY)
        await bench.turn()
        return bench.cluster.names(SERVICE) == ["tiny"]

    assert [await there_again() for _ in range(5)] == [True] * 5
    (note,) = bench.events("ConflictingWriter")
    assert note == "Service/tiny is deleted repeatedly; the operator restores it once in 60 s from now on"
    assert not await there_again()
    assert bench.replicas() == [1], "the other children are there"
    await bench.turn(60)
    assert bench.cluster.names(SERVICE) == ["tiny"]


QUOTA = (
    'services "tiny" is forbidden: exceeded quota: few, requested: services=1, used: services=0, limited: services=0'
)


def stalled(bench):
    return next((c for c in bench.status()["conditions"] if c["type"] == "Stalled"), None)


async def test_what_no_retry_cures_is_stalled_with_the_servers_words_and_tried_again(bench):
    await bench.put_service()
    bench.cluster.errors["write"] = [KubeError(QUOTA, status=403)]
    with pytest.raises(KubeError):
        await bench.turn()
    assert (stalled(bench)["reason"], stalled(bench)["message"]) == (
        "QuotaExceeded",
        f"the API server refused: {QUOTA}",
    )
    assert bench.events("Refused") == [f"the API server refused: {QUOTA}"]
    assert bench.replicas() == [1]  # what stands around the pods does not keep them from being made
    await bench.turn()
    assert stalled(bench) is None
    assert bench.cluster.names(SERVICE) == ["tiny"]


async def test_a_workload_without_its_revision_is_not_made(bench):
    await bench.put_service()
    bench.cluster.errors["write"] = [None, None, None, KubeError("controllerrevisions is forbidden: x", status=403)]
    with pytest.raises(KubeError):
        await bench.turn()
    assert stalled(bench)["reason"] == "Forbidden"
    assert bench.cluster.names(DEPLOYMENT) == []


@pytest.mark.parametrize(
    "error",
    [
        KubeError("etcdserver: request timed out", status=500),
        KubeError("the server is busy", status=429, retry_after_s=1.0),
        KubeError("no answer within 15 s"),
        KubeError("namespace default is forbidden: because it is being terminated", status=403),
    ],
)
async def test_what_passes_is_not_stalled(bench, error):
    await bench.put_service()
    bench.cluster.errors["write"] = [error]
    with pytest.raises(KubeError):
        await bench.turn()
    assert (bench.reason(), stalled(bench), bench.events("Refused")) == ("Progressing", None, [])


async def test_pods_that_the_quota_refuses_are_told_and_the_others_stay(bench):
    words = "exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2"
    await bench.put_service(replicas=3)
    await bench.turn()
    (workload,) = bench.cluster.objects[DEPLOYMENT.plural].values()

    async def refused(pod):
        failing = {"type": "ReplicaFailure", "status": "True", "message": f'pods "{pod}" is forbidden: {words}'}
        await bench.cluster.put(DEPLOYMENT, {**workload, "status": {"conditions": [failing]}})
        await bench.turn()

    for ready in range(3):
        await bench.put_pods(ready)
        await refused(f"tiny-{ready}")
        told = f"{ready} of 3 replicas ready; another pod is forbidden: {words}"
        assert (stalled(bench)["reason"], stalled(bench)["message"]) == ("QuotaExceeded", told)
    assert len(bench.events("Refused")) == 1, "another name at the next try is no news, and no more is a ready replica"
    assert bench.status()["readyReplicas"] == 2
    await bench.cluster.put(DEPLOYMENT, {**workload, "status": {}})
    await bench.turn()
    assert (bench.reason(), stalled(bench)) == ("Scaling", None)
