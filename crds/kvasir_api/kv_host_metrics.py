"""Metrics of the second tier of a replica's KV cache, declared once, in the form of `metrics.py`."""

from typing import Final

from kvasir_api.metric import Metric

_MODEL = ("model_name",)

KV_HOST: Final[tuple[Metric, ...]] = (
    Metric(
        name="kvasir_kv_host_capacity_tokens",
        kind="gauge",
        help="Tokens that the second tier on the host can hold; 0 without one.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_kv_host_cached_tokens",
        kind="gauge",
        help="Tokens on the host, those of other replicas that share them included.",
        labels=_MODEL,
    ),
    Metric(name="kvasir_kv_host_stored_tokens_total", kind="counter", help="Tokens copied to the host.", labels=_MODEL),
    Metric(
        name="kvasir_kv_host_loaded_tokens_total",
        kind="counter",
        help="Tokens that came back from the host and were not computed again.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_kv_host_missed_tokens_total",
        kind="counter",
        help="Tokens that should have come back from the host and were computed: damaged, or replaced meanwhile.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_kv_host_load_bytes_per_second",
        kind="gauge",
        help="Measured rate of copies from the host.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_kv_host_store_bytes_per_second",
        kind="gauge",
        help="Measured rate of copies to the host.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_kv_host_fetched_tokens_total",
        kind="counter",
        help="Tokens that came from other replicas.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_kv_host_prefetched_tokens_total",
        kind="counter",
        help="Of the fetched tokens those that came from replicas that were leaving, before a request needed them.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_kv_host_failed_fetches_total",
        kind="counter",
        help="Fetches that another replica did not answer rightly or in time.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_kv_handed_over_prompts_total",
        kind="counter",
        help="Prompts of which another replica computed a part for this one.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_kv_peer_prompts_total",
        kind="counter",
        help="Prompts that this replica computed for another one.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_kv_host_fetch_bytes_per_second",
        kind="gauge",
        help="Measured rate of fetches from other replicas.",
        labels=_MODEL,
    ),
)
