"""The JSON schema of the chart's values, by which Helm refuses what is misspelt or of another type; for `chart`."""

from typing import Any, Final

OPTIONAL: Final = {
    "networkPolicies": "Whether network policies surround operator and gateway.",
    "monitoring": "Whether monitors of the Prometheus operator come with it; its kinds must be known.",
}
SERVICE_TYPE: Final = "^(ClusterIP|NodePort|LoadBalancer)?$"
QUANTITY: Final = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"


def schema() -> dict[str, Any]:
    """The schema of all values; each that is set as one has a description."""

    def shape(properties: dict[str, Any]) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": False, "properties": properties}

    def told(what: str, **rest: Any) -> dict[str, Any]:
        return {"type": "string", **rest, "description": what}

    def several(what: str, **rest: Any) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "string", "minLength": 1, **rest}, "description": what}

    def pods(what: str) -> dict[str, Any]:
        return {"type": "integer", "minimum": 1, "maximum": 20, "description": what}

    def words(what: str) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": {"type": "string"}, "description": what}

    def of_kubernetes(what: str) -> dict[str, Any]:
        return {"type": "object", "description": f"{what}, as pods have it."}

    def switch(what: str) -> dict[str, Any]:
        return shape({"enabled": {"type": "boolean", "description": what}})

    amounts = {"type": "object", "additionalProperties": {"type": ["string", "integer"], "pattern": QUANTITY}}
    asked = {"description": "What the container asks of its node, by resource.", **amounts}
    limits = {"description": "What the container may take at most, by resource.", **amounts}
    resources = shape({"requests": asked, "limits": limits})
    arguments = several("Further arguments of its command.")
    affinity = {key: of_kubernetes(f"The pods' {key}") for key in ("nodeAffinity", "podAffinity", "podAntiAffinity")}
    placement = {
        "priorityClassName": told("PriorityClass of the pods; empty names none.", maxLength=253),
        "nodeSelector": words("Labels that nodes of the pods have."),
        "tolerations": {
            "type": "array",
            "items": {"type": "object"},
            "description": "Taints that the pods bear, as pods have them.",
        },
        "affinity": shape(affinity),
    }
    service = {
        "type": told("Type of the gateway's Service; empty is ClusterIP.", pattern=SERVICE_TYPE),
        "annotations": words("Annotations of the gateway's Service, which load balancers of clouds read."),
        "loadBalancerSourceRanges": several("Networks whose clients a load balancer lets in; empty means all."),
    }
    optional = {value: switch(what) for value, what in OPTIONAL.items()}
    optional["monitoring"]["properties"]["labels"] = words(
        "Further labels of monitors, rules and dashboards, by which a Prometheus or Grafana selects them."
    )
    certificate = told(
        "Secret with the certificate (kubernetes.io/tls) by which the gateway speaks HTTPS at port 443; empty: HTTP.",
        maxLength=253,
    )
    properties = {
        "images": shape(
            {
                "registry": told("Before each image's name; ends with a slash.", pattern="^$|/$"),
                "tag": told("Tag of our images; empty takes the chart's appVersion.", maxLength=128),
                "pullSecrets": several(
                    "Secrets of the release's namespace with which its images are pulled; services have their own."
                ),
            }
        ),
        "crds": shape(
            {"install": {"type": "boolean", "description": "Whether the definitions come with this release."}}
        ),
        "shared": shape(
            {
                "install": {
                    "type": "boolean",
                    "description": "Whether what all releases of a cluster share comes with this one: roles of"
                    " people and for tenants' keys, the policy on limits of namespaces.",
                }
            }
        ),
        "watchNamespace": told("Serve only this namespace; empty serves all.", maxLength=63),
        **optional,
        "operator": shape(
            {
                "replicas": pods("Operators, of which the holder of the Lease acts."),
                "resources": resources,
                "allowModelDirs": several("Directories of nodes below which file:// models may lie.", pattern="^/"),
                "podTls": {
                    "type": "boolean",
                    "description": "Whether gateways and operator reach replicas by TLS.",
                },
                "extraArgs": arguments,
                **placement,
            }
        ),
        "gateway": shape(
            {
                "replicas": pods("Gateways, all of which serve."),
                "envoy": shape({"image": told("Image of Envoy, whole.", minLength=1), "resources": resources}),
                "picker": shape({"resources": resources, "extraArgs": arguments}),
                "relay": shape({"resources": resources}),
                "service": shape(service),
                "tls": shape({"secretName": certificate}),
                **placement,
            }
        ),
        "global": {"type": "object", "description": "Of charts that have this one as a part; nothing here reads it."},
    }
    return {"$schema": "http://json-schema.org/draft-07/schema#", **shape(properties)}
