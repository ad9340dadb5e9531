"""Phi-3, 3.5 and 4 (mini and medium): Llama's layers in merged matrices, with a window in all or none."""

from typing import Final

from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec, usual_places

_NAMES: Final = TensorNames(qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")


def _spec(config: ModelConfig) -> DecoderSpec:
    return decoder_spec(config, "phi3")


def _places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec, _NAMES)


PHI3 = Family(
    architecture="Phi3ForCausalLM", models="Phi-3, Phi-3.5 and Phi-4, mini and medium", spec=_spec, places=_places
)
