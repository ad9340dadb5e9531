"""How the prompt tokens of a step are divided among prompts, so that a short one does not wait for long ones.

Called by the scheduler for each step that computes prompts. Pure arithmetic: it knows no blocks and no requests.

The prompt that comes first gets at least half of the step, so it takes at most twice as long as alone. The other half
is for prompts that are shorter than what is left of it, shortest first. What neither takes goes to the prompts in
order. So every step is as full as without this rule, equal prompts are computed one after the other, and whatever
arrives, the prompt that is first by order ends within a bounded time, and then the next one is first.

While short prompts come, steps that compute long ones are kept short too (`LongPrompts`): what arrives during a step
waits for its end.
"""

from collections.abc import Sequence
from typing import NamedTuple


class LongPrompts(NamedTuple):
    """Of a step, for prompts that take many. above: tokens that such a sequence exceeds. share: of each, 0 for all."""

    above: int = 0
    share: int = 0

    def limited(self, tokens: int, of_tokens: int) -> int:
        """What a sequence of so many tokens may compute of those that it lacks."""
        return min(tokens, self.share) if self.share and of_tokens > self.above else tokens


UNLIMITED = LongPrompts()


class PromptPart(NamedTuple):
    """What is left of a prompt. tokens: to be computed, at least 1. priority: of its request, lower is more urgent."""

    tokens: int
    priority: int = 0

    def may_pass(self, first: "PromptPart") -> bool:
        """Whether it may take of the half that is not the first prompt's."""
        return self.tokens < first.tokens and self.priority <= first.priority


def shares(parts: Sequence[PromptPart], budget: int) -> list[int]:
    """Tokens that each of the prompts, in their order, computes in a step of budget tokens."""
    if not parts:
        return []
    first, given = parts[0], [0] * len(parts)
    room = _room(first, budget)
    passing = [number for number, part in enumerate(parts) if part.may_pass(first)]
    for number in sorted(passing, key=lambda one: parts[one].tokens):
        given[number] = min(parts[number].tokens, room)
        room -= given[number]
    left = budget - sum(given)
    for number, part in enumerate(parts):
        more = min(part.tokens - given[number], left)
        given[number] += more
        left -= more
    return given


def gets_share(part: PromptPart, others: Sequence[PromptPart], budget: int) -> bool:
    """Whether one more prompt, behind the others in order, would compute a token in a step of budget tokens."""
    if sum([other.tokens for other in others]) < budget:
        return True
    if not others or not part.may_pass(others[0]):
        return False
    before = sum([one.tokens for one in others if one.tokens <= part.tokens and one.may_pass(others[0])])
    return before < _room(others[0], budget)


def _room(first: PromptPart, budget: int) -> int:
    """Tokens that the first prompt leaves to others."""
    return budget - min(first.tokens, budget - budget // 2)
