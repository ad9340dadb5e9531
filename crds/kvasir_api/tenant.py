"""Tenant `serving.kvasir.dev/v1alpha1`: which keys one client of a namespace has, and how much it may have of its services.

The gateways enforce it. The CRD is generated from these models; the operator parses objects into them and publishes
what gateways need (`tenant_keys`).
"""

from pydantic import Field

from kvasir_api.crd_types import CrdObject, Name, ShortName
from kvasir_api.option_fields import option
from kvasir_api.status import Condition

MOST_SERVICES = 256
MOST_RATE = 1_000_000_000


class TenantLimits(CrdObject):
    """How much a tenant may send; 0 is without a limit."""

    requests_per_minute: int = option(
        0, "Requests per minute, of which as many may come at once; 0 is without a limit.", ge=0, le=MOST_RATE
    )
    tokens_per_minute: int = option(
        0,
        "Tokens per minute, of prompts and answers; 0 is without a limit. A prompt counts by its length when it comes, and all by what the replica counted when the answer ended.",
        ge=0,
        le=MOST_RATE,
    )
    concurrent_requests: int = option(
        0, "Requests that run or wait at once, at all gateways together; 0 is without a limit.", ge=0, le=1_000_000
    )


class TenantSpec(CrdObject):
    """One tenant."""

    secret_name: Name = option(
        ...,
        'Secret of the namespace whose values are keys, one per line. It has the label serving.kvasir.dev/tenant-keys: "true", and the operator may read it where the ClusterRole kvasir-tenant-keys is bound to it.',
    )
    entry: str = option(
        "",
        "The one entry of the Secret that has the tenant's keys; empty takes all entries.",
        max_length=253,
        pattern=r"^[-._a-zA-Z0-9]*$",
    )
    grace_seconds: int = option(
        0,
        "How long a key is still accepted after it left the Secret; 0 ends it with the next reading.",
        unit="seconds",
        ge=0,
        le=2_592_000,
    )
    services: list[ShortName] = option(
        [],
        "InferenceServices of the namespace, and external backends of its routes, that the tenant may use and sees in lists of models; empty means all.",
        max_length=MOST_SERVICES,
        list_type="set",
    )
    limits: TenantLimits = option(TenantLimits(), "How much the tenant may send, over all services.")
    priority: int | None = option(
        None,
        "The most urgent priority of the tenant's requests, and that of requests without one; lower is more urgent. Default: the request's own.",
        ge=-100,
        le=100,
    )
    weight: int = option(1, "Its share among tenants whose requests wait at a gateway for a replica.", ge=1, le=1000)


class TenantStatus(CrdObject):
    """What the operator did with the tenant."""

    keys: int = option(0, "Keys that gateways accept, those in their grace included.", ge=0, le=1_000_000)
    conditions: list[Condition] = option(
        [], "Ready: whether gateways accept the keys, and why not.", max_length=8, list_key="type"
    )


class Tenant(CrdObject):
    """A client of the namespace's services, with keys and limits that the gateways enforce."""

    spec: TenantSpec = option(..., "Keys and limits.")
    status: TenantStatus = Field(TenantStatus(), description="What the operator did with the tenant.")
