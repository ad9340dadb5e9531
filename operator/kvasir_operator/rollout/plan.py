"""The whole rollout of a service at one moment: counts that may be applied now, and actions on pods that leave."""

from kvasir_operator.observed.service import Observed
from kvasir_operator.rollout import quarantine, regroup, roles
from kvasir_operator.rollout.counts import RevisionCounts, RolloutBounds, next_counts
from kvasir_operator.rollout.drain import drain_plan
from kvasir_operator.rollout.target import rollout_target
from kvasir_operator.stages import PodAction, RolloutPlan, RolloutTarget


def plan(seen: Observed, asked: str, *, wanted: int, prefill: int = 0, now: float) -> RolloutPlan:
    """The third stage. asked: the revision of the spec. wanted: replicas of the service. prefill: those of them that
    are to compute prompts for the others. now: epoch seconds."""
    target = rollout_target(seen, current=asked, wanted=wanted, now=now)
    current = target.revision
    counted = {workload.revision: workload.replicas for workload in seen.workloads}
    order = [revision.id for revision in seen.revisions]
    old = sorted((id_ for id_ in counted if id_ != current), key=lambda id_: order.index(id_) if id_ in order else -1)
    groups = [_group(seen, id_, counted[id_]) for id_ in old]
    targets = next_counts(
        _group(seen, current, counted.get(current, 0)),
        groups,
        wanted=wanted,
        bounds=_bounds(seen, target),
    )
    counts: dict[str, int] = {}
    actions: list[PodAction] = []
    for id_, count in targets.items():
        replicas = [r for r in seen.replicas if r.revision == id_]
        revision, applied = seen.revision(id_), counted.get(id_, 0)
        nodes = revision.nodes if revision is not None else seen.spec.runtime.nnodes
        drained = drain_plan(
            replicas,
            count=applied,
            target=regroup.gathered(replicas, nodes=nodes, count=count, applied=applied),
            timeout_s=seen.spec.drain.timeout_seconds,
        )
        actions += drained.actions
        # A finished workload stays until its last pod is gone, so that nothing is orphaned in a hurry. The object of
        # one that its kubelet has ended is only a record.
        if id_ == current or drained.count or applied or any(r.ended_at is None for r in replicas):
            counts[id_] = drained.count
    actions += regroup.actions(seen.replicas, seen.left_behind, now=now)
    actions += quarantine.actions(seen, wanted=wanted, now=now)
    going = {action.replica.uid for action in actions if action.verb != "release"}
    stay = [r for r in seen.replicas if r.uid not in going]
    actions += roles.actions(stay, current=current, count=prefill)
    return RolloutPlan(target=target, counts=counts, actions=tuple(actions))


def _bounds(seen: Observed, target: RolloutTarget) -> RolloutBounds:
    rules = seen.spec.rollout
    comparing = target.cap is not None and rules.strategy == "Surge"
    return RolloutBounds(
        strategy=rules.strategy,
        max_surge=rules.max_surge,
        max_unavailable=rules.max_unavailable,
        cap=target.cap,
        yields=rules.strategy == "Surge" and target.strategy == "InPlace",
        keep=1 if comparing else 0,
    )


def _group(seen: Observed, revision: str, count: int) -> RevisionCounts:
    phases = [r.phase for r in seen.of(revision)]
    return RevisionCounts(
        revision=revision,
        count=count,
        ready=min(count, phases.count("ready")),
        lost=min(count, phases.count("failed") + phases.count("unschedulable")),
    )
