"""Guided rows of the runner: which tokens their grammars allow, computed while the forward pass runs.

Owned by the runner, told of leaves and joins, asked twice a step: for masks before the draw, and after it what the
drawn tokens led to. What fails here ends the one request whose grammar it is.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, Plan, Results
from kvasir_runtime.guide.compiler import Compiler
from kvasir_runtime.guide.errors import GrammarError
from kvasir_runtime.runner.controls import Controls
from kvasir_runtime.runner.rows import Rows

if TYPE_CHECKING:
    from kvasir_runtime.guide.matcher import Guide

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Guided:
    """One chunk that samples for a guided row. place: among those that sample. position: of the token that is drawn.

    guide: of who holds the row in this plan, or why it has none; another sequence may hold it when it is collected.
    """

    place: int
    row: int
    position: int
    guide: "Guide | str"


@dataclass(frozen=True, slots=True)
class Filling:
    """Masks in the making: (guided, ids / 32) int32, in the order of guided."""

    guided: tuple[Guided, ...]
    masks: "Future[NDArray[np.int32]]"


class Masks:
    """State of the guided rows; all others are unknown to it."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._guides: dict[int, Guide | str] = {}
        self._thread: ThreadPoolExecutor | None = None

    def apply(self, plan: Plan) -> None:
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

    def begin(self, sampled: Sequence[Chunk]) -> Filling | None:
        """Start to compute the masks of the chunks that sample, in a thread; None where no row is guided."""
        if not self._guides:
            return None
        guided = tuple(
            Guided(place, chunk.row, chunk.start + chunk.num_tokens, self._guides[chunk.row])
            for place, chunk in enumerate(sampled)
            if chunk.row in self._guides
        )
        if not guided:
            return None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        return Filling(guided, self._thread.submit(self._fill, guided))

    def change(self, logits: Tensor, torn: Mapping[int, Tensor], filling: Filling) -> None:
        """Forbid what the grammars do not allow, in place. Where nothing else would be left, they alone decide.

        logits: (samples, vocab) float32, all other changes made. torn: (vocab,) logits before them, by their places
        among guided, of those of which others may have forbidden all.
        """
        forbidden = _forbidden(filling.masks.result(), logits)
        if logits.device.type == "cpu":  # where copies of all rows would take longer than the loop
            for number, one in enumerate(filling.guided):
                logits[one.place].masked_fill_(forbidden[number], _NEVER)
        else:
            places = torch.tensor([one.place for one in filling.guided]).to(logits.device, non_blocking=True)
            logits[places] = logits[places].masked_fill_(forbidden, _NEVER)
        for number, before in torn.items():
            row = logits[filling.guided[number].place]
            dead = row.amax() == _NEVER
            row.copy_(torch.where(dead, before.masked_fill(forbidden[number], _NEVER), row))

    @torch.inference_mode()
    def take(self, results: Results, filling: Filling, rows: Rows, controls: Controls) -> Results:
        """The results with what the drawn tokens led to. Forced tokens are appended to the rows that are still held."""
        sampled = list(results.sampled)
        for one in filling.guided:
            drawn = sampled[one.place]
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
                controls.count(one.row, taken.tokens[1:])
        return msgspec.structs.replace(results, sampled=tuple(sampled))

    def _fill(self, guided: Sequence[Guided]) -> NDArray[np.int32]:
        """In the thread; llguidance releases the interpreter's lock."""
        masks = np.full((len(guided), -(-self._compiler.vocab_size // 32)), -1, dtype=np.int32)
        for number, one in enumerate(guided):
            if not isinstance(one.guide, str):
                one.guide.fill(masks[number : number + 1])
        return masks


def _forbidden(masks: NDArray[np.int32], logits: Tensor) -> Tensor:
    """(guided, vocab) bool on the device of the logits; ids that the tokenizer lacks are forbidden."""
    size = logits.shape[1]
    packed = np.zeros((len(masks), -(-size // 8)), dtype=np.uint8)
    known = masks.view(np.uint8)[:, : packed.shape[1]]
    packed[:, : known.shape[1]] = known
    np.invert(packed, out=packed)
    if logits.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(packed, axis=1, count=size, bitorder="little").view(np.bool_))
    return unpacked(torch.from_numpy(packed).to(logits.device, non_blocking=True), size)


def unpacked(packed: Tensor, size: int) -> Tensor:
    """(rows, size) bool from (rows, bytes) uint8, the lowest bit first, on the device where they are."""
    powers = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8).to(packed.device, non_blocking=True)
    return (packed[:, :, None] & powers).ne(0).flatten(1)[:, :size]
