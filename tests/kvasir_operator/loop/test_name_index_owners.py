"""Who gets a model name in the course of time, through the whole operator."""

import pytest

from fakes.manifests import service
from fakes.operator_bench import Bench
from kvasir_kube.kinds import DEPLOYMENT, INFERENCE_SERVICE


@pytest.fixture
def bench():
    return Bench()


async def test_a_name_that_was_refused_is_not_handed_over_until_it_is_claimed_again(bench):
    """Else a service that is deleted and made again would lose its clients to another namespace."""

    async def put(namespace, created, **model):
        made = service(model={"uri": "file:///srv/tiny", **model}, namespace=namespace)
        made["metadata"] |= {
            "uid": f"uid-{namespace}-{created}",
            "creationTimestamp": f"2026-01-01T00:00:{created:02}Z",
        }
        known = bench.cluster.objects.get(INFERENCE_SERVICE.plural, {}).get((namespace, "tiny"), {})
        await bench.cluster.put(INFERENCE_SERVICE, {**known, **made} if known else made)
        await bench.turn()
        await bench.turn()

    def state(namespace):
        status = bench.cluster.stored(INFERENCE_SERVICE, namespace, "tiny")["status"]
        conflict = [c["message"] for c in status["conditions"] if c["type"] == "NameConflict"]
        return status["modelName"], status.get("refusedNames"), bool(conflict)

    await put("default", 1)
    await put("other", 2)
    assert (state("default"), state("other")) == (("tiny", None, False), ("other/tiny", ["tiny"], True))
    assert [d for d in bench.cluster.objects[DEPLOYMENT.plural] if d[0] == "other"], "it serves as other/tiny"
    await bench.cluster.drop(INFERENCE_SERVICE, "default", "tiny")
    await bench.turn()
    await bench.turn()
    assert state("other") == ("other/tiny", ["tiny"], True)
    bench.operator = bench.started()
    await bench.turn()
    await put("default", 9)
    assert (state("default"), state("other")) == (("tiny", None, False), ("other/tiny", ["tiny"], True))
    await bench.cluster.drop(INFERENCE_SERVICE, "default", "tiny")
    await put("other", 2, servedName="mine")
    assert state("other") == ("mine", None, False)
    await put("other", 2)
    assert state("other") == ("tiny", None, False)
    assert len(bench.events("NameConflict")) == 1
