"""The stages of a reconcile as the status reads them; each check reads this and nothing else."""

from dataclasses import dataclass

from kvasir_operator.observed.replica import Phase, Replica, epoch
from kvasir_operator.observed.service import Observed
from kvasir_operator.stages import Applied, Resolved, RolloutPlan, ScalerResult
from kvasir_operator.status.refusals import without_pod_name


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusInputs:
    """waiting: why no replica may start yet. plan: None while the spec has a violation, or while replicas wait.

    overdue: no progress within the deadline. now: RFC 3339. gateway_url: for status.address.
    """

    resolved: Resolved
    scaler: ScalerResult
    waiting: str
    plan: RolloutPlan | None
    applied: Applied
    overdue: bool
    now: str
    gateway_url: str

    @property
    def seen(self) -> Observed:
        """The service as it was observed."""
        return self.resolved.observed

    @property
    def wanted(self) -> int:
        """Replicas."""
        return self.scaler.wanted

    @property
    def current(self) -> str:
        """The revision that is to get all replicas, empty without a plan."""
        return self.plan.target.revision if self.plan is not None else ""

    @property
    def asked(self) -> str:
        """The revision that the spec describes, empty without a plan."""
        return self.resolved.revision.id if self.plan is not None and self.resolved.revision is not None else ""

    @property
    def updated(self) -> tuple[Replica, ...]:
        """Live replicas of the current revision."""
        return self.seen.of(self.current)

    @property
    def updated_ready(self) -> int:
        """Replicas of the current revision that take requests."""
        return self.seen.ready(self.current)

    @property
    def serving(self) -> tuple[Replica, ...]:
        """Replicas of any revision that take requests."""
        return tuple(r for r in self.seen.replicas if r.live and r.phase == "ready")

    @property
    def outdated(self) -> int:
        """Replicas of other revisions that have not begun to leave."""
        return self.seen.outdated(self.current)

    @property
    def rolling_out(self) -> bool:
        """Whether the spec's revision has not replaced the one before yet."""
        good = self.seen.status.rollout.last_good_revision
        given_up = self.plan is not None and bool(self.plan.target.rolled_back)
        return bool(self.outdated) or given_up or good not in ("", self.current)

    @property
    def minimum(self) -> int:
        """Replicas without which the service is not what the spec describes."""
        return minimum(self.seen, self.wanted)

    @property
    def refused_pods(self) -> str:
        """The cluster's message about pods of the current revision that it does not create; empty when it does."""
        failure = next((w.failure for w in self.seen.workloads if w.failure and w.revision == self.current), "")
        return without_pod_name(failure)

    @property
    def missing_key(self) -> str:
        """What to do for clients to be accepted; empty when the spec names no Secret."""
        name = self.seen.spec.auth.secret_name
        return f"put an API key into Secret {self.seen.namespace}/{name}" if name else ""

    def first(self, phase: Phase) -> Replica | None:
        """A live replica in that phase; one of the current revision if there is one."""
        found = [r for r in self.seen.replicas if r.live and r.phase == phase]
        return min(found, key=lambda r: (r.revision != self.current, r.name), default=None)

    @property
    def ended(self) -> Replica | None:
        """The last replica that the kubelet ended within the deadline of a rollout, while too few serve and none that
        was made since does: its object may stay for long."""
        if len(self.serving) >= self.wanted:
            return None
        newest = max((r.created for r in self.serving), default=0.0)
        since = max(newest, (epoch(self.now) or 0.0) - self.seen.spec.rollout.progress_deadline_seconds)
        ended = [(r.ended_at, r.name, r) for r in self.seen.replicas if r.ended_at is not None and r.ended_at >= since]
        return max(ended, default=(0.0, "", None))[2]


def minimum(seen: Observed, wanted: int) -> int:
    """Replicas without which a service is not what its spec describes. wanted: as the autoscaler requires."""
    scaling = seen.spec.autoscaling
    return wanted if scaling is None else min(max(1, scaling.min_replicas), wanted)
