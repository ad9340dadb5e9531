"""Admits requests of tenants: their keys, the services they may use, their limits; and follows each until its end.

Called by the picker for each request. The same request comes twice where the relay has it: it counts the first time.
Runs in the picker's event loop; clock and wall time arrive through the constructor.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kvasir_api import names, openai_errors, tenants
from kvasir_api.openai_errors import ApiError
from kvasir_api.tenant_keys import TenantGrant, TenantKeys
from kvasir_gateway.picker import request_parser
from kvasir_gateway.picker.request_audit import RequestAudit, RequestOrigin
from kvasir_gateway.picker.request_parser import ParsedBody
from kvasir_gateway.picker.request_prefix import RequestPrefix
from kvasir_gateway.placements import MOST_USED, TenantUse
from kvasir_gateway.rate_limits import MINUTE_S, RateLimits
from kvasir_gateway.routing_table import RoutedService, RoutingTable
from kvasir_gateway.tenant_access import PresentedKeys, TenantAccess

MOST_EARLY_ENDS: Final = 4096
MOST_EARLY_USES: Final = 4096
EXPIRY_S: Final = 1.0
"""Between two searches for requests whose ends were lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sends a request for a service. grant: None where the namespace is open. headers: the request's own, with the
    tenant's name and priority where the gateway sets them; added: of these what differs."""

    grant: TenantGrant | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, str] = field(default_factory=dict)

    @property
    def turn(self) -> bytes:
        """By what its requests take turns with others'; empty where the gateway has not checked who it is."""
        return tenants.salt_of_name(self.grant.id) if self.grant else b""

    @property
    def weight(self) -> int:
        """Its requests that go in one turn."""
        return self.grant.weight if self.grant else 1


class _RunningRequest(NamedTuple):
    """tenant: its id. Times are on the caller's clock."""

    tenant: str
    began_s: float
    until_s: float


class TenantGate:
    """clock: monotonic seconds. wall: seconds since the epoch, by which graces of keys end. publish: sends what counts
    for limits to the other gateways."""

    def __init__(
        self, *, clock: Callable[[], float], wall: Callable[[], float], publish: Callable[[TenantUse], None]
    ) -> None:
        self._clock, self._wall, self._publish = clock, wall, publish
        self._by_id: dict[str, TenantGrant] = {}
        self._access, self._limits = TenantAccess(TenantKeys()), RateLimits()
        self.audit = RequestAudit(clock=clock, settle=self._settle)
        self._running: dict[str, _RunningRequest] = {}
        self._expired_s = clock()
        self._early_ends: dict[str, None] = {}
        self._early_uses = deque[tuple[float, TenantUse]](maxlen=MOST_EARLY_USES)

    @property
    def keys(self) -> TenantKeys:
        """All tenants, as they were read last."""
        return self._access.keys

    def take(self, keys: TenantKeys) -> None:
        """Tenants as they are from now on."""
        if keys != self._access.keys:
            self._access = TenantAccess(keys)
            self._by_id = {grant.id: grant for grant in keys.tenants}
            self._limits.keep(frozenset(self._by_id))
        for _ in range(len(self._early_uses)):
            self._use(*self._early_uses.popleft())
        self._expire()

    def listed(self, table: RoutingTable, headers: Mapping[str, str]) -> RoutingTable | ApiError:
        """The table as a caller sees it; an error where it sees nothing for want of a key."""
        if not self._access.any_closed:
            return table
        presented, now = PresentedKeys(headers), self._wall()
        seen = self._access.visible(table, presented, now)
        if seen.services or not table.services:
            return seen
        refusal = self._access.refusal(presented, now, openai_errors.model_not_found(""))
        return refusal if refusal.status == 401 else seen

    def service_of(
        self, parsed: ParsedBody, table: RoutingTable, headers: Mapping[str, str]
    ) -> RoutedService | ApiError:
        """The service of a request; one that the caller may not use is not found."""
        if not self._access.any_closed:
            return request_parser.service_of(parsed, table)
        presented, now = PresentedKeys(headers), self._wall()
        if parsed.model is None:
            found = request_parser.service_of(parsed, self._access.visible(table, presented, now))
        else:
            found = request_parser.service_of(parsed, table)
        if isinstance(found, RoutedService) and self._access.may_use(found, presented, now):
            return found
        missing = found if isinstance(found, ApiError) else openai_errors.model_not_found(parsed.model or "")
        return self._access.refusal(presented, now, missing)

    def is_closed(self, namespace: str) -> bool:
        """Whether requests for services of a namespace come with a key that was checked here."""
        return self._access.is_closed(namespace)

    def usable(self, services: Iterable[RoutedService], headers: Mapping[str, str]) -> tuple[RoutedService, ...]:
        """Those of these services that a caller may use."""
        if not self._access.any_closed:
            return tuple(services)
        presented, now = PresentedKeys(headers), self._wall()
        return tuple(service for service in services if self._access.may_use(service, presented, now))

    def refusal(self, service: RoutedService, headers: Mapping[str, str], missing: ApiError) -> ApiError | None:
        """Why a caller may not use a service that holds what its path names; None where it may."""
        presented, now = PresentedKeys(headers), self._wall()
        if self._access.may_use(service, presented, now):
            return None
        return self._access.refusal(presented, now, missing)

    def not_found(self, headers: Mapping[str, str], missing: ApiError) -> ApiError:
        """What a caller gets where no service that it may use has what it names: `missing`, or that a key is needed."""
        return self._access.refusal(PresentedKeys(headers), self._wall(), missing)

    def caller(self, service: RoutedService, headers: Mapping[str, str], *, of_body: int | None = None) -> Caller:
        """Who sends a request for a service that it may use, which `service_of`, `usable` or `refusal` has just found.
        of_body: the priority that its body has, None for none."""
        grant = None
        if self._access.is_closed(service.namespace):
            grant = self._access.owner(service.namespace, PresentedKeys(headers), self._wall())
        if grant is None:
            return Caller(headers=headers)
        added: dict[str, str] = {}
        if service.tenant_header:  # replicas trust it, so a client's own must not reach them
            added[service.tenant_header] = grant.name
        if grant.priority is not None:
            own = _priority(headers, grant.priority if of_body is None else of_body)
            added[names.HEADER_PRIORITY] = str(max(grant.priority, own))
        return Caller(grant=grant, headers={**headers, **added}, added=added)

    def follow(
        self, caller: Caller, inflight_id: str, prefix: RequestPrefix, *, service: str, path: str, model: str = ""
    ) -> None:
        """A request came, whatever becomes of it. service: its key. model: as its client names it."""
        origin = RequestOrigin(
            request_id=prefix.request_id,
            path=path,
            service=service,
            model=model,
            grant=caller.grant,
            tokens=prefix.num_tokens,
            at=self._wall(),
            at_s=self._clock(),
        )
        self.audit.began(inflight_id, origin)

    def enter(
        self, caller: Caller, inflight_id: str, *, tokens: float, until_s: float
    ) -> tuple[Mapping[str, str], ApiError | None]:
        """Count a request that has just come. Returns headers of its answer, and why it is refused. tokens: of its
        prompt. until_s: when Envoy ends it at the latest."""
        grant = caller.grant
        if grant is None:
            return {}, None
        self._expire()
        decision = self._limits.enter(grant, inflight_id, tokens=tokens, now_s=self._clock())
        if decision.refusal is None:
            if inflight_id in self._early_ends:
                del self._early_ends[inflight_id]
                self._limits.ended(grant.id, inflight_id)
            else:
                self._running[inflight_id] = _RunningRequest(grant.id, self._clock(), until_s)
            self._share(grant.id, requests=1, tokens=tokens)
        else:
            self.audit.not_counted(inflight_id)
        return decision.headers, decision.refusal

    def count(
        self, services: Iterable[RoutedService], headers: Mapping[str, str]
    ) -> tuple[Mapping[str, str], ApiError | None]:
        """As enter, for a request that takes nothing of an engine: of requests per minute alone. services: all that its
        sender may use; of several tenants of that key the first counts."""
        namespaces = {service.namespace: service for service in services}
        grants = (self.caller(service, headers).grant for service in namespaces.values())
        grant = next(filter(None, grants), None)
        if grant is None:
            return {}, None
        decision = self._limits.count(grant, now_s=self._clock())
        if decision.refusal is None:
            self._share(grant.id, requests=1)
        return decision.headers, decision.refusal

    def ended(self, inflight_id: str) -> None:
        """Envoy has logged the end of a request, which may come before its beginning."""
        if inflight_id in self._running:
            self._end(inflight_id)
        elif self._access.any_closed:
            self._early_ends[inflight_id] = None
            if len(self._early_ends) > MOST_EARLY_ENDS:
                del self._early_ends[next(iter(self._early_ends))]

    def ended_before(self, moment_s: float, *, keep: Container[str] = ()) -> None:
        """A new Envoy runs since a moment: what the one before it had is over, and it logs no end of it. keep: ids of
        requests that it did not have."""
        began_before = [one for one, running in self._running.items() if running.began_s < moment_s]
        for inflight_id in [one for one in began_before if one not in keep]:
            self.ended(inflight_id)
        self.audit.ended_before(moment_s, keep=keep)

    def standing(self) -> Iterable[TenantUse]:
        """What a gateway that begins to follow this one has to know of all tenants."""
        for tenant in self._limits.tenants():
            grant = self._by_id.get(tenant)
            used = self._limits.used(grant, now_s=self._clock()) if grant else {}
            yield TenantUse(
                tenant=tenant,
                running=self._limits.running(tenant),
                minute_requests=min(used.get("requests", 0.0), MOST_USED),
                minute_tokens=min(used.get("tokens", 0.0), MOST_USED),
            )

    def used_elsewhere(self, gateway: str, use: TenantUse) -> None:
        """Another gateway counted so much of a tenant's limits. It may have read of the tenant before this one."""
        self._limits.run_elsewhere(gateway, use.tenant, use.running)
        self._use(self._clock(), use)

    def gateway_left(self, gateway: str) -> None:
        """Another gateway is not followed any more; what runs there counts no longer."""
        self._limits.gateway_left(gateway)

    def _expire(self) -> None:
        """End requests whose time is over: the log of Envoy would have had their ends."""
        now_s = self._clock()
        if now_s - self._expired_s < EXPIRY_S:
            return
        self._expired_s = now_s
        for inflight_id in [one for one, running in self._running.items() if running.until_s <= now_s]:
            self._end(inflight_id)

    def _end(self, inflight_id: str) -> None:
        tenant = self._running.pop(inflight_id).tenant
        self._limits.ended(tenant, inflight_id)
        self._share(tenant)

    def _use(self, at_s: float, use: TenantUse) -> None:
        """Count it now, or when its tenant is known; after a minute it would count for nothing."""
        if grant := self._by_id.get(use.tenant):
            self._limits.use(grant, requests=use.requests, tokens=use.tokens, now_s=at_s)
            self._limits.used_at_least(grant, requests=use.minute_requests, tokens=use.minute_tokens, now_s=at_s)
        elif use != TenantUse(tenant=use.tenant, running=use.running) and self._clock() - at_s < MINUTE_S:
            self._early_uses.append((at_s, use))

    def _settle(self, grant: TenantGrant, more_tokens: float) -> None:
        self._limits.use(grant, tokens=more_tokens, now_s=self._clock())
        self._share(grant.id, tokens=more_tokens)

    def _share(self, tenant: str, *, requests: int = 0, tokens: float = 0.0) -> None:
        """Also where the tenant has no limit: it may have one before its requests have ended."""
        self._publish(TenantUse(tenant=tenant, requests=requests, tokens=tokens, running=self._limits.running(tenant)))


def _priority(headers: Mapping[str, str], otherwise: int) -> int:
    """The request's own; what is no number counts as none."""
    try:
        return int(headers.get(names.HEADER_PRIORITY, ""))
    except ValueError:
        return otherwise
