"""Speculation in a world with costs and texts of its own, in virtual time."""

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final

from fakes.drafter import AlwaysDrafter
from fakes.serving import request
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.counters import Counters
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import UNDRAFTED, SampledTokens, StepResults
from kvasir_runtime.core.plan_builder import LaunchedChunk
from kvasir_runtime.core.request_state import RequestState
from kvasir_runtime.core.sequence import SequenceState
from kvasir_runtime.core.speculation.speculation import Speculation

LIMITS: Final = Limits(num_blocks=4096, block_size=16, max_batch_tokens=512, max_sequences=256, max_model_len=1 << 20)

StepSeconds = Callable[[int, int], float]
"""Of so many sequences and drafts."""

COSTS: Final[dict[str, StepSeconds]] = {
    "memory": lambda n, m: 0.01 + 0.00001 * (n + m),
    "both": lambda n, m: 0.01 + 0.0003 * (n + m),
    "arithmetic": lambda n, m: 0.001 * (n + m),
    "cliff": lambda n, m: 0.01 * (1 + (n + m - 1) // 8),
    "dear first": lambda n, m: 0.01 * (1 + 0.32 * (m > 0) + 0.02 * (n + m)),
}


def running(number: int) -> Any:
    """A request that decodes, as far as speculation looks at it."""
    made = request(str(number), [1, 2], max_tokens=1 << 19)
    sequence = SequenceState(RequestState(made, 0.0), b"", [1, 2], active=True, computed=1)
    sequence.blocks.covered = 1 << 20

    def need(_: int) -> int:
        return sequence.blocks.lacks(len(sequence.tokens) + len(sequence.drafts))

    return SimpleNamespace(request=sequence.request, sequence=sequence, num_rows=1, remaining=1 << 19, need=need)


class World:
    """step_s: of so many sequences and drafts. rates: of each sequence, the probability that a draft is right.

    beside: a model drafts, whose steps take half as long again, and texts do, whose drafts are right for texts_rate.
    Without them no text repeats. limit: drafts of a sequence at most. next_token: of a text, given its length, where
    there is no guess of it. read_s: that a draft model takes for a token, and pass_s for each of its passes; it drafts
    for a sequence once it has read all of it, 64 tokens in a step and one for each sequence, those of which least is
    unread first.
    """

    def __init__(
        self,
        num_sequences: int,
        step_s: StepSeconds,
        rates: Sequence[float],
        speculation: str = "auto",
        seed: int = 0,
        **more: Any,
    ) -> None:
        """more: beside, texts_rate, limit, read_s and pass_s."""
        self.beside, self.texts_rate = more.get("beside", False), more.get("texts_rate", 0.0)
        self.kinds = [running(number) for number in range(num_sequences)]
        self.rates, self.step_s, self.chance = rates, step_s, random.Random(seed)
        self.read_s: float = more.get("read_s", 0.0)
        self.pass_s: float = more.get("pass_s", 0.0)
        self.read = [1] * num_sequences
        limits: Any = SimpleNamespace(
            speculation=speculation,
            has_states=False,
            attentions=(),
            block_bytes=0,
            num_rows=LIMITS.num_rows,
            max_batch_tokens=512,
            max_cached_answers=0,
        )
        drafter = None if speculation == "model" else AlwaysDrafter(more.get("limit", 1 << 10))
        self.next_token: Callable[[int], int] = lambda place: 1 if drafter or self.beside else place + 3
        self.speculation = Speculation(limits, Counters(), drafter)
        self.pool = BlockPool(4096, LIMITS.attentions, 16)
        self.seconds, self.tokens = 0.0, 0

    def run(self, steps: int) -> float:
        """Tokens a second of these steps."""
        self.seconds, self.tokens = 0.0, 0
        for _ in range(steps):
            self.step()
        return self.tokens / self.seconds

    def run_tokens(self, count: int) -> None:
        """Steps that give so many tokens, or a few more of the last."""
        self.tokens = 0
        while self.tokens < count:
            self.step()

    def drawn(self, sequence: SequenceState, place: int, rate: float) -> int:
        """A token that was not drafted from the text; as the text's guess has it, by the rate."""
        speculated = sequence.speculated
        at = place - speculated.history.length if speculated is not None else 0
        if speculated is None or at >= len(speculated.guess.tokens):
            return self.next_token(place)
        return speculated.guess.tokens[at] + (self.chance.random() >= rate)

    def read_s_of_step(self) -> float:
        """Seconds in which a draft model reads what it has to; what it could not read in this step has no drafts."""
        unread = {
            place: len(kind.sequence.tokens) - self.read[place]
            for place, kind in enumerate(self.kinds)
            if self.read_s and kind.sequence.drafts
        }
        most = room = len(self.kinds) + 64
        for place in sorted(unread, key=lambda one: unread[one]):
            read = min(room, unread[place])
            self.read[place], room = self.read[place] + read, room - read
        return self.read_s * (most - room)

    def step(self) -> None:
        """Plan, verify by chance, and report what it took, within 3 %."""
        self.speculation.draft(self.kinds, 512, self.pool)
        read_s = self.read_s_of_step()
        chunks, sampled, num_drafts = list[LaunchedChunk](), list[SampledTokens](), 0
        for kind, rate, num_read in zip(self.kinds, self.rates, self.read, strict=True):
            sequence = kind.sequence
            accepted, by_model = 0, sequence.drafts[:1] == (UNDRAFTED,)
            undrafted = len(sequence.drafts) if self.read_s and num_read < len(sequence.tokens) else 0
            of_text = self.texts_rate if self.beside else rate
            rate = rate if by_model else of_text
            while accepted < len(sequence.drafts) - undrafted and self.chance.random() < rate:
                accepted += 1
            kept = () if by_model else sequence.drafts[:accepted]
            drawn = range(len(sequence.tokens) + len(kept), len(sequence.tokens) + accepted + 1)
            tokens = (*kept, *(self.drawn(sequence, place, of_text) for place in drawn))
            chunks.append(
                LaunchedChunk(sequence, sequence.computed, sequence.computed + 1, True, False, False, sequence.drafts)
            )
            sampled.append(SampledTokens(0, tokens, accepted=accepted, undrafted=undrafted))
            num_drafts += len(sequence.drafts) - undrafted
            sequence.tokens.extend(tokens)
            sequence.computed += len(tokens)
            self.tokens += len(tokens)
        elapsed_s = read_s + self.step_s(len(chunks), num_drafts)
        elapsed_s += self.pass_s * max(
            len(chunk.drafts) - one.undrafted for chunk, one in zip(chunks, sampled, strict=True)
        )
        elapsed_s *= 1.5 if self.beside and any(chunk.drafts[:1] == (UNDRAFTED,) for chunk in chunks) else 1
        elapsed_s *= self.chance.uniform(0.97, 1.03)
        self.seconds += elapsed_s
        self.speculation.collected(chunks, StepResults(step=1, sampled=tuple(sampled)), elapsed_s)
