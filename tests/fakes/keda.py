"""KEDA as far as our samples use it: the definition of a ScaledObject with those fields alone, and what its Prometheus
trigger makes of an answer (`pkg/scalers/prometheus_scaler.go`, `pkg/scaling/executor`, v2.17 and later).
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from kvasir_kube.kinds import Json


def _object(required: tuple[str, ...] = (), **properties: Any) -> Json:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def _count(least: int) -> Json:
    return {"type": "integer", "format": "int32", "minimum": least}


_TEXT: Final = {"type": "string"}
_BEHAVIOR: Final = _object(scaleDown=_object(stabilizationWindowSeconds={"type": "integer", "format": "int32"}))
SPEC: Final = _object(
    ("scaleTargetRef", "triggers"),
    scaleTargetRef=_object(("name",), apiVersion=_TEXT, kind=_TEXT, name={"type": "string", "minLength": 1}),
    minReplicaCount=_count(0),
    maxReplicaCount=_count(1),
    pollingInterval=_count(1),
    cooldownPeriod=_count(0),
    advanced=_object(horizontalPodAutoscalerConfig=_object(behavior=_BEHAVIOR)),
    triggers={
        "type": "array",
        "items": _object(
            ("metadata", "type"),
            type=_TEXT,
            metricType={"type": "string", "enum": ["AverageValue", "Value", "Utilization"]},
            metadata={"type": "object", "additionalProperties": _TEXT},
        ),
    },
)
DEFINITION: Final[Json] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "scaledobjects.keda.sh"},
    "spec": {
        "group": "keda.sh",
        "scope": "Namespaced",
        "names": {"kind": "ScaledObject", "plural": "scaledobjects", "singular": "scaledobject"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": _object(spec=SPEC)},
            }
        ],
    },
}
QUERY: Final = re.compile(r"max\((?P<metric>\w+)\{(?P<labels>[^}]*)\}\)")


class TriggerError(Exception):
    """KEDA's trigger fails: the HPA gets no value, and nothing is scaled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A Prometheus trigger of a ScaledObject whose Prometheus has scraped just now."""

    metadata: dict[str, str]

    def value(self, metrics: str) -> float:
        """Of the query, from an exposition in the text format. An empty answer is 0 with ignoreNullValues, which is the
        default. Raises TriggerError."""
        query = QUERY.fullmatch(self.metadata["query"])
        if query is None:
            raise ValueError(f"{self.metadata['query']} is not max(metric{{labels}})")
        wanted = set(query["labels"].split(","))
        found = [
            float(value)
            for labels, value in re.findall(rf"^{query['metric']}\{{(.*)\}} (\S+)$", metrics, re.MULTILINE)
            if wanted <= set(labels.split(","))
        ]
        if not found:
            if self.metadata.get("ignoreNullValues", "true") == "true":
                return 0.0
            raise TriggerError("the result is empty")
        return max(found)

    def active(self, value: float) -> bool:
        """Whether the target may not be at zero."""
        return value > float(self.metadata.get("activationThreshold", 0))
