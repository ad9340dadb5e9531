"""What tenants may send in a minute, and how many of their requests may run at once: token buckets; pure.

A bucket holds a minute's worth and fills evenly. A request takes one of requests, and of tokens those of its prompt;
what the replica counted in the end is settled later, so that the level of tokens may fall below zero and the next
request waits until it is above.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from kvasir_api import names, openai_errors
from kvasir_api.openai_errors import ApiError
from kvasir_api.tenant_keys import TenantGrant

MINUTE_S: Final = 60.0
RATE_LIMITED: Final = "rate_limit_exceeded"
MOST_ELSEWHERE: Final = 65_536
"""Tenants of which something runs at another gateway; there are fewer in the Secret."""
FULL_RETRY_S: Final = 1.0
"""Retry-After where too many run, since no end of one is known before."""


@dataclass(slots=True)
class RateBucket:
    """capacity: of a minute. level: at at_s, on the caller's clock."""

    capacity: float
    level: float
    at_s: float

    def refill(self, capacity: float, now_s: float) -> None:
        """Up to a moment, under a limit that may have changed; what was used of the old one stays used."""
        used = self.capacity - self.level
        level = capacity - used if capacity != self.capacity else self.level
        self.capacity = capacity
        self.level = min(capacity, level + max(0.0, now_s - self.at_s) * capacity / MINUTE_S)
        self.at_s = max(now_s, self.at_s)

    def wait_s(self, amount: float) -> float:
        """Until so much may be taken; a whole bucket is enough for more than it holds."""
        return max(0.0, min(amount, self.capacity) - self.level) * MINUTE_S / self.capacity

    def shown(self, unit: str) -> dict[str, str]:
        """The headers of this limit. unit: requests or tokens."""
        reset_s = (self.capacity - self.level) * MINUTE_S / self.capacity
        values = f"{self.capacity:.0f}", f"{max(0.0, math.floor(self.level)):.0f}", duration(reset_s)
        return dict(zip((n for n in names.HEADERS_RATE_LIMIT if n.endswith(unit)), values, strict=True))


@dataclass(slots=True)
class _TenantUsage:
    buckets: dict[str, RateBucket] = field(default_factory=dict)
    running: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateDecision:
    """headers: of the answer, whatever it is. refusal: None for a request that may go on, which is counted then."""

    headers: dict[str, str]
    refusal: ApiError | None = None


class RateLimits:
    """All tenants at one gateway, by their ids, with what runs of them at others."""

    def __init__(self) -> None:
        self._usage: dict[str, _TenantUsage] = {}
        self._elsewhere: dict[str, dict[str, int]] = {}

    def enter(self, grant: TenantGrant, request_id: str, *, tokens: float, now_s: float) -> RateDecision:
        """Count a request of a tenant, or refuse it. tokens: of its prompt."""
        usage = self._usage.setdefault(grant.id, _TenantUsage())
        buckets = self._buckets(usage, grant, now_s)
        running = len(usage.running) + self.running_elsewhere(grant.id)
        if grant.concurrent_requests and running >= grant.concurrent_requests:
            error = _refused(
                f"As many requests of {grant.name} run or wait as may at once: {grant.concurrent_requests}.",
                FULL_RETRY_S,
            )
            return RateDecision(headers=_shown(buckets), refusal=error)
        decision = _taken(grant, buckets, {"requests": 1.0, "tokens": tokens})
        if decision.refusal is None:
            usage.running[request_id] = None
        return decision

    def count(self, grant: TenantGrant, *, now_s: float) -> RateDecision:
        """Count a request that takes nothing of an engine, or refuse it, by the limit of requests per minute alone."""
        buckets = self._buckets(self._usage.setdefault(grant.id, _TenantUsage()), grant, now_s)
        return _taken(grant, buckets, {"requests": 1.0})

    def use(self, grant: TenantGrant, *, requests: float = 0.0, tokens: float = 0.0, now_s: float) -> None:
        """Used without `enter`: at another gateway, or beyond what was counted when a request came. Tokens that were
        counted too high are negative."""
        amounts = {"requests": requests, "tokens": tokens}
        for unit, bucket in self._buckets(self._usage.setdefault(grant.id, _TenantUsage()), grant, now_s).items():
            bucket.level = min(bucket.capacity, bucket.level - amounts[unit])

    def used(self, grant: TenantGrant, *, now_s: float) -> dict[str, float]:
        """What is used of a minute's worth, by the units that are limited."""
        usage = self._usage.get(grant.id)
        buckets = self._buckets(usage, grant, now_s) if usage else {}
        return {unit: bucket.capacity - bucket.level for unit, bucket in buckets.items()}

    def used_at_least(self, grant: TenantGrant, *, requests: float, tokens: float, now_s: float) -> None:
        """So much is used of a minute's worth, or what is known here where that is more."""
        amounts = {"requests": requests, "tokens": tokens}
        for unit, bucket in self._buckets(self._usage.setdefault(grant.id, _TenantUsage()), grant, now_s).items():
            bucket.level = min(bucket.level, bucket.capacity - amounts[unit])

    def ended(self, tenant: str, request_id: str) -> None:
        """A request of a tenant runs no more. tenant: its id."""
        if usage := self._usage.get(tenant):
            usage.running.pop(request_id, None)

    def running(self, tenant: str) -> int:
        """Requests of a tenant that run or wait here. tenant: its id."""
        usage = self._usage.get(tenant)
        return len(usage.running) if usage else 0

    def running_elsewhere(self, tenant: str) -> int:
        """Requests of a tenant that run or wait at the other gateways that are followed. tenant: its id."""
        return sum(running.get(tenant, 0) for running in self._elsewhere.values())

    def tenants(self) -> tuple[str, ...]:
        """Those that have used something, or of which something runs here."""
        return tuple(self._usage)

    def run_elsewhere(self, gateway: str, tenant: str, running: int) -> None:
        """So many requests of a tenant run or wait at another gateway, also of one that is not known here yet."""
        found = self._elsewhere.setdefault(gateway, {})
        found.pop(tenant, None)
        if running and len(found) < MOST_ELSEWHERE:
            found[tenant] = running

    def gateway_left(self, gateway: str) -> None:
        """What runs at another gateway is not known any more."""
        self._elsewhere.pop(gateway, None)

    def keep(self, tenants: frozenset[str]) -> None:
        """Forget tenants that are gone and of which nothing runs."""
        self._usage = {name: usage for name, usage in self._usage.items() if name in tenants or usage.running}

    def _buckets(self, usage: _TenantUsage, grant: TenantGrant, now_s: float) -> dict[str, RateBucket]:
        limits = {"requests": grant.requests_per_minute, "tokens": grant.tokens_per_minute}
        for unit, limit in limits.items():
            if not limit:
                usage.buckets.pop(unit, None)
                continue
            bucket = usage.buckets.setdefault(unit, RateBucket(limit, limit, now_s))
            bucket.refill(limit, now_s)
        return usage.buckets


def duration(seconds: float) -> str:
    """As clients of OpenAI's API read it: 120ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    whole = math.ceil(seconds * 10) / 10
    minutes, rest = divmod(whole, 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{whole:g}s"


def _taken(grant: TenantGrant, buckets: dict[str, RateBucket], amounts: dict[str, float]) -> RateDecision:
    """Take all amounts, or none. amounts: by unit; a unit without a limit takes nothing."""
    limited = {unit: buckets[unit] for unit in amounts if unit in buckets}
    waits = {unit: bucket.wait_s(amounts[unit]) for unit, bucket in limited.items()}
    unit = max(waits, key=lambda one: waits[one], default="")
    if unit and waits[unit] > 0:
        limit = f"{buckets[unit].capacity:.0f} {unit} per minute"
        error = _refused(f"{openai_errors.quoted(grant.name)} may send {limit}.", waits[unit])
        return RateDecision(headers=_shown(buckets), refusal=error)
    for unit, bucket in limited.items():
        bucket.level -= amounts[unit]
    return RateDecision(headers=_shown(buckets))


def _shown(buckets: dict[str, RateBucket]) -> dict[str, str]:
    return {name: value for unit, bucket in buckets.items() for name, value in bucket.shown(unit).items()}


def _refused(what: str, wait_s: float) -> ApiError:
    message = f"{what} Try again in {duration(wait_s)}."
    return openai_errors.overloaded(message, retry_after_s=wait_s, code=RATE_LIMITED)
