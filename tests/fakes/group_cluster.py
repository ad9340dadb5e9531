"""The controllers, the scheduler and the kubelets around replicas of several pods, on the fake cluster: one step at a
time, and only as far as the operator sees them. Pods that are deleted take a step to leave, as one that drains does.

It asserts on the way what must never be: see `GroupCluster.step`.
"""

from collections.abc import Callable
from typing import Any

from fakes.cluster import FakeCluster
from fakes.manifests import UNSCHEDULABLE, pod
from kvasir_api import names
from kvasir_kube.kinds import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    POD,
    STATEFUL_SET,
    Json,
    Kind,
    annotations,
    controller_uid,
    labels,
    uid,
)
from kvasir_operator.loop.clock import rfc3339

COST = names.ANNOTATION_DELETION_COST


class GroupCluster(FakeCluster):
    """places: pods that nodes hold at a time, those that leave included. quota: no pod of a StatefulSet is made. wall:
    epoch seconds. A pod's grace is 90 s."""

    def __init__(self, wall: Callable[[], float], *, places: int = 1000) -> None:
        super().__init__()
        self.places, self._wall, self._made = places, wall, 0
        self.quota = False
        self._stuck: set[str] = set()

    def of(self, kind: Kind) -> list[Json]:
        return list(self.objects.get(kind.plural, {}).values())

    def pods(self, role: str) -> list[Json]:
        """Those that stay."""
        return [one for one in self.of(POD) if labels(one).get(names.LABEL_ROLE) == role and not leaves(one)]

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None) -> None:
        """A pod leaves with the next step."""
        found = self.objects.get(kind.plural, {}).get((namespace, name))
        if kind is not POD or found is None or leaves(found):
            return await super().delete(kind, namespace, name, uid=uid, grace_s=grace_s)
        assert uid in ("", found["metadata"]["uid"])
        await self._leave(found)
        return None

    def uncontrolled(self) -> list[Json]:
        """Pods of which the disruption controller finds no controller, although the budget selects them."""
        (budget,) = self.of(DISRUPTION_BUDGET)
        (roles,) = budget["spec"]["selector"]["matchExpressions"]
        there = {uid(one) for kind in (DEPLOYMENT, STATEFUL_SET) for one in self.of(kind)}
        selected = [one for one in self.of(POD) if labels(one).get(roles["key"]) in roles["values"]]
        return [
            one for one in selected if not there & {controller_uid(one, DEPLOYMENT), controller_uid(one, STATEFUL_SET)}
        ]

    async def lose(self, role: str, number: int) -> None:
        """Somebody deletes a pod, as an eviction does."""
        if found := self.pods(role):
            await self._leave(found[number % len(found)])

    async def lose_host(self, number: int, role: str = names.ROLE_SERVE) -> None:
        """The cluster node of a pod, a node 0 unless it is said, is lost: that pod is deleted and does not go."""
        if found := self.pods(role):
            lost = found[number % len(found)]
            self._stuck.add(uid(lost))
            await self._leave(lost)

    async def return_hosts(self) -> None:
        """What is left on lost cluster nodes goes."""
        self._stuck.clear()

    async def move(self, number: int) -> None:
        """The sandbox of a node 0 is made again: it has another address."""
        if found := self.pods(names.ROLE_SERVE):
            changed = found[number % len(found)]
            self._made += 1
            changed["status"]["podIP"] = f"10.9.{self._made // 250}.{self._made % 250 + 1}"
            await self.put(POD, changed)

    async def step(self) -> None:
        """What leaves has left, owners are followed, pods are made and placed. Then: a node 0 is ready only with all
        its nodes, of which none leaves, and no pod of a node is there whose node 0 has gone for longer than a step."""
        for gone in [one for one in self.of(POD) if leaves(one) and uid(one) not in self._stuck]:
            await self.drop(POD, *where(gone))
        await self._collect_garbage()
        for workload in self.of(DEPLOYMENT):
            await self._scale(workload)
        for made in self.of(STATEFUL_SET):
            if "creationTimestamp" not in made["metadata"]:
                made["metadata"]["creationTimestamp"] = rfc3339(self._wall())
                await self.put(STATEFUL_SET, made)
            await self._fill(made)
        await self._place()
        await self._run()

    async def _leave(self, found: Json) -> None:
        found["metadata"]["deletionTimestamp"] = rfc3339(self._wall() + 90)
        await self.put(POD, found)

    async def _collect_garbage(self) -> None:
        there = {uid(one) for one in self.of(POD)}
        for made in self.of(STATEFUL_SET):
            if controller_uid(made, POD) not in there:
                await self.drop(STATEFUL_SET, *where(made))
        sets = {uid(one) for one in self.of(STATEFUL_SET)}
        workloads = {uid(one) for one in self.of(DEPLOYMENT)}
        for one in self.of(POD):
            owned = controller_uid(one, STATEFUL_SET) in sets or controller_uid(one, DEPLOYMENT) in workloads
            if not owned and uid(one) not in self._stuck:
                await self.drop(POD, *where(one))

    async def _scale(self, workload: Json) -> None:
        """A Deployment with its ReplicaSet in one."""
        mine = [one for one in self.pods(names.ROLE_SERVE) if controller_uid(one, DEPLOYMENT) == uid(workload)]
        wanted = workload["spec"]["replicas"]
        for victim in sorted(mine, key=_order)[: max(0, len(mine) - wanted)]:
            await self._leave(victim)
        for _ in range(wanted - len(mine)):
            self._made += 1
            name = f"{workload['metadata']['name']}-{self._made}"
            await self._make(name, workload, DEPLOYMENT, labels(workload) | {names.LABEL_ROLE: names.ROLE_SERVE})

    async def _fill(self, made: Json) -> None:
        first = made["spec"]["ordinals"]["start"]
        for number in range(first, first + made["spec"]["replicas"]):
            name = f"{made['metadata']['name']}-{number}"
            if not self.quota and ("default", name) not in self.objects.get(POD.plural, {}):
                await self._make(name, made, STATEFUL_SET, made["spec"]["template"]["metadata"]["labels"])

    async def _make(self, name: str, owner: Json, kind: Kind, marks: Json) -> None:
        self._made += 1
        found = pod(name, node="", phase="Pending", ip="", conditions=[UNSCHEDULABLE])
        found["metadata"]["labels"] |= {**marks, names.LABEL_COMPONENT: names.COMPONENT_RUNTIME}
        found["metadata"]["uid"] = f"uid-{name}-{self._made}"
        found["metadata"]["ownerReferences"] = [
            {"apiVersion": kind.api_version, "kind": kind.kind, "name": "x", "uid": uid(owner), "controller": True}
        ]
        await self.put(POD, found)

    async def _place(self) -> None:
        taken = sum(bool(one["spec"].get("nodeName")) for one in self.of(POD))
        for one in self.of(POD):
            if not one["spec"].get("nodeName") and taken < self.places:
                taken += 1
                self._made += 1
                one["spec"]["nodeName"] = f"node-{taken}"
                address = f"10.{self._made // 62_500}.{self._made // 250 % 250}.{self._made % 250 + 1}"
                one["status"] |= {"phase": "Running", "podIP": address}
                one["status"]["conditions"] = [c for c in one["status"]["conditions"] if c["type"] != "PodScheduled"]
                await self.put(POD, one)

    async def _run(self) -> None:
        """Nodes join where all are there and were given the address of their node 0."""
        for leader in self.pods(names.ROLE_SERVE):
            sets = [one for one in self.of(STATEFUL_SET) if controller_uid(one, POD) == uid(leader)]
            assert len(sets) <= 1, "two sets of nodes for one node 0"
            own = [one for one in self.of(POD) if sets and controller_uid(one, STATEFUL_SET) == uid(sets[0])]
            whole = bool(sets) and len(own) == sets[0]["spec"]["replicas"]
            whole = whole and all(one["spec"].get("nodeName") for one in (leader, *own))
            whole = whole and annotations(sets[0])[names.ANNOTATION_MASTER_ADDRESS] == leader["status"]["podIP"]
            for one in (leader, *own):
                await self._become(one, ready=whole)

    async def _become(self, one: Json, *, ready: bool) -> None:
        condition: dict[str, Any] = next(c for c in one["status"]["conditions"] if c["type"] == "Ready")
        if condition["status"] != str(ready):
            condition["status"] = str(ready)
            await self.put(POD, one)


def leaves(one: Json) -> bool:
    return "deletionTimestamp" in one["metadata"]


def where(one: Json) -> tuple[str, str]:
    return "default", one["metadata"]["name"]


def _order(one: Json) -> tuple[bool, bool, int]:
    """Of a ReplicaSet: what has no node, then what is not ready, then by cost."""
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in one["status"]["conditions"])
    return bool(one["spec"].get("nodeName")), ready, int(annotations(one).get(COST, "0"))
