"""What a Mamba-2 layer does between its first projection and its last: split, convolution, state, gate and norm.

Called by `decoder` in place of attention. Dao and Gu 2024, as Bamba and Granite 4 arrange it.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.gated_delta import GatedDelta, StateHeads
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.layers.feed_forward import plain
from kvasir_runtime.layers.layer_specs import StateSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """conv: (channels, 1, width), conv_bias: (channels,) or None, of C, B and x. decay_rate, decay_bias, skip:
    (value_heads,) float32. norm: (value_width,), None where there is none. scales: (rows of the first projection,),
    what these are multiplied with, or None.
    """

    spec: StateSpec
    update: GatedDelta
    conv: Tensor
    conv_bias: Tensor | None
    decay_rate: Tensor
    decay_bias: Tensor
    skip: Tensor
    norm: Tensor | None
    scales: Tensor | None
    eps: float

    def __call__(self, projected: Tensor, states: Tensor, attn_metadata: AttentionMetadata, block_size: int) -> Tensor:
        """(tokens, rows of the first projection) -> (tokens, value_width).

        projected: gates, x, B, C, and a step of each value head. states: the layer of the cache.
        """
        spec, width = self.spec, self.spec.value_width
        projected = projected if self.scales is None else projected * self.scales
        gate, mixed, step = projected.split((width, spec.channels, spec.value_heads), dim=1)
        step = F.softplus(step.float() + self.decay_bias)
        out = self.update(
            _queries_first(mixed, spec, dim=1),
            self.conv,
            -self.decay_rate * step,
            step,
            states,
            attn_metadata,
            block_size,
            StateHeads(spec.key_heads, spec.value_heads, spec.key_dim, delta=False),
            self.conv_bias,
            self.skip,
        )
        opened = out.flatten(1).float() * F.silu(gate.float())
        if self.norm is None:
            return opened.to(projected.dtype)
        opened = opened.unflatten(1, (spec.key_heads, -1))
        normed = opened * torch.rsqrt(opened.square().mean(dim=2, keepdim=True) + self.eps)
        given: Tensor = normed.flatten(1).to(projected.dtype)
        return given * self.norm


def build(prefix: str, spec: StateSpec, update: GatedDelta, tensors: MutableMapping[str, Weight], eps: float) -> Mamba2:
    """Of the layer whose tensors' names begin with prefix; they are taken out of the mapping."""
    bias = plain(tensors, prefix + "conv_bias") if spec.conv_bias else None
    conv = plain(tensors, prefix + "conv")
    sizes = torch.tensor((spec.value_width, spec.value_width, spec.key_width, spec.key_width, spec.value_heads))
    scales = torch.tensor(spec.row_scales).repeat_interleave(sizes).to(conv) if spec.row_scales else None
    return Mamba2(
        spec=spec,
        update=update,
        conv=_queries_first(conv, spec, dim=0),
        conv_bias=None if bias is None else _queries_first(bias, spec, dim=0),
        decay_rate=plain(tensors, prefix + "decay").float().exp(),
        decay_bias=plain(tensors, prefix + "decay_bias").float(),
        skip=plain(tensors, prefix + "skip").float(),
        norm=plain(tensors, prefix + "state_norm") if spec.normed else None,
        scales=scales,
        eps=eps,
    )


def _queries_first(mixed: Tensor, spec: StateSpec, *, dim: int) -> Tensor:
    """C, B and x of x, B and C, one after another in a dimension."""
    values, keys, queries = mixed.split((spec.value_width, spec.key_width, spec.key_width), dim=dim)
    return torch.cat((queries, keys, values), dim=dim)
