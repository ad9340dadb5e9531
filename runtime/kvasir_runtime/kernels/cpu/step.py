"""A decoder's forward pass in one call of C++: step.h, filled from the parts that the decoder was built from.

Called by `layers.decoder`, which computes operation by operation where `whole` gives None: on other devices, and where
a weight is of a kind that the C++ kernels do not take.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.cpu import structs
from kvasir_runtime.kernels.cpu.library import Function, library
from kvasir_runtime.kernels.cpu.linear import LinearStruct, Packed
from kvasir_runtime.kernels.cpu.table import takes_heads
from kvasir_runtime.kernels.gated import FeedForward

KINDS: Final = ("embedding", "norm", "qkv", "rope+cache", "attention", "output", "gate+up", "down", "head")
_POINTER, _COUNT, _FLOAT, _TYPE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int32
_LINEAR = ctypes.POINTER(LinearStruct)


class LayerStruct(ctypes.Structure):
    """kvasir::StepLayer."""

    _fields_ = (
        ("attention_norm", _POINTER),
        ("qk_norm", _POINTER),
        ("mlp_norm", _POINTER),
        ("qkv", _LINEAR),
        ("output", _LINEAR),
        ("gate_up", _LINEAR),
        ("down", _LINEAR),
        ("window", _COUNT),
    )


class ModelStruct(ctypes.Structure):
    """kvasir::StepModel."""

    _fields_ = (
        ("layers", ctypes.POINTER(LayerStruct)),
        ("embedding", _POINTER),
        ("table", _LINEAR),
        ("head", _LINEAR),
        ("norm", _POINTER),
        ("cos", _POINTER),
        ("sin", _POINTER),
        ("cache", _POINTER),
        ("layer_bytes", _COUNT),
        ("value_offset", _COUNT),
        ("num_layers", _COUNT),
        ("hidden", _COUNT),
        ("heads", _COUNT),
        ("kv_heads", _COUNT),
        ("head_dim", _COUNT),
        ("intermediate", _COUNT),
        ("block_size", _COUNT),
        ("eps", _FLOAT),
        ("scale", _FLOAT),
        ("type", _TYPE),
        ("cache_type", _TYPE),
    )


class BatchStruct(ctypes.Structure):
    """kvasir::StepBatch."""

    _fields_ = (
        ("tokens", _COUNT),
        ("num_rows", _COUNT),
        ("token_ids", _POINTER),
        ("positions", _POINTER),
        ("slots", _POINTER),
        ("rows", _POINTER),
        ("sequences", structs.Sequences),
        ("out", _POINTER),
        ("logits", _POINTER),
        ("likeliest", _POINTER),
        ("ticks", _POINTER),
    )


class Layer(Protocol):
    """What a decoder knows of one of its layers."""

    @property
    def window(self) -> int: ...
    @property
    def attention_norm(self) -> Tensor: ...
    @property
    def qk_norm(self) -> Tensor | None: ...
    @property
    def mlp_norm(self) -> Tensor: ...
    @property
    def qkv(self) -> Callable[[Tensor], Tensor]: ...
    @property
    def output(self) -> Callable[[Tensor], Tensor]: ...
    @property
    def feed_forward(self) -> Callable[[Tensor], Tensor]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """What one call computed. hidden: (rows, hidden), as Decoder.hidden. logits: (rows, outputs of the head), or None
    where the head is not packed or there are more rows than sequences: in the same call, since threads that waited for
    the next one would have fallen asleep. likeliest: (rows,) int64, where the logits are largest, if that was asked.
    """

    hidden: Tensor
    logits: Tensor | None = None
    likeliest: Tensor | None = None


class DecoderStep:
    """The layers of one decoder."""

    def __init__(self, model: ModelStruct, kept: tuple[Any, ...]) -> None:
        """kept: what the struct points into."""
        found = library()
        if found is None:
            raise ValueError("there is no library of C++ kernels")
        self._ticks: NDArray[np.int64] | None = None
        self._model = model
        self._kept = kept
        self._cache = 0
        self.head_rows = int(model.head.contents.outputs) if model.head else 0
        self.model = ctypes.byref(model)
        self._library = found
        self._run = found.function("step", _POINTER, _POINTER)
        self._join = found.finish
        self._begun: tuple[Foreseen, tuple[Any, ...]] | None = None

    def begin(
        self,
        token_ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: Tensor,
        attn_metadata: AttentionMetadata,
        cache: Tensor,
        *,
        greedy: bool = False,
    ) -> None:
        """Let the other threads begin with the rows that are wanted; `finish` takes part. All ids int64 and contiguous.

        What a step begun before would give is lost if it was not finished.
        """
        self.ready(cache)
        sequences, kept = structs.sequences(attn_metadata)
        out = torch.empty((rows.shape[0], self._model.hidden), dtype=torch.bfloat16)
        logits = likeliest = None
        if self.head_rows and rows.shape[0] <= sequences.count:
            logits = torch.empty((rows.shape[0], self.head_rows), dtype=torch.bfloat16)
            likeliest = torch.empty(rows.shape[0], dtype=torch.int64) if greedy else None
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
            likeliest=None if likeliest is None else likeliest.data_ptr(),
            ticks=self.ticks,
        )
        self._begun = (
            Foreseen(hidden=out, logits=logits, likeliest=likeliest),
            (batch, kept, token_ids, positions, slots, rows),
        )
        self._run(self.model, ctypes.byref(batch))

    def finish(self) -> Foreseen:
        """Compute what is left of the step that was begun. Raises ValueError where none was."""
        if self._begun is None:
            raise ValueError("no step was begun")
        self._join()
        (foreseen, _), self._begun = self._begun, None
        return foreseen

    def ready(self, cache: Tensor) -> None:
        """Before a step begins: what was begun before is finished, and this is the cache that the next one reads."""
        self._join()
        self._begun = None
        if cache.data_ptr() != self._cache:
            self._look_at(cache)

    def room(self, count: int) -> tuple[Tensor, Tensor]:
        """Hidden states and logits of so many rows, undefined."""
        hidden = torch.empty((count, self._model.hidden), dtype=torch.bfloat16)
        return hidden, torch.empty((count, self.head_rows), dtype=torch.bfloat16)

    def of_rows(self, struct: type[ctypes.Structure]) -> tuple[Function, Function]:
        """What begins and ends steps that are made of rows; struct: kvasir::StepRows."""
        found, pointer = self._library, ctypes.POINTER(struct)
        return found.function("step_rows", _POINTER, pointer), found.function("step_rows_finish", pointer)

    @property
    def ticks(self) -> int | None:
        """Where time stamps are counted, if they are."""
        return None if self._ticks is None else self._ticks.ctypes.data

    def count(self, wanted: bool) -> None:
        """Count time stamps from now on, or do not."""
        self._ticks = np.zeros(len(KINDS), dtype=np.int64) if wanted else None

    def counted(self) -> dict[str, int]:
        """By kind, those since the last time that this was asked."""
        if self._ticks is None:
            return {}
        counted = dict(zip(KINDS, self._ticks.tolist(), strict=True))
        self._ticks[:] = 0
        return counted

    def takes(self, cache: Tensor) -> bool:
        """Whether the C++ reads a cache of this type."""
        return takes_heads(torch.bfloat16, cache.dtype, self._model.head_dim)

    def _look_at(self, cache: Tensor) -> None:
        self._cache = self._model.cache = cache.data_ptr()
        self._model.layer_bytes = cache.stride(0) * cache.element_size()
        self._model.value_offset = structs.value_offset(cache[0])
        self._model.block_size = cache.shape[3]
        self._model.cache_type = structs.TYPES[cache.dtype]


def whole(
    layers: Sequence[Layer],
    *,
    embedding: Tensor | Packed,
    head: Callable[[Tensor], Tensor] | None,
    norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    kv_heads: int,
    head_dim: int,
    intermediate: int,
    eps: float,
) -> DecoderStep | None:
    """The step of these parts, or None where one of them is not for the C++.

    embedding: the table, or the head that gives its rows back. head: of any kind, or None.
    cos, sin: (positions, head_dim).
    """
    weights = [_weights(layer) for layer in layers]
    packed = [four for four in weights if four is not None]
    if norm.dtype != torch.bfloat16 or len(packed) < len(layers) or not layers:
        return None
    array = (LayerStruct * len(layers))()
    for struct, layer, four in zip(array, layers, packed, strict=True):
        struct.attention_norm, struct.mlp_norm = layer.attention_norm.data_ptr(), layer.mlp_norm.data_ptr()
        struct.qk_norm = None if layer.qk_norm is None else layer.qk_norm.data_ptr()
        struct.qkv, struct.output, struct.gate_up, struct.down = (ctypes.pointer(one.struct) for one in four)
        struct.window = layer.window
    model = ModelStruct(
        layers=array,
        embedding=embedding.data_ptr() if isinstance(embedding, Tensor) else None,
        table=ctypes.pointer(embedding.struct) if isinstance(embedding, Packed) else None,
        head=ctypes.pointer(head.struct) if isinstance(head, Packed) else None,
        norm=norm.data_ptr(),
        cos=cos.data_ptr(),
        sin=sin.data_ptr(),
        num_layers=len(layers),
        hidden=norm.shape[0],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        eps=eps,
        scale=head_dim**-0.5,
        type=structs.TYPES[torch.bfloat16],
    )
    return DecoderStep(model, (array, layers, embedding, head, norm, cos, sin))


def _weights(layer: Layer) -> tuple[Packed, Packed, Packed, Packed] | None:
    if not isinstance(layer.feed_forward, FeedForward):  # experts
        return None
    qkv, output = layer.qkv, layer.output
    gate_up, down = layer.feed_forward.gate_up, layer.feed_forward.down
    if not (
        isinstance(qkv, Packed)
        and isinstance(output, Packed)
        and isinstance(gate_up, Packed)
        and isinstance(down, Packed)
        and gate_up.struct.gated
    ):
        return None
    return qkv, output, gate_up, down
