"""Everything that is known about one service at one moment: its spec, its children, its pods. Input of every
decision."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import ValidationError

from kvasir_api import names
from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_api.served_names import NameConflict, served_name
from kvasir_api.service import InferenceServiceSpec, ModelSpec
from kvasir_api.state import ServedTotals
from kvasir_api.status import InferenceServiceStatus, ModelStatus
from kvasir_kube.kinds import Json
from kvasir_operator.observed.candidate_node import CandidateNode
from kvasir_operator.observed.model_pod import ModelPod, model_pod
from kvasir_operator.observed.node_set import NodeSet, assembled, left_behind, node_set
from kvasir_operator.observed.replica import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A ControllerRevision of ours. id: the hash of inputs, in its name and in the pods' label. number: rises with use.

    found: the object as it is, to be compared; empty for one that is yet to be made.
    """

    id: str
    number: int
    inputs: Json
    template: Json
    name: str = ""
    uid: str = ""
    found: Json = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        """Pods of one replica."""
        return int((self.inputs.get("runtime") or {}).get("nnodes", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionWorkload:
    """A Deployment of ours: replicas as its spec asks; found: the object as it is, to be compared.

    failure: why the cluster refuses to create its pods (quota, admission), empty when it does not.
    """

    revision: str
    name: str
    uid: str = ""
    replicas: int = 0
    found: Json
    failure: str = ""


class ForeignObject(NamedTuple):
    """An object that carries a name of our children but has another owner. where: as kind/name. leaves: its owner was
    another service of this name, so that it goes by garbage collection."""

    where: str
    leaves: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One service. foreign: what carries names of our children and is not ours.

    replicas: its pods that serve or may; of a replica of several pods its node 0, with the others in node_sets.
    left_behind: such others that leave and have outlived their StatefulSet.
    guards: its disruption budget and network policy. created: its creationTimestamp. invalid: why the spec breaks the
    contract, with the path of the field; spec is then a stand-in that no decision may use. claim_found: whether the
    PersistentVolumeClaim of the model exists, claim_bound: whether it has its volume; True when none is needed.
    claim_of_one_node: whether only one node at a time may mount it.
    quarantined: pods that are no replicas for now, since their device failed. inspections: pods that look at the model;
    fetches: pods that fetch it into the cache of a node. candidates: nodes where a replica may come, if asked.
    model: what they read, as status has it until more is known. name_conflicts: names of its spec that it does not own.
    classes: the accelerator classes of the cluster by name. served_before: what each replica had served when the step
    of the rollout began, by uid.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    created: str = ""
    spec: InferenceServiceSpec
    status: InferenceServiceStatus
    invalid: str = ""
    revisions: tuple[Revision, ...] = ()
    workloads: tuple[RevisionWorkload, ...] = ()
    node_sets: tuple[NodeSet, ...] = ()
    left_behind: tuple[Replica, ...] = ()
    replicas: tuple[Replica, ...] = ()
    quarantined: tuple[Replica, ...] = ()
    svc: Json | None = None
    guards: tuple[Json, ...] = ()
    foreign: tuple[ForeignObject, ...] = ()
    claim_found: bool = True
    claim_bound: bool = True
    claim_of_one_node: bool = False
    name_conflicts: tuple[NameConflict, ...] = ()
    inspections: tuple[ModelPod, ...] = ()
    fetches: tuple[ModelPod, ...] = ()
    candidates: tuple[CandidateNode, ...] = ()
    model: ModelStatus | None = None
    classes: Mapping[str, AcceleratorClassSpec] = field(default_factory=dict)
    served_before: Mapping[str, ServedTotals] = field(default_factory=dict)

    @property
    def served_name(self) -> str:
        """Name that clients request."""
        return served_name(self.name, self.spec.model.served_name)

    def revision(self, id_: str) -> Revision | None:
        """The revision of that hash."""
        return next((revision for revision in self.revisions if revision.id == id_), None)

    def ready(self, revision: str) -> int:
        """Live pods of one revision that take requests."""
        return sum(r.phase == "ready" for r in self.of(revision))

    def outdated(self, current: str) -> int:
        """Live pods of other revisions than the current one that do not leave yet."""
        return sum(r.live and r.phase != "draining" and r.revision != current for r in self.replicas)

    def of(self, revision: str) -> tuple[Replica, ...]:
        """Live pods of one revision."""
        return tuple(r for r in self.replicas if r.live and r.revision == revision)


def observed(
    service: Json,
    *,
    revisions: Iterable[Json],
    deployments: Iterable[Json],
    replicas: Iterable[Replica],
    svc: Json | None,
    node_sets: Iterable[Json] = (),
    nodes: Sequence[tuple[str, Replica]] = (),
    quarantined: Iterable[Replica] = (),
    guards: Iterable[Json] = (),
    claim_found: bool = True,
    claim_bound: bool = True,
    claim_of_one_node: bool = False,
    name_conflicts: tuple[NameConflict, ...] = (),
    inspections: Iterable[Json] = (),
    fetches: Iterable[Json] = (),
    classes: Mapping[str, AcceleratorClassSpec] | Iterable[Json] = (),
    served_before: Mapping[str, ServedTotals] | None = None,
) -> Observed:
    """Parse the objects of one service. A spec that the API server accepted but the models do not sets
    invalid."""
    metadata = service["metadata"]
    uid = str(metadata["uid"])
    ours, foreign = _split(metadata, "Deployment", deployments)
    own_revisions, foreign_revisions = _split(metadata, "ControllerRevision", revisions)
    own_guards, foreign_guards = _split(metadata, "", guards)
    foreign_svc = () if svc is None or owned(svc, uid) else (foreign_object(svc, "Service", metadata["name"]),)
    sets = tuple(found for found in map(node_set, node_sets) if found.leader)
    spec, invalid = parsed_spec(service)
    status = parsed_status(service)
    return Observed(
        namespace=str(metadata["namespace"]),
        name=str(metadata["name"]),
        uid=uid,
        generation=int(metadata.get("generation", 0)),
        created=str(metadata.get("creationTimestamp", "")),
        spec=spec,
        status=status,
        invalid=invalid,
        revisions=tuple(sorted(map(_revision, own_revisions), key=lambda r: r.number)),
        workloads=tuple(map(_workload, ours)),
        node_sets=sets,
        left_behind=left_behind(sets, nodes),
        replicas=tuple(sorted(assembled(replicas, sets, nodes), key=lambda r: r.name)),
        quarantined=tuple(sorted(quarantined, key=lambda r: r.name)),
        svc=None if foreign_svc else svc,
        guards=tuple(own_guards),
        foreign=(*foreign, *foreign_revisions, *foreign_svc, *foreign_guards),
        claim_found=claim_found,
        claim_bound=claim_bound or bool(spec.model.cache_claim),
        claim_of_one_node=claim_of_one_node,
        name_conflicts=name_conflicts,
        inspections=tuple(model_pod(pod) for pod in inspections if owned(pod, uid)),
        fetches=tuple(model_pod(pod) for pod in fetches if owned(pod, uid)),
        model=status.model,
        classes=classes if isinstance(classes, Mapping) else dict(map(parsed_class, classes)),
        served_before=served_before or {},
    )


def parsed_spec(service: Json) -> tuple[InferenceServiceSpec, str]:
    """The spec, and why it breaks the contract: empty, or field path and sentence of each breach."""
    try:
        return InferenceServiceSpec.model_validate(service.get("spec") or {}), ""
    except ValidationError as error:
        breaches = [f"spec.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        return InferenceServiceSpec(model=ModelSpec(uri="invalid")), "; ".join(breaches)


def parsed_status(service: Json) -> InferenceServiceStatus:
    """The status as written before; an empty one when it is invalid, since everything in it can be observed
    again."""
    try:
        return InferenceServiceStatus.model_validate(service.get("status") or {})
    except ValidationError:
        return InferenceServiceStatus()


def owned(obj: Json, uid: str) -> bool:
    """Whether the object with this uid controls obj."""
    references = (obj.get("metadata") or {}).get("ownerReferences") or ()
    return any(reference.get("controller") and reference.get("uid") == uid for reference in references)


def foreign_object(obj: Json, kind: str, service: str) -> ForeignObject:
    """What an object is that no service of this uid owns. service: name of the one in whose way it is."""
    references = (obj.get("metadata") or {}).get("ownerReferences") or ()
    leaves = any(r.get("controller") and (r.get("kind"), r.get("name")) == (names.KIND, service) for r in references)
    return ForeignObject(where=f"{kind}/{obj['metadata']['name']}", leaves=leaves)


def _split(service: Json, kind: str, objects: Iterable[Json]) -> tuple[list[Json], tuple[ForeignObject, ...]]:
    """Those that the service of this metadata owns, and the others."""
    found = [obj for obj in objects if not (obj.get("metadata") or {}).get("deletionTimestamp")]
    ours = [obj for obj in found if owned(obj, service["uid"])]
    others = [obj for obj in found if not owned(obj, service["uid"])]
    return ours, tuple(foreign_object(obj, kind or obj["kind"], service["name"]) for obj in others)


def parsed_class(obj: Json) -> tuple[str, AcceleratorClassSpec]:
    """The API server accepted only valid ones; unknown fields of a newer version are ignored."""
    return str(obj["metadata"]["name"]), AcceleratorClassSpec.model_validate(obj.get("spec") or {})


def _revision(obj: Json) -> Revision:
    content = obj.get("data") or {}
    return Revision(
        id=str((obj["metadata"].get("labels") or {}).get(names.LABEL_REVISION, "")),
        number=int(obj.get("revision", 0)),
        inputs=content.get("inputs") or {},
        template=content.get("template") or {},
        name=str(obj["metadata"]["name"]),
        uid=str(obj["metadata"].get("uid", "")),
        found=obj,
    )


def _workload(obj: Json) -> RevisionWorkload:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return RevisionWorkload(
        revision=str((obj["metadata"].get("labels") or {}).get(names.LABEL_REVISION, "")),
        name=str(obj["metadata"]["name"]),
        uid=str(obj["metadata"].get("uid", "")),
        replicas=int((obj.get("spec") or {}).get("replicas", 0)),
        found=obj,
        failure=next((str(c.get("message", "")) for c in conditions if c.get("type") == "ReplicaFailure"), ""),
    )
