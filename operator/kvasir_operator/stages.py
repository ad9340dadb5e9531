"""The stages of a reconcile: `Observed → Resolved → RolloutPlan → Applied`. Each is made once, from those before it.

`Observed` is what the cluster reports (`observed/service.py`). `desired/resolve.py` makes Resolved, `rollout/plan.py`
makes RolloutPlan, the loop makes Applied, and `status/compose.py` reads them all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_api.inspection import Prediction
from kvasir_api.options import Reduction
from kvasir_api.roofline import Roofline
from kvasir_api.status import AutoscalingStatus, ClassForecast
from kvasir_kube.kinds import Json
from kvasir_operator.observed.decode_rate import DecodeRate
from kvasir_operator.observed.model_pod import ModelPod
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import ForeignObject, Observed, Revision

RolloutPhase = Literal["", "Progressing", "Canary", "Held", "Paused", "RolledBack"]
RolloutStrategy = Literal["", "Surge", "InPlace", "BlueGreen"]
PodVerb = Literal[
    "drain",
    "ask",
    "finish",
    "release",
    "cut",
    "quarantine",
    "return",
    "free",
    "regroup",
    "dissolve",
    "discount",
    "prefill",
    "decode",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassChoice:
    """name: the class, empty when none was asked for or none fits. why: a sentence; empty when none was asked for.

    too_small: a class was passed over since the model does not fit it. lacking: path of the field that asked for more
    than a class that was passed over can do. considered: names in order of preference.
    """

    name: str = ""
    why: str = ""
    too_small: bool = False
    lacking: str = ""
    considered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The hardware of a replica and what it holds there.

    accelerator: the chosen class, None without one. forecast: what one replica holds, None without an inspection;
    forecasts: the same for each class that was considered. roofline: the possible decode speed, None when unknown.
    unavailable: classes that found no node for the pods of pod_hash, as the status has them.
    """

    choice: ClassChoice
    accelerator: AcceleratorClassSpec | None = None
    forecast: Prediction | None = None
    forecasts: tuple[ClassForecast, ...] = ()
    roofline: Roofline | None = None
    unavailable: tuple[str, ...] = ()
    pod_hash: str = ""

    @property
    def slow_below_percent(self) -> int:
        """Share of the roofline below which a replica is too slow, 0 for none."""
        return self.accelerator.compute.degraded_below_percent if self.accelerator is not None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Why nothing new is made of this spec. reason: one of names.REASONS. message: begins with the path of the
    field."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What the spec means on this cluster. Exactly one of violation and revision is None.

    revision: the one that the spec describes, existing or about to be made. unavailable_classes: classes that found no
    node for its pods, those of this moment included. reductions: rungs of spec.reductions that were taken, likewise.
    reductions_left: those that would reduce something more. held: the revision that the service keeps until it is its
    turn to take that one, None where it takes it at once. waits: why it is not its turn yet; revision is the held one
    then. nodes: pods of a replica where spec.parallelism chose them, None where it did not.
    """

    observed: Observed
    placement: Placement
    violation: Violation | None = None
    revision: Revision | None = None
    unavailable_classes: tuple[str, ...] = ()
    reductions: tuple[Reduction, ...] = ()
    reductions_left: tuple[Reduction, ...] = ()
    held: Revision | None = None
    waits: str = ""
    nodes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPlan:
    """Pods that fetch models into caches of nodes: those to start, as manifests, and those to delete.

    again_s: after so long the plan may be another one although nothing of the service changed; 0 for never.
    """

    create: tuple[Json, ...] = ()
    delete: tuple[ModelPod, ...] = ()
    again_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerResult:
    """The autoscaler's last result for a service. wanted: replicas; most: its upper bound now, 0 where it did not
    decide; most_field: the path of the field that sets it. status: None while autoscaling is off.

    missing: pods and gateways that did not answer; lost: pods that have not for minutes; contradictions: pods whose
    readings cannot be true, with the reason. unread: no ready replica was read. preempting: sequences lost
    their KV cache to others within a minute; exhausted: many did. imbalance: see LoadSample, of a minute; busiest: the
    fullest replica. acceptance: of tokens drafted ahead. decode_rates: by uid of the replica. prefill: how many
    replicas are to compute prompts for the others; prefill_why: for people, empty where the spec has no such role.
    """

    wanted: int = 0
    most: int = 0
    most_field: str = ""
    status: AutoscalingStatus | None = None
    missing: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    contradictions: tuple[tuple[str, str], ...] = ()
    unread: bool = False
    preempting: bool = False
    exhausted: bool = False
    imbalance: float = 0.0
    busiest: str = ""
    acceptance: float = 1.0
    decode_rates: Mapping[str, DecodeRate] = field(default_factory=dict)
    prefill: int = 0
    prefill_why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTarget:
    """revision: the one to bring to the wanted number. cap: most replicas of it for now, None for no bound.

    step: of the canary, from 1; 0 outside of one. since: epoch seconds at which the step's replicas were ready, None
    before. rolled_back: the revision that was given up, empty when none was. strategy: how replicas are replaced now,
    which is not always as the spec says; empty while none are. why: for people, empty when nothing is held.
    """

    revision: str
    cap: int | None = None
    phase: RolloutPhase = ""
    step: int = 0
    since: float | None = None
    rolled_back: str = ""
    strategy: RolloutStrategy = ""
    why: str = ""

    @property
    def holding(self) -> bool:
        """Whether the rollout is meant to stand still, so that no deadline runs."""
        return self.phase in ("Canary", "Held", "Paused", "RolledBack")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAction:
    """One thing to do to one pod. why: one sentence.

    drain: request a drain from its runtime and mark it. ask: repeat the request, the mark is there. finish: mark it as
    the next to go. release: take both back. cut: delete it with a short grace after its timeout. quarantine: make it no
    replica any more, so that another takes its place while it keeps its device; return: make it one again; free: delete
    it. regroup: delete node 0 of several with all its grace, since another node left it; its StatefulSet goes with it.
    dissolve: delete that StatefulSet, since node 0 will not go. discount: take a node that has outlived it out of what
    the disruption budget selects: Kubernetes allows no eviction while that selects a pod without a controller.
    prefill: have it compute prompts for the other replicas; decode: have it get requests again.
    """

    verb: PodVerb
    replica: Replica
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """counts: replicas to apply by revision; a workload that is absent here is finished. actions: in no order."""

    target: RolloutTarget
    counts: Mapping[str, int]
    actions: tuple[PodAction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What came of the writes. foreign: what carries names of our children and is not ours.

    refused: what the API server answered to a refused write; refused_reason: one of names.REASONS when no retry cures
    it.
    """

    foreign: tuple[ForeignObject, ...] = ()
    refused: str = ""
    refused_reason: str = ""
