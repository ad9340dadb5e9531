"""Logprobs that a step reports: who asked, for which tokens, and how the packed rows come back to them.

Used by the runner. The logits of a long prompt never exist all at once: they are made from hidden states and reduced a
few rows at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, SampledTokens, StepPlan, StepResults
from kvasir_runtime.kernels import logprobs
from kvasir_runtime.runner.pooling import PooledVectors
from kvasir_runtime.wire import Logprobs

ROWS_AT_ONCE = 64
"""Rows of logits made at a time: 38 MB in float32 with a vocabulary of 150,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLogprobs:
    """Packed logprobs and whose they are. owners: (place, rows of packed, num_top) in the order of the rows.

    place: of a chunk among those that sample, or among those that score.
    """

    packed: Tensor
    owners: tuple[tuple[int, int, int], ...]

    def read(self) -> dict[int, tuple[Logprobs, ...]]:
        """By place; the rows must be in host memory."""
        num_top = [top for _, count, top in self.owners for _ in range(count)]
        made = iter(logprobs.unpacked(self.packed, num_top))
        return {place: tuple(next(made) for _ in range(count)) for place, count, _ in self.owners}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """What a plan gave. ids: (samples,) int64 drawn ids, None when no chunk samples."""

    ids: Tensor | None = None
    of_sampled: PackedLogprobs | None = None
    of_prompt: PackedLogprobs | None = None
    pooled: PooledVectors | None = None

    def moved_by(self, move: Callable[[Tensor], Tensor]) -> "StepOutput":
        """The same with every tensor moved."""
        return StepOutput(
            ids=None if self.ids is None else move(self.ids),
            of_sampled=None
            if self.of_sampled is None
            else replace(self.of_sampled, packed=move(self.of_sampled.packed)),
            of_prompt=None if self.of_prompt is None else replace(self.of_prompt, packed=move(self.of_prompt.packed)),
            pooled=None if self.pooled is None else replace(self.pooled, packed=move(self.pooled.packed)),
        )

    def results(self, plan: StepPlan) -> StepResults:
        """As the scheduler takes it; everything must be in host memory."""
        ids = [] if self.ids is None else self.ids.tolist()
        said = {} if self.of_sampled is None else self.of_sampled.read()
        scored = {} if self.of_prompt is None else self.of_prompt.read()
        rows = [chunk.row for chunk in plan.chunks if chunk.samples]
        return StepResults(
            step=plan.step,
            sampled=tuple(
                SampledTokens(row, (token,), said.get(place, ()))
                for place, (row, token) in enumerate(zip(rows, ids, strict=True))
            ),
            scored=tuple(scored[place] for place in range(len(scored))),
            pooled=() if self.pooled is None else self.pooled.read(),
        )


class RequestedLogprobs:
    """How many of the likeliest tokens each row wants to know, for its answer and for its prompt."""

    def __init__(self) -> None:
        self._of_answer: dict[int, int] = {}
        self._of_prompt: dict[int, int] = {}

    def apply(self, plan: StepPlan) -> None:
        """Forget the rows that leave, learn those that join or fork: beams are told of their likeliest tokens."""
        for row in (*plan.leaves, *(join.row for join in plan.joins)):
            self._of_answer.pop(row, None)
            self._of_prompt.pop(row, None)
        for join in plan.joins:
            if join.sampling.logprobs >= 0:
                self._of_answer[join.row] = join.sampling.logprobs
            if join.sampling.prompt_logprobs >= 0:
                self._of_prompt[join.row] = join.sampling.prompt_logprobs
        asked = [self._of_answer[fork.source] for fork in plan.forks]
        self._of_answer.update(zip((fork.row for fork in plan.forks), asked, strict=True))

    def of_samples(self, sampled: Sequence[Chunk]) -> tuple[tuple[int, int, int], ...]:
        """Owners among the chunks that sample."""
        if not self._of_answer:
            return ()
        return tuple(
            (place, 1, self._of_answer[chunk.row])
            for place, chunk in enumerate(sampled)
            if chunk.row in self._of_answer
        )

    def of_prompts(self, chunks: Sequence[Chunk]) -> tuple[tuple[int, int, int], ...]:
        """Owners among the chunks that score."""
        scoring = [chunk for chunk in chunks if chunk.scores[0] < chunk.scores[1]]
        return tuple(
            (place, chunk.scores[1] - chunk.scores[0], self._of_prompt[chunk.row])
            for place, chunk in enumerate(scoring)
        )


def of_sampled(logits: Tensor, ids: Tensor, owners: tuple[tuple[int, int, int], ...]) -> PackedLogprobs:
    """Logprobs of drawn ids. logits: (owners, vocab) float32, unchanged; ids: (owners,) int64."""
    return PackedLogprobs(packed=logprobs.packed(logits, ids, max(top for _, _, top in owners)), owners=owners)


def of_prompt(
    hidden: Tensor, ids: Tensor, head: Callable[[Tensor], Tensor], owners: tuple[tuple[int, int, int], ...]
) -> PackedLogprobs:
    """Logprobs of prompt tokens. hidden: (tokens, hidden_size) of the positions before them; ids: (tokens,) int64."""
    num_top = max(top for _, _, top in owners)
    parts = [
        logprobs.packed(head(rows).float(), wanted, num_top)
        for rows, wanted in zip(hidden.split(ROWS_AT_ONCE), ids.split(ROWS_AT_ONCE), strict=True)
    ]
    return PackedLogprobs(packed=torch.cat(parts), owners=owners)
