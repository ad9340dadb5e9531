"""Mamba-2: every layer has a state, and nothing else. `kvasir_api.mamba2` gives its fields the names of hybrids."""

from dataclasses import replace
from functools import partial
from typing import Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, TensorNames, decoder_spec
from kvasir_runtime.models.mamba_hybrids import expanded_state, mamba_places

_NAMES: Final = TensorNames(
    embedding="backbone.embeddings", layer="backbone.layers.{}.", attention_norm="norm", norm="backbone.norm_f"
)


def _spec(config: ModelConfig) -> DecoderSpec:
    made = decoder_spec(config, "mamba2", rope=RopeSpec(kind="none"))
    if any(attention.kind != "state" for attention in made.attentions):
        raise ModelError("config.json: layer_types of Mamba-2 names layers that attend; expected those with a state")
    return replace(made, bare=frozenset(range(made.num_layers)), state=expanded_state(config))


MAMBA2 = Family(
    architecture="Mamba2ForCausalLM",
    models="Mamba-2 130M to 2.7B, Codestral Mamba 7B",
    spec=_spec,
    places=partial(mamba_places, names=_NAMES, mixer="mixer."),
)
