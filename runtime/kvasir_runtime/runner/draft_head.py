"""A head that drafts from the hidden states of the runner's model, before the step that verifies its drafts.

At a position it reads the model's hidden state there and the token behind it. So its keys and values, in a cache of its
own in blocks of the same numbers as the model's, belong to a position and not to what precedes it, and blocks that rows
share serve all of them (but for the last position of a shared block: what was behind it in the text that was read
first). The hidden states are those that steps give and are not kept: a text of which some went by unread, while drafts
did not pay or because the prefix cache had it, is drafted for from the first block behind them on.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, Join, StepPlan
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.layers.batch import Batch
from kvasir_runtime.layers.draft_head import DraftHead
from kvasir_runtime.runner.draft_model import follow_blocks, known_tokens, may_draft, whole_group
from kvasir_runtime.runner.drafts import with_drafts
from kvasir_runtime.runner.sampling.host_sampler import HostSampler
from kvasir_runtime.runner.state.host_state import HostRowState
from kvasir_runtime.wire import EngineFacts

_NONE: Final = np.empty(0, dtype=np.int32)


class _Reading(NamedTuple):
    """Positions of a row that one pass reads. samples: how the token behind them is drawn, None where none is."""

    row: int
    start: int
    num_positions: int
    samples: Chunk | None


class UnreadFeatures:
    """What the model gave for the positions of a row from start to end, in the parts that came: (tokens, width) each.

    A step without drafts costs no more than its own tokens, however many are unread.
    """

    __slots__ = ("_parts", "end", "start")

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self._parts = deque[Tensor]()

    def __len__(self) -> int:
        return self.end - self.start

    def add(self, start: int, part: Tensor) -> None:
        """Behind the positions before start, which is at most the end."""
        while self.end > start:
            last = self._parts.pop()
            self.end -= len(last)
            if self.end < start:
                self._parts.append(last[: start - self.end])
                self.end = start
        self._parts.append(part.clone())  # a part of what a step gave, all of which it would keep alive
        self.end += len(part)

    def drop(self, count: int) -> None:
        """Leave out the first, fewer than there are."""
        self.start += count
        while count >= len(self._parts[0]):
            count -= len(self._parts.popleft())
        rest = self._parts[0][count:]
        mostly = 2 * rest.nbytes >= rest.untyped_storage().nbytes()
        self._parts[0] = rest if mostly else rest.clone()

    def of(self, start: int, end: int) -> Tensor:
        """(end - start, width)."""
        return torch.cat(tuple(self._parts))[start - self.start : end - self.start]


class HeadDrafter:
    """Implements `PlanDrafter` for all rows of one runner. It must see what the model gives for each plan too."""

    def __init__(
        self,
        head: DraftHead,
        cache: KvCache,
        num_positions: int,
        rows: HostRowState,
        sampler: HostSampler,
        facts: EngineFacts,
    ) -> None:
        """cache, num_positions, rows, sampler, facts: as of `DraftModel`."""
        self._head, self._cache, self._rows, self._sampler = head, cache, rows, sampler
        self._num_positions = num_positions
        self._max_unread = facts.max_batch_tokens
        self._group = whole_group(facts)
        self._tokens, tables, _ = rows.arrays
        self._tables = tables[self._group]
        self._first, self._read = [0] * len(self._tables), [0] * len(self._tables)
        """Of each row the first position that is read, of a block the first too, and behind the last one."""
        self._is_read = np.zeros(cache.blocks.shape[0], dtype=bool)
        """Of each block whether all its positions are read."""
        self._unread: dict[int, UnreadFeatures] = {}
        self._drafted: dict[int, tuple[int, NDArray[np.int32]]] = {}
        """Of each row the drafts of its last chunk, and the position of the first."""
        self._undraftable: set[int] = set()

    def draft(self, plan: StepPlan) -> tuple[StepPlan, dict[int, int]]:
        """As in `PlanDrafter`."""
        self._follow(plan)
        wanted = {chunk.row: chunk.num_undrafted for chunk in plan.chunks if chunk.num_undrafted}
        if not wanted and not plan.drafter_follows:
            return plan, {}
        drafts: dict[int, list[int]] = {row: [] for row in wanted}
        readings, features = self._known(plan)
        hidden = self._head.fused(torch.cat(features)) if features else None
        while readings and hidden is not None:
            ids, hidden = self._sampled(readings, hidden)
            further, going_on = list[_Reading](), list[int]()
            sampling = [reading for reading in readings if reading.samples is not None]
            for place, (reading, token) in enumerate(zip(sampling, ids, strict=True)):
                assert reading.samples is not None
                row, end = reading.row, reading.start + reading.num_positions
                self._rows.write_tokens(row, end + 1, (token,))
                drafts[row].append(token)
                if len(drafts[row]) < wanted[row] and end < self._num_positions:
                    further.append(_Reading(row, end, 1, _behind(reading.samples)))
                    going_on.append(place)
            readings, hidden = further, hidden[going_on]
        missing = {row: wanted[row] - len(made) for row, made in drafts.items() if len(made) < wanted[row]}
        return with_drafts(plan, drafts), missing

    def saw(self, chunks: Sequence[Chunk], features: Tensor) -> None:
        """What the model gave for these chunks, (tokens, width) in their order. It is kept until it is read, or until
        there is too much of it.
        """
        parts = features.split([chunk.num_tokens for chunk in chunks])
        for chunk, part in zip(chunks, parts, strict=True):
            if chunk.row in self._undraftable:
                continue
            unread = self._unread.pop(chunk.row, None)  # and behind the others, as the newest
            if unread is None or not unread.start <= chunk.start <= unread.end:
                unread = UnreadFeatures(chunk.start)
            unread.add(chunk.start, part)
            self._unread[chunk.row] = unread
            self._drafted[chunk.row] = known_tokens(chunk), np.array(chunk.drafts, dtype=self._tokens.dtype)
        excess = sum([len(unread) for unread in self._unread.values()]) - self._max_unread
        while excess > 0:
            row, oldest = next(iter(self._unread.items()))
            if excess < len(oldest):
                oldest.drop(excess)
                break
            excess -= len(oldest)
            del self._unread[row]

    def _follow(self, plan: StepPlan) -> None:
        """Take over what a plan changes: which rows hold other texts, and which blocks hold something else."""
        for row in plan.leaves:
            self._unread.pop(row, None)
        for fork in plan.forks:  # of a beam search, which has no drafts
            self._undraftable.add(fork.row)
            self._unread.pop(fork.row, None)
        follow_blocks(plan, self._group, self._is_read, self._join)

    def _join(self, join: Join) -> None:
        table, shared = join.tables[self._group], join.computed_tokens // self._cache.block_size
        self._unread.pop(join.row, None)
        self._is_read[list(table[shared:])] = False
        first = shared
        while first and self._is_read[table[first - 1]]:
            first -= 1
        self._first[join.row], self._read[join.row] = (place * self._cache.block_size for place in (first, shared))
        (self._undraftable.discard if may_draft(join) else self._undraftable.add)(join.row)

    def _known(self, plan: StepPlan) -> tuple[list[_Reading], list[Tensor]]:
        """All positions of the plan's rows that can be read with the model's hidden states, and these.

        A row samples where drafts are planned, and the model has computed all but its last known token.
        """
        readings, features = list[_Reading](), list[Tensor]()
        for chunk in plan.chunks:
            unread = self._unread.get(chunk.row)
            if unread is None:
                continue
            del self._unread[chunk.row]
            start = self._from(chunk.row, unread)
            end = min(self._certain_end(chunk, unread), self._num_positions)
            if end <= start:
                continue
            first_sample = _first_sample(chunk, end)
            readings.append(_Reading(chunk.row, start, end - start, first_sample))
            features.append(unread.of(start, end))
            self._read[chunk.row] = end
            size = self._cache.block_size
            self._is_read[self._tables[chunk.row, self._first[chunk.row] // size : end // size]] = True
        return readings, features

    def _certain_end(self, chunk: Chunk, unread: UnreadFeatures) -> int:
        """Behind the last position whose token is known, and that of the next one, and whose hidden state is of the
        text as it is now: behind wrong drafts it is of others.
        """
        end = min(unread.end, known_tokens(chunk) - 1)
        start, drafted = self._drafted.get(chunk.row, (end, _NONE))
        wrong = np.flatnonzero(self._tokens[chunk.row, start : start + len(drafted)] != drafted)
        return min(end, start + int(wrong[0])) if len(wrong) else end

    def _from(self, row: int, unread: UnreadFeatures) -> int:
        """The first position to read: behind what is read, or behind a gap from the next block on."""
        if unread.start <= self._read[row]:
            return self._read[row]
        size = self._cache.block_size
        self._first[row] = self._read[row] = -(-unread.start // size) * size
        return self._read[row]

    def _sampled(self, readings: Sequence[_Reading], hidden: Tensor) -> tuple[list[int], Tensor]:
        """Read positions; the ids that follow those that sample, and what is read behind them in place of the model's
        hidden states, (samples, hidden_size). hidden: (positions, hidden_size).
        """
        output = self._head.forward(self._batch(readings), hidden, self._cache)
        assert output.before_norm is not None
        sampling = [reading.samples for reading in readings if reading.samples is not None]
        if not sampling:
            return [], output.before_norm
        ids = self._sampler.sample(self._head.logits(output), sampling, {}).tolist()
        return [max(0, token) for token in ids], output.before_norm  # below 0 where the logits are not finite

    def _batch(self, readings: Sequence[_Reading]) -> Batch:
        size = self._cache.block_size
        starts, counts = (np.array([reading[place] for reading in readings]) for place in (1, 2))
        ends, rows = np.cumsum(counts), np.repeat([reading.row for reading in readings], counts)
        positions = np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts)
        slots = self._tables[rows, positions // size] * size + positions % size
        seen = [reading.start + reading.num_positions - self._first[reading.row] for reading in readings]
        tables = np.zeros((len(readings), -(-max(seen) // size)), dtype=np.int64)
        for table, reading, length in zip(tables, readings, seen, strict=True):
            first, columns = self._first[reading.row] // size, -(-length // size)
            table[:columns] = self._tables[reading.row, first : first + columns]
        wanted = [end - 1 for end, reading in zip(ends, readings, strict=True) if reading.samples is not None]
        return Batch(
            token_ids=torch.from_numpy(self._tokens[rows, positions + 1].astype(np.int64)),
            positions=torch.from_numpy(positions),
            slots=torch.from_numpy(slots)[None],
            attn_metadata=(AttentionMetadata(counts.tolist(), seen, torch.from_numpy(tables)),),
            logit_rows=torch.tensor(wanted, dtype=torch.int64),
        )


def _first_sample(chunk: Chunk, end: int) -> Chunk | None:
    """How the first draft of a chunk is drawn: as a token behind the last known one; None where there is none.

    end: behind the last position that is read. Nor can one be made where that is not the last but one that is known: a
    hidden state between them is missing.
    """
    if not chunk.num_undrafted or end != known_tokens(chunk) - 1:
        return None
    return Chunk(row=chunk.row, start=end, num_tokens=1, samples=True, min_tokens_left=chunk.min_tokens_left)


def _behind(chunk: Chunk) -> Chunk:
    """How the draft behind one is drawn."""
    left = max(0, chunk.min_tokens_left - 1)
    return Chunk(row=chunk.row, start=chunk.start + 1, num_tokens=1, samples=True, min_tokens_left=left)
