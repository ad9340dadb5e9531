"""Of how many ranks and pods a replica is. Called by `resolve.py`.

With accelerators it has a rank for each of them. Where spec.parallelism is Auto it has the fewest pods that hold the
model. What was chosen holds while there are replicas of it, or nothing is known of the model, as long as the spec
requests the same pods: a forecast that another version of the operator makes replaces none.
"""

from dataclasses import dataclass, replace

from kvasir_api.layouts import LayoutForecast
from kvasir_api.options import RuntimeOptions
from kvasir_api.pod_layouts import over_pods, refusal
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
    """Why no ranks follow from the spec, as the path of a field and what is wrong; empty where they do."""
    runtime, devices = seen.spec.runtime, seen.spec.resources.accelerator.count
    if seen.spec.parallelism != "Auto":
        return _of_devices(runtime, devices) if fit.on_accelerator(seen.spec) else ""
    if fit.on_accelerator(seen.spec):
        return "resources: spec.parallelism chooses pods on processors; accelerators have resources.accelerator.count"
    if (runtime.ranks, runtime.nnodes) != (1, 1):
        return "runtime: spec.parallelism is Auto and sizes of ranks are set; leave out one of both"
    if runtime.kv_host_bytes:
        return "runtime.kvHostBytes: needs one rank, and spec.parallelism Auto may choose several"
    if draft_model(runtime.speculation):
        return "runtime.speculation: a draft model is not divided, and spec.parallelism Auto may choose several pods"
    return ""


def _of_devices(runtime: RuntimeOptions, devices: int) -> str:
    """devices: of a replica, 0 where claims give them."""
    if devices and runtime.tensor_parallel_size != devices:
        return (
            f"runtime.tensorParallelSize: {runtime.tensor_parallel_size} ranks for {devices} devices of an accelerator"
        )
    if runtime.ranks > 1 and runtime.kv_host_bytes:
        return "runtime.kvHostBytes: needs one rank, and each device has one"
    why = refusal(runtime, "cuda")
    return f"runtime: {why}" if why else ""


def over_devices(seen: Observed) -> Observed:
    """The service as if its spec had named a rank for each of the accelerators of a replica."""
    devices, runtime = seen.spec.resources.accelerator.count, seen.spec.runtime
    if devices < 2 or runtime.tensor_parallel_size > 1:
        return seen
    runtime = runtime.model_copy(update={"tensor_parallel_size": devices})
    return replace(seen, spec=seen.spec.model_copy(update={"runtime": runtime}))


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
