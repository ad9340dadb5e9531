"""Guided rows of the runner: which tokens their grammars allow, computed while the forward pass runs.

Owned by the runner, told of leaves and joins, asked twice a step: for masks before the draw, and after it what the
drawn tokens led to. What fails here ends the one request whose grammar it is.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, StepPlan, StepResults
from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.guide.errors import GrammarError
from kvasir_runtime.kernels import bitmask
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.runner.sampling.logits_processors import LogitsProcessors
from kvasir_runtime.runner.state.device_stream import DeviceStream
from kvasir_runtime.runner.state.row_state import RowState

if TYPE_CHECKING:
    from kvasir_runtime.guide.matcher import GrammarMatcher

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class GuidedChunk:
    """One chunk that samples for a guided row. place: among those that sample. position: of the token that is drawn.

    guide: of who holds the row in this plan, or why it has none; another sequence may hold it when it is collected.
    """

    place: int
    row: int
    position: int
    guide: "GrammarMatcher | str"


@dataclass(slots=True)
class GrammarMaskBatch:
    """The guided chunks of a step and their masks, (guided, ids / 32) int32 in that order, once they are asked for.

    discarded: places whose samples are dropped: their guides forced more tokens after the one before, or ended there.
    """

    guided: tuple[GuidedChunk, ...]
    masks: "Future[NDArray[np.int32]] | None" = None
    discarded: set[int] = field(default_factory=set)

    def discard(self, guide: "GrammarMatcher | str") -> None:
        """What was to be drawn by a guide comes to nothing."""
        self.discarded |= {one.place for one in self.guided if one.guide is guide}

    def shares(self, other: "GrammarMaskBatch") -> bool:
        """Whether both draw by one guide."""
        return any(one.guide is another.guide for one in self.guided for another in other.guided)


class GrammarMasks:
    """State of the guided rows; all others are unknown to it."""

    def __init__(self, compiler: GrammarCompiler, ops: Ops, stream: DeviceStream) -> None:
        self._compiler = compiler
        self._ops, self._stream = ops, stream
        self._guides: dict[int, GrammarMatcher | str] = {}
        self._thread: ThreadPoolExecutor | None = None

    def apply(self, plan: StepPlan) -> None:
        """Forget the rows that leave, learn those that join; one that was preempted goes on where it stood."""
        for row in (*plan.leaves, *(join.row for join in plan.joins)):
            self._guides.pop(row, None)
        for join in plan.joins:
            if join.sampling.grammar is not None:
                try:
                    guide = self._compiler.guide(join.sampling, join.tokens[join.prompt_tokens :])
                except GrammarError as error:
                    self._guides[join.row] = str(error)
                else:
                    self._guides[join.row] = guide

    def batch_of(self, sampled: Sequence[Chunk]) -> GrammarMaskBatch | None:
        """The guided ones among the chunks that sample; None where no row is guided."""
        if not self._guides:
            return None
        guided = tuple(
            GuidedChunk(place, chunk.row, chunk.start + chunk.num_tokens, self._guides[chunk.row])
            for place, chunk in enumerate(sampled)
            if chunk.row in self._guides
        )
        return GrammarMaskBatch(guided) if guided else None

    def start(self, mask_batch: GrammarMaskBatch) -> None:
        """Start to compute the masks in a thread, if that was not begun; all tokens before were taken by then."""
        if mask_batch.masks is not None:
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        mask_batch.masks = self._thread.submit(self._fill, mask_batch)

    def mask_logits(self, logits: Tensor, torn: Mapping[int, Tensor], mask_batch: GrammarMaskBatch) -> None:
        """Forbid what the grammars do not allow, in place. Where nothing else would be left, they alone decide.

        logits: (samples, vocab) float32, all other changes made. torn: (vocab,) logits before them, by their places
        among guided, of those of which others may have forbidden all.
        """
        assert mask_batch.masks is not None, "the masks were not asked for"
        filled = mask_batch.masks.result()
        if not self._stream.overlaps:  # copies of all rows would take longer than the loop
            forbidden = _forbidden(filled, logits.shape[1])
            for number, one in enumerate(mask_batch.guided):
                logits[one.place].masked_fill_(forbidden[number], _NEVER)
        else:
            masks, slots = self._stream.upload(filled), np.full(len(logits), -1, dtype=np.int64)
            slots[[one.place for one in mask_batch.guided]] = np.arange(len(mask_batch.guided))
            self._ops.bitmask(logits, masks, self._stream.upload(slots))
            forbidden = ~bitmask.unpacked(masks, logits.shape[1]) if torn else masks
        for number, before in torn.items():
            row = logits[mask_batch.guided[number].place]
            dead = row.amax() == _NEVER
            row.copy_(torch.where(dead, before.masked_fill(forbidden[number], _NEVER), row))

    @torch.inference_mode()
    def accept(
        self, results: StepResults, mask_batch: GrammarMaskBatch, rows: RowState, logits_processors: LogitsProcessors
    ) -> tuple[StepResults, list["GrammarMatcher"]]:
        """The results with what the drawn tokens led to. Forced tokens are appended to the rows that are still held.

        Second the guides that do not want what may have been launched to be drawn after these tokens.
        """
        sampled, final = list(results.sampled), []
        for one in mask_batch.guided:
            drawn = sampled[one.place]
            if one.place in mask_batch.discarded:
                sampled[one.place] = msgspec.structs.replace(drawn, tokens=(), logprobs=())
                continue
            if isinstance(one.guide, str):
                sampled[one.place] = msgspec.structs.replace(drawn, tokens=(), logprobs=(), error=one.guide)
                continue
            taken = one.guide.take(drawn.tokens[0], rows.room(one.position + 1))
            sampled[one.place] = msgspec.structs.replace(
                drawn,
                tokens=taken.tokens,
                logprobs=drawn.logprobs[: len(taken.tokens)],
                ended=taken.ended,
                error=taken.error,
            )
            if len(taken.tokens) > 1 and self._guides.get(one.row) is one.guide:
                rows.extend(one.row, one.position + 1, taken.tokens[1:])
                logits_processors.count_inserted(one.row, taken.tokens[1:])
            if len(taken.tokens) != 1 or taken.ended or taken.error:
                final.append(one.guide)
        return msgspec.structs.replace(results, sampled=tuple(sampled)), final

    def _fill(self, mask_batch: GrammarMaskBatch) -> NDArray[np.int32]:
        """In the thread; llguidance releases the interpreter's lock."""
        masks = np.full((len(mask_batch.guided), -(-self._compiler.vocab_size // 32)), -1, dtype=np.int32)
        for number, one in enumerate(mask_batch.guided):
            if not isinstance(one.guide, str) and one.place not in mask_batch.discarded:
                one.guide.fill(masks[number : number + 1])
        return masks


def _forbidden(masks: NDArray[np.int32], size: int) -> Tensor:
    """(guided, size) bool on the host; ids that the tokenizer lacks are forbidden."""
    packed = np.zeros((len(masks), -(-size // 8)), dtype=np.uint8)
    known = masks.view(np.uint8)[:, : packed.shape[1]]
    packed[:, : known.shape[1]] = known
    np.invert(packed, out=packed)
    return torch.from_numpy(np.unpackbits(packed, axis=1, count=size, bitorder="little").view(np.bool_))
