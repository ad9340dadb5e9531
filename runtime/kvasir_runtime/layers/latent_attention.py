"""Attention over compressed rows that all heads share: what a layer does between its first projection and its last.

Called by `decoder` in place of attention. A token's row is its latent and a key that turns; keys and values of the
heads are never written out: the projection to keys goes into the queries, the one to values behind the sums, which
leaves one key head of latent and turning part, whose value is the row itself. DeepSeek-AI 2024 (V2), section 2.1.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.linear import Linear, Weight
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.feed_forward import plain
from kvasir_runtime.layers.layer_specs import LatentSpec

_EPS: Final = 1e-6
"""Of the norms of latents, whatever that of the layers is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """query_norm, query_up: where queries come from a latent too. latent_norm: (rank,). keys: (heads, key_dim, rank);
    values: (heads, value_dim, rank).
    """

    spec: LatentSpec
    ops: Ops
    query_norm: Tensor | None
    query_up: Linear | None
    latent_norm: Tensor
    keys: Tensor
    values: Tensor
    scale: float

    def __call__(
        self,
        projected: Tensor,
        angles: tuple[Tensor, Tensor],
        cache: Tensor,
        slots: Tensor,
        attn_metadata: AttentionMetadata,
    ) -> Tensor:
        """(tokens, rows of the first projection) -> (tokens, heads * value_dim).

        projected: queries or their latent, then the latent, then the key that turns. angles: as for `kernels.rope`.
        cache: the layer's, (2, num_blocks, block_size, 1, row), both the same memory.
        """
        spec, ops = self.spec, self.ops
        width = projected.shape[1] - spec.rank - spec.rope_dim
        query, latent, turning = (
            part.contiguous() for part in projected.split((width, spec.rank, spec.rope_dim), dim=1)
        )
        if self.query_norm is not None and self.query_up is not None:
            query = self.query_up(ops.rms_norm(query, None, self.query_norm, _EPS)[0])
        fixed, turned = query.view(query.shape[0], -1, spec.key_dim + spec.rope_dim).split(
            (spec.key_dim, spec.rope_dim), 2
        )
        latent = ops.rms_norm(latent, None, self.latent_norm, _EPS)[0]
        row = torch.cat((latent.unsqueeze(1), ops.rope(turning.unsqueeze(1), *angles)), dim=2)
        query = torch.cat((self._each_head(fixed, self.keys), ops.rope(turned.contiguous(), *angles)), dim=2)
        ops.write_kv(row, row, cache, slots)
        out = ops.attention(query, cache, attn_metadata, self.scale, 0, value_dim=spec.rank)
        sums = out.view(query.shape[0], query.shape[1], spec.rank)
        return self._each_head(sums, self.values.transpose(1, 2)).flatten(1)

    def _each_head(self, x: Tensor, weight: Tensor) -> Tensor:
        """x: (tokens, heads, i), weight: (heads, i, o); (tokens, heads, o)."""
        return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)


def build(
    prefix: str, spec: LatentSpec, num_heads: int, scale: float, ops: Ops, tensors: MutableMapping[str, Weight]
) -> LatentAttention:
    """Of the layer whose tensors' names begin with prefix; they are taken out of the mapping."""
    query_up: Linear | None = None
    query_norm: Tensor | None = None
    if spec.query_rank:
        query_up = ops.linear(tensors.pop(prefix + "query_up.weight"), None)
        query_norm = plain(tensors, prefix + "query_norm")
    up = plain(tensors, prefix + "latent_up").view(num_heads, -1, spec.rank)
    keys, values = up.split((spec.key_dim, spec.value_dim), dim=1)
    return LatentAttention(
        spec=spec,
        ops=ops,
        query_norm=query_norm,
        query_up=query_up,
        latent_norm=plain(tensors, prefix + "latent_norm"),
        keys=keys.contiguous(),
        values=values.contiguous(),
        scale=scale,
    )
