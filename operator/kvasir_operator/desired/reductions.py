"""What of spec.runtime is reduced, rung by rung, where replicas cannot start for want of memory, or sequences lose
their KV cache and no replica may be added. Only what spec.reductions lists, in its order. Called by `resolve.py`.

What was reduced holds until the spec requests other pods; then it is tried whole again.
"""

from dataclasses import replace
from typing import Final

from kvasir_api import names
from kvasir_api.options import Reduction, RuntimeOptions
from kvasir_operator.observed.replica import Replica, epoch
from kvasir_operator.observed.service import Observed

PATIENCE_S: Final = 300.0
"""So long all replicas serve, and sequences lose their cache, before another rung is taken."""
OUT_OF_MEMORY_TIMES: Final = 3
TOO_LARGE: Final = (names.TOO_SMALL, names.OUT_OF_DEVICE_MEMORY)
"""Refusals that a smaller replica may not meet. Without a device, or with an old driver, none starts."""


def taken(seen: Observed, hash_: str) -> tuple[Reduction, ...]:
    """Rungs that the status has for the pods of that hash, as far as the spec still lists them."""
    before = seen.status.rollout
    if before.pod_hash != hash_:
        return ()
    return tuple(rung for rung in seen.spec.reductions if rung in before.reductions)


def left(seen: Observed, before: tuple[Reduction, ...]) -> tuple[Reduction, ...]:
    """Rungs that would reduce something and were not taken, the next one first."""
    runtime = reduced(seen, before).spec.runtime
    return tuple(rung for rung in seen.spec.reductions if rung not in before and _reduced(runtime, rung) != runtime)


def with_next(seen: Observed, before: tuple[Reduction, ...]) -> tuple[Reduction, ...]:
    """With the next rung; the same when none is left."""
    following = next(iter(left(seen, before)), None)
    return tuple(rung for rung in seen.spec.reductions if rung in before or rung == following)


def taken_now(seen: Observed, before: tuple[Reduction, ...], *, revision: str, now: float) -> tuple[Reduction, ...]:
    """The same, after a look at the pods of the revision and at the conditions. now: epoch seconds."""
    pods = seen.of(revision)
    failed = bool(pods) and all(r.phase == "failed" and _too_large(r) for r in pods)
    return with_next(seen, before) if failed or _exhausted(seen, revision, now) else before


def reduced(seen: Observed, rungs: tuple[Reduction, ...]) -> Observed:
    """The service as if its spec had asked for less."""
    runtime = seen.spec.runtime
    for rung in rungs:
        runtime = _reduced(runtime, rung)
    return replace(seen, spec=seen.spec.model_copy(update={"runtime": runtime})) if rungs else seen


def _reduced(runtime: RuntimeOptions, rung: Reduction) -> RuntimeOptions:
    """What is in as few bits already, or in fewer, stays as it is."""
    match rung:
        case "FewerSequences":
            return runtime.model_copy(update={"max_sequences": max(1, runtime.max_sequences // 2)})
        case "Int8KvCache" if runtime.kv_cache_dtype == "auto":
            return runtime.model_copy(update={"kv_cache_dtype": "int8"})
        case "Int8Weights" if runtime.quantization in ("auto", "none"):
            return runtime.model_copy(update={"quantization": "int8"})
        case "Int4Weights":
            return runtime.model_copy(update={"quantization": "int4"})
        case _:
            return runtime


def _too_large(replica: Replica) -> bool:
    killed = replica.out_of_memory and replica.restarts >= OUT_OF_MEMORY_TIMES
    return killed or replica.refusal.startswith(TOO_LARGE)


def _exhausted(seen: Observed, revision: str, now: float) -> bool:
    """Whether sequences have lost their KV cache for long, while all replicas serve and none may be added. One of
    another revision may not have what was reduced already."""
    there = {c.type: c.last_transition_time for c in seen.status.conditions if c.status == "True"}
    since = epoch(there.get(names.CONDITION_KV_CACHE_EXHAUSTED))
    rules = seen.spec.autoscaling
    if rules is not None and rules.mode == "Active" and names.CONDITION_SCALING_AT_MAX not in there:
        return False
    live = [r for r in seen.replicas if r.live]
    began = [r.ready_at if r.phase == "ready" and r.revision == revision else None for r in live]
    return (
        since is not None and bool(began) and all(at is not None and now - max(at, since) >= PATIENCE_S for at in began)
    )
