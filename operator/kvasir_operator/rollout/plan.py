"""The whole rollout of a service at one moment: counts that may be applied now, and what is done to pods that leave."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvasir_operator.observed.course import Course
from kvasir_operator.observed.world import Observed
from kvasir_operator.rollout.leaving import Step, leaving
from kvasir_operator.rollout.planner import Bounds, Group, next_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """counts: replicas to apply by revision; a workload that is absent here is finished. steps: in no special order."""

    counts: Mapping[str, int]
    steps: tuple[Step, ...]


def plan(seen: Observed, *, course: Course, wanted: int, now: float) -> Plan:
    """What to do next. now: epoch seconds."""
    current = course.target
    counted = {workload.revision: workload.replicas for workload in seen.workloads}
    order = [revision.id for revision in seen.revisions]
    old = sorted((id_ for id_ in counted if id_ != current), key=lambda id_: order.index(id_) if id_ in order else -1)
    groups = [_group(seen, id_, counted[id_]) for id_ in old]
    targets = next_counts(
        _group(seen, current, counted.get(current, 0)),
        groups,
        wanted=wanted,
        bounds=_bounds(seen, course),
    )
    counts: dict[str, int] = {}
    steps: list[Step] = []
    for id_, target in targets.items():
        replicas = [r for r in seen.replicas if r.revision == id_]
        leave = leaving(
            replicas,
            count=counted.get(id_, 0),
            target=target,
            now=now,
            timeout_s=seen.spec.drain.timeout_seconds,
        )
        steps += leave.steps
        # A finished workload stays until its last pod is gone, so that nothing is orphaned in a hurry.
        if id_ == current or leave.count or counted[id_] or replicas:
            counts[id_] = leave.count
    return Plan(counts=counts, steps=tuple(steps))


def _bounds(seen: Observed, course: Course) -> Bounds:
    rules = seen.spec.rollout
    comparing = course.cap is not None and rules.strategy == "Surge"
    return Bounds(
        strategy=rules.strategy,
        max_surge=rules.max_surge,
        max_unavailable=rules.max_unavailable,
        cap=course.cap,
        yields=rules.strategy == "Surge" and course.strategy == "InPlace",
        keep=1 if comparing else 0,
    )


def _group(seen: Observed, revision: str, count: int) -> Group:
    phases = [r.phase for r in seen.of(revision)]
    return Group(
        revision=revision,
        count=count,
        ready=min(count, phases.count("ready")),
        lost=min(count, phases.count("failed") + phases.count("unschedulable")),
    )
