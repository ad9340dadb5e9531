"""What generic tools demand of a status, as flux's checker of conditions, kstatus and the API conventions say it: every
status that a test sees is held to it, whoever wrote the test."""

from datetime import datetime

from kvasir_api import names
from kvasir_kube.kinds import Json

MAY_BE_FALSE = ("Ready", "ScalingActive")
"""ScalingActive is there only while it is False, as a HorizontalPodAutoscaler has it; no generic tool reads it."""


def breaches(obj: Json) -> list[str]:
    """What of the status no tool could rely on; nothing for an object that has none yet."""
    status = obj.get("status") or {}
    if not status:
        return []
    generation = (obj.get("metadata") or {}).get("generation", status.get("observedGeneration", 0))
    conditions = status.get("conditions") or []
    true = {c["type"] for c in conditions if c["status"] == "True"}
    found = [_of(condition, generation) for condition in conditions]
    said = [
        ("a type is there twice", len({c["type"] for c in conditions}) < len(conditions)),
        ("Ready is missing", "Ready" not in {c["type"] for c in conditions}),
        ("Ready without a replica that serves", "Ready" in true and _starved(status)),
        ("Reconciling beside Stalled", {"Reconciling", "Stalled"} <= true),
        ("neither ready nor working nor stalled", not true & {"Ready", "Reconciling", "Stalled"}),
        ("observedGeneration is ahead", status.get("observedGeneration", 0) > generation),
        (
            "a condition is of another generation than the status",
            any(c["observedGeneration"] != status.get("observedGeneration") for c in conditions),
        ),
    ]
    return [sentence for sentence, broken in said if broken] + [one for some in found for one in some]


def _starved(status: Json) -> bool:
    """Whether replicas are wanted and none takes requests."""
    return bool(status.get("desiredReplicas")) and not status.get("readyReplicas")


def _of(condition: Json, generation: int) -> list[str]:
    """Of one condition by itself."""
    kind = condition["type"]
    said = [
        ("is there though it is not True", kind not in MAY_BE_FALSE and condition["status"] != "True"),
        ("has a reason that is not published", condition["reason"] not in names.REASONS),
        ("is of a generation that is yet to come", condition["observedGeneration"] > generation),
        ("has no words", not condition.get("message")),
        ("has no time", datetime.fromisoformat(condition["lastTransitionTime"]).tzinfo is None),
    ]
    return [f"{kind} {sentence}" for sentence, broken in said if broken]
