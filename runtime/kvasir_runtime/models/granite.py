"""Granite 3 and 4 (dense): Llama with factors of embeddings, residuals, scores and logits.

Mixtures of Granite 3 have all experts of a matrix in one tensor, and may have a shared one.
"""

from dataclasses import replace
from typing import Final

from kvasir_runtime.layers.layer_specs import ExpertsSpec
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, decoder_spec, usual_places
from kvasir_runtime.models.moe import expert_places, experts_spec, gate_up_places

SHARED: Final = ("shared_mlp.input_linear", "shared_mlp.output_linear")


def _spec(config: ModelConfig) -> DecoderSpec:
    bias = config.attention_bias
    return scaled(config, decoder_spec(config, "granite", qkv_bias=bias, output_bias=bias, mlp_bias=config.mlp_bias))


def scaled(config: ModelConfig, spec: DecoderSpec) -> DecoderSpec:
    """The same with the factors of a config."""
    return replace(
        spec,
        embedding_scale=config.embedding_multiplier or 1.0,
        residual_scale=config.residual_multiplier or 1.0,
        attention_scale=config.attention_multiplier or 1.0,
        logit_scale=1 / (config.logits_scaling or 1.0),
    )


def granite_experts(config: ModelConfig, intermediate_size: int) -> ExpertsSpec:
    """The experts of a mixture; a shared one has no gate of its own. Raises ModelError as `experts_spec`."""
    shared = config.shared_expert_intermediate_size or 0
    made = experts_spec(config, intermediate_size=intermediate_size, renormalised=True, shared_size=shared)
    return replace(made, shared_gate=False)


def granite_expert_places(spec: DecoderSpec) -> dict[str, Place]:
    """Of the experts of all layers."""
    places = expert_places(spec, block="block_sparse_moe", router="router.layer", shared="", stacked=True)
    shared = spec.experts.shared_size if spec.experts else 0
    for layer in range(spec.num_layers if shared else 0):
        gate_up, down = (f"model.layers.{layer}.{name}.weight" for name in SHARED)
        places |= gate_up_places(gate_up, down, f"layers.{layer}.shared.", 0, spec.hidden_size, shared)
    return places


def _mixture(config: ModelConfig) -> DecoderSpec:
    bias, experts = config.attention_bias, granite_experts(config, config.intermediate_size)
    return scaled(config, decoder_spec(config, "granitemoe", qkv_bias=bias, output_bias=bias, experts=experts))


def _mixture_places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec) | granite_expert_places(spec)


GRANITE = Family(architecture="GraniteForCausalLM", models="Granite 3", spec=_spec, places=usual_places)
GRANITE_MOE = Family(
    architecture="GraniteMoeForCausalLM",
    also="GraniteMoeSharedForCausalLM",
    models="Granite 3 1B-A400M and 3B-A800M, also with a shared expert",
    experts="8 of 32 or 40; `GraniteMoeSharedForCausalLM` has a shared one besides",
    spec=_mixture,
    places=_mixture_places,
)
