"""What replicas had served when the present step of a rollout began, so that older requests judge no step.

Called by the loop when it observes, never by a decision. Kept in memory: after the operator's restart the new revision
is judged by all that its replicas have served, and the others by what they serve from then on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvasir_api.state import ServedTotals
from kvasir_operator.observed.replica import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBaseline:
    """step: revision and number of the step. totals: by uid, of the replicas that were there when it began. unread:
    those that were silent then: what they report first is what they had served."""

    step: tuple[str, int]
    totals: Mapping[str, ServedTotals] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()


def followed(before: ServedBaseline | None, step: tuple[str, int], replicas: Iterable[Replica]) -> ServedBaseline:
    """The baseline of a step. before: of the last look, None at the first one."""
    found = list(replicas)
    read = [(r, r.reading.served) for r in found if r.reading is not None]
    if before is not None and before.step == step:
        # A replica whose process was started again counts from zero.
        kept = {r.uid: before.totals[r.uid] for r, now in read if _counts_on(before.totals.get(r.uid), now)}
        silent = {uid: totals for uid, totals in before.totals.items() if uid not in {r.uid for r, _ in read}}
        late = {r.uid: now for r, now in read if r.uid in before.unread}
        return ServedBaseline(step=step, totals={**silent, **kept, **late}, unread=before.unread - set(late))
    # Replicas of a new revision are there for its first step: all that they served belongs to it.
    goes_on = before is not None and before.step[0] == step[0]
    older = {r.uid for r in found if goes_on or r.revision != step[0]}
    unread = {r.uid for r in found if r.uid in older and r.reading is None and r.phase in ("ready", "draining")}
    return ServedBaseline(step=step, totals={r.uid: now for r, now in read if r.uid in older}, unread=frozenset(unread))


def since(baseline: Mapping[str, ServedTotals], replica: Replica) -> ServedTotals:
    """What a replica has served since the step began; nothing while it is silent."""
    now = replica.reading.served if replica.reading is not None else ServedTotals()
    then = baseline.get(replica.uid)
    if then is None or not _counts_on(then, now):
        return now
    return ServedTotals(
        answered=now.answered - then.answered,
        failed=max(0, now.failed - then.failed),
        ttft_s=max(0.0, now.ttft_s - then.ttft_s),
        first_tokens=max(0, now.first_tokens - then.first_tokens),
    )


def _counts_on(then: ServedTotals | None, now: ServedTotals) -> bool:
    return then is not None and now.answered >= then.answered
