"""When nodes are asked for, how often, and what is done where they may not be read."""

from dataclasses import replace

import pytest

from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from fakes.manifests import service
from fakes.stages import resolved
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import NODE
from kvasir_operator.loop.nodes import FORBIDDEN_S, KNOWN_S, LISTED_S, NodeReader
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import observed


def seen(*replicas):
    return observed(service(), revisions=(), deployments=(), replicas=replicas, svc=None)


TWO = seen(Replica(name="a", node="good"), Replica(name="b", node="bad"))


class Bench:
    def __init__(self):
        self.cluster, self.clock = FakeCluster(), FakeClock()
        self.nodes = NodeReader(self.cluster, clock=self.clock)

    async def put(self, name, **spec):
        await self.cluster.put(NODE, {"metadata": {"name": name, "labels": {}}, "spec": spec})

    async def marks(self, found=TWO, *, wanted=1):
        """(leaves, spot) of each replica."""
        return [(r.node_leaves, r.spot) for r in (await self.nodes.marked(found, wanted=wanted)).replicas]


@pytest.fixture
async def bench():
    made = Bench()
    await made.put("good")
    await made.put("bad", unschedulable=True)
    return made


async def test_nodes_are_read_only_when_a_replica_must_leave(bench):
    bench.cluster.errors["get"] = [KubeError("nobody may ask")]
    assert await bench.marks(wanted=2) == [(False, False)] * 2
    assert await bench.marks(wanted=0) == [(False, False)] * 2  # all leave: there is nothing to choose
    assert len(bench.cluster.errors["get"]) == 1
    bench.cluster.errors["get"].clear()
    assert await bench.marks() == [(False, False), (True, False)]


async def test_an_answer_holds_for_a_while(bench):
    assert await bench.marks() == [(False, False), (True, False)]
    await bench.put("good", unschedulable=True)
    assert await bench.marks() == [(False, False), (True, False)]
    bench.clock.advance(KNOWN_S)
    assert await bench.marks() == [(True, False), (True, False)]


async def test_a_node_that_is_gone_leaves(bench):
    found = seen(Replica(name="a", node="good"), Replica(name="b", node="gone"), Replica(name="c"))
    assert await bench.marks(found) == [(False, False), (True, False), (False, False)]


async def test_where_nodes_may_not_be_read_they_are_not_requested_again_and_again(bench):
    bench.cluster.errors["get"] = [KubeError("nodes is forbidden", status=403)]
    assert await bench.marks() == [(False, False)] * 2
    assert await bench.marks() == [(False, False)] * 2
    bench.clock.advance(FORBIDDEN_S)
    assert await bench.marks() == [(False, False), (True, False)]


async def test_an_api_server_that_is_away_tells_nothing(bench):
    bench.cluster.errors["get"] = [KubeError("no answer"), KubeError("no answer")]
    assert await bench.marks() == [(False, False)] * 2
    assert await bench.marks() == [(False, False), (True, False)]


def group(*, node="good"):
    """A replica of two pods, of which the second is to be made, spread over racks."""
    spec = {"runtime": {"tensorParallelSize": 2, "nnodes": 2}, "pod": {"topologySpread": [{"topologyKey": "rack"}]}}
    found = resolved(observed(service(**spec), revisions=(), deployments=(), replicas=(), svc=None))
    leader = Replica(name="a", uid="u", ip="10.0.0.1", revision=found.revision.id, node=node)
    return replace(found.observed, revisions=(found.revision,), replicas=(leader,))


@pytest.mark.parametrize(
    ("labels", "errors", "want"),
    [
        pytest.param({"rack": "7", "row": "2"}, [], (("rack", "7"),), id="by the key of the spread"),
        pytest.param({"row": "2"}, [], (), id="without the label"),
        pytest.param({"rack": "7"}, [KubeError("nodes is forbidden", status=403)], (), id="nodes may not be read"),
        pytest.param({"rack": "7"}, [KubeError("no answer")], (), id="no answer"),
    ],
)
async def test_a_replica_of_several_pods_has_the_parts_that_its_node_is_in(bench, labels, errors, want):
    await bench.cluster.put(NODE, {"metadata": {"name": "good", "labels": labels}, "spec": {}})
    bench.cluster.errors["get"] = errors
    (found,) = (await bench.nodes.placed(group())).replicas
    assert found.domains == want


async def test_without_pods_to_be_made_no_node_is_read(bench):
    bench.cluster.errors["get"] = [KubeError("nobody may ask")]
    for asked in (TWO, replace(group(), replicas=())):
        assert await bench.nodes.placed(asked) is asked
    assert len(bench.cluster.errors["get"]) == 1
    assert await bench.nodes.placed(found := group(node="")) is found


@pytest.mark.parametrize(("status", "left"), [(429, 2), (0, 2), (403, 0)])
async def test_nodes_of_before_count_where_a_list_fails_but_not_where_it_is_forbidden(bench, status, left):
    assert len(await bench.nodes.candidates()) == 2
    bench.clock.advance(LISTED_S)
    bench.cluster.errors["list"] = [KubeError("no list", status=status)]
    assert len(await bench.nodes.candidates()) == left
    assert bench.cluster.errors["list"] == []
