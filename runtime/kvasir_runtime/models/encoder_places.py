"""Where the tensors of an encoder lie in a checkpoint, beside those that it has in common with decoders.

Called by the families of encoders. Of layers whose norms are behind what they add, the norm behind one layer is ours
before the next, and that of the embeddings is before the first.
"""

from dataclasses import dataclass, replace

from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import CLASSIFIES, Place, TensorNames, merged, usual_places, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderNames:
    """layers: those of the layers; its attention_norm is the norm behind a layer, where that is where norms are.

    norm: of the embeddings. pooler, pooler_norm, labels: of a classification head.
    """

    layers: TensorNames
    norm: str = "embeddings.LayerNorm"
    positions: str = "embeddings.position_embeddings"
    types: str = "embeddings.token_type_embeddings"
    relative_bias: str = "encoder.relative_attention_bias"
    pooler: str = "classifier.dense"
    pooler_norm: str = ""
    labels: str = "classifier.out_proj"


def with_head(spec: DecoderSpec, config: ModelConfig) -> DecoderSpec:
    """The spec with the classification head of a config, or without a head."""
    labels = config.labels if any(name.endswith(CLASSIFIES) for name in config.architectures) else 0
    return replace(spec, head="labels" if labels else "none", num_labels=labels)


def encoder_places(spec: DecoderSpec, names: EncoderNames) -> dict[str, Place]:
    """Of all tensors of an encoder."""
    headless = replace(spec, head="none", num_labels=0)
    places = usual_places(headless, names.layers)
    own, hidden = spec.encoder, spec.hidden_size
    assert own is not None
    if own.post_norms:
        places = {name: replace(place, tensor=_next_norm(place.tensor, spec)) for name, place in places.items()}
    places |= _norm(spec, names.norm, "layers.0.attention_norm")
    for table, name, shape in (
        ("positions", names.positions, (own.positions, hidden)),
        ("types", names.types, (own.types, hidden)),
        ("relative_bias", names.relative_bias, (own.relative_buckets, spec.num_heads)),
    ):
        if shape[0]:
            places[f"{name}.weight"] = whole(table, *shape)
    if spec.head == "labels":
        places |= merged("pooler", ((names.pooler, hidden),), hidden, bias=own.pooler_bias)
        places |= _norm(spec, names.pooler_norm, "pooler_norm") if own.pooler_norm else {}
        places |= merged("head", ((names.labels, spec.num_labels),), hidden, bias=own.head_bias)
    return places


def _next_norm(tensor: str, spec: DecoderSpec) -> str:
    """Of the norm behind a layer, the one of ours that it is."""
    if ".attention_norm" not in tensor:
        return tensor
    _, layer, name = tensor.split(".", 2)
    if int(layer) == spec.num_layers - 1:
        return name.replace("attention_norm", "norm")
    return f"layers.{int(layer) + 1}.{name}"


def _norm(spec: DecoderSpec, theirs: str, ours: str) -> dict[str, Place]:
    places = {f"{theirs}.weight": whole(ours, spec.hidden_size)}
    return places | ({f"{theirs}.bias": whole(f"{ours}.bias", spec.hidden_size)} if spec.norm_bias else {})
