"""Which replicas compute prompts for the others: the role of a pod, by an annotation that gateways read.

No pod is made or restarted for a role, and what a pod was given before goes on there. Blocks move within a revision
alone, so each revision has its own share of the role; of its ready replicas one is left for answers. A replica that has
the role keeps it; when it is lost, or no longer ready, another one takes its place.
"""

from collections import Counter
from collections.abc import Sequence

from kvasir_operator.observed.replica import Replica
from kvasir_operator.rollout.drain import cost_s
from kvasir_operator.stages import PodAction


def actions(replicas: Sequence[Replica], *, current: str, count: int) -> tuple[PodAction, ...]:
    """What to do now. current: the revision that is to get all replicas. count: how many are to have the role."""
    ready = sorted((r for r in replicas if r.phase == "ready" and r.live and _hands_over(r)), key=_order)
    left, chosen = _shares(Counter(r.revision for r in ready), current, count), set()
    for r in ready:
        if left[r.revision]:
            left[r.revision] -= 1
            chosen.add(r.uid)
    gain = [r for r in ready if r.uid in chosen and not r.prefill]
    lose = [r for r in replicas if r.prefill and r.uid not in chosen and r.live and r.phase != "draining"]
    return (
        *(PodAction(verb="prefill", replica=r, why="it computes prompts for the others from now on") for r in gain),
        *(PodAction(verb="decode", replica=r, why="it no longer computes prompts for the others") for r in lose),
    )


def _hands_over(r: Replica) -> bool:
    """Whether its runtime computes prompts for others, and has others compute its own; a silent one is taken to."""
    return r.reading is None or r.reading.kv_prefill


def _order(r: Replica) -> tuple[bool, bool, float, float, str]:
    """Those that have the role, then the one with the least work, then the youngest."""
    return not r.prefill, r.reading is None, cost_s(r.reading), -r.created, r.name


def _shares(ready: Counter[str], current: str, count: int) -> Counter[str]:
    """Replicas with the role by revision, in proportion to those that are ready (by D'Hondt), less than all of each."""
    shares: Counter[str] = Counter()
    for _ in range(count):
        able = [id_ for id_, most in ready.items() if shares[id_] + 1 < most]
        if not able:
            break
        shares[max(able, key=lambda id_: (ready[id_] / (shares[id_] + 1), id_ == current, id_))] += 1
    return shares
