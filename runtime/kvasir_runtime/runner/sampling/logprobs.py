"""Logprobs that requests ask for: which rows, how many tokens, and how packed rows return to their chunks.

Used by the runner and the sampler. The logits of a long prompt never exist all at once: they are computed from hidden
states and reduced a few rows at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, StepPlan
from kvasir_runtime.kernels import logprobs
from kvasir_runtime.kernels.logprobs import ComputeLogprobs, WantedLogprobs
from kvasir_runtime.wire import Logprobs

ROWS_AT_ONCE = 64
"""Rows of logits computed at a time: 38 MB in float32 with a vocabulary of 150,000."""


class LogprobsOwner(NamedTuple):
    """A chunk whose logprobs are wanted. chunk_index: among the chunks that sample, or among those that are scored.

    num_rows: packed rows that belong to it. num_top: how many of the most likely tokens come with each. token_ids: the
    tokens that come with each instead.
    """

    chunk_index: int
    num_rows: int
    num_top: int
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLogprobs:
    """Packed logprobs and their owners, in the order of the rows."""

    packed: Tensor
    owners: tuple[LogprobsOwner, ...]

    def unpacked(self) -> dict[int, tuple[Logprobs, ...]]:
        """By chunk_index; packed must be in host memory."""
        num_top = [owner.num_top for owner in self.owners for _ in range(owner.num_rows)]
        named = [owner.token_ids for owner in self.owners for _ in range(owner.num_rows)]
        rows = iter(logprobs.unpacked(self.packed, num_top, named, max(map(len, named))))
        return {owner.chunk_index: tuple(next(rows) for _ in range(owner.num_rows)) for owner in self.owners}


class RequestedLogprobs:
    """How many of the most likely tokens are reported for each row, of its answer and of its prompt."""

    def __init__(self) -> None:
        self._of_answer: dict[int, int] = {}
        self._named: dict[int, tuple[int, ...]] = {}
        self._of_prompt: dict[int, int] = {}

    def apply(self, plan: StepPlan) -> None:
        """Remove the rows that leave, add those that join or fork: beam search needs the most likely tokens."""
        for row in (*plan.leaves, *(join.row for join in plan.joins)):
            self._of_answer.pop(row, None)
            self._named.pop(row, None)
            self._of_prompt.pop(row, None)
        for join in plan.joins:
            if join.sampling.logprobs >= 0:
                named = join.sampling.logprob_token_ids
                self._of_answer[join.row] = 0 if named else join.sampling.logprobs
                if named:
                    self._named[join.row] = named
            if join.sampling.prompt_logprobs >= 0:
                self._of_prompt[join.row] = join.sampling.prompt_logprobs
        requested = [self._of_answer[fork.source] for fork in plan.forks]
        self._of_answer.update(zip((fork.row for fork in plan.forks), requested, strict=True))

    def of_samples(self, sampling_chunks: Sequence[Chunk]) -> tuple[LogprobsOwner, ...]:
        """The chunks that sample and whose logprobs are wanted."""
        if not self._of_answer:
            return ()
        return tuple(
            LogprobsOwner(index, 1, self._of_answer[chunk.row], self._named.get(chunk.row, ()))
            for index, chunk in enumerate(sampling_chunks)
            if chunk.row in self._of_answer
        )

    def of_prompts(self, chunks: Sequence[Chunk]) -> tuple[LogprobsOwner, ...]:
        """The chunks that are scored."""
        scored = [chunk for chunk in chunks if chunk.scores[0] < chunk.scores[1]]
        return tuple(
            LogprobsOwner(index, chunk.scores[1] - chunk.scores[0], self._of_prompt[chunk.row])
            for index, chunk in enumerate(scored)
        )


def wanted_of(
    owners: Sequence[LogprobsOwner], device: torch.device, rows: Sequence[int] | None = None
) -> WantedLogprobs:
    """What owners of sampled ids want, a row each. rows: where these are among the logits; None where they are all."""
    width = max(len(owner.token_ids) for owner in owners)
    padded = [[*owner.token_ids, *[0] * (width - len(owner.token_ids))] for owner in owners]
    others = torch.tensor(padded, device=device) if width else None
    return WantedLogprobs(num_top=max(owner.num_top for owner in owners), others=others, rows=rows)


def of_prompt_tokens(
    compute: ComputeLogprobs,
    hidden: Tensor,
    ids: Tensor,
    head: Callable[[Tensor], Tensor],
    owners: tuple[LogprobsOwner, ...],
) -> PackedLogprobs:
    """Logprobs of prompt tokens. hidden: (tokens, hidden_size) of the positions before them; ids: (tokens,) int64."""
    wanted = WantedLogprobs(num_top=max(owner.num_top for owner in owners))
    parts = [
        compute(head(rows), some, wanted, None)
        for rows, some in zip(hidden.split(ROWS_AT_ONCE), ids.split(ROWS_AT_ONCE), strict=True)
    ]
    return PackedLogprobs(packed=torch.cat(parts), owners=owners)
