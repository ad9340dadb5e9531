"""What each tenant has used since this was read last: the pinned part of the KV cache over time, and tokens.

Owned by the scheduler, which calls `advance` before anything is pinned or given up, so that the integral over time is
exact: the sum over tenants is that of all pinned blocks. Pure; seconds are given.
"""

from typing import Final

from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.engine_reports import TenantUsage

REPORT_S: Final = 1.0


class TenantAccounts:
    """Of tenants by name; "" where requests have none, and for what the engine pins for itself."""

    __slots__ = ("_at", "_block_tokens", "_pool", "_taken_at", "_usage")

    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        self._pool = pool
        self._block_tokens = limits.block_size / len(limits.attentions)
        self._usage: dict[str, TenantUsage] = {}
        self._at = self._taken_at = 0.0

    def advance(self, now: float) -> None:
        """What is pinned was so until now."""
        elapsed_s, self._at = now - self._at, now
        if elapsed_s > 0:
            for tenant, blocks in self._pool.pinned_by.items():
                self._of(tenant).kv_token_seconds += blocks * self._block_tokens * elapsed_s

    def admitted(self, tenant: str, prompt_tokens: int, cached_tokens: int) -> None:
        """A request got its first row. cached_tokens: of the prompt, found in the prefix cache."""
        usage = self._of(tenant)
        usage.prompt_tokens += prompt_tokens
        usage.cached_tokens += cached_tokens

    def generated(self, tenant: str, num_tokens: int) -> None:
        """Tokens of an answer were given."""
        self._of(tenant).generation_tokens += num_tokens

    def taken(self, now: float) -> dict[str, TenantUsage] | None:
        """All since this gave something last; None while that is less than REPORT_S ago, or nothing was used."""
        self.advance(now)
        if not self._usage or self._at < self._taken_at + REPORT_S:
            return None
        usage, self._usage, self._taken_at = self._usage, {}, self._at
        return usage

    def _of(self, tenant: str) -> TenantUsage:
        usage = self._usage.get(tenant)
        if usage is None:
            usage = self._usage[tenant] = TenantUsage()
        return usage
