"""Fills the structs of step.h from a decoder's parts. Called by `step`, once a model; it knows no steps."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvasir_runtime.kernels.act_and_mul import Activation
from kvasir_runtime.kernels.cpu import structs
from kvasir_runtime.kernels.cpu.bindings import ACTIVATIONS, takes_norm
from kvasir_runtime.kernels.cpu.library import Library
from kvasir_runtime.kernels.cpu.linear import LinearStruct, Packed
from kvasir_runtime.kernels.cpu.step_structs import ExpertsStruct, LayerStruct, ModelStruct
from kvasir_runtime.kernels.decoder_step import DecoderParts, LayerParts
from kvasir_runtime.kernels.gated import FeedForward, GatedProduct
from kvasir_runtime.kernels.linear import Linear
from kvasir_runtime.kernels.moe import GroupedExperts, SparseMoeBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class _GatedLayer:
    """gate_up: with silu behind the product, or without an activation, which follows then."""

    gate_up: Packed
    down: Packed
    activation: Activation = "silu"

    @property
    def size(self) -> int:
        """Numbers between the two products."""
        return int(self.down.struct.k)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Experts:
    """struct: points into the weights."""

    struct: ExpertsStruct
    expert_size: int
    shared: _GatedLayer | None


def filled(found: Library, parts: DecoderParts) -> tuple[ModelStruct, ctypes.Array[LayerStruct]] | None:
    """The model and its layers, or None where one of the parts is not for the C++. They point into the parts."""
    embedding, head, norm = parts.embedding, parts.head, parts.norm
    array = (LayerStruct * len(parts.layers))()
    layers = [_layer(struct, layer, parts) for struct, layer in zip(array, parts.layers, strict=True)]
    known = [layer for layer in layers if layer is not None]
    norms = [norm, *(one for layer in parts.layers for one in _norms(layer) if one is not None)]
    same = all(takes_norm(torch.bfloat16, one) and one.dtype == norm.dtype for one in norms)
    routed = [layer for layer in known if isinstance(layer, _Experts)]
    gated = [layer if isinstance(layer, _GatedLayer) else layer.shared for layer in known]
    activations = {layer.activation for layer in gated if layer is not None} or {"silu"}
    if not known or len(known) < len(layers) or len(activations) > 1 or not same:
        return None
    model = ModelStruct(
        layers=array,
        embedding=embedding.data_ptr() if isinstance(embedding, Tensor) else None,
        table=ctypes.pointer(embedding.struct) if isinstance(embedding, Packed) else None,
        head=ctypes.pointer(head.struct) if isinstance(head, Packed) else None,
        norm=norm.data_ptr(),
        num_layers=len(layers),
        hidden=norm.shape[0],
        heads=parts.heads,
        kv_heads=parts.kv_heads,
        head_dim=parts.head_dim,
        intermediate=max([layer.size for layer in gated if layer is not None], default=0),
        num_experts=max([layer.struct.count for layer in routed], default=0),
        top_k=max([layer.struct.top_k for layer in routed], default=0),
        expert_size=max([layer.expert_size for layer in routed], default=0),
        eps=parts.eps,
        scale=parts.attention_scale,
        cap=parts.attention_cap,
        embedding_scale=parts.embedding_scale,
        residual_scale=parts.residual_scale,
        logit_scale=parts.logit_scale,
        logit_cap=parts.logit_cap,
        type=structs.TYPES[torch.bfloat16],
        norm_type=structs.TYPES[norm.dtype],
        activation=ACTIVATIONS[activations.pop()],
        amx=found.amx,
        invariant=found.invariant,
    )
    return model, array


def _layer(struct: LayerStruct, layer: LayerParts, parts: DecoderParts) -> _GatedLayer | _Experts | None:
    """The second half of one that was filled, or None."""
    qkv, output = layer.qkv, layer.output
    block = layer.feed_forward
    behind = _experts(block) if isinstance(block, SparseMoeBlock) else _gated_layer(block)
    if not isinstance(qkv, Packed) or not isinstance(output, Packed) or behind is None:
        return None
    angles = parts.local_angles if layer.is_local else parts.angles
    pointers = [None if one is None else one.data_ptr() for one in _norms(layer)]
    struct.attention_norm, struct.qk_norm, struct.attention_outer_norm, struct.mlp_norm, struct.mlp_outer_norm = (
        pointers
    )
    struct.qkv, struct.output = _pointer(qkv), _pointer(output)
    if isinstance(behind, _Experts):
        struct.experts = ctypes.pointer(behind.struct)
    else:
        struct.gate_up, struct.down = _pointer(behind.gate_up), _pointer(behind.down)
    struct.cos, struct.sin = (one.data_ptr() for one in angles)
    struct.window, struct.chunk = layer.attention.window, layer.attention.chunk
    return behind


def _norms(layer: LayerParts) -> tuple[Tensor | None, ...]:
    return layer.attention_norm, layer.qk_norm, layer.outer_norm, layer.mlp_norm, layer.mlp_outer_norm


def _gated_layer(feed_forward: Callable[[Tensor], Tensor] | None) -> _GatedLayer | None:
    if not isinstance(feed_forward, FeedForward) or not isinstance(feed_forward.down, Packed):
        return None
    gate_up, down = feed_forward.gate_up, feed_forward.down
    if isinstance(gate_up, Packed) and gate_up.struct.gated:
        return _GatedLayer(gate_up=gate_up, down=down)
    if isinstance(gate_up, GatedProduct) and isinstance(gate_up.product, Packed) and gate_up.activation in ACTIVATIONS:
        return _GatedLayer(gate_up=gate_up.product, down=down, activation=gate_up.activation)
    return None


def _experts(block: SparseMoeBlock) -> _Experts | None:
    """Those that a softmax in the model's type chooses, with silu in their gates."""
    routed, shared, gate = block.routed, _gated_layer(block.shared), block.shared_gate
    if not isinstance(routed, GroupedExperts) or not isinstance(routed.router, Packed):
        return None
    routing = routed.routing
    if routing.groups > 1 or routing.by_itself or routing.scaled_inputs or routed.bias is not None:
        return None
    if (block.shared is not None and shared is None) or not isinstance(gate, Packed | None):
        return None
    gate_ups, downs = _all_packed(routed.gate_up), _all_packed(routed.down)
    if gate_ups is None or downs is None or not all(one.struct.gated for one in gate_ups):
        return None
    struct = ExpertsStruct(
        router=_pointer(routed.router),
        gate_up=_pointers(gate_ups),
        down=_pointers(downs),
        shared_gate_up=None if shared is None else _pointer(shared.gate_up),
        shared_down=None if shared is None else _pointer(shared.down),
        shared_gate=None if gate is None else _pointer(gate),
        count=len(downs),
        top_k=routing.top_k,
        scale=block.scale,
        renormalised=routing.renormalised,
    )
    return _Experts(struct=struct, expert_size=int(downs[0].struct.k), shared=shared)


def _all_packed(products: Sequence[Linear]) -> list[Packed] | None:
    found = [product for product in products if isinstance(product, Packed)]
    return found if len(found) == len(products) else None


def _pointer(weight: Packed) -> "ctypes._Pointer[LinearStruct]":
    return ctypes.pointer(weight.struct)


def _pointers(weights: Sequence[Packed]) -> "ctypes.Array[ctypes._Pointer[LinearStruct]]":
    return (ctypes.POINTER(LinearStruct) * len(weights))(*(_pointer(weight) for weight in weights))
