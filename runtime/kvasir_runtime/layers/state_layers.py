"""Which layer with a state a spec describes. Called by `decoder`."""

from collections.abc import Callable, Mapping, MutableMapping
from typing import Final

from kvasir_runtime.kernels.gated_delta import GatedDelta
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.layers import gated_delta_net, mamba2
from kvasir_runtime.layers.gated_delta_net import GatedDeltaNet
from kvasir_runtime.layers.layer_specs import StateRule, StateSpec
from kvasir_runtime.layers.mamba2 import Mamba2

StateLayer = GatedDeltaNet | Mamba2
_BUILDERS: Final[Mapping[StateRule, Callable[..., StateLayer]]] = {
    "delta": gated_delta_net.build,
    "mamba2": mamba2.build,
}


def build(
    prefix: str, spec: StateSpec, update: GatedDelta, tensors: MutableMapping[str, Weight], eps: float
) -> StateLayer:
    """Of the layer whose tensors' names begin with prefix; they are taken out of the mapping."""
    return _BUILDERS[spec.rule](prefix, spec, update, tensors, eps)
