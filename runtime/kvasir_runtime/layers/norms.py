"""Norms of the hidden state, with the residual addition before them. Built by `decoder` from a layer's tensors."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir_api.cache_groups import LayerAttention
from kvasir_runtime.kernels.linear import Linear, NormedLinear, Weight
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NormedProjection:
    """x -> (tokens, rows), with a norm over the queries and one over the keys of all heads. widths: of both."""

    project: Linear
    norms: tuple[Norm, Norm]
    widths: tuple[int, int]
    eps: float
    ops: Ops

    def __call__(self, x: Tensor) -> Tensor:
        rows = self.project(x)
        *parts, value = rows.split((*self.widths, rows.shape[1] - sum(self.widths)), dim=1)
        first = [
            normed(self.ops, part.contiguous(), None, norm, self.eps)[0]
            for part, norm in zip(parts, self.norms, strict=True)
        ]
        return torch.cat((*first, value), dim=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CentredProjection:
    """x -> (tokens, rows), where the first so many heads have a mean of 0: a norm of the root mean square behind it is
    one of the mean too.
    """

    project: Linear
    heads: int
    head_dim: int

    def __call__(self, x: Tensor) -> Tensor:
        rows = self.project(x)
        heads = rows.view(rows.shape[0], -1, self.head_dim)[:, : self.heads]
        heads -= heads.mean(dim=2, keepdim=True, dtype=torch.float32)
        return rows


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
    if spec.own_qk_norm and spec.head_order:
        query, key = query[:, spec.head_order], key[:, spec.head_order]
    return torch.cat((query.expand(spec.num_heads, -1), key.expand(spec.num_kv_heads, -1)))


def behind_projections(
    ops: Ops,
    project: Linear,
    tensors: MutableMapping[str, Weight],
    prefix: str,
    spec: DecoderSpec,
    attention: LayerAttention,
) -> Linear:
    """A layer's projection to queries, keys and values, with its norms over those of all heads together, or with heads
    whose mean is 0; as it is where the layer has neither.
    """
    if spec.own_qk_norm:
        return CentredProjection(project=project, heads=spec.num_heads + spec.num_kv_heads, head_dim=spec.head_dim)
    if not spec.wide_qk_norm or attention.kind in ("state", "latent"):
        return project
    query, key = (taken(tensors, prefix + name, spec) for name in ("query_norm", "key_norm"))
    widths = (spec.query_dim, spec.kv_dim)
    return NormedProjection(project=project, norms=(query, key), widths=widths, eps=spec.norm_eps, ops=ops)


def of_turned_queries(tensors: MutableMapping[str, Weight], prefix: str, spec: DecoderSpec) -> Tensor | None:
    """What turned queries are multiplied with where norms of heads come behind the rotation: (head_dim,) float32.

    A rotation leaves the root of the mean square as it is, and a score has the products of both weights: those of keys
    are with the queries, so that keys are cached before them. None for norms before the rotation.
    """
    if not spec.norm_behind_rope:
        return None
    query, key = (rms(tensors, prefix + name, spec).float() for name in ("query_norm", "key_norm"))
    return query * key


def normed(ops: Ops, x: Tensor, residual: Tensor | None, norm: Norm, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised x (+ residual), and the sum itself, as `kernels.rms_norm`."""
    if isinstance(norm, Tensor):
        return ops.rms_norm(x, residual, norm, eps)
    total = x if residual is None else x + residual
    return total if norm is None else F.layer_norm(total, total.shape[-1:], norm.weight, norm.bias, eps), total


def into(
    product: Linear | None, ops: Ops, x: Tensor, residual: Tensor | None, norm: Norm, eps: float
) -> tuple[Tensor, Tensor]:
    """What a product, or None, makes of the normalised x (+ residual), and the sum itself.

    One operation where the product computes norms as well.
    """
    if isinstance(product, NormedLinear) and isinstance(norm, Tensor):
        found = product.normed(x, residual, norm, eps)
        if found is not None:
            return found
    result, total = normed(ops, x, residual, norm, eps)
    return result if product is None else product(result), total


def read_once(spec: DecoderSpec) -> bool:
    """Whether the projection to queries, keys and values is all that reads the norm before attention."""
    return spec.encoder is None and not (spec.shared_norm or spec.joined or spec.doubled_input)
