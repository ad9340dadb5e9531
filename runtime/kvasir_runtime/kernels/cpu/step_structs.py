"""The structs of step.h as ctypes. Filled by `step`."""

import ctypes

from kvasir_runtime.kernels.cpu import structs
from kvasir_runtime.kernels.cpu.linear import LinearStruct

_POINTER, _COUNT, _FLOAT, _TYPE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int32
_LINEAR = ctypes.POINTER(LinearStruct)


class ExpertsStruct(ctypes.Structure):
    """kvasir::Experts."""

    _fields_ = (
        ("router", _LINEAR),
        ("gate_up", ctypes.POINTER(_LINEAR)),
        ("down", ctypes.POINTER(_LINEAR)),
        ("shared_gate_up", _LINEAR),
        ("shared_down", _LINEAR),
        ("shared_gate", _LINEAR),
        ("count", _COUNT),
        ("top_k", _COUNT),
        ("scale", _FLOAT),
        ("renormalised", _TYPE),
    )


class LayerStruct(ctypes.Structure):
    """kvasir::StepLayer."""

    _fields_ = (
        ("attention_norm", _POINTER),
        ("qk_norm", _POINTER),
        ("attention_outer_norm", _POINTER),
        ("mlp_norm", _POINTER),
        ("mlp_outer_norm", _POINTER),
        ("qkv", _LINEAR),
        ("output", _LINEAR),
        ("gate_up", _LINEAR),
        ("down", _LINEAR),
        ("experts", ctypes.POINTER(ExpertsStruct)),
        ("cos", _POINTER),
        ("sin", _POINTER),
        ("window", _COUNT),
        ("chunk", _COUNT),
        ("group", _COUNT),
        ("cache_offset", _COUNT),
    )


class ModelStruct(ctypes.Structure):
    """kvasir::StepModel."""

    _fields_ = (
        ("layers", ctypes.POINTER(LayerStruct)),
        ("embedding", _POINTER),
        ("table", _LINEAR),
        ("head", _LINEAR),
        ("norm", _POINTER),
        ("cache", _POINTER),
        ("value_offset", _COUNT),
        ("block_bytes", _COUNT),
        ("num_groups", _COUNT),
        ("num_layers", _COUNT),
        ("hidden", _COUNT),
        ("heads", _COUNT),
        ("kv_heads", _COUNT),
        ("head_dim", _COUNT),
        ("intermediate", _COUNT),
        ("block_size", _COUNT),
        ("num_experts", _COUNT),
        ("top_k", _COUNT),
        ("expert_size", _COUNT),
        ("eps", _FLOAT),
        ("scale", _FLOAT),
        ("cap", _FLOAT),
        ("embedding_scale", _FLOAT),
        ("residual_scale", _FLOAT),
        ("logit_scale", _FLOAT),
        ("logit_cap", _FLOAT),
        ("type", _TYPE),
        ("cache_type", _TYPE),
        ("norm_type", _TYPE),
        ("activation", _TYPE),
        ("amx", _TYPE),
        ("invariant", _TYPE),
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
        ("sequences", ctypes.POINTER(structs.Sequences)),
        ("out", _POINTER),
        ("logits", _POINTER),
        ("sampled", _POINTER),
        ("draws", _POINTER),
        ("edits", _POINTER),
        ("masks", _POINTER),
        ("has_sampled", _POINTER),
        ("logprobs", ctypes.POINTER(structs.LogprobsArgs)),
        ("ticks", _POINTER),
    )


class LateMaskStruct(ctypes.Structure):
    """kvasir::LateMask."""

    _fields_ = (("mask", _POINTER), ("words", _COUNT), ("num_done", _POINTER), ("number", _COUNT))


class RowsStruct(ctypes.Structure):
    """kvasir::StepRows."""

    _fields_ = (
        ("count", _COUNT),
        ("chunks", _POINTER),
        ("tokens", _POINTER),
        ("token_stride", _COUNT),
        ("tables", _POINTER),
        ("table_stride", _COUNT),
        ("group_stride", _COUNT),
        ("params", _POINTER),
        ("edits", _POINTER),
        ("token_ids", _POINTER),
        ("positions", _POINTER),
        ("slots", _POINTER),
        ("wanted", _POINTER),
        ("sampled", _POINTER),
        ("draws", _POINTER),
        ("made", _POINTER),
        ("edited", _POINTER),
        ("lens", _POINTER),
        ("blocks", _POINTER),
        ("sequences", ctypes.POINTER(structs.Sequences)),
        ("out", _POINTER),
        ("logits", _POINTER),
        ("masks", _POINTER),
        ("has_sampled", _POINTER),
        ("logprobs", ctypes.POINTER(structs.LogprobsArgs)),
        ("ticks", _POINTER),
    )
