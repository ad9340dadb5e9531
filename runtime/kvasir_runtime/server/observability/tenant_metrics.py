"""What tenants used of the engine, as counters by tenant whose number is bounded.

Owned by RuntimeMetrics. A tenant has series while it sends requests: after KEPT_S without one, and when it is
forgotten, they go away. Tenants beyond the bound share the series of OTHERS until places are free.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from kvasir_api import metrics
from kvasir_runtime.engine_reports import TenantUsage

MOST_TENANTS: Final = 1000
KEPT_S: Final = 3600.0
OTHERS: Final = "(others)"
"""No tenant can have this name."""
READ: Final[dict[str, Callable[[TenantUsage], float]]] = {
    "kvasir_tenant_kv_token_seconds_total": lambda usage: usage.kv_token_seconds,
    "kvasir_tenant_prompt_tokens_total": lambda usage: usage.prompt_tokens,
    "kvasir_tenant_prefix_hit_tokens_total": lambda usage: usage.cached_tokens,
    "kvasir_tenant_generation_tokens_total": lambda usage: usage.generation_tokens,
}


@dataclass(slots=True)
class _Account:
    used_at: float = 0.0
    total: TenantUsage = field(default_factory=TenantUsage)


class TenantMetrics(Collector):
    """clock: monotonic seconds."""

    def __init__(self, model_name: str, registry: CollectorRegistry, clock: Callable[[], float]) -> None:
        self._model_name, self._clock = model_name, clock
        self._accounts: dict[str, _Account] = {}
        registry.register(self)

    def used(self, usage: Mapping[str, TenantUsage]) -> None:
        """What tenants used since the last call."""
        now = self._clock()
        self._remove_idle(now)
        for tenant, more in usage.items():
            has_place = tenant in self._accounts or len(self._accounts) < MOST_TENANTS
            account = self._accounts.setdefault(tenant if has_place else OTHERS, _Account())
            account.used_at, total = now, account.total
            total.kv_token_seconds += more.kv_token_seconds
            total.prompt_tokens += more.prompt_tokens
            total.cached_tokens += more.cached_tokens
            total.generation_tokens += more.generation_tokens

    def forget(self, tenant: str) -> None:
        """Remove the series of a tenant; unknown ones are ignored."""
        self._accounts.pop(tenant, None)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for each scrape."""
        self._remove_idle(self._clock())
        for metric in metrics.RUNTIME:
            read = READ.get(metric.name)
            if read is not None:
                family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
                for tenant, account in self._accounts.items():
                    family.add_metric([self._model_name, tenant], float(read(account.total)))
                yield family

    def _remove_idle(self, now: float) -> None:
        self._accounts = {name: known for name, known in self._accounts.items() if now - known.used_at < KEPT_S}
