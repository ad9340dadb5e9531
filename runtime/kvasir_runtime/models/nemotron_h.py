"""Nemotron-H and Nemotron 3: mixers of Mamba-2 and of attention without positions, some with a feed-forward layer
behind them, of experts in the latter.
"""

from dataclasses import replace
from typing import Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.layer_specs import ExpertsSpec
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec, whole
from kvasir_runtime.models.mamba_hybrids import mamba_places, state_spec
from kvasir_runtime.models.moe import deepseek_experts, expert_places

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
            " each; not two feed-forward layers one after the other"
        )
    if config.bare_layers and max(config.bare_layers) >= config.num_hidden_layers:
        raise ModelError(f"config.json: bare_layers names more layers than there are, {config.num_hidden_layers}")
    experts, rope = _experts(config), RopeSpec(kind="none")
    made = decoder_spec(config, "nemotron_h", mlp_bias=config.mlp_bias, activation="relu2", rope=rope, experts=experts)
    made = replace(made, gated_mlp=False, bare=frozenset(config.bare_layers))
    has_states = any(attention.kind == "state" for attention in made.attentions)
    return replace(made, state=state_spec(config)) if has_states else made


def _experts(config: ModelConfig) -> ExpertsSpec | None:
    """Raises ModelError for what no layer of experts can be built from."""
    if not config.n_routed_experts:
        return None
    if config.mlp_bias:
        raise ModelError("config.json: mlp_bias True of Nemotron 3 is not supported; expected False")
    shared, dense = config.shared_expert_intermediate_size, config.mlp_only_layers or ()
    made = deepseek_experts(config, "Nemotron 3", grouped=True, sigmoid=True)
    layers = tuple(layer not in dense for layer in range(config.num_hidden_layers))
    return replace(
        made, layers=layers, shared_size=shared or 0, activation="relu2", latent_size=config.moe_latent_size or 0
    )


def _places(spec: DecoderSpec) -> dict[str, Place]:
    """Under the numbers of a checkpoint, which counts feed-forward layers as well."""
    numbers, number = list[int](), 0
    for layer in range(spec.num_layers):
        numbers.append(number)
        number += 1 if layer in spec.bare else 2
    places = mamba_places(spec, _NAMES, "mixer.")
    names = ("up_proj", "down_proj")
    places |= expert_places(spec, block="mixer", names=names, layer_name=_LAYER + _BEHIND, shared="shared_experts")
    for layer in range(spec.num_layers):
        if (experts := spec.experts_of(layer)) is not None and experts.latent_size:
            theirs, ours, sizes = (
                _LAYER.format(layer) + _BEHIND,
                f"layers.{layer}.",
                (experts.latent_size, spec.hidden_size),
            )
            places[theirs + "mixer.fc1_latent_proj.weight"] = whole(ours + "latent_in.weight", *sizes)
            places[theirs + "mixer.fc2_latent_proj.weight"] = whole(ours + "latent_out.weight", *reversed(sizes))
    return {_numbered(name, numbers): place for name, place in places.items()}


def _numbered(name: str, numbers: list[int]) -> str:
    before = _LAYER.removesuffix("{}.")
    if not name.startswith(before):
        return name
    layer, _, part = name.removeprefix(before).partition(".")
    number = numbers[int(layer)] + part.startswith(_BEHIND)
    return f"{before}{number}.{part.removeprefix(_BEHIND)}"


NEMOTRON_H = Family(
    architecture="NemotronHForCausalLM",
    models="Nemotron-H 8B to 56B, Nemotron Nano 2, Nemotron 3",
    experts=(
        "of Nemotron 3 Nano 6 of 128 without a gate and a shared one, as of GLM-4.5, behind layers most of "
        "which have [a state](#layers-with-a-state); models before Nemotron 3 have none"
    ),
    spec=_spec,
    places=_places,
    unused=("mtp.",),
)
