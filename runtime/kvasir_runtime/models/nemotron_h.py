"""Nemotron-H: mixers of Mamba-2 and of attention without positions, some with a feed-forward layer behind them."""

from dataclasses import replace
from typing import Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec
from kvasir_runtime.models.mamba_hybrids import mamba_places, state_spec

_LAYER: Final = "backbone.layers.{}."
_BEHIND: Final = "behind."
"""What names of a feed-forward layer begin with until it has the number of a layer of its own."""
_NAMES: Final = TensorNames(
    embedding="backbone.embeddings",
    layer=_LAYER,
    query="mixer.q_proj",
    key="mixer.k_proj",
    value="mixer.v_proj",
    output="mixer.o_proj",
    up=_BEHIND + "mixer.up_proj",
    down=_BEHIND + "mixer.down_proj",
    attention_norm="norm",
    mlp_norm=_BEHIND + "norm",
    norm="backbone.norm_f",
)


def _spec(config: ModelConfig) -> DecoderSpec:
    if config.bare_layers is None:
        raise ModelError(
            "config.json: of Nemotron-H mixers of Mamba-2 and attention are supported, and a feed-forward layer behind"
            " each; not experts, nor two feed-forward layers one after the other"
        )
    if config.bare_layers and max(config.bare_layers) >= config.num_hidden_layers:
        raise ModelError(f"config.json: bare_layers names more layers than there are, {config.num_hidden_layers}")
    made = decoder_spec(config, "nemotron_h", mlp_bias=config.mlp_bias, activation="relu2", rope=RopeSpec(kind="none"))
    made = replace(made, gated_mlp=False, bare=frozenset(config.bare_layers))
    has_states = any(attention.kind == "state" for attention in made.attentions)
    return replace(made, state=state_spec(config)) if has_states else made


def _places(spec: DecoderSpec) -> dict[str, Place]:
    """Under the numbers of a checkpoint, which counts feed-forward layers as well."""
    numbers, number = list[int](), 0
    for layer in range(spec.num_layers):
        numbers.append(number)
        number += 1 if layer in spec.bare else 2
    return {_numbered(name, numbers): place for name, place in mamba_places(spec, _NAMES, "mixer.").items()}


def _numbered(name: str, numbers: list[int]) -> str:
    before = _LAYER.removesuffix("{}.")
    if not name.startswith(before):
        return name
    layer, _, part = name.removeprefix(before).partition(".")
    number = numbers[int(layer)] + part.startswith(_BEHIND)
    return f"{before}{number}.{part.removeprefix(_BEHIND)}"


NEMOTRON_H = Family(
    architecture="NemotronHForCausalLM",
    models="Nemotron-H 8B to 56B, Nemotron Nano 2",
    spec=_spec,
    places=_places,
    unused=("mtp.",),
)
