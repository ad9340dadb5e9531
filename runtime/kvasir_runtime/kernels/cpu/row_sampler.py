"""`kernels.row_sampler` in C++: fills the structs of sample.h from edits and chunks."""

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvasir_runtime.kernels.cpu import structs
from kvasir_runtime.kernels.cpu.library import Library
from kvasir_runtime.kernels.row_sampler import IdMasks, LogitsEdits, RowChunk

_POINTER, _COUNT, _FLOAT, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int32


class EditsStruct(ctypes.Structure):
    """kvasir::Edits."""

    _fields_ = (
        ("allowed", _POINTER),
        ("stops", _POINTER),
        ("bias_ids", _POINTER),
        ("words", _POINTER),
        ("biases", _POINTER),
        ("mask", _POINTER),
        ("tokens", _POINTER),
        ("num_allowed", _COUNT),
        ("num_stops", _COUNT),
        ("num_biases", _COUNT),
        ("words_size", _COUNT),
        ("mask_words", _COUNT),
        ("num_tokens", _COUNT),
        ("prompt_tokens", _COUNT),
        ("repetition", _FLOAT),
        ("frequency", _FLOAT),
        ("presence", _FLOAT),
        ("fallback", _FLAG),
        ("below_min_tokens", _FLAG),
        ("active", _FLAG),
    )


_NONE: Final = EditsStruct(repetition=1.0, fallback=-1)


class CppRowSampler:
    """tokens: (rows, positions) int32, known ids of every row. draws: (rows,) DRAW. Both stay where they are.

    structs: (rows,) kvasir::Edits, at one address.
    """

    def __init__(self, found: Library, tokens: NDArray[np.int32], draws: NDArray[np.void]) -> None:
        self.tokens, self.draws = tokens, draws
        self.structs = (EditsStruct * len(draws))(*[_NONE] * len(draws))
        self._arrays: list[tuple[Any, ...]] = [()] * len(draws)  # what the structs point into
        self._sample = found.function("sample", ctypes.c_void_p)

    def edit(self, row: int, edits: LogitsEdits | None) -> None:
        """Change the logits of a row so from now on; None for a row that has left."""
        self.structs[row], self._arrays[row] = (_NONE, ()) if edits is None else _struct_of(edits)

    def sample(self, logits: Tensor, chunks: Sequence[RowChunk], masks: IdMasks) -> Tensor:
        """As in `RowSampler`."""
        logits = (logits if logits.dtype in (torch.float32, torch.bfloat16) else logits.float()).contiguous()
        ids = torch.empty(len(chunks), dtype=torch.int64)
        draws, edited = self.draws[[chunk.row for chunk in chunks]], np.zeros(len(chunks), dtype=np.uintp)
        draws["position"] = [chunk.start + chunk.num_tokens for chunk in chunks]
        made = (EditsStruct * len(chunks))(*[self.structs[chunk.row] for chunk in chunks])
        for index, (chunk, edits) in enumerate(zip(chunks, made, strict=True)):
            mask = masks.get(index)
            edits.tokens = self.tokens.ctypes.data + chunk.row * self.tokens.strides[0]
            edits.num_tokens, edits.below_min_tokens = chunk.start + chunk.num_tokens, chunk.min_tokens_left > 0
            edits.mask, edits.mask_words = (None, 0) if mask is None else (mask.ctypes.data, len(mask))
            if edits.active or edits.below_min_tokens or mask is not None:
                edited[index] = ctypes.addressof(edits)
        args = structs.SampleArgs(
            logits=logits.data_ptr(),
            draws=draws.ctypes.data,
            edits=edited.ctypes.data,
            ids=ids.data_ptr(),
            rows=len(chunks),
            columns=logits.shape[1],
            type=structs.TYPES[logits.dtype],
        )
        self._sample(ctypes.byref(args))
        return ids


def _struct_of(found: LogitsEdits) -> tuple[EditsStruct, tuple[Any, ...]]:
    """The edits of a row without what is of a step, and the arrays that must live as long."""
    allowed, stops = np.array(found.allowed, dtype=np.int32), np.array(found.stops, dtype=np.int32)
    words = np.array([part for word in found.words for part in (len(word), *word)], dtype=np.int32)
    ids, biases = np.array(list(found.biases), dtype=np.int32), np.array(list(found.biases.values()), dtype=np.float32)
    made = EditsStruct(
        allowed=allowed.ctypes.data if len(allowed) else None,
        stops=stops.ctypes.data,
        bias_ids=ids.ctypes.data,
        words=words.ctypes.data,
        biases=biases.ctypes.data,
        num_allowed=len(allowed),
        num_stops=len(stops),
        num_biases=len(ids),
        words_size=len(words),
        prompt_tokens=found.prompt_tokens,
        repetition=found.repetition_penalty,
        frequency=found.frequency_penalty,
        presence=found.presence_penalty,
        fallback=-1 if found.fallback is None else found.fallback,
        active=found.any,
    )
    return made, (allowed, stops, words, ids, biases)
