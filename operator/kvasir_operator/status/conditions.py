"""Conditions from a summary and the faults beside it.

Ready is always present. It is also True beside Reconciling or Stalled while a rollout goes on and a replica serves.
Reconciling, Stalled and faults are present only while True, since generic tools take any False for an illness.
ScalingActive, which people know from a HorizontalPodAutoscaler, is present only while False. A transition time changes
only with the status of its condition.
"""

from collections.abc import Iterable
from typing import Final

from kvasir_api import names
from kvasir_api.served_names import qualified_name
from kvasir_api.speculation import draft_model
from kvasir_api.status import Condition
from kvasir_operator.observed.service import Observed
from kvasir_operator.status import decode_speed
from kvasir_operator.status.inputs import StatusInputs
from kvasir_operator.status.listing import MOST_WORDS, listed
from kvasir_operator.status.missing_nodes import missing_nodes
from kvasir_operator.status.refusals import refusal
from kvasir_operator.status.summary import Summary
from kvasir_operator.status.volume_conflict import volume_conflict

UNEVEN, UNEVEN_LEFT = 0.4, 0.2
"""Imbalance at which the condition begins and ends."""
LEAST_ACCEPTED: Final = 0.3
"""Share of drafted tokens below which drafting costs more than it brings."""
MAX_FIELD: Final = "spec.autoscaling.maxReplicas"
MODES: Final = {"Advisory": "ModeAdvisory", "Paused": "ModePaused", "External": "ModeExternal"}
"""Reasons of modes in which the autoscaler does not set the count."""


def conditions(found: StatusInputs, answer: Summary) -> list[Condition]:
    """All conditions, Ready first."""
    ready = answer.mode == "ready" or (found.rolling_out and bool(found.serving))
    made = [_condition(found, names.CONDITION_READY, answer.reason, answer.message, true=ready)]
    if answer.mode == "reconciling":
        made.append(_condition(found, names.CONDITION_RECONCILING, answer.reason, answer.message))
    if answer.mode == "stalled":
        made.append(_condition(found, names.CONDITION_STALLED, answer.reason, answer.message))
    made += [_condition(found, kind, reason, message) for kind, reason, message in _faults(found)]
    if inactive := _inactive(found):
        made.append(_condition(found, names.CONDITION_SCALING_ACTIVE, *inactive, true=False))
    return made


def _inactive(found: StatusInputs) -> tuple[str, str] | None:
    """Reason and message while the autoscaler does not set the count, though the spec has one; None otherwise."""
    rules = found.seen.spec.autoscaling
    if rules is None:
        return None
    if rules.mode != "Active":
        return MODES[rules.mode], f"spec.autoscaling.mode is {rules.mode}"
    if found.scaler.unread:
        return "ReadingsMissing", "no ready replica has a usable reading, so that the count stays as it is"
    return None


def _faults(found: StatusInputs) -> Iterable[tuple[str, str, str]]:
    """Type, reason and message of each fault that is there now."""
    if found.seen.name_conflicts:
        yield names.CONDITION_NAME_CONFLICT, "NameConflict", _name_conflicts(found.seen)
    if unplaced := found.first("unschedulable"):
        yield names.CONDITION_CAPACITY_LIMITED, "Unschedulable", f"{unplaced.name}: {unplaced.last_words}"
    elif reason := refusal(found.refused_pods):
        yield names.CONDITION_CAPACITY_LIMITED, reason, found.refused_pods
    elif lacking := missing_nodes(found):
        yield names.CONDITION_CAPACITY_LIMITED, "NodesNotMade", lacking
    elif conflict := volume_conflict(found):
        yield names.CONDITION_CAPACITY_LIMITED, "VolumeInUse", conflict
    if worse := _worse(found):
        yield names.CONDITION_DEGRADED, worse[0][0], "; ".join(message for _, message in worse)
    if most := _at_max(found):
        more = f"the load requires more than {found.scaler.most_field or MAX_FIELD} {most}"
        message = f"{more}: status.autoscaling.rawReplicas of them; raise it to serve them"
        yield names.CONDITION_SCALING_AT_MAX, "MaximumReached", message
    if found.scaler.exhausted or (found.scaler.preempting and _said(found, names.CONDITION_KV_CACHE_EXHAUSTED)):
        yield names.CONDITION_KV_CACHE_EXHAUSTED, "SequencesPreempted", _exhausted(found)
    if found.scaler.imbalance > (UNEVEN_LEFT if _said(found, names.CONDITION_IMBALANCED) else UNEVEN):
        message = f"{found.scaler.busiest} has been much fuller than the other replicas for a minute"
        yield names.CONDITION_IMBALANCED, "LoadUneven", f"{message}: gateways that read no load spread requests so"
    if wrong := found.scaler.contradictions:
        said = listed([f"{pod} reports {what}" for pod, what in wrong], "; ")
        yield names.CONDITION_METRICS_STALE, "ReadingsImplausible", f"{said}: its readings are not used"
    elif missing := found.scaler.missing or found.scaler.lost:
        yield names.CONDITION_METRICS_STALE, "ReadingsMissing", f"no answer from {listed(missing)}"


def _name_conflicts(seen: Observed) -> str:
    """The names that the service does not own, and under which one it gets requests."""
    said = []
    for one in seen.name_conflicts:
        field = "servedName" if one.served_name == seen.served_name else "aliases"
        if one.reserved_for:
            what = f"is reserved for namespace {one.reserved_for} (--reserve-model-name of the operator)"
        elif one.holder:
            what = f"is served by InferenceService {one.holder}"
        else:
            what = (
                "belonged to another namespace when this service claimed it, and is free now; to take it over, take it "
                "out of the spec and, when this condition is gone, put it in again"
            )
        said.append(f"spec.model.{field}: {one.served_name} {what}")
    return f"{'; '.join(said)}. Clients reach this service as {qualified_name(seen.namespace, seen.name)}"


def _at_max(found: StatusInputs) -> int:
    """maxReplicas, or that of a schedule, while it keeps replicas from being added; 0 otherwise.

    Once set it holds until less than the maximum would do, or a load at the edge would write with every reading.
    """
    rules, now = found.seen.spec.autoscaling, found.scaler.status
    most = found.scaler.most or (rules.max_replicas if rules is not None else 0)
    if rules is None or rules.mode != "Active" or now is None or now.desired_replicas < most:
        return 0
    return most if now.raw_replicas > most - _said(found, names.CONDITION_SCALING_AT_MAX) else 0


def _said(found: StatusInputs, kind: str) -> bool:
    """Whether the status has the condition already: then it ends at a lower mark than it began at."""
    return any(c.type == kind and c.status == "True" for c in found.seen.status.conditions)


def _exhausted(found: StatusInputs) -> str:
    """The message of KvCacheExhausted: the rung of the ladder that is next."""
    trouble = "sequences lose their KV cache to others and are computed again"
    rules = found.seen.spec.autoscaling
    if rules is not None and rules.mode == "Active" and not _at_max(found):
        return f"{trouble}: the autoscaler adds a replica"
    if rest := found.resolved.reductions_left:
        return f"{trouble}: {rest[0]} of spec.reductions is taken when that goes on for five minutes"
    field = (found.scaler.most_field or MAX_FIELD) if rules is not None else "spec.replicas"
    return f"{trouble}: raise {field}, lower spec.runtime.maxSequences, or set spec.runtime.kvCacheDtype to fewer bits"


def _worse(found: StatusInputs) -> list[tuple[str, str]]:
    """Reasons and messages for which a service that serves does so worse than it should, the gravest first."""
    serving = found.serving
    failed = found.first("failed") or found.ended
    worse = []
    if failed and serving:
        reason = "DeviceFailed" if failed.device_fault else "ReplicasFailing"
        worse.append((reason, f"{failed.name}: {failed.last_words or 'no reason was reported'}"))
    lost = [f"{r.name} on node {r.node} is quarantined with its device: {r.last_words}" for r in found.seen.quarantined]
    lost += [f"{r.name}: {r.unhealthy_words}" for r in serving if r.unhealthy]
    worse += [("DeviceFailed", words) for words in lost]
    locked = [r for r in serving if r.reading is not None and r.reading.locked]
    if locked and (said := locked[0].reading):
        how_many = f"{len(locked)} of {len(serving)} ready replicas reject every request"
        worse.append(("KeysMissing", f"{how_many}: {said.locked} ({found.missing_key})"))
    slow = [r for r in serving if r.reading is not None and r.reading.fallback]
    if slow and (said := slow[0].reading):
        message = f"{len(slow)} of {len(serving)} ready replicas compute with slower kernels ({said.kernels})"
        worse.append(("SlowerKernels", f"{message}, as {said.fallback}"))
    drafter = found.seen.spec.runtime.speculation
    if found.scaler.acceptance < LEAST_ACCEPTED and drafter != "auto":  # which drafts no more than pays
        kept = f"of the tokens that replicas draft ahead {found.scaler.acceptance:.0%} are kept"
        advice = f"runtime.speculation: auto drafts only while that pays, {drafter} in every step"
        if model := draft_model(drafter):
            advice = f"drafts that do not pay are left out, but {model} takes memory: name a nearer model or auto"
        elif drafter == "mtp":
            advice = "drafts that do not pay are left out, but the layer that drafts takes memory: name suffix or off"
        worse.append(("LowAcceptance", f"{kept}; {advice}"))
    if rungs := found.resolved.reductions:
        less = f"replicas run with less than the spec requests ({', '.join(rungs)} of spec.reductions)"
        worse.append(("Reduced", f"{less}, so that they start and keep their sequences"))
    if slowed := decode_speed.slow(found):
        worse.append(("SlowDecode", decode_speed.message(found, slowed, len(serving))))
    return worse


def _condition(found: StatusInputs, kind: str, reason: str, message: str, *, true: bool = True) -> Condition:
    status = "True" if true else "False"
    before = next((c for c in found.seen.status.conditions if c.type == kind), None)
    unchanged = before is not None and before.status == status
    return Condition.model_validate(
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message[:MOST_WORDS],
            "lastTransitionTime": before.last_transition_time if before and unchanged else found.now,
            "observedGeneration": found.seen.generation,
        }
    )
