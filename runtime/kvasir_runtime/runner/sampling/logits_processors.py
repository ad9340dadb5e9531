"""What requests change in the logits beside temperature and filters: penalties, biases, allowed and bad tokens.

Owned by the runner and called once a step. A row without any of these costs a look into four empty dictionaries. Counts
of an answer are kept on the device and updated there after each sample, so that nothing waits for them; after a
preemption they are rebuilt from the tokens of the join, whose prompt_tokens separate the prompt from the answer.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, Join, StepPlan
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.runner.state.device_stream import DeviceStream
from kvasir_runtime.wire import SamplingConfig

_SLOTS = 4
_FORBIDDEN = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """Bad words of a row. prefixes: (words, longest - 1) right-aligned ids, -1 where a word is shorter.

    lasts: (words,) the id that would complete each; lengths: (words,). longest counts ids.
    """

    prefixes: Tensor
    lasts: Tensor
    lengths: Tensor
    longest: int
    prompt_tokens: int


class LogitsProcessors:
    """State of the rows whose requests change logits; it has no entry for the others."""

    def __init__(self, *, vocab_size: int, eos_token_ids: Sequence[int], ops: Ops, stream: DeviceStream) -> None:
        self._vocab_size = vocab_size
        self._fallback = min(eos_token_ids, default=0)
        self._ops, self._to_device = ops, stream.upload
        self._slots: dict[int, int] = {}
        self._free_slots: list[int] = []
        self._counts = torch.empty((0, vocab_size), dtype=torch.int32, device=stream.device)
        self._in_prompt = torch.empty((0, vocab_size), dtype=torch.bool, device=stream.device)
        self._strengths = torch.empty((0, 3), dtype=torch.float32, device=stream.device)
        self._biases: dict[int, tuple[Tensor, Tensor]] = {}
        self._allowed: dict[int, tuple[Tensor, int]] = {}
        self._bad: dict[int, _Words] = {}

    def apply(self, plan: StepPlan) -> None:
        """Remove the rows that leave, add those that join; inserted tokens count as part of the answer."""
        for row in plan.leaves:
            self._remove(row)
        for join in plan.joins:
            self._remove(join.row)
            self._add(join)
        for insert in plan.inserts:
            self.count_inserted(insert.row, insert.tokens)

    def affect(self, sampling_chunks: Sequence[Chunk]) -> bool:
        """Whether the logits of one of these chunks change."""
        changes = (self._slots, self._biases, self._allowed, self._bad)
        return any(changes) and any(chunk.row in rows for rows in changes for chunk in sampling_chunks)

    def may_forbid(self, row: int) -> bool:
        """Whether a row may have tokens that are never sampled."""
        return row in self._allowed or row in self._bad

    def process(self, logits: Tensor, sampling_chunks: Sequence[Chunk], tokens: Tensor) -> None:
        """Change the logits of the chunks that sample, in place, in the order that `wire.SamplingConfig` names.

        logits: (samples, vocab) float32; tokens: (rows, positions) the known ids of every row.
        """
        for index, chunk in enumerate(sampling_chunks):
            if chunk.row in self._allowed:
                ids, _ = self._allowed[chunk.row]
                kept = logits[index, ids]
                logits[index] = _FORBIDDEN
                logits[index, ids] = kept
            if chunk.row in self._biases:
                logits[index].index_add_(0, *self._biases[chunk.row])
        self._apply_penalties(logits, sampling_chunks)
        for index, chunk in enumerate(sampling_chunks):
            if chunk.row in self._bad:
                self._forbid_words(logits[index], self._bad[chunk.row], tokens[chunk.row], chunk)
            if chunk.row in self._bad or chunk.row in self._allowed:
                self._keep_one_token(logits[index], chunk.row)

    def count_sampled(self, sampling_chunks: Sequence[Chunk], ids: Tensor, dropped: Collection[int] = ()) -> None:
        """Count the sampled ids, (samples,) int64, except those whose index is in dropped."""
        if not self._slots:
            return
        places = [
            (index, self._slots[chunk.row])
            for index, chunk in enumerate(sampling_chunks)
            if chunk.row in self._slots and index not in dropped
        ]
        if places:
            indices, slots = self._to_device(np.array(places, dtype=np.int64)).unbind(1)
            self._counts[slots, ids[indices]] += 1

    def count_inserted(self, row: int, token_ids: Sequence[int]) -> None:
        """Count ids of an answer that were not sampled."""
        if row in self._slots:
            ids = self._to_device(np.array(token_ids, dtype=np.int64))
            self._counts[self._slots[row]].index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))

    def _apply_penalties(self, logits: Tensor, sampling_chunks: Sequence[Chunk]) -> None:
        slots = [self._slots.get(chunk.row, -1) for chunk in sampling_chunks]
        if max(slots) >= 0:
            places = self._to_device(np.array(slots, dtype=np.int64))
            self._ops.penalties(logits, places, self._counts, self._in_prompt, self._strengths)

    def _forbid_words(self, logits: Tensor, words: _Words, tokens: Tensor, chunk: Chunk) -> None:
        """Forbid the ids that would complete a word; only the answer counts, not the prompt before it."""
        end = chunk.start + chunk.num_tokens
        width = min(words.longest - 1, end)
        prefixes = words.prefixes[:, words.longest - 1 - width :]
        same = ((prefixes == tokens[end - width : end]) | (prefixes < 0)).all(dim=1)
        same &= words.lengths - 1 <= end - words.prompt_tokens
        logits.index_add_(0, words.lasts, torch.where(same, _FORBIDDEN, 0.0))

    def _keep_one_token(self, logits: Tensor, row: int) -> None:
        """Where all tokens are forbidden one stays allowed: the lowest of allowed_token_ids, or EOS."""
        fallback = self._allowed[row][1] if row in self._allowed else self._fallback
        dead = logits.amax() == _FORBIDDEN
        logits[fallback] = torch.where(dead, 0.0, logits[fallback])

    def _remove(self, row: int) -> None:
        self._biases.pop(row, None)
        self._allowed.pop(row, None)
        self._bad.pop(row, None)
        if row in self._slots:
            self._free_slots.append(self._slots.pop(row))

    def _add(self, join: Join) -> None:
        row, sampling = join.row, join.sampling
        if sampling.logit_bias:
            ids, values = zip(*sampling.logit_bias, strict=True)
            self._biases[row] = (
                self._to_device(np.array(ids, dtype=np.int64)),
                self._to_device(np.array(values, dtype=np.float32)),
            )
        if sampling.allowed_token_ids:
            allowed = np.unique(np.array(sampling.allowed_token_ids, dtype=np.int64))
            self._allowed[row] = (self._to_device(allowed), int(allowed[0]))
        if sampling.bad_words:
            self._bad[row] = self._words(sampling.bad_words, join.prompt_tokens)
        if has_penalties(sampling):
            self._count(join)

    def _words(self, bad_words: Sequence[tuple[int, ...]], prompt_tokens: int) -> _Words:
        longest = max(map(len, bad_words))
        prefixes = np.full((len(bad_words), longest - 1), -1, dtype=np.int32)
        for index, word in enumerate(bad_words):
            prefixes[index, longest - len(word) :] = word[:-1]
        return _Words(
            prefixes=self._to_device(prefixes),
            lasts=self._to_device(np.array([word[-1] for word in bad_words], dtype=np.int64)),
            lengths=self._to_device(np.array([len(word) for word in bad_words], dtype=np.int64)),
            longest=longest,
            prompt_tokens=prompt_tokens,
        )

    def _count(self, join: Join) -> None:
        """Start the counts of a row, with what its answer already has."""
        sampling, row = join.sampling, join.row
        strengths = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        if not self._free_slots:
            self._grow()
        slot = self._slots[row] = self._free_slots.pop()
        tokens = np.array(join.tokens, dtype=np.int64)
        counts = np.bincount(tokens[join.prompt_tokens :], minlength=self._vocab_size).astype(np.int32)
        in_prompt = np.zeros(self._vocab_size, dtype=np.bool_)
        in_prompt[tokens[: join.prompt_tokens]] = True
        self._counts[slot] = self._to_device(counts)
        self._in_prompt[slot] = self._to_device(in_prompt)
        self._strengths[slot] = self._to_device(np.array(strengths, dtype=np.float32))

    def _grow(self) -> None:
        """Double the slots. 256 for a vocabulary of 150,000 would take 190 MB that most servers never need."""
        have = self._counts.shape[0]
        more = max(_SLOTS, have)
        self._counts = torch.cat((self._counts, self._counts.new_zeros((more, self._vocab_size))))
        self._in_prompt = torch.cat((self._in_prompt, self._in_prompt.new_zeros((more, self._vocab_size))))
        self._strengths = torch.cat((self._strengths, self._strengths.new_zeros((more, 3))))
        self._free_slots += range(have + more - 1, have - 1, -1)


def has_penalties(sampling: SamplingConfig) -> bool:
    """Whether a request has a penalty that changes anything."""
    return bool(sampling.frequency_penalty or sampling.presence_penalty or sampling.repetition_penalty != 1.0)
