"""Norms of the hidden state, with the residual addition before them. Built by `decoder` from a layer's tensors."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir_api.cache_groups import LayerAttention
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.feed_forward import plain
from kvasir_runtime.layers.spec import DecoderSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm:
    """Of the mean too, by torch on every device: Ba et al. 2016. weight, bias: (hidden,), or None."""

    weight: Tensor
    bias: Tensor | None


Norm = Tensor | LayerNorm | None
"""The weight of a root-mean-square norm, a norm of the other kind, or none, which leaves the sum as it is."""


def taken(tensors: MutableMapping[str, Weight], name: str, spec: DecoderSpec) -> Norm:
    """The norm of that name, out of the mapping; None where the spec has none there."""
    if name not in tensors:
        return None
    if spec.norm == "rms":
        return rms(tensors, name, spec)
    bias = plain(tensors, f"{name}.bias") if spec.norm_bias else None
    return LayerNorm(weight=plain(tensors, name), bias=bias)


def any_of(tensors: Mapping[str, Weight]) -> Tensor:
    """The weight of one of a model's norms, which have the type to compute in and are where it computes."""
    return next(weight for name, weight in tensors.items() if name.endswith("norm") and isinstance(weight, Tensor))


def rms(tensors: MutableMapping[str, Weight], name: str, spec: DecoderSpec) -> Tensor:
    """The weight of a root-mean-square norm that is there."""
    weight = plain(tensors, name)
    # In float32 where 1 was taken away: near 1 the numbers of 16 bits lie further apart than near 0.
    return 1 + weight.float() if spec.norms_less_one else weight


def of_heads(
    tensors: MutableMapping[str, Weight], prefix: str, spec: DecoderSpec, attention: LayerAttention, like: Tensor
) -> Tensor | None:
    """The weights of a layer's norms of each query and key head, as `kernels.split_qkv`; None without.

    like: of the type and on the device to compute in.
    """
    if spec.norm_behind_rope or (spec.plain_qk_norm and attention.span):
        return like.new_ones(spec.num_heads + spec.num_kv_heads, spec.head_dim)
    if not spec.qk_norm or spec.wide_qk_norm or attention.kind == "state":
        return None
    query, key = (rms(tensors, prefix + name, spec) for name in ("query_norm", "key_norm"))
    return torch.cat((query.expand(spec.num_heads, -1), key.expand(spec.num_kv_heads, -1)))


def of_all_heads(
    tensors: MutableMapping[str, Weight], prefix: str, spec: DecoderSpec, attention: LayerAttention
) -> tuple[Tensor, Tensor] | None:
    """The weights of a layer's norms over queries and over keys of all heads together; None without."""
    if not spec.wide_qk_norm or attention.kind in ("state", "latent"):
        return None
    return rms(tensors, prefix + "query_norm", spec), rms(tensors, prefix + "key_norm", spec)


def of_turned_queries(tensors: MutableMapping[str, Weight], prefix: str, spec: DecoderSpec) -> Tensor | None:
    """What turned queries are multiplied with where norms of heads come behind the rotation: (head_dim,) float32.

    A rotation leaves the root of the mean square as it is, and a score has the products of both weights: those of keys
    are with the queries, so that keys are cached before them. None for norms before the rotation.
    """
    if not spec.norm_behind_rope:
        return None
    query, key = (rms(tensors, prefix + name, spec).float() for name in ("query_norm", "key_norm"))
    return query * key


def all_heads_normed(ops: Ops, projected: Tensor, spec: DecoderSpec, weights: tuple[Tensor, Tensor]) -> Tensor:
    """Queries, keys and values, (tokens, rows), with a norm over queries and one over keys of all heads together."""
    parts = projected.split((spec.query_dim, spec.kv_dim, spec.kv_dim), dim=1)
    both = (
        ops.rms_norm(part.contiguous(), None, norm, spec.norm_eps)[0]
        for part, norm in zip(parts, weights, strict=False)
    )
    return torch.cat((*both, parts[2]), dim=1)


def normed(ops: Ops, x: Tensor, residual: Tensor | None, norm: Norm, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised x (+ residual), and the sum itself, as `kernels.rms_norm`."""
    if isinstance(norm, Tensor):
        return ops.rms_norm(x, residual, norm, eps)
    total = x if residual is None else x + residual
    return total if norm is None else F.layer_norm(total, total.shape[-1:], norm.weight, norm.bias, eps), total
