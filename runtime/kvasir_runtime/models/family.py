"""What a family of models declares, and the defaults that most of them share.

A family is data: which architecture names it answers to, what its decoder is made of, and under which names a
checkpoint stores the tensors. `registry` lists them; `weights` reads the names; `layers.decoder` builds from the spec.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from kvasir_api import layer_types
from kvasir_api.cache_groups import LayerAttention
from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import Activation, DecoderSpec, ExpertsSpec, Head, RopeSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.rope import rope_spec

GENERATES, CLASSIFIES, HEADLESS = "ForCausalLM", "ForSequenceClassification", "Model"
_HEADS: Final[tuple[tuple[str, Head], ...]] = ((GENERATES, "vocabulary"), (CLASSIFIES, "labels"), (HEADLESS, "none"))

_GELU: Final = "gelu_pytorch_tanh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one tensor of a checkpoint goes: rows first_row.. of one of ours, which merges a group of them.

    head_order: of the rows of each head, as `DecoderSpec.head_order` says it; () where they stay as they are.
    """

    tensor: str
    first_row: int
    shape: tuple[int, ...]
    head_order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """architecture: as in `architectures` of config.json, of the model that generates. spec, places: pure functions.

    with_images: the architecture of checkpoints of which this is the text part.
    """

    architecture: str
    spec: Callable[[ModelConfig], DecoderSpec]
    places: Callable[[DecoderSpec], dict[str, Place]]
    with_images: str = ""

    @property
    def architectures(self) -> tuple[str, ...]:
        """All that share its decoder: with a head over the vocabulary, with a classification head, and without one."""
        stem = self.architecture.removesuffix(GENERATES)
        text = (self.architecture, stem + CLASSIFIES, stem + HEADLESS)
        return (*text, self.with_images) if self.with_images else text


def decoder_spec(
    config: ModelConfig,
    family: str,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    experts: ExpertsSpec | None = None,
    activation: Activation = "silu",
    rope: RopeSpec | None = None,
    tied: bool = False,
) -> DecoderSpec:
    """The spec of a decoder whose sizes stand in its config under the usual names.

    family: its model_type, by which `kvasir_api.layer_types` knows what each layer sees.
    activation: the only one that the family has. rope: where it is not at the usual place. tied: what a config means
    that does not say. Raises ModelError for another activation and for layers of an
    unknown type.
    """
    if activation == "silu" and config.hidden_act not in ("silu", "swish"):
        raise ModelError(f"config.json: hidden_act {config.hidden_act} is not supported; expected silu")
    if activation == "gelu" and config.hidden_activation not in (_GELU, None):
        raise ModelError(
            f"config.json: hidden_activation {config.hidden_activation} is not supported; expected {_GELU}"
        )
    return DecoderSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.key_value_heads,
        head_dim=config.width_of_head,
        intermediate_size=config.intermediate_size,
        attentions=_attentions(config, family),
        rope=rope or rope_spec(config),
        norm_eps=config.rms_norm_eps,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        tied_embeddings=tied if config.tie_word_embeddings is None else config.tie_word_embeddings,
        head=(head := _head(config)),
        num_labels=config.labels if head == "labels" else 0,
        experts=experts,
        activation=activation,
    )


def _attentions(config: ModelConfig, family: str) -> tuple[LayerAttention, ...]:
    try:
        return layer_types.attentions(
            family,
            config.num_hidden_layers,
            sliding_window=config.sliding_window,
            use_sliding_window=config.use_sliding_window,
            max_window_layers=config.max_window_layers,
            layer_types=config.layer_types,
            sliding_window_pattern=config.sliding_window_pattern,
            full_attention_interval=config.full_attention_interval,
        )
    except ValueError as error:
        raise ModelError(str(error)) from error


def _head(config: ModelConfig) -> Head:
    """Which end of the family's models a config names; the one that generates where it names several."""
    for suffix, head in _HEADS:
        if any(name.endswith(suffix) for name in config.architectures):
            return head
    return "vocabulary"


def usual_places(spec: DecoderSpec) -> dict[str, Place]:
    """Names that Llama's checkpoints introduced and most families kept; q, k, v and gate, up are merged.

    No experts, and of layers with a state or latent attention what others have too.
    """
    hidden, inner = spec.hidden_size, spec.intermediate_size
    places = {"model.embed_tokens.weight": whole("embedding", spec.vocab_size, hidden)}
    for layer in range(spec.num_layers):
        theirs, ours = f"model.layers.{layer}.", f"layers.{layer}."
        mlp = theirs + "mlp."
        places[theirs + "input_layernorm.weight"] = whole(ours + "attention_norm", hidden)
        places[theirs + "post_attention_layernorm.weight"] = whole(ours + "mlp_norm", hidden)
        if spec.attentions[layer].kind not in ("state", "latent"):
            places |= _attention_places(spec, theirs + "self_attn.", ours)
        if spec.experts_of(layer) is not None:
            continue
        gate_up = ((mlp + "gate_proj", inner), (mlp + "up_proj", inner))
        places |= merged(ours + "gate_up", gate_up, hidden, bias=spec.mlp_bias)
        places |= merged(ours + "down", ((mlp + "down_proj", hidden),), inner, bias=spec.mlp_bias)
    places["model.norm.weight"] = whole("norm", hidden)
    if spec.head_rows:
        name = "score.weight" if spec.head == "labels" else "lm_head.weight"
        places[name] = whole("head.weight", spec.head_rows, hidden)
    return places


def _attention_places(spec: DecoderSpec, theirs: str, ours: str) -> dict[str, Place]:
    """Of one layer with queries, keys and values; rows of what rotary embedding turns come in the kernels' order."""
    hidden, kv = spec.hidden_size, spec.kv_dim
    qkv = ((theirs + "q_proj", spec.query_rows), (theirs + "k_proj", kv), (theirs + "v_proj", kv))
    places = merged(ours + "qkv", qkv, hidden, bias=spec.qkv_bias)
    if spec.qk_norm:
        places[theirs + "q_norm.weight"] = whole(ours + "query_norm", spec.head_dim)
        places[theirs + "k_norm.weight"] = whole(ours + "key_norm", spec.head_dim)
    order, orders = spec.head_order, dict[str, tuple[int, ...]]()
    if order:
        gate = range(spec.head_dim, spec.query_rows // spec.num_heads)  # behind the queries of each head
        orders = {"q_proj": (*order, *gate), "k_proj": order, "q_norm": order, "k_norm": order}
    places = {name: replace(place, head_order=orders.get(name.split(".")[-2], ())) for name, place in places.items()}
    return places | merged(ours + "output", ((theirs + "o_proj", hidden),), spec.query_dim, bias=spec.output_bias)


def whole(tensor: str, *shape: int) -> Place:
    """The place of what fills one of our tensors alone."""
    return Place(tensor=tensor, first_row=0, shape=shape)


def merged(tensor: str, parts: tuple[tuple[str, int], ...], columns: int, *, bias: bool = False) -> dict[str, Place]:
    """Places of a group of linear layers that are stacked into one, with or without biases."""
    places, first_row = dict[str, Place](), 0
    for name, rows in parts:
        places[name + ".weight"] = Place(tensor=tensor + ".weight", first_row=first_row, shape=(rows, columns))
        if bias:
            places[name + ".bias"] = Place(tensor=tensor + ".bias", first_row=first_row, shape=(rows,))
        first_row += rows
    return places
