"""The argument structs of attention.h, elementwise.h, sample.h and logprobs.h as ctypes, made from tensors.

Used by `bindings` and `step`. A pointer does not keep its tensor alive: the code that fills a struct holds the tensors.
"""

import ctypes
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.kv_quant import INT4
from kvasir_runtime.kernels.logprobs import WantedLogprobs
from kvasir_runtime.kernels.sample import DRAW, MOST_TOP_K, Draws

TYPES: Final = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, INT4: 3}
_POINTER, _COUNT, _FLOAT, _TYPE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int32


class Sequences(ctypes.Structure):
    """kvasir::Sequences."""

    _fields_ = (
        ("count", _COUNT),
        ("query_lens", _POINTER),
        ("kv_lens", _POINTER),
        ("tables", _POINTER),
        ("table_stride", _COUNT),
    )


class AttentionArgs(ctypes.Structure):
    """kvasir::AttentionArgs."""

    _fields_ = (
        ("query", _POINTER),
        ("token_stride", _COUNT),
        ("out", _POINTER),
        ("cache", _POINTER),
        ("value_offset", _COUNT),
        ("block_bytes", _COUNT),
        ("sequences", ctypes.POINTER(Sequences)),
        ("heads", _COUNT),
        ("kv_heads", _COUNT),
        ("head_dim", _COUNT),
        ("block_size", _COUNT),
        ("window", _COUNT),
        ("chunk", _COUNT),
        ("scale", _FLOAT),
        ("cap", _FLOAT),
        ("query_type", _TYPE),
        ("cache_type", _TYPE),
        ("amx", _TYPE),
        ("invariant", _TYPE),
    )


class NormArgs(ctypes.Structure):
    """kvasir::NormArgs."""

    _fields_ = (
        ("x", _POINTER),
        ("residual", _POINTER),
        ("weight", _POINTER),
        ("total", _POINTER),
        ("out", _POINTER),
        ("rows", _COUNT),
        ("dim", _COUNT),
        ("eps", _FLOAT),
        ("type", _TYPE),
        ("weight_type", _TYPE),
    )


class SplitArgs(ctypes.Structure):
    """kvasir::SplitArgs."""

    _fields_ = (
        ("qkv", _POINTER),
        ("norm", _POINTER),
        ("cos", _POINTER),
        ("sin", _POINTER),
        ("positions", _POINTER),
        ("slots", _POINTER),
        ("cache", _POINTER),
        ("value_offset", _COUNT),
        ("block_bytes", _COUNT),
        ("tokens", _COUNT),
        ("heads", _COUNT),
        ("kv_heads", _COUNT),
        ("head_dim", _COUNT),
        ("block_size", _COUNT),
        ("eps", _FLOAT),
        ("type", _TYPE),
        ("cache_type", _TYPE),
        ("norm_type", _TYPE),
    )


class ActAndMulArgs(ctypes.Structure):
    """kvasir::ActAndMulArgs."""

    _fields_ = (
        ("x", _POINTER),
        ("out", _POINTER),
        ("rows", _COUNT),
        ("dim", _COUNT),
        ("type", _TYPE),
        ("activation", _TYPE),
    )


class GatherArgs(ctypes.Structure):
    """kvasir::GatherArgs."""

    _fields_ = (("table", _POINTER), ("ids", _POINTER), ("out", _POINTER), ("rows", _COUNT), ("row_bytes", _COUNT))


class ArgmaxArgs(ctypes.Structure):
    """kvasir::ArgmaxArgs."""

    _fields_ = (("x", _POINTER), ("ids", _POINTER), ("rows", _COUNT), ("columns", _COUNT), ("type", _TYPE))


class SampleArgs(ctypes.Structure):
    """kvasir::SampleArgs."""

    _fields_ = (
        ("logits", _POINTER),
        ("draws", _POINTER),
        ("edits", _POINTER),
        ("ids", _POINTER),
        ("rows", _COUNT),
        ("columns", _COUNT),
        ("type", _TYPE),
    )


class LogprobsArgs(ctypes.Structure):
    """kvasir::LogprobsArgs."""

    _fields_ = (
        ("logits", _POINTER),
        ("ids", _POINTER),
        ("rows", _POINTER),
        ("others", _POINTER),
        ("candidates", _POINTER),
        ("out", _POINTER),
        ("count", _COUNT),
        ("columns", _COUNT),
        ("num_top", _COUNT),
        ("num_others", _COUNT),
        ("type", _TYPE),
    )


def logprobs(wanted: WantedLogprobs, rows: int, columns: int) -> tuple[LogprobsArgs, Tensor, tuple[Any, ...]]:
    """The arguments without logits, ids and candidates; what is written; and what must live as long.

    rows, columns: of the logits.
    """
    picked = None if wanted.rows is None else np.array(wanted.rows, dtype=np.int64)
    count = rows if picked is None else len(picked)
    others = None if wanted.others is None else wanted.others.contiguous()
    num_top, num_others = min(wanted.num_top, columns), 0 if others is None else others.shape[1]
    out = torch.empty((count, 2 + 2 * num_top + num_others))
    made = LogprobsArgs(
        rows=None if picked is None else picked.ctypes.data,
        others=None if others is None else others.data_ptr(),
        out=out.data_ptr(),
        count=count,
        columns=columns,
        num_top=num_top,
        num_others=num_others,
    )
    return made, out, (picked, others)


def draws(found: Draws) -> NDArray[np.void]:
    """(rows,) DRAW."""
    made = np.empty(found.seed.shape[0], dtype=DRAW)
    for name in DRAW.names or ():
        values = getattr(found, name).numpy()
        made[name] = values.clip(max=MOST_TOP_K) if name == "top_k" else values
    return made


def sequences(attn_metadata: AttentionMetadata) -> tuple[Sequences, tuple[Any, ...]]:
    """The attention metadata of a step as the kernels take them, once a step, and the arrays that must live as long."""
    key = ("cpu", attn_metadata.block_tables.data_ptr())
    return attn_metadata.once(key, lambda: _sequences(attn_metadata))


def _sequences(attn_metadata: AttentionMetadata) -> tuple[Sequences, tuple[Any, ...]]:
    lens = np.array((attn_metadata.query_lens, attn_metadata.kv_lens), dtype=np.int32)
    tables = attn_metadata.block_tables
    if not all(attn_metadata.query_lens):  # padding
        there = lens[0] > 0
        lens, tables = np.ascontiguousarray(lens[:, there]), tables[torch.from_numpy(there)]
    tables = tables.to(torch.int64).contiguous()
    made = Sequences(
        count=lens.shape[1],
        query_lens=lens[0].ctypes.data,
        kv_lens=lens[1].ctypes.data,
        tables=tables.data_ptr(),
        table_stride=tables.shape[1],
    )
    return made, (lens, tables)


def strides(cache: Tensor) -> tuple[int, int]:
    """Bytes from a key to its value, and from a block to the next. cache: (2, num_blocks, ...) of one layer."""
    size = cache.element_size()
    return cache.stride(0) * size, cache.stride(1) * size
