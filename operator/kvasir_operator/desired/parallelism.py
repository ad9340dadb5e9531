"""Of how many pods a replica is where spec.parallelism is Auto: the fewest that hold the model. Called by `resolve.py`.

What was chosen holds while there are replicas of it, or nothing is known of the model, as long as the spec requests the
same pods: a forecast that another version of the operator makes replaces none.
"""

from dataclasses import dataclass, replace

from kvasir_api.layouts import LayoutForecast
from kvasir_api.pod_layouts import over_pods
from kvasir_api.quantity import parse
from kvasir_api.speculation import draft_model
from kvasir_api.status import MOST
from kvasir_operator.desired import fit
from kvasir_operator.observed.service import Observed


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLayout:
    """nodes: pods of a replica. why: a sentence."""

    nodes: int
    why: str


def layout(seen: Observed, hash_: str) -> PodLayout | None:
    """What is chosen for a service without an `obstacle`; None where the spec chooses itself. hash_: of the pods of the
    spec as it was written."""
    if seen.spec.parallelism != "Auto":
        return None
    before = seen.status.rollout.nodes if seen.status.rollout.pod_hash == hash_ else None
    known = fit.facts(seen)
    if known is None:
        why = "it stays so while nothing is known of the model" if before else "nothing is known of the model"
        return PodLayout(nodes=before or 1, why=why)
    memory = seen.spec.resources.memory
    found = over_pods(known, seen.spec.runtime, min(int(parse(memory)), MOST))
    new = next((one.layout.stages for one in found if one.chosen), 1)
    if before and before != new and any(r.live and r.assigned for r in seen.replicas):
        return PodLayout(nodes=before, why=f"replicas have them; new pods would be {new}: {_why(found, new, memory)}")
    return PodLayout(nodes=new, why=_why(found, new, memory))


def obstacle(seen: Observed) -> str:
    """Why nothing can be chosen for a service, as the path of a field and what is wrong; empty where something can."""
    runtime = seen.spec.runtime
    if seen.spec.parallelism != "Auto":
        return ""
    if fit.on_accelerator(seen.spec):
        return "resources: with an accelerator one device computes, and spec.parallelism chooses pods on processors"
    if (runtime.ranks, runtime.nnodes) != (1, 1):
        return "runtime: spec.parallelism is Auto and sizes of ranks are set; leave out one of both"
    if runtime.kv_host_bytes:
        return "runtime.kvHostBytes: needs one rank, and spec.parallelism Auto may choose several"
    if draft_model(runtime.speculation):
        return "runtime.speculation: a draft model is not divided, and spec.parallelism Auto may choose several pods"
    return ""


def laid_out(seen: Observed, nodes: int | None) -> Observed:
    """The service as if its spec had named the pods of a replica: each has a stage of the layers."""
    if nodes is None or nodes == 1:
        return seen
    sizes = {"pipeline_parallel_size": nodes, "nnodes": nodes}
    return replace(seen, spec=seen.spec.model_copy(update={"runtime": seen.spec.runtime.model_copy(update=sizes)}))


def _why(found: tuple[LayoutForecast, ...], nodes: int, memory: str) -> str:
    if not found:
        return "this model is computed by one process"
    if not any(one.chosen for one in found):
        most = max(found, key=lambda one: one.kv_tokens)
        return f"no number of pods up to {len(found)} holds the longest request: {_held(most, memory)} at most"
    tried = [_held(one, memory) for one in found if one.layout.stages in (nodes - 1, nodes)]
    return f"the fewest that hold the longest request ({'; '.join(tried)})"


def _held(one: LayoutForecast, memory: str) -> str:
    pods = "1 pod" if one.layout.stages == 1 else f"{one.layout.stages} pods"
    return f"{pods} of {memory}: {one.kv_tokens:,} tokens of KV cache"
