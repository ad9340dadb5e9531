"""A decoder's forward pass in one call of C++: `kernels.decoder_step` for CPUs.

Logits are computed in the same call, since threads that waited for the next one would have fallen asleep.
"""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.cpu import step_model, structs
from kvasir_runtime.kernels.cpu.bindings import takes_heads
from kvasir_runtime.kernels.cpu.library import Library
from kvasir_runtime.kernels.cpu.row_sampler import CppRowSampler, EditsStruct
from kvasir_runtime.kernels.cpu.step_structs import BatchStruct, LateMaskStruct, LayerStruct, ModelStruct, RowsStruct
from kvasir_runtime.kernels.decoder_step import DecoderParts, ForwardOutput, SampledRows
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.kernels.logprobs import WantedLogprobs
from kvasir_runtime.kernels.row_sampler import LateMask, RowChunk, RowSampler

KINDS: Final = (
    "embedding",
    "norm",
    "qkv",
    "rope+cache",
    "attention",
    "output",
    "gate+up",
    "down",
    "router",
    "experts",
    "head",
    "sampling",
)
_WORK: Final = ("token_ids", "positions")


class CppDecoderStep:
    """The layers of one decoder."""

    def __init__(
        self, found: Library, model: ModelStruct, layers: ctypes.Array[LayerStruct], kept: tuple[Any, ...]
    ) -> None:
        """layers: of the model. kept: what the structs point into."""
        self._layers = layers
        self._ticks: NDArray[np.int64] | None = None
        self._model = model
        self._kept = kept
        self._cache = 0
        self.head_rows = int(model.head.contents.outputs) if model.head else 0
        self.logits_dtype = torch.float32 if model.logit_cap else torch.bfloat16
        self.model = ctypes.byref(model)
        self.library = found
        self._run = found.function("step", ctypes.c_void_p, ctypes.c_void_p)
        self._join = found.finish
        self._begun: tuple[ForwardOutput, tuple[Any, ...]] | None = None

    def begin(
        self,
        token_ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: Tensor,
        attn_metadata: Sequence[AttentionMetadata],
        cache: KvCache,
        *,
        greedy: bool = False,
    ) -> None:
        """Start the other threads on the rows that are wanted; `finish` takes part. All ids int64 and contiguous.

        slots: (groups, tokens), attn_metadata: one for each cache group.
        """
        self.ready(cache)
        made = [structs.sequences(one) for one in attn_metadata]
        sequences = (structs.Sequences * len(made))(*(one for one, _ in made))
        out = torch.empty((rows.shape[0], self._model.hidden), dtype=torch.bfloat16)
        logits = greedy_ids = None
        if self.head_rows and rows.shape[0] <= sequences[0].count:
            logits = torch.empty((rows.shape[0], self.head_rows), dtype=self.logits_dtype)
            greedy_ids = torch.empty(rows.shape[0], dtype=torch.int64) if greedy else None
        batch = BatchStruct(
            tokens=token_ids.shape[0],
            num_rows=rows.shape[0],
            token_ids=token_ids.data_ptr(),
            positions=positions.data_ptr(),
            slots=slots.data_ptr(),
            rows=rows.data_ptr(),
            sequences=sequences,
            out=out.data_ptr(),
            logits=None if logits is None else logits.data_ptr(),
            sampled=None if greedy_ids is None else greedy_ids.data_ptr(),
            ticks=self.ticks,
        )
        self._begun = (
            ForwardOutput(hidden=out, logits=logits, greedy_ids=greedy_ids),
            (batch, sequences, made, token_ids, positions, slots, rows),
        )
        self._run(self.model, ctypes.byref(batch))

    def finish(self) -> ForwardOutput:
        """Compute what is left of the step that was begun. Raises ValueError where none was."""
        if self._begun is None:
            raise ValueError("no step was begun")
        self._join()
        (output, _), self._begun = self._begun, None
        return output

    def ready(self, cache: KvCache) -> None:
        """Before a step begins: what was begun before is finished, and this is the cache that the next one reads."""
        self._join()
        self._begun = None
        if cache.blocks.data_ptr() != self._cache:
            self._look_at(cache)

    def room(self, count: int) -> tuple[Tensor, Tensor]:
        """Hidden states and logits of so many rows, undefined."""
        hidden = torch.empty((count, self._model.hidden), dtype=torch.bfloat16)
        return hidden, torch.empty((count, self.head_rows), dtype=self.logits_dtype)

    def row_steps(self, tables: NDArray[np.int64], sampler: RowSampler, max_tokens: int) -> "CppRowSteps | None":
        """Steps over the sampler's rows, or None where the head is not packed."""
        assert isinstance(sampler, CppRowSampler)
        return CppRowSteps(self, tables, sampler, max_tokens) if self.head_rows else None

    @property
    def ticks(self) -> int | None:
        """Where time stamps are counted, if they are."""
        return None if self._ticks is None else self._ticks.ctypes.data

    def profile(self, wanted: bool) -> None:
        """Count time stamps from now on, or do not."""
        self._ticks = np.zeros(len(KINDS), dtype=np.int64) if wanted else None

    def profiled(self) -> dict[str, int]:
        """By kind, those since the last call."""
        if self._ticks is None:
            return {}
        counted = dict(zip(KINDS, self._ticks.tolist(), strict=True))
        self._ticks[:] = 0
        return counted

    def takes(self, cache: KvCache) -> bool:
        """Whether the C++ reads a cache of this type."""
        return takes_heads(torch.bfloat16, cache.dtype, self._model.head_dim)

    def _look_at(self, cache: KvCache) -> None:
        self._cache = self._model.cache = cache.blocks.data_ptr()
        self._model.value_offset, self._model.block_bytes = structs.strides(cache.layers[0])
        self._model.num_groups = cache.num_groups
        for layer, view, group in zip(self._layers, cache.layers, cache.groups, strict=True):
            layer.group, layer.cache_offset = group, view.data_ptr() - cache.blocks.data_ptr()
        self._model.block_size = cache.layers[0].shape[2]
        self._model.cache_type = structs.TYPES[cache.dtype]


class CppRowSteps:
    """tables: (groups, rows, blocks) int64, which stay where they are. sampler: of the same rows.

    max_tokens: of a step.
    """

    def __init__(
        self, step: CppDecoderStep, tables: NDArray[np.int64], sampler: CppRowSampler, max_tokens: int
    ) -> None:
        tokens, draws = sampler.tokens, sampler.draws
        self._step = step
        self._sampler = sampler
        self._num_sampled = 0
        self._max_tokens = max_tokens
        pointer = ctypes.POINTER(RowsStruct)
        self._begin = step.library.function("step_rows", ctypes.c_void_p, pointer)
        self._finish = step.library.function("step_rows_finish", pointer)
        num_rows = len(tokens)
        self._chunks = np.empty((num_rows, len(RowChunk._fields)), dtype=np.int64)
        self._sampled = np.empty(max_tokens, dtype=np.int64)
        groups, _, columns = tables.shape
        work = {name: np.empty(max_tokens, dtype=np.int64) for name in _WORK}
        work["slots"] = np.empty((groups, max_tokens), dtype=np.int64)
        sequences = (structs.Sequences * groups)()
        each = {"wanted": np.empty(max_tokens, dtype=np.int64), "sampled": self._sampled}
        each |= {"draws": np.empty(max_tokens, dtype=draws.dtype), "edited": np.empty(max_tokens, dtype=np.uintp)}
        made = (EditsStruct * max_tokens)()
        lens, blocks = np.empty((2, num_rows), dtype=np.int32), np.empty(tables.shape, dtype=np.int64)
        self._kept = (tables, work, each, made, lens, blocks, sequences)
        self._results: tuple[Tensor, ...] = ()
        self._room = 0
        self._has_sampled = np.zeros(1, dtype=np.int64)
        self._logprobs: Tensor | None = None
        self._of_step: tuple[Any, ...] = ()
        self._struct = RowsStruct(
            chunks=self._chunks.ctypes.data,
            tokens=tokens.ctypes.data,
            token_stride=tokens.strides[0] // tokens.itemsize,
            tables=tables.ctypes.data,
            table_stride=columns,
            group_stride=num_rows * columns,
            **{name: array.ctypes.data for name, array in (work | each).items()},
            made=ctypes.addressof(made),
            lens=lens.ctypes.data,
            blocks=blocks.ctypes.data,
            sequences=sequences,
            has_sampled=self._has_sampled.ctypes.data,
        )
        self._pointer = ctypes.byref(self._struct)

    def begin(
        self,
        chunks: Sequence[RowChunk],
        cache: KvCache,
        *,
        greedy: bool,
        masks: Mapping[int, LateMask] | None = None,
        logprobs: WantedLogprobs | None = None,
    ) -> bool:
        """Start the other threads on these chunks. As in `RowSteps`; False where that is more than max_tokens."""
        count = len(chunks)
        if sum([chunk.num_tokens for chunk in chunks]) > self._max_tokens:
            return False
        self._step.ready(cache)
        self._chunks[:count] = np.array(chunks, dtype=np.int64)
        self._num_sampled = sum([chunk.num_samples for chunk in chunks])
        if self._num_sampled > self._room:
            # By doubling: room for one row more with each step would leave holes of every size in the heap.
            self._room = min(1 << (self._num_sampled - 1).bit_length(), self._max_tokens)
            self._results = self._step.room(self._room)
            self._struct.out, self._struct.logits = (one.data_ptr() for one in self._results)
        self._struct.count = count
        self._struct.params = None if greedy else self._sampler.draws.ctypes.data
        self._struct.edits = None if greedy else ctypes.addressof(self._sampler.structs)
        self._struct.ticks = self._step.ticks
        self._of_step = (self._use_masks(masks), self._use_logprobs(logprobs))
        self._begin(self._step.model, self._pointer)
        return True

    def finish(self) -> SampledRows | ForwardOutput:
        """Take part until it is computed."""
        self._finish(self._pointer)
        count, self._of_step = self._num_sampled, ()
        if self._struct.masks and not self._has_sampled[0]:
            hidden, logits = self._results
            return ForwardOutput(hidden=hidden[:count], logits=logits[:count])
        return SampledRows(torch.from_numpy(self._sampled[:count]), self._logprobs)

    def _use_masks(self, masks: Mapping[int, LateMask] | None) -> Any:
        """What the struct points into."""
        if not masks:
            self._struct.masks = None
            return None
        made = (LateMaskStruct * self._num_sampled)()
        for index, late in masks.items():
            mask, num_done = late.mask.ctypes.data, late.num_done.ctypes.data
            made[index] = LateMaskStruct(mask, len(late.mask), num_done, late.number)
        self._struct.masks = ctypes.addressof(made)
        return made, masks

    def _use_logprobs(self, wanted: WantedLogprobs | None) -> Any:
        """What the struct points into."""
        if wanted is None:
            self._logprobs = self._struct.logprobs = None
            return None
        made, self._logprobs, kept = structs.logprobs(wanted, self._num_sampled, self._step.head_rows)
        made.logits, made.ids = self._struct.logits, self._struct.sampled
        made.type = structs.TYPES[self._step.logits_dtype]
        self._struct.logprobs = ctypes.pointer(made)
        return made, kept


def decoder_step(found: Library, parts: DecoderParts) -> CppDecoderStep | None:
    """The step of these parts, or None where one of them is not for the C++."""
    made = step_model.filled(found, parts)
    return None if made is None else CppDecoderStep(found, *made, (parts,))
