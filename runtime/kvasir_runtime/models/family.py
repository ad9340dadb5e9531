"""What a family of models declares, and the defaults that most of them share.

A family is data: which architecture names it answers to, what its decoder is made of, and under which names a
checkpoint stores the tensors. `registry` lists them; `weights` reads the names; `layers.decoder` builds from the spec.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvasir_api import layer_types
from kvasir_api.cache_groups import LayerAttention, keeps_nothing
from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.encoder_spec import EncoderSpec
from kvasir_runtime.layers.layer_specs import ExpertsSpec
from kvasir_runtime.layers.spec import Activation, DecoderSpec, Head, MlpBias, RopeSpec, layer_norms
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.mtp_names import MtpNames
from kvasir_runtime.models.rope import rope_spec

GENERATES, CLASSIFIES, HEADLESS = "ForCausalLM", "ForSequenceClassification", "Model"
GUESSES: Final = "ForMaskedLM"
"""An encoder with a head that guesses words that are left out; it is served without."""
_HEADS: Final[tuple[tuple[str, Head], ...]] = ((GENERATES, "vocabulary"), (CLASSIFIES, "labels"), (HEADLESS, "none"))

GELU: Final = "gelu_pytorch_tanh"
_ACTIVATIONS: Final[Mapping[Activation, tuple[str, ...]]] = {
    "silu": ("silu", "swish"),
    "gelu": (GELU,),
    "gelu_erf": ("gelu",),
    "relu2": ("relu2",),
    "xielu": ("xielu",),
}


Extent = tuple[int, int]
"""First and number of some rows or columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one tensor of a checkpoint goes: rows first_row.. of one of ours, which merges a group of them.

    head_order: of the rows of each head, as `DecoderSpec.head_order` says it, or of all rows; () where they stay as
    they are.
    shape: of the checkpoint's tensor. sections: rows of the parts that lie one below another in it, in head_order, each
    of which ranks divide by itself; () for one. rows, columns: first and number of those that are taken, of each
    section, and after they came in head_order; None takes all, (0, 0) none. normalised: rows are scaled to length 1.
    """

    tensor: str
    first_row: int
    shape: tuple[int, ...]
    head_order: tuple[int, ...] = ()
    sections: tuple[int, ...] = ()
    rows: tuple[Extent, ...] | None = None
    columns: Extent | None = None
    normalised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """What a family's checkpoints call the tensors of a dense decoder; Llama's names, which most families kept.

    layer: what those of a layer begin with, as a format of its index. qkv: queries, keys and values in one matrix, ""
    where they are three; by_group: its rows are those of the query heads that share a key, that key, its value, and so
    on. gate_up: gate and up in one, gate first, or behind with gate_behind; "" where they are two.
    """

    embedding: str = "model.embed_tokens"
    embedding_norm: str = ""
    layer: str = "model.layers.{}."
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    qkv: str = ""
    by_group: bool = False
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    output: str = "self_attn.o_proj"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    gate_up: str = ""
    gate_behind: bool = False
    down: str = "mlp.down_proj"
    attention_norm: str = "input_layernorm"
    attention_outer_norm: str = ""
    mlp_norm: str = "post_attention_layernorm"
    mlp_outer_norm: str = ""
    norm: str = "model.norm"
    head: str = "lm_head"


LLAMA_NAMES: Final = TensorNames()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """architecture: as in `architectures` of config.json, of the model that generates, or of an encoder without a head.

    models, experts: some that people run, and of a mixture of experts how many of them a token goes through, and how
    they are chosen, for the documentation. spec, places: pure functions. with_images: the architecture of
    checkpoints of which this is the text part. drafts: of the layer behind the decoder's own that can be used, if a
    checkpoint has one (`draft_heads.mtp`); None where none can. also: how else it is spelled. unused: what names of
    tensors begin with that no head of ours has.
    """

    architecture: str
    models: str
    spec: Callable[[ModelConfig], DecoderSpec]
    places: Callable[[DecoderSpec], dict[str, Place]]
    experts: str = ""
    with_images: str = ""
    drafts: MtpNames | None = None
    also: str = ""
    unused: tuple[str, ...] = ()

    @property
    def is_encoder(self) -> bool:
        """Whether tokens see what comes behind them too, so that none can be generated."""
        return self.architecture.endswith(HEADLESS)

    @property
    def architectures(self) -> tuple[str, ...]:
        """All that share its layers: with a head over the vocabulary, with a classification head, and without one."""
        own, other = (HEADLESS, GUESSES) if self.is_encoder else (GENERATES, HEADLESS)
        stems = [name.removesuffix(own) for name in (self.architecture, self.also) if name]
        text = tuple(stem + ending for stem in stems for ending in (own, CLASSIFIES, other))
        return (*text, self.with_images) if self.with_images else text


def decoder_spec(
    config: ModelConfig,
    family: str,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: MlpBias = False,
    qk_norm: bool = False,
    experts: ExpertsSpec | None = None,
    activation: Activation = "silu",
    rope: RopeSpec | None = None,
    tied: bool = False,
) -> DecoderSpec:
    """The spec of a decoder whose sizes stand in its config under the usual names.

    family: its model_type, by which `kvasir_api.layer_types` knows what each layer sees.
    activation: the only one that the family has. rope: where it is not at the usual place. tied: what a config means
    that does not say. Where tokens see what comes behind them too, it has no head. Raises ModelError for another
    activation, for layers of an unknown type, and for what such an encoder cannot have.
    """
    given, known = config.hidden_act, _ACTIVATIONS[activation]
    if activation == "gelu":
        given = config.hidden_activation or GELU
    if given not in known:
        field = "hidden_activation" if activation == "gelu" else "hidden_act"
        raise ModelError(f"config.json: {field} {given} is not supported; expected {known[0]}")
    attentions, head = _attentions(config, family), _head(config)
    both_ways = keeps_nothing(attentions) and family not in layer_types.ENCODERS
    if both_ways and (head == "labels" or config.attn_logit_softcapping):
        what = "a classification head" if head == "labels" else "attn_logit_softcapping"
        raise ModelError(f"config.json: {what} is not supported beside attention in both directions")
    return DecoderSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.key_value_heads,
        head_dim=config.width_of_head,
        intermediate_size=config.intermediate_size,
        attentions=attentions,
        rope=rope or rope_spec(config),
        norm_eps=config.rms_norm_eps,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        tied_embeddings=tied if config.tie_word_embeddings is None else config.tie_word_embeddings,
        head="none" if both_ways else head,
        num_labels=config.labels if head == "labels" else 0,
        experts=experts,
        activation=activation,
        encoder=EncoderSpec(post_norms=False, normed_embeddings=False) if both_ways else None,
    )


def _attentions(config: ModelConfig, family: str) -> tuple[LayerAttention, ...]:
    try:
        given = {field: getattr(config, field) for field in layer_types.FIELDS}
        return layer_types.attentions(family, config.num_hidden_layers, **given)
    except ValueError as error:
        raise ModelError(str(error)) from error


def _head(config: ModelConfig) -> Head:
    """Which end of the family's models a config names; the one that generates where it names several."""
    for suffix, head in _HEADS:
        if any(name.endswith(suffix) for name in config.architectures):
            return head
    return "vocabulary"


def usual_places(spec: DecoderSpec, names: TensorNames = LLAMA_NAMES) -> dict[str, Place]:
    """Of a family whose tensors have these names; q, k, v and gate, up are merged.

    No experts, and of layers with a state or latent attention what others have too.
    """
    hidden = spec.hidden_size
    places = {f"{names.embedding}.weight": whole("embedding", spec.vocab_rows, hidden)}
    if spec.embedding_norm:
        places |= _norm_places(spec, names.embedding_norm, "embedding_norm")
    for layer in range(spec.num_layers):
        theirs, ours = names.layer.format(layer), f"layers.{layer}."
        for name in layer_norms(spec, layer):
            places |= _norm_places(spec, theirs + getattr(names, name), ours + name)
        if spec.attentions[layer].kind not in ("state", "latent"):
            places |= _attention_places(spec, names, theirs, ours)
        if spec.experts_of(layer) is None and layer not in spec.bare:
            places |= _feed_forward_places(spec, names, theirs, ours)
    places |= _norm_places(spec, names.norm, "norm")
    if spec.head_rows:
        name = "score" if spec.head == "labels" else names.head
        places |= merged("head", ((name, spec.head_rows),), hidden, bias=spec.head_bias)
        places[f"{name}.weight"] = replace(places[f"{name}.weight"], normalised=spec.normalised_head)
    return places


def _norm_places(spec: DecoderSpec, theirs: str, ours: str, *shape: int) -> dict[str, Place]:
    """shape: of what is normalised, where that is not the hidden state."""
    shape = shape or (spec.hidden_size,)
    places = {f"{theirs}.weight": whole(ours, *shape)}
    return places | ({f"{theirs}.bias": whole(f"{ours}.bias", *shape)} if spec.norm_bias else {})


def _feed_forward_places(spec: DecoderSpec, names: TensorNames, theirs: str, ours: str) -> dict[str, Place]:
    hidden, inner, bias = spec.hidden_size, spec.intermediate_size, spec.mlp_bias is True
    if not spec.gated_mlp:
        first = merged(ours + "up", ((theirs + names.up, inner),), hidden, bias=bias)
    elif names.gate_up:
        both = merged(ours + "gate_up", ((theirs + names.gate_up, 2 * inner),), hidden, bias=bias)
        order = (*range(inner, 2 * inner), *range(inner)) if names.gate_behind else ()
        first = {name: replace(place, head_order=order, sections=(inner, inner)) for name, place in both.items()}
    else:
        parts = ((theirs + names.gate, inner), (theirs + names.up, inner))
        first = merged(ours + "gate_up", parts, hidden, bias=bias)
    return first | merged(ours + "down", ((theirs + names.down, hidden),), inner, bias=bool(spec.mlp_bias))


def _attention_places(spec: DecoderSpec, names: TensorNames, theirs: str, ours: str) -> dict[str, Place]:
    """Of one layer with queries, keys and values; rows of what rotary embedding turns come in the kernels' order."""
    hidden, columns, kv, order = spec.hidden_size, spec.qkv_columns, spec.kv_dim, spec.head_order
    if names.qkv:
        places = merged(ours + "qkv", ((theirs + names.qkv, spec.query_rows + 2 * kv),), columns, bias=spec.qkv_bias)
        rows, sections = _merged_order(spec, by_group=names.by_group), (spec.query_rows, kv, kv)
        places = {name: replace(place, head_order=rows, sections=sections) for name, place in places.items()}
    else:
        query, key, value = (theirs + name for name in (names.query, names.key, names.value))
        parts = ((query, spec.query_rows), (key, kv), (value, kv))
        places = merged(ours + "qkv", parts, columns, bias=spec.qkv_bias)
        gate = range(spec.head_dim, spec.query_rows // spec.num_heads)  # behind the queries of each head
        orders = {query: (*order, *gate), key: order} if order else {}
        places = {
            name: replace(place, head_order=orders.get(name.rpartition(".")[0], ())) for name, place in places.items()
        }
    if spec.qk_norm:
        order = () if spec.own_qk_norm else order  # `norms.of_heads` has those of all heads side by side
        for name, own, shape in zip(
            (names.query_norm, names.key_norm), ("query", "key"), spec.qk_norm_shapes, strict=True
        ):
            of_heads = _norm_places(spec, theirs + name, f"{ours}{own}_norm", *shape)
            places |= {where: replace(place, head_order=order) for where, place in of_heads.items()}
    return places | merged(ours + "output", ((theirs + names.output, hidden),), spec.query_dim, bias=spec.output_bias)


def _merged_order(spec: DecoderSpec, *, by_group: bool) -> tuple[int, ...]:
    """Which row of a checkpoint's matrix of queries, keys and values each of ours is; () where they are the same."""
    dim, groups = spec.head_dim, spec.num_kv_heads
    each = spec.num_heads // groups
    heads = list(range(spec.num_heads + 2 * groups))
    if by_group:
        queries = [group * (each + 2) + head for group in range(groups) for head in range(each)]
        heads = queries + [group * (each + 2) + each + part for part in (0, 1) for group in range(groups)]
    turned, fixed = spec.head_order or range(dim), range(dim)
    values = spec.num_heads + groups
    rows = tuple(head * dim + row for at, head in enumerate(heads) for row in (turned if at < values else fixed))
    return () if rows == tuple(range(len(rows))) else rows


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
