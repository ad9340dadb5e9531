"""Everything that a status is made of, gathered by the loop; each check reads this and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvasir_api.inspection import Prediction
from kvasir_api.roofline import Roofline
from kvasir_api.status import AutoscalingStatus, ClassForecast
from kvasir_operator.observed.decode_rate import DecodeRate
from kvasir_operator.observed.replica import Phase, Replica
from kvasir_operator.observed.rollout_target import RolloutTarget
from kvasir_operator.observed.service import Observed, Revision
from kvasir_operator.status.refusals import without_pod_name


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusInputs:
    """seen and the decisions about it.

    now: RFC 3339. current: the revision that is to get all replicas, empty when the spec cannot be honoured for
    fault_reason and fault_message. asked: the one that the spec asks for, revision: the same whole, which may
    be about to be made; rollout: where its rollout heads. wanted: replicas. blocked: objects of others that are in the
    way. trouble: what the API server said when it refused a write; trouble_reason: one of names.REASONS when no retry
    cures it.
    overdue: no progress within the deadline. missing: pods and gateways that did not answer. gateway_url: for
    status.address. accelerator_class: the one that the current revision got. waiting: why no replica may start
    yet. unavailable_classes: classes that found no node for the pods of the hash pod_hash.
    forecast: what one would hold; forecasts: on each class that was considered. roofline: how fast replicas could
    decode, None where that is not known; slow_below_percent: the share of it that is too slow, 0 for none;
    decode_rates: how fast they do, by uid.
    """

    seen: Observed
    now: str
    current: str = ""
    asked: str = ""
    revision: Revision | None = None
    rollout: RolloutTarget | None = None
    wanted: int = 0
    fault_reason: str = ""
    fault_message: str = ""
    blocked: tuple[str, ...] = ()
    trouble: str = ""
    trouble_reason: str = ""
    overdue: bool = False
    missing: tuple[str, ...] = ()
    autoscaling: AutoscalingStatus | None = None
    gateway_url: str = ""
    accelerator_class: str = ""
    unavailable_classes: tuple[str, ...] = ()
    pod_hash: str = ""
    waiting: str = ""
    forecast: Prediction | None = None
    forecasts: tuple[ClassForecast, ...] = ()
    roofline: Roofline | None = None
    slow_below_percent: int = 0
    decode_rates: Mapping[str, DecodeRate] = field(default_factory=dict)

    @property
    def updated(self) -> tuple[Replica, ...]:
        """Live replicas of the current revision."""
        return self.seen.of(self.current)

    @property
    def updated_ready(self) -> int:
        """Replicas of the current revision that take requests."""
        return sum(r.phase == "ready" for r in self.updated)

    @property
    def serving(self) -> tuple[Replica, ...]:
        """Replicas of any revision that take requests."""
        return tuple(r for r in self.seen.replicas if r.live and r.phase == "ready")

    @property
    def outdated(self) -> int:
        """Replicas of other revisions that have not begun to leave."""
        return sum(r.live and r.phase != "draining" and r.revision != self.current for r in self.seen.replicas)

    @property
    def rolling_out(self) -> bool:
        """Whether the spec's revision has not replaced the one before yet. A service whose name another one holds does
        not count: clients do not reach it."""
        if self.fault_reason == "NameConflict":
            return False
        good = self.seen.status.rollout.last_good_revision
        given_up = self.rollout is not None and bool(self.rollout.rolled_back)
        return bool(self.outdated) or given_up or good not in ("", self.current)

    @property
    def minimum(self) -> int:
        """Replicas without which the service is not what the spec asks for."""
        scaling = self.seen.spec.autoscaling
        return self.wanted if scaling is None else min(scaling.min_replicas, self.wanted)

    @property
    def refused_pods(self) -> str:
        """Why the cluster does not create pods of the current revision, as it says; empty when it does."""
        failure = next((w.failure for w in self.seen.workloads if w.failure and w.revision == self.current), "")
        return without_pod_name(failure)

    @property
    def secret(self) -> str:
        """Where the keys of clients are: namespace and name of the Secret, empty when none is asked for."""
        name = self.seen.spec.auth.secret_name
        return f"{self.seen.namespace}/{name}" if name else ""

    def first(self, phase: Phase) -> Replica | None:
        """A live replica in that phase; one of the current revision if there is one."""
        found = [r for r in self.seen.replicas if r.live and r.phase == phase]
        return min(found, key=lambda r: (r.revision != self.current, r.name), default=None)
