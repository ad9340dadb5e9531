"""Carries out writes: children by server-side apply, statuses on their subresource, and the actions on single pods.

Our own writes go into the store at once, so that the next reconcile does not act upon what was before. Pods are the
exception: their marks count when the watch brings them back, since the ReplicaSet controller must have seen them too.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from kvasir_api import names
from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import ConflictError, KubeError, NotFoundError
from kvasir_kube.kinds import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    POD,
    SERVICE,
    STATEFUL_SET,
    Json,
    Key,
    Kind,
    controller_uid,
    key,
    resource_version,
)
from kvasir_operator.desired.node_set import node_set_name
from kvasir_operator.desired.template import owner
from kvasir_operator.diff import Write, removals
from kvasir_operator.loop.clock import Clock, rfc3339
from kvasir_operator.loop.field_ownership import owned_by_apply
from kvasir_operator.loop.ops_calls import OpsCalls, called_process
from kvasir_operator.loop.pod_secrets import PodSecrets
from kvasir_operator.loop.recorder import Recorder
from kvasir_operator.loop.store import Store
from kvasir_operator.loop.telemetry import Telemetry
from kvasir_operator.loop.workqueue import Workqueue
from kvasir_operator.loop.write_conflicts import PAUSE_S, Where, WriteConflicts, other_managers
from kvasir_operator.observed.replica import DRAINED_COST, DRAINING_COST, Replica
from kvasir_operator.observed.service import ForeignObject, Observed, foreign_object, owned
from kvasir_operator.stages import PodAction

KINDS: Final = {
    kind.kind: kind
    for kind in (CONTROLLER_REVISION, DEPLOYMENT, STATEFUL_SET, SERVICE, DISRUPTION_BUDGET, NETWORK_POLICY)
}
AROUND: Final = frozenset({SERVICE.kind, DISRUPTION_BUDGET.kind, NETWORK_POLICY.kind})
CUT_GRACE_S: Final = 5
INVALID: Final = 422


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildrenWritten:
    """foreign: what carries a child's name and is not ours; nothing is written behind that.

    changed: whether the store has a child now that was another one before. It has not where a write was planned and
    left out, nor after a deletion, which only its watch brings.
    """

    foreign: tuple[ForeignObject, ...] = ()
    changed: bool = False


class AppliedChild(NamedTuple):
    """What was applied last of a child. digest: of the manifest; version: of the object since; replicas: of a
    workload."""

    digest: str
    version: int
    replicas: int | None


class Writer:
    """The only writer of children, statuses and pod marks."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        calls: OpsCalls,
        recorder: Recorder,
        telemetry: Telemetry,
        pod_secrets: PodSecrets,
        *,
        workqueue: Workqueue,
        clock: Clock,
    ) -> None:
        self._cluster, self._store, self._calls, self._workqueue = cluster, store, calls, workqueue
        self._recorder, self._telemetry, self._clock = recorder, telemetry, clock
        self._secrets = pod_secrets
        self._conflicts = WriteConflicts(clock)
        self._applied: dict[Key, dict[Where, AppliedChild]] = {}
        self._foreign: dict[Key, set[Where]] = {}

    async def children(self, seen: Observed, service: Json, writes: tuple[Write, ...]) -> ChildrenWritten:
        """Create, apply and delete.

        Raises KubeError. What surrounds the pods and is refused for good does not keep the pods from being made.
        """
        foreign: tuple[ForeignObject, ...] = ()
        changed = False
        refused: KubeError | None = None
        await self._secrets.ensure(seen, writes)
        for write in writes:
            if foreign:
                break
            try:
                done = await self._child(seen, service, write)
                foreign, changed = done.foreign, changed or done.changed
            except KubeError as error:
                if not error.permanent or write.kind not in AROUND:
                    raise
                refused = refused or error
        if refused is not None:
            raise refused
        return ChildrenWritten(foreign=foreign, changed=changed)

    async def publish_keys(self, seen: Observed) -> None:
        """Give pods that read them the public keys by which they accept our calls. Raises KubeError."""
        public = self._calls.public_keys
        for r in seen.replicas:
            if public and r.live and r.ops_keys is not None and r.ops_keys != public:
                await self._annotate(seen, r, {names.ANNOTATION_OPS_KEYS: public}, at_once=True)

    def forget(self, name: Key) -> None:
        """The service is gone."""
        for where in self._applied.pop(name, ()):
            self._conflicts.forget(where)
        self._foreign.pop(name, None)

    async def _child(self, seen: Observed, service: Json, write: Write) -> ChildrenWritten:
        kind = KINDS[write.kind]
        if write.verb == "delete":
            await self._cluster.delete(kind, seen.namespace, write.name, uid=write.uid)
            self._applied.get(key(service), {}).pop((kind.plural, (seen.namespace, write.name)), None)
            self._telemetry.wrote(kind.kind)
            return ChildrenWritten()
        if write.new:
            return await self._create(kind, seen, service, write.manifest)
        return ChildrenWritten(changed=await self._apply(kind, service, write.manifest))

    async def _create(self, kind: Kind, seen: Observed, service: Json, manifest: Json) -> ChildrenWritten:
        """Create a child, by one request. One that is there under its name is taken for ours only if the service owns
        it: a forced apply would take over any. What is not ours is read before it is tried again."""
        name, owner_uid = key(manifest), controller_uid(manifest)
        foreign, where = self._foreign.setdefault(key(service), set()), (kind.plural, name)
        found = await self._found(kind, name) if where in foreign else None
        if found is None:
            # Another one may have deleted it, or taken it out of our watch by a label.
            if await self._must_wait(kind, service, manifest, None):
                return ChildrenWritten()
            # The data of a revision is compared byte by byte, and a creation and an apply write it in different orders.
            # It cannot be changed either, so that an apply takes over no other revision.
            make = self._cluster.apply if kind is CONTROLLER_REVISION else self._cluster.create
            try:
                self._wrote(kind, service, manifest, await make(kind, manifest, manager=names.MANAGER))
            except KubeError as error:
                if not isinstance(error, ConflictError) and error.status != INVALID:
                    raise
                found = await self._found(kind, name)
                if found is None:  # it has gone meanwhile, or something else was in conflict, such as a quota
                    raise
                if error.status == INVALID and owned(found, owner_uid):
                    raise
        if found is None or owned(found, owner_uid):
            foreign.discard(where)
        else:
            foreign.add(where)
            return ChildrenWritten(foreign=(foreign_object(found, kind.kind, seen.name),))
        if found is None:
            return ChildrenWritten(changed=True)
        self._store.put(kind, found)
        if kind is not STATEFUL_SET:  # one of nodes is never changed: it was made for the same pod
            await self._overwrite(kind, service, manifest)
        return ChildrenWritten(changed=True)

    async def _found(self, kind: Kind, name: Key) -> Json | None:
        try:
            return await self._cluster.get(kind, *name)
        except NotFoundError:
            return None

    async def status(self, service: Json, status: Json) -> bool:
        """Apply the whole status, if the service is still as it was read; whether it was.

        By its version, since the API server compares no uid where a status is written: of a service that is gone it
        would be written to another one of its name. A field that was applied before and is absent now goes with that;
        one that another manager wrote stays, so it is removed by a patch. Raises KubeError.
        """
        name, as_read = key(service), service["metadata"]["resourceVersion"]
        metadata: Json = {"namespace": name[0], "name": name[1], "resourceVersion": as_read}
        given: Json = {"manager": names.STATUS_MANAGER, "subresource": "status"}
        try:
            written = await self._cluster.apply(INFERENCE_SERVICE, {"metadata": metadata, "status": status}, **given)
            if left := removals(written.get("status") or {}, status):
                patch = {"metadata": {"resourceVersion": written["metadata"]["resourceVersion"]}, "status": left}
                written = await self._cluster.merge(INFERENCE_SERVICE, *name, patch, **given)
        except NotFoundError:
            self._store.drop(INFERENCE_SERVICE, name, service["metadata"]["uid"])
            return False
        except ConflictError:
            return False
        self._telemetry.wrote(INFERENCE_SERVICE.kind)
        self._store.put(INFERENCE_SERVICE, written)
        return True

    async def act(self, seen: Observed, service: Json, action: PodAction) -> None:
        """Do one thing to one pod. A pod that is gone meanwhile is fine."""
        r = action.replica
        now = rfc3339(self._clock.wall())
        match action.verb:
            case "drain":
                await self._mark(seen, r, since=now, cost=str(DRAINING_COST))
                await self._ask(seen, r, drain=True)
                await self._say(seen, service, "DrainStarted", r, action.why)
            case "ask":
                await self._ask(seen, r, drain=True)
            case "finish":
                await self._mark(seen, r, since=now if r.drain_since is None else None, cost=str(DRAINED_COST))
                if r.drain_since is not None:
                    await self._say(seen, service, "Drained", r, action.why)
            case "release":
                await self._ask(seen, r, drain=False)
                if r.drain_since is not None or r.drained:
                    await self._unmark(seen, r)
            case "cut":
                await self._delete(seen, r)
            case "regroup":
                await self._cluster.delete(POD, seen.namespace, r.name, uid=r.uid)
                await self._say(seen, service, "ReplicaRegrouped", r, action.why, kind="Warning")
            case "dissolve":
                await self._cluster.delete(STATEFUL_SET, seen.namespace, node_set_name(seen.name, r.uid))
                await self._say(seen, service, "ReplicaRegrouped", r, action.why, kind="Warning")
            case "discount":
                await self._patch(seen, r, {"labels": {names.LABEL_ROLE: names.ROLE_LOST}})
            case "prefill" | "decode":
                role = names.SERVING_ROLE_PREFILL if action.verb == "prefill" else None
                await self._annotate(seen, r, {names.ANNOTATION_SERVING_ROLE: role}, at_once=True)
                await self._say(seen, service, "RoleChanged", r, action.why)
            case "quarantine":
                await self._quarantine(seen, r, now)
                await self._say(seen, service, "DeviceFailed", r, action.why, kind="Warning")
            case "return":
                await self._bring_back(seen, r)
                await self._say(seen, service, "QuarantinedPodRestored", r, action.why)
            case "free":
                await self._delete(seen, r)
                await self._say(seen, service, "QuarantinedPodDeleted", r, action.why)

    async def _apply(self, kind: Kind, service: Json, manifest: Json) -> bool:
        """Apply unless the same manifest was applied to the same object: the server may store a value in another form,
        which must not cause a write per reconcile. Returns whether it was applied."""
        known, before = self._store.get(kind, key(manifest)), self._applied_last(kind, service, manifest)
        if known is not None and before is not None:
            if (before.digest, before.version) == (_digest(manifest), resource_version(known)):
                return False
            if await self._must_wait(kind, service, manifest, known):
                return False
        await self._overwrite(kind, service, manifest)
        return True

    async def _overwrite(self, kind: Kind, service: Json, manifest: Json) -> None:
        """Apply to an object that is there."""
        if self._applied_last(kind, service, manifest) is None:
            await self._own_by_apply(kind, key(manifest))
        self._wrote(kind, service, manifest, await self._cluster.apply(kind, manifest, manager=names.MANAGER))

    async def _must_wait(self, kind: Kind, service: Json, manifest: Json, known: Json | None) -> bool:
        """What another manager changes or deletes is restored, but not in a race: whether it is not to be restored yet.
        known: the object as it is, None where there is none. A number of replicas that is not the one applied last was
        changed by another one, whatever it is to be now."""
        before, where = self._applied_last(kind, service, manifest), (kind.plural, key(manifest))
        if before is None:
            return False
        scaled = known is not None and before.replicas is not None and _replicas(known) != before.replicas
        if not scaled and before.digest != _digest(manifest):
            return False
        if wait_s := self._conflicts.wait_s(where):
            self._workqueue.mark(key(service), wait_s)
            return True
        if self._conflicts.restored(where):
            await self._tell_of_rival(kind, service, where[1])
        return False

    def _applied_last(self, kind: Kind, service: Json, manifest: Json) -> AppliedChild | None:
        return self._applied.get(key(service), {}).get((kind.plural, key(manifest)))

    async def _own_by_apply(self, kind: Kind, name: Key) -> None:
        """Before the first apply of this process to an object that another one created."""
        found = await self._cluster.get(kind, *name)
        if entries := owned_by_apply(found, names.MANAGER):
            version = found["metadata"]["resourceVersion"]
            patch: Json = {"metadata": {"resourceVersion": version, "managedFields": entries}}
            await self._cluster.merge(kind, *name, patch, manager=names.MANAGER)

    def _wrote(self, kind: Kind, service: Json, manifest: Json, written: Json) -> None:
        """Remember a child as it is by now."""
        self._telemetry.wrote(kind.kind)
        if kind is not STATEFUL_SET:  # it is of one pod, whose name does not come again
            applied = self._applied.setdefault(key(service), {})
            applied[kind.plural, key(manifest)] = AppliedChild(
                _digest(manifest), resource_version(written), _replicas(written)
            )
        self._store.put(kind, written)

    async def _tell_of_rival(self, kind: Kind, service: Json, name: Key) -> None:
        """Before it is restored, since that takes the field from its manager."""
        found = await self._found(kind, name)
        who = other_managers(found) if found is not None else ""
        how = "deleted" if found is None else "changed"
        note = f"{kind.kind}/{name[1]} is {how} repeatedly{f' by {who}' if who else ''}"
        pace = f"the operator restores it once in {PAUSE_S:g} s from now on"
        await self._recorder.event(service, "ConflictingWriter", f"{note}; {pace}", kind="Warning")

    async def _ask(self, seen: Observed, r: Replica, *, drain: bool) -> None:
        """Best effort: the next reading shows whether it drains, and the action is repeated until it does."""
        if r.ops_url:
            await self._calls.drain(called_process(r, (seen.namespace, seen.name)), on=drain)

    async def _delete(self, seen: Observed, r: Replica) -> None:
        await self._cluster.delete(POD, seen.namespace, r.name, uid=r.uid, grace_s=CUT_GRACE_S)
        self._telemetry.wrote(POD.kind)

    async def _mark(self, seen: Observed, r: Replica, *, since: str | None, cost: str) -> None:
        notes = {names.ANNOTATION_DELETION_COST: cost}
        if since is not None:
            notes[names.ANNOTATION_DRAIN] = since
        await self._annotate(seen, r, dict(notes))

    async def _unmark(self, seen: Observed, r: Replica) -> None:
        await self._annotate(seen, r, {names.ANNOTATION_DELETION_COST: None, names.ANNOTATION_DRAIN: None})

    async def _quarantine(self, seen: Observed, r: Replica, now: str) -> None:
        """A workload gives up a pod without its labels; the service becomes its owner."""
        await self._patch(
            seen,
            r,
            {
                "labels": {names.LABEL_ROLE: names.ROLE_QUARANTINE},
                "annotations": {names.ANNOTATION_QUARANTINED_AT: now},
                "ownerReferences": [{**owner(seen), "controller": False}],
            },
        )

    async def _bring_back(self, seen: Observed, r: Replica) -> None:
        """Its workload adopts a pod that has its labels and no owner, and gives up one that is less far."""
        await self._patch(seen, r, {"labels": {names.LABEL_ROLE: names.ROLE_SERVE}, "ownerReferences": None})

    async def _annotate(self, seen: Observed, r: Replica, notes: Json, *, at_once: bool = False) -> None:
        """at_once: no controller reads them, so that they count before a watch has brought them back."""
        written = await self._patch(seen, r, {"annotations": notes})
        if at_once and written is not None:
            self._store.put(POD, written)

    async def _patch(self, seen: Observed, r: Replica, metadata: Json) -> Json | None:
        """The pod as it is then, None where it is gone. Only a watch shows that others have seen it too, such as the
        controller that deletes by the marks."""
        # The uid makes the patch fail on another pod of the same name.
        patch = {"metadata": {"uid": r.uid, **metadata}}
        try:
            written = await self._cluster.merge(POD, seen.namespace, r.name, patch, manager=names.MANAGER)
        except NotFoundError:
            self._store.drop(POD, (seen.namespace, r.name), r.uid)
            return None
        except ConflictError:
            return None
        self._telemetry.wrote(POD.kind)
        return written

    async def _say(
        self,
        seen: Observed,
        service: Json,
        reason: str,
        r: Replica,
        why: str,
        *,
        kind: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        pod: Json = {"metadata": {"namespace": seen.namespace, "name": r.name, "uid": r.uid}}
        await self._recorder.event(service, reason, f"{r.name}: {why}", kind=kind, related=pod)


def _replicas(workload: Json) -> int | None:
    """What the spec of a Deployment requests; None of other objects."""
    found: int | None = (workload.get("spec") or {}).get("replicas")
    return found


def _digest(manifest: Json) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
