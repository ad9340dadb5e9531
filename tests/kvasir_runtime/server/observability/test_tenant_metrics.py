"""Series by tenant: sums, and a number of them that no client can raise."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kvasir_runtime.engine_reports import TenantUsage
from kvasir_runtime.server.observability.tenant_metrics import KEPT_S, MOST_TENANTS, OTHERS, TenantMetrics


class Scraped:
    """Metrics of tenants at a time that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.registry = CollectorRegistry()
        self.metrics = TenantMetrics("m", self.registry, lambda: self.now)

    def values(self, name: str) -> dict[str, float]:
        """By tenant, of one family."""
        text = generate_latest(self.registry).decode()
        found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {sample.labels["tenant"]: sample.value for sample in found if sample.name == name}


@pytest.fixture
def scraped() -> Scraped:
    return Scraped()


def test_usage_adds_up_by_tenant(scraped):
    scraped.metrics.used({"a": TenantUsage(kv_token_seconds=1.5, prompt_tokens=10, cached_tokens=4)})
    scraped.metrics.used(
        {"a": TenantUsage(kv_token_seconds=2.0, generation_tokens=3), "": TenantUsage(prompt_tokens=1)}
    )
    assert scraped.values("kvasir_tenant_kv_token_seconds_total") == {"a": 3.5, "": 0.0}
    assert scraped.values("kvasir_tenant_prompt_tokens_total") == {"a": 10.0, "": 1.0}
    assert scraped.values("kvasir_tenant_prefix_hit_tokens_total") == {"a": 4.0, "": 0.0}
    assert scraped.values("kvasir_tenant_generation_tokens_total") == {"a": 3.0, "": 0.0}


def test_series_go_away_with_their_tenant(scraped):
    scraped.metrics.used({"a": TenantUsage(prompt_tokens=1), "b": TenantUsage(prompt_tokens=2)})
    scraped.metrics.forget("a")
    scraped.metrics.forget("unknown")
    assert scraped.values("kvasir_tenant_prompt_tokens_total") == {"b": 2.0}
    scraped.now += KEPT_S / 2
    scraped.metrics.used({"c": TenantUsage(prompt_tokens=3)})
    scraped.now += KEPT_S / 2
    assert scraped.values("kvasir_tenant_prompt_tokens_total") == {"c": 3.0}


def test_tenants_beyond_the_bound_share_series_until_there_is_a_place(scraped):
    scraped.metrics.used({str(number): TenantUsage(prompt_tokens=1) for number in range(MOST_TENANTS + 5)})
    found = scraped.values("kvasir_tenant_prompt_tokens_total")
    assert len(found) == MOST_TENANTS + 1
    assert found[OTHERS] == 5
    for number in (0, 1):
        scraped.metrics.forget(str(number))
    scraped.metrics.used({"new": TenantUsage(prompt_tokens=7), "7": TenantUsage(prompt_tokens=1)})
    found = scraped.values("kvasir_tenant_prompt_tokens_total")
    assert (found["new"], found["7"], found[OTHERS]) == (7, 2, 5)
