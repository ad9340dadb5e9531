"""The processes that compute a model together, replica by replica, as status lists them. Called by `compose`."""

from typing import Final

from kvasir_api.rank_state import RankState
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import Observed

MOST_LISTED: Final = 16


def ranks(seen: Observed) -> list[str]:
    """A line for each rank of replicas that have several and were read; those that are not alive first."""
    found = [(r, one) for r in seen.replicas if r.live and r.reading is not None for one in r.reading.ranks]
    lines = [(_is_alive(r, one), _line(r, one)) for r, one in found]
    return [line for _, line in sorted(lines, key=lambda line: line[0])][:MOST_LISTED]


def _is_alive(r: Replica, one: RankState) -> bool:
    """By what node 0 knows, and by the pod where it runs: node 0 may be the last to know."""
    pod = _pod(r, one)
    return one.alive and pod is not None and not pod.terminating and pod.phase != "failed"


def _line(r: Replica, one: RankState) -> str:
    pod, num_bytes = _pod(r, one), one.weights_bytes + one.kv_bytes
    where = "no pod" if pod is None else f"{pod.name} on {pod.node}" if pod.node else pod.name
    held = f", {num_bytes / 1e9:.2g} GB" if num_bytes else ""
    said = "alive" if _is_alive(r, one) else "missing"
    return f"{r.name} rank {one.rank}: {said}, stage {one.stage}, shard {one.shard}, node {one.node} ({where}){held}"


def _pod(r: Replica, one: RankState) -> Replica | None:
    """Of the node where a rank is; that of a node behind the first ends in its number."""
    if one.node == 0:
        return r
    return next((node for node in r.nodes if node.name.rpartition("-")[2] == str(one.node)), None)
