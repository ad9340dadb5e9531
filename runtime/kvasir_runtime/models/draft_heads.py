"""Heads that draft for a decoder from its hidden states, as data: what they are made of, and what checkpoints call it.

EAGLE-3 (Li et al. 2025) has a checkpoint of its own, with the names of its authors' and SpecForge's code. Layers that
predict the token after the next (MTP, DeepSeek-AI 2024) are in the decoder's checkpoint.
"""

from dataclasses import replace
from typing import Final

from kvasir_api import draft_head_shape
from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.draft_head_spec import DraftHeadSpec
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec, usual_places, whole
from kvasir_runtime.models.mtp_names import MtpNames

_NAMES: Final = TensorNames(layer="midlayer.")
_MOST_MTP_LAYERS: Final = 64
"""What a config says beyond is no number of layers."""
_LEAST_LAYERS: Final = 7
"""Of a decoder, from which on the second, the middle and the fourth last are three."""


def is_eagle3(config: ModelConfig) -> bool:
    """Whether a checkpoint is a head of EAGLE-3."""
    return draft_head_shape.is_eagle3(config.architectures, config.draft_vocab_size)


def eagle3(config: ModelConfig, target: DecoderSpec, *, own_embedding: bool) -> DraftHeadSpec:
    """The head for a decoder. own_embedding: whether the checkpoint has a table. Raises ModelError."""
    if config.num_hidden_layers != 1:
        raise ModelError(f"config.json: a head of EAGLE-3 has 1 layer, and not {config.num_hidden_layers}")
    if config.hidden_size != target.hidden_size and not own_embedding:
        raise ModelError(
            f"config.json: hidden_size {config.hidden_size} is not the {target.hidden_size} of the model's embeddings,"
            " and the head has none of its own"
        )
    bias = config.attention_bias
    layer = decoder_spec(config, "llama", qkv_bias=bias, output_bias=bias, mlp_bias=config.mlp_bias)
    layer = replace(
        layer,
        tied_embeddings=False,
        head="labels",
        num_labels=config.draft_vocab_size or config.vocab_size,
        doubled_input=True,
    )
    return DraftHeadSpec(
        kind="eagle3",
        layer=layer,
        layers=_layers_read(config, target.num_layers),
        feature_size=target.hidden_size,
        own_embedding=own_embedding,
    )


def eagle3_places(spec: DraftHeadSpec) -> dict[str, Place]:
    """Where each tensor of a head's checkpoint goes, but for those that are no weights."""
    hidden, shapes = spec.layer.hidden_size, spec.parameter_shapes
    places = usual_places(spec.layer, _NAMES)
    places["lm_head.weight"] = places.pop("score.weight")
    if not spec.own_embedding:
        del places["model.embed_tokens.weight"]
    return places | {
        "midlayer.hidden_norm.weight": whole("hidden_norm", hidden),
        "fc.weight": whole("fuse.weight", *shapes["fuse.weight"]),
    }


def mtp(target: DecoderSpec, names: MtpNames) -> DraftHeadSpec | None:
    """The first layer behind those of a decoder, one more of its last kind that attends. None where none attends."""
    attention = next((one for one in reversed(target.attentions) if one.kind != "state"), None)
    if attention is None:
        return None
    experts = None if target.experts is None else replace(target.experts, layers=target.experts.layers[-1:])
    layer = replace(target, attentions=(attention,), experts=experts, head="none", tied_embeddings=False, state=None)
    return DraftHeadSpec(
        kind="mtp",
        layer=layer,
        layers=(target.num_layers,),
        feature_size=target.hidden_size,
        reads_normed=names.reads_normed,
    )


def mtp_places(family: Family, names: MtpNames, spec: DraftHeadSpec) -> dict[str, Place]:
    """Where each tensor of that layer goes, by its name in the decoder's checkpoint."""
    hidden, first = spec.layer.hidden_size, _first(names, spec)
    norm = names.norm.format(first)
    places = {
        name.replace("model.norm.", norm + ".").replace("model.layers.0.", names.layer.format(first)): place
        for name, place in family.places(spec.layer).items()
        if place.tensor != "embedding"
    }
    return places | {
        names.embedding_norm.format(first) + ".weight": whole("embedding_norm", hidden),
        names.hidden_norm.format(first) + ".weight": whole("hidden_norm", hidden),
        names.fuse.format(first) + ".weight": whole("fuse.weight", hidden, 2 * hidden),
    }


def mtp_unused(names: MtpNames, spec: DraftHeadSpec, num_layers: int) -> tuple[str, ...]:
    """What names of tensors begin with that are copies of the decoder's, or of further such layers, of num_layers."""
    first = _first(names, spec)
    further = [names.layer.format(first + place) for place in range(1, min(num_layers, _MOST_MTP_LAYERS))]
    return (*(names.layer.format(first) + name for name in names.copies), *further)


def _first(names: MtpNames, spec: DraftHeadSpec) -> int:
    """The index of the layer in its names."""
    return spec.layers[0] if names.first is None else names.first


def _layers_read(config: ModelConfig, num_layers: int) -> tuple[int, ...]:
    """The layers whose input the head reads: configs name those whose output it is."""
    named = config.eagle_config.eagle_aux_hidden_state_layer_ids if config.eagle_config is not None else None
    if named is not None:
        if not named or max(named) + 1 >= num_layers:
            raise ModelError(
                f"config.json: eagle_aux_hidden_state_layer_ids {list(named)} must name layers before the last of the"
                f" model's {num_layers}"
            )
        return tuple(one + 1 for one in named)
    if num_layers < _LEAST_LAYERS:
        raise ModelError(
            f"config.json: eagle_aux_hidden_state_layer_ids is missing, and the model has {num_layers} layers: without"
            f" it a head reads three of at least {_LEAST_LAYERS}"
        )
    return (2, num_layers // 2, num_layers - 3)
