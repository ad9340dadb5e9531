"""Which tenant a request is of, by its keys, and which services that tenant may use; pure.

A namespace with tenants is closed: its services take requests with a key of one of them. All others are open here, and
their replicas check keys themselves. Keys are compared by SHA-256, so that the time it takes reveals nothing of one.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvasir_api import openai_errors, tenant_keys
from kvasir_api.openai_errors import ApiError
from kvasir_api.tenant_keys import KeyHash, TenantGrant, TenantKeys
from kvasir_gateway.routing_table import RoutedService, RoutingTable

MOST_KEY_BYTES: Final = 4096


class PresentedKeys:
    """The keys of one request: a bearer token, and what Anthropic's clients send. headers: names in lower case."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else ""
        found = (bearer, headers.get("x-api-key", "").strip())
        self.digests = tuple(
            tenant_keys.digest(key.encode("latin-1", "replace")) for key in found if 0 < len(key) <= MOST_KEY_BYTES
        )


class TenantAccess:
    """keys: all tenants, as published."""

    def __init__(self, keys: TenantKeys) -> None:
        self.keys = keys
        self._closed = frozenset(grant.namespace for grant in keys.tenants)
        self._found: dict[tuple[str, bytes], tuple[KeyHash, TenantGrant]] = {
            (grant.namespace, key.sha256): (key, grant) for grant in keys.tenants for key in grant.keys
        }

    @property
    def any_closed(self) -> bool:
        """Whether there is a tenant at all."""
        return bool(self._closed)

    def is_closed(self, namespace: str) -> bool:
        """Whether services of a namespace require a key here."""
        return namespace in self._closed

    def tenant(self, namespace: str, presented: PresentedKeys, now: float) -> TenantGrant | None:
        """Whose key a request has, None for no tenant of that namespace. now: seconds since the epoch."""
        return self._first(namespace, presented, now)

    def owner(self, namespace: str, presented: PresentedKeys, now: float) -> TenantGrant | None:
        """Whose key it is that was found valid just now, also where its grace has ended meanwhile."""
        return self._first(namespace, presented, now) or self._first(namespace, presented, 0.0)

    def may_use(self, service: RoutedService, presented: PresentedKeys, now: float) -> bool:
        """Whether a request for a service is let through to it."""
        if not self.is_closed(service.namespace):
            return True
        grant = self.tenant(service.namespace, presented, now)
        return grant is not None and grant.may_use(service.backend or service.name)

    def visible(self, table: RoutingTable, presented: PresentedKeys, now: float) -> RoutingTable:
        """Only the services that a request may name."""
        if not self._closed:
            return table
        allowed = {service.key for service in table.services if self.may_use(service, presented, now)}
        by_model = {name: service for name, service in table.by_model.items() if service.key in allowed}
        by_qualified = {name: service for name, service in table.by_qualified.items() if service.key in allowed}
        services = tuple(service for service in table.services if service.key in allowed)
        backends = {key: one for key, one in table.backends.items() if self.may_use(one, presented, now)}
        return replace(table, services=services, by_model=by_model, by_qualified=by_qualified, backends=backends)

    def _first(self, namespace: str, presented: PresentedKeys, now: float) -> TenantGrant | None:
        for digest in presented.digests:
            key, grant = self._found.get((namespace, digest), (None, None))
            if key is not None and key.valid(now):
                return grant
        return None

    def refusal(self, presented: PresentedKeys, now: float, missing: ApiError) -> ApiError:
        """Why a service is not found: `missing` for who has a key of some tenant, else that a key is needed. So who has
        none does not learn which names there are."""
        known = any(self.tenant(namespace, presented, now) is not None for namespace in self._closed)
        return missing if known or not self._closed else openai_errors.unauthorized()
