"""What a layer with a state does between its first projection and its last: split, convolution, state, norm and gate.

Called by `decoder` in place of attention. Qwen3-Next's and 3.5's arrangements of the gated delta network
(Yang et al. 2024).
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
class GatedDeltaNet:
    """conv: (channels, 1, width). decay_rate, decay_bias: (value_heads,) float32. norm: (value_dim,)."""

    spec: StateSpec
    gated_delta: GatedDelta
    conv: Tensor
    decay_rate: Tensor
    decay_bias: Tensor
    norm: Tensor
    eps: float

    def __call__(self, projected: Tensor, states: Tensor, attn_metadata: AttentionMetadata, block_size: int) -> Tensor:
        """(tokens, rows of the first projection) -> (tokens, value_width).

        projected: as `StateSpec.parameter_shapes` has its rows. states: the layer of the cache.
        """
        spec = self.spec
        mixed, gate, beta, decay = self._by_key_head(projected) if spec.by_key_head else self._in_turn(projected)
        out = self.gated_delta(
            mixed,
            self.conv,
            -self.decay_rate * F.softplus(decay + self.decay_bias),
            beta.sigmoid(),
            states,
            attn_metadata,
            block_size,
            StateHeads(spec.key_heads, spec.value_heads, spec.key_dim),
        ).float()
        normed = (out * torch.rsqrt(out.square().mean(dim=2, keepdim=True) + self.eps)).to(projected.dtype)
        opened = self.norm * normed * F.silu(gate.reshape(out.shape).float())
        return opened.to(projected.dtype).flatten(1)

    def _by_key_head(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys and values; gates; and in float32 betas and what decays follow from."""
        spec, tokens = self.spec, projected.shape[0]
        values = spec.value_width // spec.key_heads
        first, last = projected.split((spec.channels + spec.value_width, 2 * spec.value_heads), dim=1)
        parts = first.view(tokens, spec.key_heads, -1).split((spec.key_dim, spec.key_dim, values, values), dim=2)
        query, key, value, gate = (part.flatten(1) for part in parts)
        beta, decay = (part.flatten(1).float() for part in last.view(tokens, spec.key_heads, -1).chunk(2, dim=2))
        return torch.cat((query, key, value), dim=1), gate, beta, decay

    def _in_turn(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same where they lie one behind the other."""
        spec, heads = self.spec, self.spec.value_heads
        mixed, gate, beta, decay = projected.split((spec.channels, spec.value_width, heads, heads), dim=1)
        return mixed.contiguous(), gate, beta.float(), decay.float()


def build(
    prefix: str, spec: StateSpec, gated_delta: GatedDelta, tensors: MutableMapping[str, Weight], eps: float
) -> GatedDeltaNet:
    """Of the layer whose tensors' names begin with prefix; they are taken out of the mapping."""
    return GatedDeltaNet(
        spec=spec,
        gated_delta=gated_delta,
        conv=plain(tensors, prefix + "conv"),
        decay_rate=plain(tensors, prefix + "decay").float().exp(),
        decay_bias=plain(tensors, prefix + "decay_bias").float(),
        norm=plain(tensors, prefix + "state_norm"),
        eps=eps,
    )
