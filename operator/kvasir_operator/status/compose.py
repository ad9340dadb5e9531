"""The whole status of a service, and how long a difference to the one written before may wait."""

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any, Final

from kvasir_api import names
from kvasir_api.served_names import qualified_name
from kvasir_api.state import RuntimeState, SpeculationState
from kvasir_api.status import (
    MOST,
    Address,
    Capacity,
    InferenceServiceStatus,
    ReplicaCounts,
    RolesStatus,
    RolloutStatus,
    two_digits,
)
from kvasir_kube.kinds import Json
from kvasir_operator.observed.service import Observed
from kvasir_operator.stages import RolloutTarget
from kvasir_operator.status import cost, decode_speed
from kvasir_operator.status.cold_start import cold_start
from kvasir_operator.status.conditions import conditions
from kvasir_operator.status.history import history
from kvasir_operator.status.inputs import StatusInputs
from kvasir_operator.status.ranks import ranks
from kvasir_operator.status.summary import Summary, summary

COUNTERS: Final = ("counts", "capacity", "autoscaling")
"""Parts that move with the load; decisions in them are written at once, the rest at most every COUNTERS_S."""
NUMBERS: Final = ("replicas", "readyReplicas", "coldStart", "roles", "ranks")
"""Parts that move with every pod of a rollout; written at most every NUMBERS_S."""
COUNTERS_S: Final = 5.0
NUMBERS_S: Final = 2.0

MAX_CLASSES: Final = 8
NEARLY: Final = 10
"""Percent of drafts kept, by which what the status has may be wrong."""
KEPT: Final = (
    "accelerator_class",
    "unavailable_classes",
    "reductions",
    "nodes",
    "pod_hash",
    "rolled_back_revision",
    "phase",
    "strategy",
    "step",
    "step_since",
    "message",
)
"""Fields of status.rollout that the next choice of a class, or the next step of the rollout, reads. Without a plan, as
while a spec is wrong, no pod changes and all stay as they are."""


def compose(found: StatusInputs) -> tuple[InferenceServiceStatus, Summary]:
    """Status to write now, with the summary behind it."""
    answer = summary(found)
    seen = found.seen
    live = [r for r in seen.replicas if r.live]
    status = InferenceServiceStatus(
        observed_generation=seen.generation,
        conditions=conditions(found, answer),
        selector=f"{names.LABEL_ROLE}={names.ROLE_SERVE},{names.LABEL_SERVICE}={seen.name}",
        replicas=len(live),
        ready_replicas=sum(r.phase == "ready" for r in live),
        desired_replicas=found.wanted,
        model_name=_model_name(seen),
        refused_names=[one.served_name for one in seen.name_conflicts if one.refused],
        counts=_counts(found),
        model=seen.model,
        capacity=_capacity(found),
        cold_start=cold_start(found),
        autoscaling=found.scaler.status,
        roles=_roles(found),
        ranks=ranks(seen),
        rollout=_rollout(found, answer),
        address=Address(url=f"{found.gateway_url.rstrip('/')}/v1" if found.gateway_url else ""),
    )
    return status, answer


def _model_name(seen: Observed) -> str:
    """The name under which clients reach the service."""
    lost = {one.served_name for one in seen.name_conflicts}
    return qualified_name(seen.namespace, seen.name) if seen.served_name in lost else seen.served_name


def document(status: InferenceServiceStatus) -> Json:
    """Status as it is applied: whatever has a value. Server-side apply removes what had one before."""
    written: Json = _valued(status.model_dump(mode="json", by_alias=True, exclude_none=True))
    return written


def pace_s(before: Json, after: Json) -> float:
    """Seconds since the last write before which this difference is not written.

    At once: what a condition says but for its words, a decision of the autoscaler, where a rollout heads, whatever else
    tools wait for.
    """
    known, told = ({k: v for k, v in part.items() if k not in COUNTERS} for part in (before, after))
    decisions = [(part.get("autoscaling") or {}).get("decisions") for part in (before, after)]
    if known == told and decisions[0] == decisions[1]:
        return COUNTERS_S
    return NUMBERS_S if _settled(known) == _settled(told) and decisions[0] == decisions[1] else 0.0


def _valued(node: Any) -> Any:
    """Without empty texts, lists and objects, wherever they are. A number stays: one that is not known is None."""
    if isinstance(node, dict):
        inner = {name: _valued(value) for name, value in node.items()}
        return {name: value for name, value in inner.items() if value not in ("", [], {})}
    return [_valued(item) for item in node] if isinstance(node, list) else node


def _settled(part: Json) -> Json:
    """Without what moves with every pod: their numbers, and the messages of conditions that name them."""
    kept = {name: value for name, value in part.items() if name not in NUMBERS}
    moving = ("updatedReplicas", "history")
    kept["rollout"] = {k: v for k, v in (part.get("rollout") or {}).items() if k not in moving}
    if not any(c["type"] == names.CONDITION_STALLED for c in part.get("conditions") or ()):
        kept["conditions"] = [{**condition, "message": ""} for condition in part.get("conditions") or ()]
    return kept


def _rollout(found: StatusInputs, answer: Summary) -> RolloutStatus:
    before, planned = found.seen.status.rollout, found.plan
    revisions = history(found.seen, found.resolved.revision if planned else None)
    status = RolloutStatus(
        current_revision=found.asked or found.current or before.current_revision,
        updated_replicas=len(found.updated),
        history=revisions if len(revisions) > 1 else [],
        last_good_revision=_last_good(found, answer),
    )
    if planned is None:
        return status.model_copy(update={name: getattr(before, name) for name in KEPT})
    placed, full, rungs = found.resolved.placement, found.resolved.unavailable_classes, found.resolved.reductions
    head, nodes = planned.target, found.resolved.nodes
    return status.model_copy(
        update={
            # Pods of the class before run on, and are kept there if it comes back.
            "accelerator_class": before.accelerator_class if found.resolved.waits else placed.choice.name,
            "unavailable_classes": list(full[-MAX_CLASSES:]),
            "reductions": list(rungs),
            "nodes": nodes,
            "pod_hash": placed.pod_hash if full or rungs or nodes or placed.choice.name else "",
            "rolled_back_revision": head.rolled_back,
            "phase": head.phase or ("Waiting" if found.resolved.waits else None),
            "strategy": head.strategy or None,
            "step": head.step or None,
            "step_since": "" if head.since is None else _when(found, head),
            "message": (head.why or found.resolved.waits)[:1024],
        }
    )


def _when(found: StatusInputs, head: RolloutTarget) -> str:
    """The time at which the step's replicas were ready: now, or as status has it already."""
    before = found.seen.status.rollout
    same = before.step == head.step and before.current_revision == found.asked and before.step_since
    return before.step_since if same else found.now


def _counts(found: StatusInputs) -> ReplicaCounts:
    phases = [r.phase for r in found.seen.replicas if r.ended_at is None]
    fetched = [two_digits(r.downloaded_bytes) for r in found.seen.replicas if r.downloads]
    return ReplicaCounts(
        starting=phases.count("starting") or None,
        loading=phases.count("loading") or None,
        downloaded_bytes=min(fetched, default=None),
        draining=phases.count("draining") or None,
        failed=phases.count("failed") or None,
        unschedulable=phases.count("unschedulable") or None,
    )


def _roles(found: StatusInputs) -> RolesStatus | None:
    having = sum(r.prefill for r in found.seen.replicas if r.live)
    why = found.scaler.prefill_why
    return RolesStatus(prefill=having, message=why[:512]) if having or why else None


def _capacity(found: StatusInputs) -> Capacity:
    """What one replica was measured to hold, as known before while no ready one was read; and what was forecast."""
    measured = _measured(found).model_copy(update=decode_speed.measured(found))
    judged = found.resolved.placement.forecast
    if judged is None:
        return measured
    tokens, held = judged.kv_tokens, measured.kv_tokens
    return measured.model_copy(
        update={
            "fit": judged.verdict,
            "message": judged.message[:1024],
            "predicted_weights_bytes": judged.weights_bytes or None,
            "predicted_kv_tokens": tokens if judged.known else None,
            "predicted_requests": judged.requests if judged.known else None,
            "predicted_prefill_tokens_per_second": two_digits(judged.prefill_tokens_per_s) or None,
            "predicted_stream_tokens_per_second": two_digits(judged.stream_tokens_per_s) or None,
            "predicted_batch_tokens_per_second": two_digits(judged.batch_tokens_per_s) or None,
            "measured_percent": _counted(100 * held / tokens) if tokens and held else None,
            "classes": list(found.resolved.placement.forecasts[:MAX_CLASSES]),
            "cheapest_class": cost.cheapest_class(found),
        }
    )


def _measured(found: StatusInputs) -> Capacity:
    ready = [r for r in found.seen.replicas if r.phase == "ready" and r.reading is not None]
    # Replicas of an older revision may have another class or other options.
    current = [r for r in ready if r.revision == found.current] or ready
    readings = [r.reading for r in current if r.reading is not None]
    if not readings:
        before = found.seen.status.capacity
        kept = (
            "kv_tokens",
            "prefill_tokens_per_second",
            "device",
            "draft_tokens",
            "accepted_draft_percent",
            "no_drafts",
        )
        return Capacity(**{name: getattr(before, name) for name in kept})
    rates = [reading.rates.prefill_tokens_per_s for reading in readings if reading.rates.prefill_tokens_per_s > 0]
    devices = sorted({_serving(reading) for reading in readings})
    return Capacity(
        kv_tokens=_counted(median(reading.kv.capacity_tokens for reading in readings)) or None,
        prefill_tokens_per_second=two_digits(median(rates)) if rates else None,
        device="; ".join(devices)[:253],
        **_drafts([reading.speculation for reading in readings], found.seen.status.capacity),
    )


def _drafts(told: Sequence[SpeculationState], before: Capacity) -> dict[str, Any]:
    """What replicas draft; as it was before while it is nearly that, since each change of a status is written.

    Each number is bounded before the mean: floats that a pod reports may be too large for a sum.
    """
    if not (drafting := [one for one in told if one.draft_tokens > 0]):
        return {"no_drafts": next((one.why for one in told if one.why), "")[:253]}
    tokens = max(1, _counted(fmean([min(one.draft_tokens, MOST) for one in drafting])))
    percent = _counted(100 * fmean([max(0.0, min(one.acceptance_fraction, 1.0)) for one in drafting]))
    known, kept = before.draft_tokens, before.accepted_draft_percent
    return {
        "draft_tokens": known if known is not None and abs(tokens - known) <= 1 else tokens,
        "accepted_draft_percent": kept if kept is not None and abs(percent - kept) < NEARLY else round(percent, -1),
    }


def _serving(reading: RuntimeState) -> str:
    """Device and kernels, and why they are not the best ones."""
    fallback = f" ({reading.fallback})" if reading.fallback else ""
    return f"{reading.device}, {reading.kernels}".strip(", ") + fallback


def _counted(value: float) -> int:
    """Whole, and within what a status may hold, whatever a pod reports."""
    return max(0, min(round(value), MOST))


def _last_good(found: StatusInputs, answer: Summary) -> str:
    if answer.reason == "AllReplicasReady":
        return found.current
    before = found.seen.status.rollout.last_good_revision
    return before if any(revision.id == before for revision in found.seen.revisions) else ""
