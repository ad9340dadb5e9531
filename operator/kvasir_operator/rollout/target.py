"""The target of a rollout: the spec's revision, how far for now, or the last good one. Called by `plan.py`.

Stateless but for what status holds: the step of a canary, since when it holds, and which revision was rolled back.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvasir_api import names
from kvasir_api.rollout import Analysis, CanaryStep
from kvasir_api.state import ServedTotals
from kvasir_operator.observed.replica import Replica, epoch
from kvasir_operator.observed.served_baseline import since
from kvasir_operator.observed.service import Observed
from kvasir_operator.rollout.surge_capacity import replacement_strategy
from kvasir_operator.stages import RolloutTarget

MOVING: Final = ("Progressing", "Canary", "RolledBack")
"""Phases in which replicas are replaced; in the others they stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionTraffic:
    """What the replicas of one revision served since the step began. ttft_s: mean time to the first token."""

    requests: int = 0
    failed: int = 0
    ttft_s: float = 0.0

    @property
    def failed_percent(self) -> float:
        """Share of requests that ended in an error of ours."""
        return 100 * self.failed / self.requests if self.requests else 0.0


def rollout_target(seen: Observed, *, current: str, wanted: int, now: float) -> RolloutTarget:
    """The revision to bring to the wanted number, and how. current: the revision of the spec. now: epoch seconds."""
    head = _heading(seen, current, wanted, now)
    if head.phase not in MOVING or not _others(seen, head.revision):
        return head
    strategy, why = replacement_strategy(seen, asked=current, target=head.revision, wanted=wanted, now=now)
    # Why it was rolled back is told for as long as it is, so nothing is added to it.
    told = head.why if head.rolled_back else "; ".join(part for part in (head.why, why) if part)
    return replace(head, strategy=strategy, why=told)


def _heading(seen: Observed, current: str, wanted: int, now: float) -> RolloutTarget:
    rules = seen.spec.rollout
    if rules.promote == current:
        return RolloutTarget(revision=current, phase="Progressing" if _others(seen, current) else "")
    if back := _way_back(seen, current):
        return back
    if not _others(seen, current):
        return RolloutTarget(revision=current)
    mine = len(seen.of(current))
    if rules.paused:
        return RolloutTarget(
            revision=current, cap=mine, phase="Paused", step=_step(seen, current), why="spec.rollout.paused"
        )
    before = seen.status.rollout
    verdict = judged(rules.analysis, *_compared(seen, current))
    if verdict:
        # The numbers of the first verdict stay, or every tick would write the status.
        verdict = before.message if before.phase == "Held" and before.current_revision == current else verdict
        return RolloutTarget(revision=current, cap=mine, phase="Held", step=_step(seen, current), why=verdict)
    if not rules.steps:
        return RolloutTarget(revision=current, phase="Progressing")
    return _canary(seen, current, rules.steps, wanted, now)


def _way_back(seen: Observed, current: str) -> RolloutTarget | None:
    """To the last good revision, when the spec's was given up or must be now; None without a reason or a way."""
    before, rules = seen.status.rollout, seen.spec.rollout
    good = before.last_good_revision
    if not good or good == current or seen.revision(good) is None:
        return None
    why = ""
    if rules.abort == current:
        why = "spec.rollout.abort names it"
    elif before.rolled_back_revision == current:
        why = before.message
    elif rules.auto_rollback:
        why = _broken(seen, current)
    return RolloutTarget(revision=good, phase="RolledBack", rolled_back=current, why=why) if why else None


def _broken(seen: Observed, current: str) -> str:
    """Why the spec's revision cannot be had or is worse than the old one; empty when it is neither."""
    mine = seen.of(current)
    if not any(r.phase == "ready" for r in mine) and (refusal := next((r.refusal for r in mine if r.refusal), "")):
        return refusal
    overdue = (names.CONDITION_STALLED, "ProgressDeadlineExceeded")
    late = next((c for c in seen.status.conditions if (c.type, c.reason) == overdue), None)
    if late is not None and late.observed_generation == seen.generation:
        return late.message
    return judged(seen.spec.rollout.analysis, *_compared(seen, current))


def _canary(seen: Observed, current: str, steps: list[CanaryStep], wanted: int, now: float) -> RolloutTarget:
    number = max(1, _step(seen, current))
    asked = _asked(current, steps, number, wanted)
    ready = sum(r.phase == "ready" for r in seen.of(current))
    if asked.cap is None or ready < min(asked.cap, wanted):
        return asked
    step = steps[number - 1]
    began = epoch(seen.status.rollout.step_since) if _step(seen, current) == number else None
    since = now if began is None else began
    left = step.pause_seconds - (now - since)
    missing = _missing(seen, current)
    if left > 0 or missing:
        wait = f"{step.pause_seconds} s from its start" if left > 0 else missing
        why = f"step {number} of {len(steps)}, {asked.cap} of {wanted} replicas, waits for {wait}"
        return replace(asked, phase="Canary", since=since, why=why)
    return _asked(current, steps, number + 1, wanted)


def _asked(current: str, steps: list[CanaryStep], number: int, wanted: int) -> RolloutTarget:
    """What a step requests while its replicas are not all ready; behind the last one there is no bound."""
    if number > len(steps):
        return RolloutTarget(revision=current, phase="Progressing", step=number)
    share = max(1, -(-wanted * steps[number - 1].replica_percent // 100))
    return RolloutTarget(revision=current, cap=share, phase="Progressing", step=number)


def _missing(seen: Observed, current: str) -> str:
    """What the analysis still waits for before a step may end; empty without one."""
    rules = seen.spec.rollout.analysis
    if rules is None or _compared(seen, current)[0].requests >= rules.min_requests:
        return ""
    return f"{rules.min_requests} answered requests"


def judged(rules: Analysis | None, new: RevisionTraffic, old: RevisionTraffic) -> str:
    """Why the new revision is worse than the rules allow; empty when it is not, or when too little was served to say.

    Errors count only where the old revision has a smaller share of them, so that a bad client fails no rollout.
    """
    if rules is None or new.requests < rules.min_requests:
        return ""
    if new.failed_percent > rules.max_error_percent and new.failed_percent > old.failed_percent:
        return (
            f"{new.failed_percent:.1f} % of its {new.requests} requests failed, {old.failed_percent:.1f} % before; "
            f"spec.rollout.analysis.maxErrorPercent is {rules.max_error_percent}"
        )
    allowed = old.ttft_s * (1 + rules.max_ttft_regression_percent / 100)
    if rules.max_ttft_regression_percent and old.ttft_s and new.ttft_s > allowed:
        return (
            f"its first token takes {new.ttft_s:.2f} s, {old.ttft_s:.2f} s before; "
            f"spec.rollout.analysis.maxTtftRegressionPercent is {rules.max_ttft_regression_percent}"
        )
    return ""


def _compared(seen: Observed, current: str) -> tuple[RevisionTraffic, RevisionTraffic]:
    """What the new revision and the others served since the step began. Others without a first token since then are
    compared by the mean of all their first tokens."""
    others = [r for r in seen.replicas if r.revision != current]
    old = of(others, seen.served_before)
    old = old if old.ttft_s else replace(old, ttft_s=of(others, {}).ttft_s)
    return of(seen.of(current), seen.served_before), old


def of(replicas: Iterable[Replica], before: Mapping[str, ServedTotals]) -> RevisionTraffic:
    """What these replicas served, as far as they were read, beyond what they had served before, by uid."""
    said = [since(before, r) for r in replicas]
    first_tokens = sum(s.first_tokens for s in said)
    return RevisionTraffic(
        requests=sum(s.answered for s in said),
        failed=sum(s.failed for s in said),
        ttft_s=sum(s.ttft_s for s in said) / first_tokens if first_tokens else 0.0,
    )


def _step(seen: Observed, current: str) -> int:
    """The step in status, 0 when it is of another revision."""
    before = seen.status.rollout
    return (before.step or 0) if before.current_revision == current else 0


def _others(seen: Observed, current: str) -> bool:
    """Whether another revision still has replicas."""
    return any(w.replicas for w in seen.workloads if w.revision != current) or any(
        r.live and r.revision != current for r in seen.replicas
    )
