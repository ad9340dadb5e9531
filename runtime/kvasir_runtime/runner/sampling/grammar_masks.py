"""Rows whose answers follow a grammar: masks of the allowed tokens, computed while the forward pass runs.

Owned by the runner and called twice a step: for the masks before sampling, and with the sampled tokens after it. A
grammar that fails ends the one request that it belongs to, and one whose mask is late has its sample deferred, so that
other rows do not wait for it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, Fork, SampledTokens, StepPlan, StepResults
from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.guide.drafted_masks import drafted_masks
from kvasir_runtime.guide.errors import GrammarError
from kvasir_runtime.kernels import bitmask
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.runner.sampling import beam_candidates, mask_filler
from kvasir_runtime.runner.sampling.draft_rests import DraftRests
from kvasir_runtime.runner.sampling.grammar_mask_batch import GrammarMaskBatch, GuidedChunk
from kvasir_runtime.runner.sampling.logits_processors import LogitsProcessors
from kvasir_runtime.runner.sampling.mask_filler import MaskFiller, MaskRow
from kvasir_runtime.runner.sampling.verified_drafts import VerifiedDrafts
from kvasir_runtime.runner.state.device_stream import DeviceStream
from kvasir_runtime.runner.state.row_state import RowState

if TYPE_CHECKING:
    from kvasir_runtime.guide.matcher import GrammarMatcher

_NEVER = float("-inf")
_QUICK = -1
"""In the place of a row: all whose masks were never late."""
_MAX_REFUSALS = 4
"""Tokens that a check may refuse in one place before the one is taken that is known to be right."""


@dataclass(frozen=True, slots=True)
class LogitsRows:
    """Tokens that may be sampled, in (samples, vocab) float32 logits."""

    logits: Tensor

    def forbid(self, index: int, token: int) -> None:
        """A token of a row less."""
        self.logits[index, token] = _NEVER

    def leave(self, index: int, token: int) -> None:
        """Only this token of a row."""
        self.logits[index] = _NEVER
        self.logits[index, token] = 0.0


@dataclass(frozen=True, slots=True)
class MaskRows:
    """Tokens that may be sampled, in masks by index."""

    masks: Mapping[int, NDArray[np.int32]]

    def forbid(self, index: int, token: int) -> None:
        """A token of a row less."""
        self.masks[index].view(np.uint32)[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)

    def leave(self, index: int, token: int) -> None:
        """Only this token of a row."""
        self.masks[index][:] = 0
        self.masks[index].view(np.uint32)[token // 32] = np.uint32(1 << token % 32)


class GrammarMasks:
    """The matchers of all rows that have one. compiler: None where grammars are ignored."""

    def __init__(self, compiler: GrammarCompiler | None, ops: Ops, stream: DeviceStream) -> None:
        self._compiler, self._ops, self._stream = compiler, ops, stream
        self._matchers: dict[int, GrammarMatcher | str] = {}
        self._filler = MaskFiller()
        self._late: dict[int, MaskRow] = {}
        """By row, the mask that its next sample waits for."""
        self._slow: set[int] = set()
        """Rows whose mask was late before."""
        self._draft_rests = DraftRests()
        self._beams: set[int] = set()

    def apply(self, plan: StepPlan) -> None:
        """Remove the rows that leave, add those that join or fork; after a preemption a matcher goes on as it was."""
        if self._compiler is None:
            return
        for row in (*plan.leaves, *(join.row for join in plan.joins)):
            self._remove(row)
        for join in plan.joins:
            if join.sampling.grammar is not None:
                if join.beams:
                    self._beams.add(join.row)
                try:
                    matcher = self._compiler.matcher(join.sampling, join.tokens[join.prompt_tokens :])
                except GrammarError as error:
                    self._matchers[join.row] = str(error)
                else:
                    self._matchers[join.row] = matcher
        if self._beams and plan.forks:
            self._fork([fork for fork in plan.forks if fork.source in self._beams])

    def batch_of(self, chunks: Sequence[Chunk]) -> GrammarMaskBatch | None:
        """The guided positions among those that the chunks of a plan sample from; None where there is none."""
        if not self._matchers:
            return None
        guided, index = list[GuidedChunk](), 0
        for chunk in chunks:
            if not chunk.samples:
                continue
            if (matcher := self._matchers.get(chunk.row)) is not None:
                known, is_beam = chunk.start + chunk.num_tokens - len(chunk.drafts), chunk.row in self._beams
                guided += [
                    GuidedChunk(index + place, chunk.row, known + place, matcher, is_beam, chunk.drafts[:place])
                    for place in range(len(chunk.drafts) + 1)
                ]
            index += 1 + len(chunk.drafts)
        return GrammarMaskBatch(tuple(guided)) if guided else None

    def start(self, batch: GrammarMaskBatch) -> None:
        """Begin to compute the masks in threads, unless they were begun. All earlier tokens were accepted.

        Raises what the task of a late mask raised: it would never be ready.
        """
        if batch.rows is not None:
            return
        batch.rows = [None] * len(batch.guided)
        self._copy_for_drafts(batch)
        begun: list[tuple[int, GrammarMatcher]] = []
        for number, chunk in enumerate(batch.guided):
            if isinstance(chunk.matcher, str) or chunk.drafts or chunk.index in batch.dropped:
                continue
            if chunk.row in self._late:
                row = self._late.pop(chunk.row)
                if row.task.ended.done():
                    row.task.ended.result()
                batch.rows[number] = row
            elif chunk.row in self._slow:
                (batch.rows[number],) = self._filler.begin([chunk.matcher], self._width, slow=True)
            else:
                begun.append((number, chunk.matcher))
        if begun:
            rows = self._filler.begin([matcher for _, matcher in begun], self._width)
            for (number, _), row in zip(begun, rows, strict=True):
                batch.rows[number] = row
        self._start_behind_drafts(batch)

    def _copy_for_drafts(self, batch: GrammarMaskBatch) -> None:
        """Copy the matchers of rows with drafts, before threads use them; none whose mask is late, or rests."""
        for first, *drafted in batch.by_row():
            may = drafted and _may_be_copied(first, batch) and first.row not in self._late
            if may and not self._draft_rests.takes_step(first.row):
                assert not isinstance(first.matcher, str)
                masks = drafted_masks(first.matcher, drafted[-1].drafts)
                batch.behind |= {chunk.index: mask for chunk, mask in zip(drafted, masks, strict=True)}

    def _start_behind_drafts(self, batch: GrammarMaskBatch) -> None:
        """Begin masks behind drafts after those of all rows, so that no row waits for the drafts of another."""
        assert batch.rows is not None
        tasks: dict[int, list[int]] = {}
        for number, chunk in enumerate(batch.guided):
            if chunk.index in batch.behind:
                tasks.setdefault(chunk.row if chunk.row in self._slow else _QUICK, []).append(number)
        for row, numbers in tasks.items():
            masks = [batch.behind[batch.guided[number].index] for number in numbers]
            begun = self._filler.begin(masks, self._width, slow=row != _QUICK, drafts=True)
            for number, mask in zip(numbers, begun, strict=True):
                batch.rows[number] = mask

    def defer_late(self, batch: GrammarMaskBatch, *, others: bool) -> "list[GrammarMatcher]":
        """Wait for the masks a little, and drop the samples of those that are late; matchers with a known token before.

        others: whether the step has chunks beside the guided ones. Only masks of rows that were never late are waited
        for, unless there is nothing else to do; masks behind drafts of those that were are not.
        """
        assert batch.rows is not None, "the masks were not begun"
        rows = [
            (chunk, row)
            for chunk, row in zip(batch.guided, batch.rows, strict=True)
            if row is not None and chunk.index not in batch.dropped
        ]
        known = [(chunk, row) for chunk, row in rows if not chunk.drafts]
        quick = [row for chunk, row in known if chunk.row not in self._slow]
        if quick or others:
            mask_filler.wait_for(quick, mask_filler.PATIENCE_S)
        else:
            mask_filler.wait_for([row for _, row in known], mask_filler.ALONE_S)
        drafted = [row for chunk, row in rows if chunk.drafts and chunk.row not in self._slow]
        mask_filler.wait_at_most(drafted, mask_filler.PATIENCE_S)
        late = [(chunk, row) for chunk, row in rows if not row.is_ready]
        num_begun = {row.task: row.task.stop() for _, row in late}
        for chunk, row in late:
            batch.dropped.add(chunk.index)
            if chunk.drafts:
                if row.task.is_held_up_by(row.number) and self._matchers.get(chunk.row) is chunk.matcher:
                    self._draft_rests.begin(chunk.row)
                continue
            batch.deferred.add(chunk.index)
            # One is being computed; the others are begun again. A row may have another sequence by now.
            if row.number < num_begun[row.task] and self._matchers.get(chunk.row) is chunk.matcher:
                self._late[chunk.row] = row
                self._slow.add(chunk.row)
        return batch.deferred_matchers

    def by_chunk(self, batch: GrammarMaskBatch) -> dict[int, NDArray[np.int32]]:
        """The masks by index of their chunk among those that sample."""
        filled = self._filled(batch)
        return {chunk.index: filled[number] for number, chunk in enumerate(batch.guided)}

    def mask_logits(self, logits: Tensor, unprocessed: Mapping[int, Tensor], batch: GrammarMaskBatch) -> None:
        """Forbid what the grammars do not allow, in place. Where no token would be left, the mask alone decides.

        logits: (samples, vocab) float32, all other changes made. unprocessed: (vocab,) logits before these changes, by
        number among the guided chunks, for rows in which the changes may forbid all that the grammar allows.
        """
        masks = self._forbid(logits, [chunk.index for chunk in batch.guided], self._filled(batch))
        for number, before in unprocessed.items():
            row, allowed = logits[batch.guided[number].index], bitmask.unpacked(masks[number : number + 1], len(before))
            dead = row.amax() == _NEVER
            row.copy_(torch.where(dead, before.masked_fill(~allowed[0], _NEVER), row))

    def beam_candidates(self, logits: Tensor, chunks: Sequence[int], batch: GrammarMaskBatch) -> Tensor | None:
        """A copy of logits in which what grammars forbid is forbidden for beams; None where there is no beam.

        logits: (reported, vocab) float32, as the model gave them; chunks: their indices among those that sample. It
        waits for the device where a beam is checked.
        """
        places = {index: place for place, index in enumerate(chunks)}
        beams = [(number, chunk) for number, chunk in enumerate(batch.guided) if chunk.is_beam]
        if not beams:
            return None
        allowed = logits.clone()
        self._forbid(
            allowed, [places[chunk.index] for _, chunk in beams], self._filled(batch)[[number for number, _ in beams]]
        )
        checked = {
            places[chunk.index]: chunk.matcher
            for _, chunk in beams
            if not isinstance(chunk.matcher, str) and chunk.matcher.is_checked and chunk.index not in batch.dropped
        }
        if checked:
            beam_candidates.keep_admitted(allowed, checked)
        return allowed

    def checked(
        self, ids: Tensor, batch: GrammarMaskBatch, allowed: "LogitsRows | MaskRows", sample: Callable[[], Tensor]
    ) -> Tensor:
        """The sampled ids, sampled again where a check refuses them; the other rows keep theirs, as draws are the same.

        ids: (samples,) int64. allowed: where refused tokens are forbidden before sample is called again. It waits for
        the device where a row is checked.
        """
        left = [
            chunk
            for chunk in batch.guided
            if not isinstance(chunk.matcher, str)
            and chunk.matcher.is_checked
            and not (chunk.is_beam or chunk.drafts)
            and chunk.index not in batch.dropped
        ]
        for _ in range(_MAX_REFUSALS if left else 0):
            drawn = ids.tolist()
            left = [chunk for chunk in left if not _admits(chunk, drawn[chunk.index])]
            if not left:
                return ids
            for chunk in left:
                allowed.forbid(chunk.index, drawn[chunk.index])
            ids = sample()
        for chunk in left:
            assert not isinstance(chunk.matcher, str)
            allowed.leave(chunk.index, chunk.matcher.token_to_end())
        return sample() if left else ids

    @torch.inference_mode()
    def accept(
        self, results: StepResults, batch: GrammarMaskBatch, rows: RowState, logits_processors: LogitsProcessors
    ) -> tuple[StepResults, tuple["GrammarMatcher", ...]]:
        """Advance the matchers by the sampled tokens. Forced tokens are appended to the rows that are still held.

        Returns the results with forced tokens, ends and errors, and the matchers after which later samples are dropped.
        """
        sampled: list[SampledTokens] = list(results.sampled)
        ended: list[GrammarMatcher] = []
        for positions in batch.by_row():
            answer = VerifiedDrafts(positions[-1].drafts)
            while answer.place is not None:
                chunk = positions[answer.place]
                sample = self._accepted(sampled[chunk.index], chunk, batch, rows, logits_processors)
                sampled[chunk.index] = sample
                answer.add(sample)
                if not isinstance(chunk.matcher, str) and _drops_later(chunk, sample):
                    ended.append(chunk.matcher)
        return msgspec.structs.replace(results, sampled=tuple(sampled)), tuple(ended)

    def _accepted(
        self,
        sample: SampledTokens,
        chunk: GuidedChunk,
        batch: GrammarMaskBatch,
        rows: RowState,
        logits_processors: LogitsProcessors,
    ) -> SampledTokens:
        """What a position gave, by its grammar; its matcher has accepted the tokens before it."""
        if chunk.index in batch.dropped:
            return SampledTokens(sample.row, (), deferred=chunk.index in batch.deferred)
        if chunk.drafts and not batch.is_known_behind(chunk):
            return SampledTokens(sample.row, ())
        if sample.invalid:
            return sample
        if isinstance(chunk.matcher, str):
            return msgspec.structs.replace(sample, tokens=(), logprobs=(), error=chunk.matcher)
        if chunk.is_beam:
            return beam_candidates.continuations(sample, chunk.matcher)
        taken = chunk.matcher.take(sample.tokens[0], rows.free_positions(chunk.position + 1))
        if len(taken.tokens) > 1 and self._matchers.get(chunk.row) is chunk.matcher:
            rows.write_tokens(chunk.row, chunk.position + 1, taken.tokens[1:])
            logits_processors.count_inserted(chunk.row, taken.tokens[1:])
        logprobs = sample.logprobs[: len(taken.tokens)]
        return msgspec.structs.replace(
            sample, tokens=taken.tokens, logprobs=logprobs, ended=taken.ended, error=taken.error
        )

    def _remove(self, row: int) -> None:
        self._matchers.pop(row, None)
        self._late.pop(row, None)
        self._slow.discard(row)
        self._draft_rests.forget(row)
        self._beams.discard(row)

    def _fork(self, forks: Sequence[Fork]) -> None:
        """All at once, since beams may exchange rows."""
        matchers, slow = [self._matchers[fork.source] for fork in forks], self._slow.copy()
        for fork, matcher in zip(forks, matchers, strict=True):
            self._remove(fork.row)
            self._beams.add(fork.row)
            self._matchers[fork.row] = matcher if isinstance(matcher, str) else matcher.fork(fork.tokens)
            if fork.source in slow:
                self._slow.add(fork.row)

    def _forbid(self, logits: Tensor, places: Sequence[int], masks: NDArray[np.int32]) -> Tensor:
        """Forbid what masks do not allow in these rows of logits, in place. The masks, where the logits are."""
        if not self._stream.overlaps:  # copies of all rows would take longer than the loop
            for place, forbidden in zip(places, _forbidden(masks, logits.shape[1]), strict=True):
                logits[place].masked_fill_(forbidden, _NEVER)
            return torch.from_numpy(masks)
        uploaded, slots = self._stream.upload(masks), np.full(len(logits), -1, dtype=np.int64)
        slots[places] = np.arange(len(places))
        self._ops.bitmask(logits, uploaded, self._stream.upload(slots))
        return uploaded

    @property
    def _width(self) -> int:
        """Words of a mask."""
        assert self._compiler is not None
        return -(-self._compiler.vocab_size // 32)

    def _filled(self, batch: GrammarMaskBatch) -> NDArray[np.int32]:
        """(guided, ids / 32) int32; of chunks without a mask, whose samples are dropped, everything is allowed."""
        assert batch.rows is not None, "the masks were not begun"
        rows = [row for row in batch.rows if row is not None and row.is_ready]
        if len(rows) == len(batch.rows) == len(rows[0].task.masks) and len({row.task for row in rows}) == 1:
            return rows[0].task.masks
        masks = np.full((len(batch.rows), self._width), -1, dtype=np.int32)
        for number, row in enumerate(batch.rows):
            if row is not None and row.is_ready:
                masks[number] = row.mask
        return masks


def _may_be_copied(first: GuidedChunk, batch: GrammarMaskBatch) -> bool:
    """Whether masks behind drafts can be made: a check of tokens goes along no drafts."""
    matcher = first.matcher
    return not isinstance(matcher, str) and not matcher.is_checked and first.index not in batch.dropped


def _drops_later(chunk: GuidedChunk, sample: SampledTokens) -> bool:
    """Whether what was launched behind a sample before it was accepted is void."""
    return sample.invalid or (not chunk.is_beam and (sample.ended or bool(sample.error) or len(sample.tokens) > 1))


def _admits(chunk: GuidedChunk, token: int) -> bool:
    """A token below 0 is that of a row whose logits are not finite."""
    return token < 0 or isinstance(chunk.matcher, str) or chunk.matcher.admits(token)


def _forbidden(masks: NDArray[np.int32], size: int) -> Tensor:
    """(guided, size) bool on the host; ids that the tokenizer lacks are forbidden."""
    packed = np.zeros((len(masks), -(-size // 8)), dtype=np.uint8)
    known = masks.view(np.uint8)[:, : packed.shape[1]]
    packed[:, : known.shape[1]] = known
    np.invert(packed, out=packed)
    return torch.from_numpy(np.unpackbits(packed, axis=1, count=size, bitorder="little").view(np.bool_))
