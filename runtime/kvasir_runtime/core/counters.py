"""Counters since the start, and what one request adds to them when it ends."""

from dataclasses import dataclass

from kvasir_api.state import RequestTotals
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.request_state import RequestState


@dataclass(slots=True)
class Counters:
    """The mutable form of `kvasir_api.state.RequestTotals`, which explains every field."""

    arrivals: int = 0
    completions: int = 0
    aborts: int = 0
    prompt_tokens: int = 0
    uncached_prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    prefix_saved_s: float = 0.0
    kv_token_seconds: float = 0.0
    invalid_outputs: int = 0
    memory_failures: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def arrived(self, request: RequestState) -> None:
        """Counted with what the prefix cache held at arrival."""
        self.arrivals += 1
        self.prompt_tokens += request.prompt_tokens
        self.uncached_prompt_tokens += request.uncached_estimate

    def admitted(self, request: RequestState, cached_tokens: int, prefill_tokens_per_s: float) -> None:
        """First admission: what was looked up in the prefix cache and found, and what computing that would have taken.

        prefill_tokens_per_s: measured, 0 until then.
        """
        if prefill_tokens_per_s > 0:
            self.prefix_saved_s += cached_tokens / prefill_tokens_per_s
        self.prefix_query_tokens += request.prompt_tokens
        self.prefix_hit_tokens += cached_tokens

    def ended(self, request: RequestState, *, aborted: bool, limits: Limits) -> None:
        """Aborted requests leave no kv_token_seconds, so that the quotient by completions is a mean over answers."""
        if aborted:
            self.aborts += 1
            return
        self.completions += 1
        self.kv_token_seconds += request.kv_block_seconds * limits.block_size / len(limits.attentions)

    @property
    def totals(self) -> RequestTotals:
        """What `/state` reports."""
        return RequestTotals(
            arrivals=self.arrivals,
            completions=self.completions,
            aborts=self.aborts,
            prompt_tokens=self.prompt_tokens,
            uncached_prompt_tokens=self.uncached_prompt_tokens,
            generation_tokens=self.generation_tokens,
            prefix_query_tokens=self.prefix_query_tokens,
            prefix_hit_tokens=self.prefix_hit_tokens,
            preemptions=self.preemptions,
            prefix_saved_s=self.prefix_saved_s,
            kv_token_seconds=self.kv_token_seconds,
            invalid_outputs=self.invalid_outputs,
            memory_failures=self.memory_failures,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
        )
