"""Replicas of several pods under the whole operator: they begin, serve, leave and are replaced as one, whatever happens
in between."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.group_cluster import GroupCluster
from fakes.models import words
from fakes.operator_bench import FILE, KEY, Bench
from kvasir_api import names
from kvasir_api.state import KvState, RuntimeState
from kvasir_api.status import ModelStatus
from kvasir_kube.kinds import (
    CONTROLLER_REVISION,
    DISRUPTION_BUDGET,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    POD,
    SECRET,
    STATEFUL_SET,
    controller_uid,
    labels,
    uid,
)

GROUP = {"tensorParallelSize": 4, "nnodes": 2}


class GroupBench(Bench):
    """With controllers, scheduler and kubelets."""

    def __init__(self, *, places: int = 1000) -> None:
        super().__init__()
        self.cluster: GroupCluster = GroupCluster(self.clock.wall, places=places)
        self.operator = self.started()

    async def turn(self, seconds: float = 2.0) -> None:
        """The operator, then what surrounds it. Every runtime that is ready has nothing to do."""
        await super().turn(seconds)
        await self.cluster.step()
        kv = KvState(capacity_tokens=1000)
        self.reader.says = {
            f"http://{one['status']['podIP']}:8001": RuntimeState(
                phase="draining" if names.ANNOTATION_DRAIN in one["metadata"]["annotations"] else "ready", kv=kv
            )
            for one in self.ready()
        }

    def ready(self) -> list[Any]:
        """Pods of node 0 that are ready."""
        return [
            one
            for one in self.cluster.pods(names.ROLE_SERVE)
            if any(c["type"] == "Ready" and c["status"] == "True" for c in one["status"]["conditions"])
        ]

    async def rest(self, turns: int = 40) -> None:
        for _ in range(turns):
            await self.turn()

    def revisions(self) -> set[str]:
        return {labels(one)[names.LABEL_REVISION] for one in self.cluster.of(POD)}


async def begun(replicas: int = 1, **fields: Any) -> GroupBench:
    bench = GroupBench(**fields)
    await bench.put_service(replicas=replicas, runtime=GROUP)
    await bench.rest(12)
    return bench


async def test_a_model_too_large_for_a_pod_gets_replicas_of_several_where_the_operator_chooses() -> None:
    bench = GroupBench()
    spec = {"parallelism": "Auto", "runtime": {"maxModelLen": 8192, "dtype": "bfloat16"}}
    await bench.put_service(**spec, replicas=1, resources={"memory": "6Gi"})
    known = ModelStatus(uri=FILE["model"]["uri"], facts=words(), inspected_at="2026-01-01T00:00:00Z")
    obj = bench.cluster.stored(INFERENCE_SERVICE, *KEY)
    await bench.cluster.put(INFERENCE_SERVICE, {**obj, "status": {"model": known.model_dump(by_alias=True)}})
    await bench.rest(12)
    assert (bench.reason(), bench.replicas()) == ("AllReplicasReady", [1])
    assert len(bench.cluster.pods(names.ROLE_NODE)) == 3
    assert bench.status()["rollout"]["nodes"] == 4
    assert "the fewest that hold the longest request" in bench.status()["capacity"]["message"]
    (secret,) = [one for one in bench.cluster.of(SECRET) if one["metadata"]["name"] == names.NODE_KEYS_SECRET]
    assert secret["data"]
    (rules,) = bench.cluster.of(NETWORK_POLICY)
    assert names.PORT_NODES in {port["port"] for rule in rules["spec"]["ingress"] for port in rule["ports"]}
    before = bench.revisions()
    bench.operator = bench.started()  # what was chosen stays
    await bench.rest(4)
    assert bench.revisions() == before


async def test_a_replica_is_a_pod_with_a_set_of_its_own_that_it_owns() -> None:
    bench = await begun(replicas=2)
    assert (bench.reason(), bench.replicas()) == ("AllReplicasReady", [2])
    assert (bench.status()["replicas"], bench.status()["readyReplicas"]) == (2, 2)
    leaders, sets = bench.cluster.pods(names.ROLE_SERVE), bench.cluster.of(STATEFUL_SET)
    assert sorted(controller_uid(one, POD) for one in sets) == sorted(map(uid, leaders))
    for one in sets:
        leader = next(pod for pod in leaders if uid(pod) == controller_uid(one, POD))
        spec = one["spec"]
        assert (spec["replicas"], spec["ordinals"], spec["podManagementPolicy"]) == (1, {"start": 1}, "Parallel")
        (container,) = spec["template"]["spec"]["containers"]
        env = {entry["name"]: entry for entry in container["env"]}
        assert env[names.ENV_MASTER_ADDRESS]["value"] == leader["status"]["podIP"]
        assert env[names.ENV_NODE_GROUP]["value"] == uid(leader)
        assert "pod-index" in env[names.ENV_NODE_RANK]["valueFrom"]["fieldRef"]["fieldPath"]
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
        assert spec["selector"]["matchLabels"][names.LABEL_LEADER] == leader["metadata"]["name"]
        assert len(f"{one['metadata']['name']}-0123456789") <= 63
        assert "affinity" not in spec["template"]["spec"]  # cluster nodes have no labels here


async def test_it_rests_and_another_operator_writes_nothing() -> None:
    bench = await begun(replicas=2)
    # What the controller of the set keeps, with the labels of its pods.
    (first, _) = bench.cluster.of(STATEFUL_SET)
    kept = {"metadata": {"namespace": "default", "name": "x-1", "labels": dict(labels(first))}, "revision": 1}
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "x", "uid": uid(first), "controller": True}
    kept["metadata"]["ownerReferences"] = [owner]
    await bench.cluster.put(CONTROLLER_REVISION, kept)
    assert await bench.restarted() == []
    assert bench.reason() == "AllReplicasReady"


async def test_a_set_that_another_operator_has_made_meanwhile_stays_as_it_is() -> None:
    bench = await begun()
    (made,) = bench.cluster.of(STATEFUL_SET)
    bench.operator.store.drop(STATEFUL_SET, ("default", made["metadata"]["name"]))
    bench.writes()
    await bench.operator.reconciler.reconcile(("default", "tiny"))
    assert bench.writes() == []
    assert bench.cluster.of(STATEFUL_SET) == [made]
    assert (await bench.restarted(), bench.reason()) == ([], "AllReplicasReady")


async def test_its_key_is_in_a_secret_and_nowhere_else() -> None:
    bench = await begun()
    secret = bench.cluster.stored(SECRET, "default", names.NODE_KEYS_SECRET)
    (key,) = secret["data"].values()
    everything = [
        one for kind, found in bench.cluster.objects.items() if kind != SECRET.plural for one in found.values()
    ]
    assert key not in str(everything)
    (made,) = bench.cluster.of(STATEFUL_SET)
    volumes = {volume["name"]: volume for volume in made["spec"]["template"]["spec"]["volumes"]}
    items = [{"key": "tiny", "path": "key"}]
    assert volumes["node-key"]["secret"] == {"secretName": names.NODE_KEYS_SECRET, "items": items}
    (container,) = made["spec"]["template"]["spec"]["containers"]
    arguments = container["args"]
    assert arguments[arguments.index("--node-key-file") + 1] == "/node-key/key"


async def test_evictions_take_one_replica_at_a_time_and_only_nodes_reach_node_0() -> None:
    bench = await begun()
    budget = bench.cluster.stored(DISRUPTION_BUDGET, "default", "tiny")["spec"]
    (roles,) = budget["selector"]["matchExpressions"]
    assert (budget["maxUnavailable"], roles["values"]) == (1, [names.ROLE_SERVE, names.ROLE_NODE])
    rules = bench.cluster.stored(NETWORK_POLICY, "default", "tiny")["spec"]["ingress"]
    (nodes,) = [rule for rule in rules if rule["ports"][0]["port"] == names.PORT_NODES]
    (peer,) = nodes["from"]
    assert peer["podSelector"]["matchLabels"][names.LABEL_ROLE] == names.ROLE_NODE


async def test_a_replica_that_loses_a_pod_is_replaced_as_a_whole() -> None:
    bench = await begun(replicas=2)
    leaders = {uid(one) for one in bench.cluster.pods(names.ROLE_SERVE)}
    await bench.cluster.lose(names.ROLE_NODE, 0)
    await bench.turn()
    (event,) = bench.events("ReplicaRegrouped")
    assert "its node 1 (tiny-" in event
    await bench.rest(12)
    assert bench.reason() == "AllReplicasReady"
    now = {uid(one) for one in bench.cluster.pods(names.ROLE_SERVE)}
    assert len(now & leaders) == 1
    assert len(bench.cluster.of(STATEFUL_SET)) == 2


async def test_a_replica_whose_node_0_has_another_address_is_replaced() -> None:
    bench = await begun()
    await bench.cluster.move(0)
    await bench.turn()
    (event,) = bench.events("ReplicaRegrouped")
    assert "its node 0 has the address 10.9." in event
    await bench.rest(12)
    assert bench.reason() == "AllReplicasReady"


async def test_nodes_of_a_node_0_that_was_evicted_by_its_kubelet_leave_with_it() -> None:
    """Such a pod has failed and stays, as a record of what happened; its nodes would keep their places."""
    bench = await begun()
    (leader,) = bench.cluster.pods(names.ROLE_SERVE)
    leader["status"] |= {"phase": "Failed", "reason": "Evicted"}
    await bench.cluster.put(POD, leader)
    await bench.rest(8)
    (event,) = bench.events("ReplicaRegrouped")
    assert "its node 0 has ended" in event
    assert (bench.reason(), len(bench.cluster.of(POD))) == ("AllReplicasReady", 2)


async def test_nodes_whose_node_0_is_lost_make_room_for_another_group() -> None:
    """Three places, of which the lost pod keeps one: its node has to leave, or no other group finds two."""
    bench = await begun(places=3)
    await bench.cluster.lose_host(0)
    await bench.rest(20)
    assert bench.ready() == []
    await bench.rest(70)  # its grace, and a minute
    assert len(bench.ready()) == 1
    (event,) = bench.events("ReplicaRegrouped")
    assert "has not ended within its grace" in event
    await bench.cluster.return_hosts()
    await bench.rest(4)
    assert (bench.reason(), len(bench.cluster.of(STATEFUL_SET))) == ("AllReplicasReady", 1)


async def test_a_node_that_is_lost_with_its_host_stops_no_eviction() -> None:
    """Its StatefulSet has gone with node 0, and the disruption controller gives up at a pod without a controller."""
    bench = await begun(replicas=2)
    await bench.cluster.lose_host(0, names.ROLE_NODE)
    await bench.rest(20)
    assert (bench.reason(), len(bench.ready())) == ("AllReplicasReady", 2)
    assert len(bench.cluster.uncontrolled()) == 1
    await bench.rest(70)  # its grace, and a minute
    assert bench.cluster.uncontrolled() == []
    assert (bench.reason(), bench.status()["replicas"], bench.replicas()) == ("AllReplicasReady", 2, [2])
    assert await bench.restarted() == []


async def test_replicas_gather_their_pods_one_after_another() -> None:
    """Three places, two replicas of two pods: one serves, and the other one waits with the last place."""
    bench = await begun(replicas=2, places=3)
    assert len(bench.ready()) == 1
    assert bench.replicas() == [2]
    waits = next(c["message"] for c in bench.status()["conditions"] if c["type"] == "Ready")
    assert "node 1 (tiny-" in waits or "Insufficient" in waits
    bench.cluster.places = 4
    await bench.rest(8)
    assert (bench.reason(), len(bench.ready())) == ("AllReplicasReady", 2)


async def test_nodes_that_a_quota_refuses_are_said_to_be_missing() -> None:
    bench = GroupBench()
    bench.cluster.quota = True
    await bench.put_service(replicas=2, runtime=GROUP)
    await bench.rest(6)
    assert "NodesNotMade" not in str(bench.status())
    await bench.rest(14)
    (made,) = bench.cluster.of(STATEFUL_SET)
    limited = next(c for c in bench.status()["conditions"] if c["type"] == names.CONDITION_CAPACITY_LIMITED)
    words = f"1 of 1 nodes behind node 0 were not made: see the events of StatefulSet {made['metadata']['name']}"
    assert (limited["reason"], limited["message"].partition(": ")[2]) == ("NodesNotMade", words)
    assert (bench.reason(), bench.replicas()) == ("NodesNotMade", [1])
    bench.cluster.quota = False
    await bench.rest(12)
    assert (bench.reason(), bench.replicas()) == ("AllReplicasReady", [2])
    assert "NodesNotMade" not in str(bench.status())


async def test_no_two_wait_for_what_the_other_holds() -> None:
    """Places for one and a half replicas, of which three are wanted: pods of two are made, not of three."""
    bench = await begun(replicas=3, places=3)
    assert len(bench.ready()) == 1
    assert bench.replicas() == [2]


async def test_two_that_lose_a_pod_together_do_not_block_each_other() -> None:
    """Places for two when both lose a node, and for one thereafter: each new node 0 would take one of the two."""
    bench = await begun(replicas=2, places=4)
    bench.cluster.places = 2
    await bench.cluster.lose(names.ROLE_NODE, 0)
    await bench.cluster.lose(names.ROLE_NODE, 0)
    await bench.rest(12)
    assert len(bench.ready()) == 1
    bench.cluster.places = 4
    await bench.rest(12)
    assert (bench.reason(), len(bench.ready()), bench.replicas()) == ("AllReplicasReady", 2, [2])


EVENTS = st.one_of(
    st.tuples(st.just("scale"), st.integers(0, 3)),
    st.tuples(st.just("edit"), st.integers(1, 3)),
    st.tuples(st.just("lose node"), st.integers(0, 3)),
    st.tuples(st.just("lose leader"), st.integers(0, 3)),
    st.tuples(st.just("move"), st.integers(0, 3)),
    st.tuples(st.just("lose host"), st.integers(0, 3)),
    st.tuples(st.just("lose node's host"), st.integers(0, 3)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("places"), st.integers(2, 12)),
    st.tuples(st.just("turn"), st.integers(1, 4)),
)


async def happen(bench: GroupBench, event: str, number: int, spec: dict[str, Any]) -> None:
    match event:
        case "scale":
            spec["replicas"] = number
            await bench.put_service(**spec)
        case "edit":
            spec["runtime"] = {**GROUP, "maxSequences": number}
            await bench.put_service(**spec)
        case "lose node":
            await bench.cluster.lose(names.ROLE_NODE, number)
        case "lose leader":
            await bench.cluster.lose(names.ROLE_SERVE, number)
        case "lose host":
            await bench.cluster.lose_host(number)
        case "lose node's host":
            await bench.cluster.lose_host(number, names.ROLE_NODE)
        case "move":
            await bench.cluster.move(number)
        case "restart":
            bench.operator = bench.started()
        case "places":
            bench.cluster.places = number
        case "turn":
            await bench.rest(number)


@settings(max_examples=20)
@given(st.lists(EVENTS, max_size=14), st.integers(2, 9))
def test_whatever_happens_replicas_end_whole(events: list[tuple[str, int]], places: int) -> None:
    """Pods and addresses are lost, places run out, the spec changes twice at once and operators change: in the end
    there are at least as many replicas as find places; with places enough as many as are wanted, each of all its pods,
    and nothing else."""

    async def run() -> None:
        bench, spec = GroupBench(), {"replicas": 2, "runtime": dict(GROUP)}
        await bench.put_service(**spec)
        for event, number in events:
            await happen(bench, event, number, spec)
            await bench.turn()
        bench.cluster.places = places
        await bench.rest(10)
        await bench.cluster.return_hosts()
        await bench.rest(35)
        assert len(bench.ready()) >= min(spec["replicas"], places // 2)
        bench.cluster.places = 1000
        await bench.rest(35)
        assert len(bench.ready()) == spec["replicas"]
        parts = [len(bench.cluster.pods(role)) for role in (names.ROLE_SERVE, names.ROLE_NODE)]
        assert [*parts, len(bench.cluster.of(STATEFUL_SET))] == [spec["replicas"]] * 3
        assert len(bench.revisions()) == min(1, spec["replicas"])
        assert len(bench.cluster.of(POD)) == 2 * spec["replicas"]

    asyncio.run(run())


async def test_a_pod_with_our_labels_and_no_set_of_ours_is_no_node() -> None:
    """Whoever may make pods in the namespace may give them any label."""
    bench = await begun()
    (node,) = bench.cluster.pods(names.ROLE_NODE)
    forged = {**node, "metadata": {**node["metadata"], "name": "forged-1", "uid": "forged"}}
    forged["metadata"]["ownerReferences"] = []
    forged["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    await bench.cluster.put(POD, forged)
    await bench.turn()
    assert bench.events("ReplicaRegrouped") == []
