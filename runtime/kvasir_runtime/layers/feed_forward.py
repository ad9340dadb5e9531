"""The second half of a layer, built from its tensors: one gated feed-forward layer, or experts.

Called by `decoder`, for each layer once. It knows no attention and no batches.
"""

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kvasir_runtime.kernels.gated import FeedForward, composed
from kvasir_runtime.kernels.linear import Linear, Weight
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.spec import Activation, ExpertsSpec

Tensors = MutableMapping[str, Weight]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseMoeBlock:
    """Routed experts, scaled, and one more that all tokens go through, if there is one, perhaps behind a gate."""

    routed: Linear
    shared: FeedForward | None
    shared_gate: Linear | None
    scale: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """(tokens, hidden) -> (tokens, hidden)."""
        out = self.routed(x)
        if self.scale != 1:
            out = out * self.scale
        if self.shared is None:
            return out
        given = self.shared(x)
        return out + (given if self.shared_gate is None else torch.sigmoid(self.shared_gate(x)) * given)


def build(
    prefix: str, experts: ExpertsSpec | None, ops: Ops, tensors: Tensors, activation: Activation = "silu"
) -> Callable[[Tensor], Tensor]:
    """Of the layer whose tensors' names begin with prefix; they are taken out of the mapping. Experts have silu."""
    if experts is None:
        return _gated(prefix, ops, tensors, activation)
    router = plain(tensors, prefix + "router")
    gate_up, down = (f"{prefix}experts.{name}.weight" for name in ("gate_up", "down"))
    routed = ops.moe(router, tensors.pop(gate_up), tensors.pop(down), experts.top_k, experts.renormalised)
    if not experts.shared_size:
        return SparseMoeBlock(routed=routed, shared=None, shared_gate=None, scale=experts.scale)
    gate = ops.linear(plain(tensors, prefix + "shared_gate"), None) if experts.shared_gate else None
    shared = _gated(prefix + "shared.", ops, tensors, "silu")
    return SparseMoeBlock(routed=routed, shared=shared, shared_gate=gate, scale=experts.scale)


def plain(tensors: Tensors, name: str) -> Tensor:
    """A tensor that is no weight of a linear layer, taken out of the mapping."""
    tensor = tensors.pop(name)
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is quantized; only weights of linear layers may be")
    return tensor


def _gated(prefix: str, ops: Ops, tensors: Tensors, activation: Activation) -> FeedForward:
    build_gate = ops.gated if activation == "silu" else composed(ops.linear, ops.act_and_mul, activation)
    biases = {name: f"{prefix}{name}.bias" for name in ("gate_up", "down")}
    gate_up, down = (plain(tensors, bias) if bias in tensors else None for bias in biases.values())
    return FeedForward(
        gate_up=build_gate(tensors.pop(prefix + "gate_up.weight"), gate_up),
        down=ops.linear(tensors.pop(prefix + "down.weight"), down),
    )
