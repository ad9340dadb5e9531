"""EXAONE 4: norms of heads and behind layers alone; beside layers with a window the others do not turn."""

from dataclasses import replace
from typing import Final

from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec, usual_places

_NAMES: Final = TensorNames(
    attention_outer_norm="post_attention_layernorm", mlp_outer_norm="post_feedforward_layernorm"
)


def _spec(config: ModelConfig) -> DecoderSpec:
    made = replace(decoder_spec(config, "exaone4", qk_norm=True), pre_norms=False, outer_norms=True)
    return made if config.sliding_window is None else replace(made, rope=RopeSpec(kind="none"), local_rope=made.rope)


def _places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec, _NAMES)


EXAONE4 = Family(architecture="Exaone4ForCausalLM", models="EXAONE 4.0 1.2B and 32B", spec=_spec, places=_places)
