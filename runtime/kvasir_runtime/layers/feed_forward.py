"""The second half of a layer, built from its tensors: one feed-forward layer, or experts.

Called by `decoder`, for each layer once. It knows no attention and no batches.
"""

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir_runtime.kernels.expert_routing import Routing
from kvasir_runtime.kernels.gated import FeedForward, composed
from kvasir_runtime.kernels.linear import Build, Linear, Weight
from kvasir_runtime.kernels.moe import ExpertBiases, SparseMoeBlock
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.layer_specs import CHOICE_BIAS, ExpertsSpec
from kvasir_runtime.layers.spec import Activation

Tensors = MutableMapping[str, Weight]


@dataclass(frozen=True, slots=True, kw_only=True)
class UngatedFeedForward:
    """Two products with an activation between them, by torch on every device. curve: (4,) float32, as of `xielu`."""

    up: Linear
    activation: Activation
    down: Linear
    curve: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """(tokens, hidden) -> (tokens, hidden)."""
        wide = self.up(x)
        if self.curve is not None:
            return self.down(xielu(wide, self.curve))
        if self.activation == "silu":
            return self.down(F.silu(wide))
        if self.activation == "relu2":
            return self.down(F.relu(wide).square())
        return self.down(F.gelu(wide, approximate="tanh" if self.activation == "gelu" else "none"))


def xielu(x: Tensor, curve: Tensor) -> Tensor:
    """An integral of ELU, whose two sides are bent by learned numbers: Huang and Schlag 2024. Computed in float32.

    curve: those of the right and of the left side before a softplus, the slope at 0, and the number at which the
    exponential ends.
    """
    right, left = F.softplus(curve[0]), curve[2] + F.softplus(curve[1])
    wide = x.float()
    below = (torch.expm1(torch.minimum(wide, curve[3])) - wide) * left
    return (torch.where(wide > 0, right * wide.square(), below) + curve[2] * wide).to(x.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedByTorch:
    """A gated layer by torch on every device: with the GELU of the error function, or with SiLU of scaled gates."""

    gate_up: Linear
    down: Linear
    gate_scale: float | None

    def __call__(self, x: Tensor) -> Tensor:
        """(tokens, hidden) -> (tokens, hidden)."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        if self.gate_scale is not None:
            return self.down(F.silu(gate * self.gate_scale) * up)
        # torch computes the ends of strided rows one by one, by another error function than the rest.
        return self.down(F.gelu(gate.contiguous()) * up)


def build(
    prefix: str,
    experts: ExpertsSpec | None,
    ops: Ops,
    tensors: Tensors,
    activation: Activation = "silu",
    gate_scale: float = 1.0,
) -> Callable[[Tensor], Tensor]:
    """Of the layer whose tensors' names begin with prefix; they are taken out of the mapping. Experts name theirs.

    gate_scale: as `PartScales.gate`, with silu alone, and not of experts.
    """
    if experts is None:
        return _dense(prefix, ops, tensors, activation, gate_scale)
    router = plain(tensors, prefix + "router")
    first, down = (f"{prefix}experts.{name}.weight" for name in (experts.first[0], "down"))
    biases = ExpertBiases(
        router=_maybe(tensors, prefix + "router_bias"),
        choice=None if (choice := _maybe(tensors, prefix + CHOICE_BIAS)) is None else choice.float(),
        gate_up=_maybe(tensors, f"{prefix}experts.gate_up.bias"),
        down=_maybe(tensors, f"{prefix}experts.down.bias"),
    )
    routing = Routing(
        top_k=experts.top_k,
        renormalised=experts.renormalised,
        sigmoid=experts.sigmoid,
        groups=experts.groups,
        top_groups=experts.top_groups,
        group_best=experts.group_best,
        scaled_inputs=experts.scaled_inputs,
        mixer=experts.mixer,
        held=experts.held,
    )
    routed = ops.moe(router, tensors.pop(first), tensors.pop(down), routing, biases, experts.activation)
    latent = None
    if experts.latent_size:
        latent = _linear(prefix + "latent_in", ops.linear, tensors), _linear(prefix + "latent_out", ops.linear, tensors)
    if not experts.shared_size:
        return SparseMoeBlock(routed=routed, shared=None, shared_gate=None, scale=experts.scale, latent=latent)
    gate = ops.linear(plain(tensors, prefix + "shared_gate"), None) if experts.shared_gate else None
    shared = _dense(prefix + "shared.", ops, tensors, "relu2" if experts.activation == "relu2" else "silu")
    return SparseMoeBlock(routed=routed, shared=shared, shared_gate=gate, scale=experts.scale, latent=latent)


def plain(tensors: Tensors, name: str) -> Tensor:
    """A tensor that is no weight of a linear layer, taken out of the mapping."""
    tensor = tensors.pop(name)
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is quantized; only weights of linear layers may be")
    return tensor


def _maybe(tensors: Tensors, name: str) -> Tensor | None:
    return plain(tensors, name) if name in tensors else None


def _dense(
    prefix: str, ops: Ops, tensors: Tensors, activation: Activation, gate_scale: float = 1.0
) -> Callable[[Tensor], Tensor]:
    if f"{prefix}gate_up.weight" in tensors:
        return _gated(prefix, ops, tensors, activation, gate_scale)
    up, down = (_linear(prefix + name, ops.linear, tensors) for name in ("up", "down"))
    curve = _maybe(tensors, prefix + "curve")
    return UngatedFeedForward(up=up, activation=activation, down=down, curve=None if curve is None else curve.float())


def _gated(
    prefix: str, ops: Ops, tensors: Tensors, activation: Activation, gate_scale: float
) -> FeedForward | GatedByTorch:
    if activation == "gelu_erf" or gate_scale != 1:
        gate_up, down = (_linear(prefix + name, ops.linear, tensors) for name in ("gate_up", "down"))
        scale = None if activation == "gelu_erf" else gate_scale
        return GatedByTorch(gate_up=gate_up, down=down, gate_scale=scale)
    if activation == "relu2" or activation == "xielu":
        raise ValueError(f"{activation} is for feed-forward layers without a gate")
    build_gate = ops.gated if activation == "silu" else composed(ops.linear, ops.act_and_mul, activation)
    gate_up, down = _linear(prefix + "gate_up", build_gate, tensors), _linear(prefix + "down", ops.linear, tensors)
    return FeedForward(gate_up=gate_up, down=down)


def _linear(name: str, build: Build, tensors: Tensors) -> Linear:
    bias = _maybe(tensors, f"{name}.bias")
    return build(tensors.pop(f"{name}.weight"), bias)
