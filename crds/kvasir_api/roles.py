"""How many replicas compute prompts for the others: the part `spec.roles` of an InferenceService. Used by `service` alone
to make the resource, and by the operator to read it.
"""

from kvasir_api.autoscaling import MAX_REPLICAS
from kvasir_api.crd_types import CrdObject, validation_rules
from kvasir_api.option_fields import option


class PrefillRole(CrdObject):
    """Bounds of their number."""

    model_config = validation_rules(
        (
            "self.?minReplicas.orValue(1) <= self.?maxReplicas.orValue(1)",
            "roles.prefill.minReplicas must not exceed maxReplicas",
            ".minReplicas",
        ),
    )

    min_replicas: int = option(1, "No fewer, while one is left for answers.", unit="replicas", ge=0, le=MAX_REPLICAS)
    max_replicas: int = option(1, "No more; between both prompts decide.", unit="replicas", ge=1, le=MAX_REPLICAS)


class Roles(CrdObject):
    """What some of the replicas are for."""

    prefill: PrefillRole | None = option(None, "How many compute prompts for the others.")
