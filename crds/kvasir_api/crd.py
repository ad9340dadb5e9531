"""The CustomResourceDefinitions, built from the models. Pure; written to files by generate.py."""

import re
from typing import Any, Final

from kvasir_api import names
from kvasir_api.accelerator import AcceleratorClass
from kvasir_api.model_route import ModelRoute
from kvasir_api.schema import structural
from kvasir_api.service import InferenceService
from kvasir_api.tenant import Tenant

FILLED_IN: Final = frozenset({"spec.replicas"})
"""Fields whose default the API server stores: the scale subresource takes an absent number for none."""
MAX_BYTES: Final = 64_000
"""Larger definitions break client-side kubectl apply and are slow to read for every client."""


def definition() -> dict[str, Any]:
    """The CRD of InferenceService as a document."""
    short = {"shortNames": [names.SHORT_NAME], "categories": [names.CATEGORY]}
    return _document(names.KIND, names.PLURAL, "Namespaced", short, _version())


def accelerators() -> dict[str, Any]:
    """The CRD of AcceleratorClass as a document."""
    schema = structural(AcceleratorClass)
    schema["properties"] = {**_type_meta(names.ACCELERATOR_KIND), **schema["properties"]}
    schema["required"] = ["spec"]
    columns = [
        _column("Resource", "string", ".spec.resourceName", "Extended resource of its nodes."),
        _column("Memory", "string", ".spec.memory", "Memory of one device."),
        _column("Price", "integer", ".spec.pricePerHour", "Price of one device and hour."),
        _column("Spot", "boolean", ".spec.spot", "Whether its nodes may vanish."),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since it was created."),
    ]
    version = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": schema},
    }
    return _document(names.ACCELERATOR_KIND, names.ACCELERATOR_PLURAL, "Cluster", {}, version)


def tenants() -> dict[str, Any]:
    """The CRD of Tenant as a document."""
    schema = structural(Tenant)
    schema["properties"] = {**_type_meta(names.TENANT_KIND), **schema["properties"]}
    schema["properties"]["status"].pop("default", None)
    _strip_status(schema["properties"]["status"])
    _strip_spec(schema["properties"]["spec"], "spec")
    schema["required"] = ["spec"]
    ready = f".status.conditions[?(@.type=='{names.CONDITION_READY}')]"
    columns = [
        _column("Ready", "string", f"{ready}.status", "Whether gateways accept its keys."),
        _column("Keys", "integer", ".status.keys", "Keys that gateways accept."),
        _column("Requests", "integer", ".spec.limits.requestsPerMinute", "Requests per minute, 0 without a limit."),
        _column("Tokens", "integer", ".spec.limits.tokensPerMinute", "Tokens per minute, 0 without a limit."),
        _column("Reason", "string", f"{ready}.reason", "Why its keys are accepted or not."),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since it was created."),
    ]
    version = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": schema},
    }
    return _document(names.TENANT_KIND, names.TENANT_PLURAL, "Namespaced", {"categories": [names.CATEGORY]}, version)


def model_routes() -> dict[str, Any]:
    """The CRD of ModelRoute as a document."""
    schema = structural(ModelRoute)
    schema["properties"] = {**_type_meta(names.ROUTE_KIND), **schema["properties"]}
    schema["required"] = ["spec"]
    schema["properties"]["status"].pop("default", None)
    _strip_status(schema["properties"]["status"])
    _strip_spec(schema["properties"]["spec"], "spec")
    columns = [
        _column("Model", "string", ".spec.modelName", "Name that clients request; empty: the route's own."),
        _column("Accepted", "string", ".status.conditions[?(@.type=='Accepted')].status", "Whether requests go by it."),
        _column(
            "Resolved", "string", ".status.conditions[?(@.type=='ResolvedRefs')].status", "Whether its services exist."
        ),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since it was created."),
    ]
    version = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": schema},
    }
    return _document(names.ROUTE_KIND, names.ROUTE_PLURAL, "Namespaced", {"categories": [names.CATEGORY]}, version)


def _document(
    kind: str, plural: str, scope: str, more_names: dict[str, Any], version: dict[str, Any]
) -> dict[str, Any]:
    """A definition with its one version."""
    called = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower(), **more_names}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.GROUP}", "labels": {names.LABEL_PART_OF: names.PART_OF}},
        "spec": {"group": names.GROUP, "scope": scope, "names": called, "versions": [version]},
    }


def _type_meta(kind: str) -> dict[str, Any]:
    return {
        "apiVersion": {"type": "string", "description": f"Version of this representation: {names.API_VERSION}."},
        "kind": {"type": "string", "description": f"Kind of this object: {kind}."},
        "metadata": {"type": "object"},  # the API server's own schema; it forbids saying more here
    }


def _version() -> dict[str, Any]:
    return {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": _columns(),
        "schema": {"openAPIV3Schema": _schema()},
    }


def _schema() -> dict[str, Any]:
    schema = structural(InferenceService)
    schema["properties"] = {**_type_meta(names.KIND), **schema["properties"]}
    # A default status would make an unobserved object look observed.
    schema["properties"]["status"].pop("default", None)
    _strip_status(schema["properties"]["status"])
    _strip_spec(schema["properties"]["spec"], "spec")
    schema["x-kubernetes-validations"] = [
        {
            "rule": "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,50}[a-z0-9])?$')",
            "message": "metadata.name must be a DNS label of at most 52 characters that starts with a letter: pods and services are named after it",
        }
    ]
    return schema


def _strip_spec(node: dict[str, Any], path: str) -> None:
    """A stored spec has what its author wrote; the operator knows the defaults, and the descriptions name them. Where a
    name ends in the unit, they do not name that again.

    Items of lists keep theirs, since the API server merges some by a field that has one.
    """
    for name, child in node.get("properties", {}).items():
        here = f"{path}.{name}"
        if here not in FILLED_IN:
            child.pop("default", None)
        if unit := re.search(r" Unit: (\w+)\.", text := child.get("description", "")):
            child["description"] = text.replace(unit[0], "") if name.lower().endswith(unit[1]) else text
        _strip_spec(child, here)


def _strip_status(node: dict[str, Any]) -> None:
    for child in node.get("properties", {}).values():
        child.pop("default", None)
        for fact in (" Unit: ", " Range: ", " Default: "):  # the name has the unit
            child["description"] = child["description"].split(fact)[0]
        _strip_status(child)
    if "items" in node:
        _strip_status(node["items"])


def _columns() -> list[dict[str, Any]]:
    ready = f".status.conditions[?(@.type=='{names.CONDITION_READY}')]"
    return [
        _column("Model", "string", ".status.modelName", "Name that clients request."),
        _column("Ready", "string", f"{ready}.status", "Whether the service serves."),
        _column("Replicas", "integer", ".status.readyReplicas", "Replicas that take requests."),
        _column("Desired", "integer", ".status.desiredReplicas", "Replicas wanted."),
        _column("GPU", "integer", ".spec.resources.accelerator.count", "GPUs of one replica."),
        _column("Reason", "string", f"{ready}.reason", "Why it is ready or not."),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since it was created."),
        _column(
            "Signal", "string", ".status.autoscaling.bindingSignal", "Signal behind the number of replicas.", wide=True
        ),
        _column(
            "Downloaded", "integer", ".status.counts.downloadedBytes", "Bytes fetched of a starting replica.", wide=True
        ),
        _column("Prefill", "integer", ".status.roles.prefill", "Replicas for prompts.", wide=True),
        _column("Device", "string", ".status.capacity.device", "Device and kernels that serve.", wide=True),
        _column("URL", "string", ".status.address.url", "Base URL for clients.", wide=True),
    ]


def _column(name: str, kind: str, path: str, description: str, *, wide: bool = False) -> dict[str, Any]:
    column = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return {**column, "priority": 1} if wide else column
