"""What encoders compute beside the layers of a decoder: embeddings, attention in both directions, classification.

Called by `decoder`. A sequence is computed in one step; sequences of a step lie one behind the other, without padding,
and each attends to itself alone, so its numbers do not depend on what else is computed.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.linear import Linear, Weight
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers import norms
from kvasir_runtime.layers.encoder_spec import EncoderSpec, PoolerActivation
from kvasir_runtime.layers.feed_forward import Tensors, plain
from kvasir_runtime.layers.norms import Norm
from kvasir_runtime.layers.rotary import Angles
from kvasir_runtime.layers.spec import DecoderSpec

FARTHEST: Final = 128
"""Distance from which on all share the last bucket of relative positions, as MPNet was trained."""
LOCAL_QUERIES: Final = 128
"""Queries of a layer with a span or slopes that are computed at a time, with the keys that any of them sees."""
_ACTIVATIONS: Final[dict[PoolerActivation, Callable[[Tensor], Tensor]]] = {
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu_erf": F.gelu,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderInput:
    """Tables that are added to the embeddings of tokens: positions (rows, hidden), types (rows, hidden), or None.

    first_position: the row of a sequence's first token. relative_bias: (buckets, heads), or None.
    """

    positions: Tensor | None
    types: Tensor | None
    first_position: int
    relative_bias: Tensor | None

    def embedded(self, hidden: Tensor, positions: Tensor, token_types: Tensor | None) -> Tensor:
        """hidden: (tokens, hidden), as looked up; positions, token_types: (tokens,) int64, None for type 0 of all."""
        if self.types is not None:
            if token_types is None or self.types.shape[0] == 1:
                hidden = hidden + self.types[0]
            else:
                hidden = hidden + self.types.index_select(0, token_types)
        if self.positions is not None:
            hidden = hidden + self.positions.index_select(0, positions + self.first_position)
        return hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationHead:
    """The layer before the labels: (rows, hidden) -> (rows, hidden)."""

    pooler: Linear
    activation: Callable[[Tensor], Tensor]
    norm: Norm
    eps: float
    ops: Ops

    def __call__(self, hidden: Tensor) -> Tensor:
        pooled = self.activation(self.pooler(hidden))
        return pooled if self.norm is None else norms.normed(self.ops, pooled, None, self.norm, self.eps)[0]


def build_input(spec: EncoderSpec, tensors: Tensors) -> EncoderInput:
    """From the tensors that `EncoderSpec.parameter_shapes` names, which are taken out of the mapping."""
    return EncoderInput(
        positions=_taken(tensors, "positions"),
        types=_taken(tensors, "types"),
        first_position=spec.first_position,
        relative_bias=_taken(tensors, "relative_bias"),
    )


def build_head(spec: DecoderSpec, ops: Ops, tensors: Tensors) -> ClassificationHead | None:
    """None for a model without labels; its tensors are taken out of the mapping."""
    if spec.encoder is None or spec.head != "labels":
        return None
    weight: Weight = tensors.pop("pooler.weight")
    return ClassificationHead(
        pooler=ops.linear(weight, _taken(tensors, "pooler.bias")),
        activation=_ACTIVATIONS[spec.encoder.pooler],
        norm=norms.taken(tensors, "pooler_norm", spec),
        eps=spec.norm_eps,
        ops=ops,
    )


def attend(
    spec: DecoderSpec,
    own: EncoderInput,
    ops: Ops,
    projected: Tensor,
    qk_norm: Tensor | None,
    angles: Angles,
    attn_metadata: AttentionMetadata,
    span: int,
) -> Tensor:
    """`attention` of one layer's projections, (tokens, all heads * head_dim), with its span. qk_norm: the norm of
    `kernels.split_qkv`.
    """
    num_heads, num_kv_heads = spec.num_heads, spec.num_kv_heads
    heads = projected.view(-1, num_heads + 2 * num_kv_heads, spec.head_dim)
    query, key, value = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    if qk_norm is not None:
        query = ops.rms_norm(query, None, qk_norm[:num_heads], spec.norm_eps)[0]
        key = ops.rms_norm(key, None, qk_norm[num_heads:], spec.norm_eps)[0]
    if spec.rope.kind != "none":
        query, key = ops.rope(query, *angles), ops.rope(key, *angles)
    if num_kv_heads < num_heads:
        key, value = (one.repeat_interleave(num_heads // num_kv_heads, dim=1) for one in (key, value))
    scale = spec.attention_scale or spec.head_dim**-0.5
    bias, slopes = own.relative_bias, spec.alibi
    return attention(query, key, value, attn_metadata, scale=scale, span=span, relative_bias=bias, slopes=slopes)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_metadata: AttentionMetadata,
    *,
    scale: float,
    span: int,
    relative_bias: Tensor | None,
    slopes: tuple[float, ...] = (),
) -> Tensor:
    """Each token attends to its sequence, or to those of it that are at most span away where that is not 0.

        out[t, h] = sum(softmax(scale * query[t, h] @ key[s, h] + bias[bucket(s - t), h] - slopes[h] * |s - t| for s)
                        * value[s, h])

    query, key, value: (tokens, heads, head_dim), contiguous in head_dim; out: (tokens, heads * head_dim), same dtype.
    relative_bias: (buckets, heads), or None. slopes: of each head, or none; beside them bias is left out.
    Source: Vaswani et al. 2017; buckets of Raffel et al. 2020; slopes in both directions of Günther et al. 2023.
    """
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for start, length, count in _runs(attn_metadata.query_lens):
        parts = (one[start : start + count * length].unflatten(0, (count, length)) for one in (query, key, value))
        q, k, v = (part.transpose(1, 2) for part in parts)
        if slopes or (span and span < length - 1):
            attended = _in_pieces(q, k, v, scale, span, slopes)
        else:
            bias = None if relative_bias is None else _bias_of(attn_metadata, relative_bias, length)
            attended = F.scaled_dot_product_attention(q, k, v, bias, scale=scale)
        out[start : start + count * length].unflatten(0, (count, length)).copy_(attended.transpose(1, 2))
    return out.flatten(1)


def _runs(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """First token, length and number of neighbours of equal length, which are computed in one call."""
    start = 0
    for length, same in groupby(lengths):
        count = sum(1 for _ in same)
        if length:
            yield start, length, count
        start += length * count


def _in_pieces(query: Tensor, key: Tensor, value: Tensor, scale: float, span: int, slopes: tuple[float, ...]) -> Tensor:
    """Queries piece by piece, so that memory grows with the length and not with its square, and work where there is a
    span.
    """
    length, pieces, device = query.shape[2], [], query.device
    span = span or length
    loss = torch.tensor(slopes, device=device)[:, None, None]
    for first in range(0, length, LOCAL_QUERIES):
        end = min(length, first + LOCAL_QUERIES)
        low, high = max(0, first - span), min(length, end + span)
        at = torch.arange(first, end, device=device)[:, None]
        far = (at - torch.arange(low, high, device=device)[None, :]).abs()
        seen = far <= span
        if slopes:
            seen = (-loss * far).to(query.dtype).masked_fill(~seen, -torch.inf)
        part = F.scaled_dot_product_attention(
            query[:, :, first:end], key[:, :, low:high], value[:, :, low:high], seen, scale=scale
        )
        pieces.append(part)
    return torch.cat(pieces, dim=2)


def _bias_of(attn_metadata: AttentionMetadata, table: Tensor, length: int) -> Tensor:
    """(heads, length, length) of all distances, from (buckets, heads); once a step, since all layers have the same."""

    def made() -> Tensor:
        at = torch.arange(length, device=table.device)
        buckets = _buckets(at[None, :] - at[:, None], table.shape[0])
        return table[buckets].permute(2, 0, 1).contiguous()

    return attn_metadata.once(("relative bias", length), made)


def _buckets(distance: Tensor, number: int) -> Tensor:
    """Half of them for each direction; of these half one for each distance, the others wider by a logarithm."""
    half = number // 2
    exact = half // 2
    far, ahead = distance.abs(), (distance > 0) * half
    wider = exact + ((far.float() / exact).log() / math.log(FARTHEST / exact) * (half - exact)).long()
    return ahead + torch.where(far < exact, far, wider.clamp_max(half - 1))


def _taken(tensors: Tensors, name: str) -> Tensor | None:
    return plain(tensors, name) if name in tensors else None
