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
    """Routed experts, and one more that all tokens go through, if there is one."""

    routed: Linear
    shared: FeedForward | None
    shared_gate: Linear | None

    def __call__(self, x: Tensor) -> Tensor:
        """(tokens, hidden) -> (tokens, hidden)."""
        out = self.routed(x)
        if self.shared is None or self.shared_gate is None:
            return out
        return out + torch.sigmoid(self.shared_gate(x)) * self.shared(x)


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
        return SparseMoeBlock(routed=routed, shared=None, shared_gate=None)
    gate = ops.linear(plain(tensors, prefix + "shared_gate"), None)
    return SparseMoeBlock(routed=routed, shared=_gated(prefix + "shared.", ops, tensors, "silu"), shared_gate=gate)


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
