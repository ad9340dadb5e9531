"""A small model of the same vocabulary that drafts for the runner's model, before the step that verifies its drafts.

Its keys and values lie in a cache of its own, in blocks of the same numbers as those of the runner's model, so that
rows and block tables serve both. It reads what it has not read of a row when drafts of that row are planned, or with
the prompts of a step, little more in a step than the step computes: a row of which too much is unread has no drafts
yet. What it has read of a block holds for all rows that share the block. It draws as the request does, with the same
noise, since a draft counts where it is the token that is drawn in its place.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from kvasir_runtime.core.plan import Chunk, Join, StepPlan
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.runner.drafts import WRONG, with_drafts
from kvasir_runtime.runner.sampling.host_sampler import HostSampler
from kvasir_runtime.runner.state.host_state import HostRowState
from kvasir_runtime.wire import EngineFacts

MOST_READ: Final = 64
"""Unread tokens that a step reads beside as many as it computes: streams wait for it, and so many cost a small model
little more than one does.
"""
NO_TOKEN: Final = -1e30
"""Logit of ids that the draft model does not have; finite, since a row with others counts as invalid."""


class DraftModel:
    """Implements `PlanDrafter` for all rows of one runner."""

    def __init__(
        self,
        model: Decoder,
        cache: KvCache,
        num_positions: int,
        rows: HostRowState,
        sampler: HostSampler,
        facts: EngineFacts,
    ) -> None:
        """cache: of one group, with as many blocks of as many tokens as that of the runner. num_positions: of the
        longest text that the model reads; nothing is drafted behind it. rows, sampler, facts: of the runner, which
        verifies drafts, and one of whose cache groups keeps all tokens.
        """
        self._model, self._cache, self._num_positions = model, cache, num_positions
        self._rows, self._sampler = rows, sampler
        self._vocab_size, self._max_tokens = facts.vocab_size, facts.max_batch_tokens
        self._group = whole_group(facts)
        self._tables = rows.arrays[1][self._group]
        self._read = [0] * len(self._tables)
        """Of each row how many positions are read, from the first on; the last of them may hold wrong drafts."""
        self._is_read = np.zeros(cache.blocks.shape[0], dtype=bool)
        """Of each block whether all of it is read, as the runner's model has it."""
        self._undraftable: set[int] = set()

    def draft(self, plan: StepPlan) -> tuple[StepPlan, dict[int, int]]:
        """As in `PlanDrafter`."""
        self._follow(plan)
        wanted = {chunk.row: chunk.num_undrafted for chunk in plan.chunks if chunk.num_undrafted}
        drafts: dict[int, list[int]] = {row: [] for row in wanted}
        for chunk in plan.chunks:
            if chunk.num_undrafted and (known := known_tokens(chunk)) > self._num_positions:
                self._rows.write_tokens(chunk.row, known, (WRONG,))
                drafts[chunk.row].append(WRONG)
        chunks = self._unread(plan)
        while chunks:
            ids = iter(self._sampled(chunks))
            further = []
            for chunk in chunks:
                end = self._read[chunk.row] = chunk.start + chunk.num_tokens
                if not chunk.samples:
                    continue
                token = max(0, next(ids))  # below 0 where the logits are not finite
                self._rows.write_tokens(chunk.row, end, (token,))
                drafts[chunk.row].append(token)
                if len(drafts[chunk.row]) < wanted[chunk.row] and end < self._num_positions:
                    left = max(0, chunk.min_tokens_left - 1)
                    further.append(Chunk(row=chunk.row, start=end, num_tokens=1, samples=True, min_tokens_left=left))
            chunks = further
        missing = {row: wanted[row] - len(made) for row, made in drafts.items() if len(made) < wanted[row]}
        return with_drafts(plan, drafts), missing

    def _follow(self, plan: StepPlan) -> None:
        """Take over what a plan changes: which tokens are certain by now, and which blocks hold something else."""
        for fork in plan.forks:  # of a beam search, which has no drafts: of its text nothing is read
            self._undraftable.add(fork.row)
        joined = {join.row for join in plan.joins}
        for chunk in plan.chunks:
            if chunk.row not in joined:
                self._confirm(chunk.row, chunk.start)
        follow_blocks(plan, self._group, self._is_read, self._join)

    def _confirm(self, row: int, num_tokens: int) -> None:
        """So many tokens of a row are certain, and the runner's model has computed them."""
        if row in self._undraftable:
            return
        self._read[row] = min(self._read[row], num_tokens)
        self._is_read[self._tables[row, : self._read[row] // self._cache.block_size]] = True

    def _join(self, join: Join) -> None:
        table, shared = join.tables[self._group], join.computed_tokens // self._cache.block_size
        self._is_read[list(table[shared:])] = False
        num_read = 0
        while num_read < shared and self._is_read[table[num_read]]:
            num_read += 1
        self._read[join.row] = num_read * self._cache.block_size
        (self._undraftable.discard if may_draft(join) else self._undraftable.add)(join.row)

    def _unread(self, plan: StepPlan) -> list[Chunk]:
        """What is to be read of the rows, in one pass; those of which all is then read, and drafts are planned, sample.

        Rows of which least is unread come first.
        """
        found = list[Chunk]()
        ends = {
            chunk.row: known_tokens(chunk) for chunk in plan.chunks if self._reads(chunk, follows=plan.drafter_follows)
        }
        of_rows = {chunk.row: chunk for chunk in plan.chunks}
        room = min(self._max_tokens, plan.num_tokens + MOST_READ)
        for row in sorted(ends, key=lambda one: ends[one] - self._read[one]):
            start = self._read[row]
            end = min(ends[row], start + room, self._num_positions)
            if end > start:
                samples = of_rows[row].num_undrafted > 0 and end == ends[row]
                left = of_rows[row].min_tokens_left
                found.append(Chunk(row=row, start=start, num_tokens=end - start, samples=samples, min_tokens_left=left))
                room -= end - start
        return found

    def _reads(self, chunk: Chunk, *, follows: bool) -> bool:
        """Whether a row is read with a chunk: because drafts follow, or as a prompt."""
        if chunk.row in self._undraftable:
            return False
        if chunk.num_undrafted:
            return known_tokens(chunk) <= self._num_positions
        return follows and chunk.num_tokens - len(chunk.drafts) > 1

    def _sampled(self, chunks: list[Chunk]) -> list[int]:
        """Compute chunks; the ids that those that sample are followed by, below 0 where the logits are not finite."""
        made, group = self._rows.model_input(chunks).batch, self._group
        batch = replace(
            made,
            token_ids=made.token_ids.clamp_max(self._model.spec.vocab_size - 1),
            slots=made.slots[group : group + 1],
            attn_metadata=made.attn_metadata[group : group + 1],
        )
        forward = self._model.forward(batch, self._cache)
        sampling = [chunk for chunk in chunks if chunk.samples]
        if not sampling:
            return []
        logits = _of_vocabulary(self._model.logits_of(forward), self._vocab_size)
        ids: list[int] = self._sampler.sample(logits, sampling, {}).tolist()
        return ids


def may_draft(join: Join) -> bool:
    """Whether what joins may have drafts of a model."""
    grammar = join.sampling.grammar
    return not join.beams and join.pooling is None and (grammar is None or not grammar.check)


def whole_group(facts: EngineFacts) -> int:
    """The first cache group that keeps every token. Raises ValueError where each forgets some."""
    for group, attention in enumerate(facts.attentions):
        if attention.keeps_all:
            return group
    raise ValueError("every layer of the model sees a part of the text only")


def follow_blocks(plan: StepPlan, group: int, is_read: NDArray[np.bool_], join: Callable[[Join], None]) -> None:
    """Mark the blocks of a group that a plan fills with something else as unread, in its order. join: what joins."""
    for load in plan.loads:
        is_read[load.block] = False
    for copy in plan.copies:
        is_read[copy.target] = False
    for joined in plan.joins:
        join(joined)
    for grow in plan.grows:
        if grow.group == group:
            is_read[list(grow.blocks)] = False


def known_tokens(chunk: Chunk) -> int:
    """Tokens of a row before the drafts of its chunk."""
    return chunk.start + chunk.num_tokens - len(chunk.drafts)


def _of_vocabulary(logits: Tensor, vocab_size: int) -> Tensor:
    """Logits for the ids of another size of the vocabulary: checkpoints of one family pad it differently."""
    missing = vocab_size - logits.shape[1]
    return functional.pad(logits, (0, missing), value=NO_TOKEN) if missing > 0 else logits[:, :vocab_size]
