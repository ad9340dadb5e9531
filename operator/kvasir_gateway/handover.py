"""Whether another replica should compute a request's prompt, so that the running answers of the one that was chosen for
it do not wait: a comparison of two costs in seconds.

Handing over pays where the prompt is long, the chosen replica decodes much, the other one is idle and blocks move fast;
with short prompts, or a queue before the other one that is longer than the chosen one waits, the request stays where it
is. Called by the router once per request. Pure; knows no clock, no readings and no Kubernetes.
"""

from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from kvasir_api.kv_transfer import prefill_within_s
from kvasir_gateway.choose import (
    Candidate,
    ChoicePolicy,
    EndpointCost,
    RequestSize,
    cost_of,
    has_room,
    with_speeds,
)

HANDOVER_S: Final = 0.03
"""Of a connection, of looking for computed blocks, and of the copies to and from the hosts."""
BYTES_PER_S: Final = 1e9
"""Assumed of blocks where none were moved yet: ten gigabits a second, less what is lost."""
MOST_HANDED: Final = 1024
LEAST_TOKENS: Final = 64.0
"""Prompts with less to compute stay: a runtime fetches no fewer blocks."""


class HandoverFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Of the replica that was chosen. kv_bytes_per_token: of its cache. bytes_per_s: measured of blocks that it
    fetched, 0 before any. cached_tokens: of the prompt that it has, or fetches from where they are held already."""

    kv_bytes_per_token: float = 0.0
    bytes_per_s: float = 0.0
    cached_tokens: float = 0.0


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that another replica may compute. address: its. tokens: that it has to compute. In seconds, for this
    request and all others: stay_s: what computing it costs where the answer is. there_s: at the other one; move_s: of
    the blocks. late_s: by which the blocks come later than the replica with the answer waits for them."""

    address: str
    tokens: float
    stay_s: float
    there_s: float
    move_s: float
    late_s: float = 0.0

    @property
    def saved_s(self) -> float:
        """By which handing over is cheaper than staying."""
        return self.stay_s - self.there_s - self.move_s

    @property
    def pays(self) -> bool:
        """Whether the other replica computes the prompt."""
        return self.saved_s > 0 and not self.late_s


class HandedPrompts:
    """Prompts that were handed to endpoints lately, which their readings do not show yet."""

    def __init__(self) -> None:
        self._by_address: dict[str, deque[tuple[float, float]]] = {}

    def add(self, address: str, tokens: float, at_s: float) -> None:
        """One was handed to an endpoint. Of more than MOST_HANDED the oldest are forgotten."""
        self._by_address.setdefault(address, deque(maxlen=MOST_HANDED)).append((at_s, tokens))

    def since(self, address: str, moment_s: float) -> tuple[int, float]:
        """Those that are newer than a moment, and their tokens."""
        newer = [tokens for at_s, tokens in self._by_address.get(address, ()) if at_s > moment_s]
        return len(newer), sum(newer)

    def keep(self, addresses: Collection[str]) -> None:
        """Forget other endpoints."""
        for address in self._by_address.keys() - set(addresses):
            del self._by_address[address]


def handover(
    chosen: Candidate,
    prefill: Sequence[Candidate],
    request: RequestSize,
    facts: HandoverFacts,
    *,
    policy: ChoicePolicy,
) -> Handover | None:
    """The replica that would compute the prompt at the least cost, None where it stays in any case.

    prefill: those that compute prompts for others. Those without a load, or whose queue would refuse it, are none.
    """
    missing = request.prompt_tokens - facts.cached_tokens
    if chosen.load is None or missing < LEAST_TOKENS:
        return None
    chosen, *others = with_speeds([chosen, *(c for c in prefill if c.load is not None)], policy)
    stay = cost_of(chosen, request, uncached_tokens=missing, policy=policy)
    move_s = HANDOVER_S + missing * max(0.0, facts.kv_bytes_per_token) / (facts.bytes_per_s or BYTES_PER_S)
    within_s = prefill_within_s(stay.compute_s)
    found: list[Handover] = []
    for candidate in others:
        if not has_room(candidate, request, policy):
            continue
        tokens = max(1.0, request.prompt_tokens - candidate.cached_tokens)
        there = cost_of(candidate, request, uncached_tokens=tokens, policy=policy)
        comes_s = there.wait_s + min(there.compute_s + move_s, within_s / 4)  # of a longer prompt a part comes in time
        found.append(
            Handover(
                address=candidate.address,
                tokens=tokens,
                stay_s=_prompt_s(stay),
                there_s=_prompt_s(there),
                move_s=move_s,
                late_s=max(0.0, comes_s - within_s),
            )
        )
    return min(found, key=lambda one: (one.late_s > 0, one.there_s), default=None)


def _prompt_s(cost: EndpointCost) -> float:
    """What computing the prompt costs at an endpoint; the answer is generated at the chosen one in any case."""
    return cost.wait_s + cost.compute_s + cost.stall_s + cost.later_s + cost.silence_s
